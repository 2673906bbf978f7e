"""Save what a page measured on a machine, and show it in pages built on other machines."""

import dataclasses
import datetime as dt
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.evidence import Prediction
from ortmeter.files import write_atomically
from ortmeter.machine.environment import Environment, environment
from ortmeter.runtime.providers import Provider
from ortmeter.study.args import Arguments
from ortmeter.study.encoding import Count, MappingValue, encode
from ortmeter.study.rendering import Answer, Shown, fold
from ortmeter.timing import Comparison, Comparisons
from ortmeter.timing.comparison import is_uneven, join_builds
from ortmeter.timing.drift import pace

if TYPE_CHECKING:
    from ortmeter.study.claims import Judged

__all__ = ["Record", "load", "load_records", "record", "replay"]

#: Where the records are, unless a folder is given.
FOLDER_VARIABLE = "ORTMETER_RESULTS"

#: Parameters of every page that change nothing of what it measures.
UNRECORDED = frozenset({"record", "output", "model"})


_VERSION = 1  # incremented when older readers would misread a file
_LONG = 200  # characters of a message that are shown
#: Builds whose samples are kept.
KEPT = 5


@dataclass(frozen=True)
class Record:
    """Measurements of a page on a machine.

    Parameters
    ----------
    page : str
        Name of the page, or ``bench``, the command.
    configuration : mapping of str to str
        Displayed parameters of the page; ``provider`` is the one that ran.
    environment : Environment
        Machine and versions.
    date : datetime
        When it was recorded, in UTC.
    data : mapping of str to object
        Data from which the conclusions are computed, see :func:`record`.
    answer : Answer, optional
        Answer to the title of the page.
    claims : tuple of Prediction
        Other conclusions, as of that date.
    run : int
        Rank of the run of this configuration, from 1; a sweep may repeat it.
    on_cpu : tuple of str
        Sentences about the nodes of CUDA sessions that ran on the CPU, with the reason.
    pace : float, optional
        Seconds of the reference workload: whether the machine was as fast as another day.
    fast : bool
        Whether it was measured in fast mode; such a record is never saved.
    before : tuple of Record
        Other builds of the same, newest first: same machine, parameters and versions. They are not
        part of the file.
    """

    page: str
    configuration: Mapping[str, str]
    environment: Environment
    date: dt.datetime
    data: Mapping[str, Any]
    answer: Answer | None = None
    claims: tuple[Prediction, ...] = ()
    run: int = 1
    on_cpu: tuple[str, ...] = ()
    pace: float | None = None
    fast: bool = False
    before: "tuple[Record, ...]" = ()

    @property
    def machine(self) -> str:
        """Name of the machine, and of its folder."""
        return machine_name(self.environment)

    @property
    def case(self) -> str:
        """What was measured: page, provider and parameters; the name of a file begins with it."""
        text = msgspec.json.encode(dict(self.configuration), order="sorted")
        digest = hashlib.sha256(text).hexdigest()[:8]
        return f"{self.page}--{_slug(self.configuration['provider'])}--{digest}"

    @property
    def file_name(self) -> str:
        """Name of the file: a page recorded again is another build."""
        return f"{self.case}--{self.date:%Y%m%dT%H%M%S}.json"

    def is_build_of(self, other: "Record") -> bool:
        """Whether it measured the same in another build: machine, parameters, versions."""
        conditions = _conditions(self)
        return conditions is not None and conditions == _conditions(other)

    def beside(self, builds: "Iterable[Record]") -> "Record":
        """Return this record, whose ratios have the interval of several builds.

        Parameters
        ----------
        builds : iterable of Record
            Records; those that measured the same before it count.

        Returns
        -------
        Record
            With these builds as ``before``.
        """
        same = [other for other in builds if other.date < self.date and other.is_build_of(self)]
        if not same:
            return self
        before = sorted(same, key=lambda other: other.date, reverse=True)
        kept = [_by_place(build) for build in before]
        join_builds(
            [
                (group, [build[place] for build in kept if place in build])
                for place, group in _by_place(self).items()
            ]
        )
        return dataclasses.replace(self, before=tuple(before))

    @property
    def parameters(self) -> str:
        """The parameters on one line."""
        return ", ".join(f"{name}={label}" for name, label in self.configuration.items())

    def comparisons(self) -> Iterator[tuple[str, Mapping[str, Any], Comparison]]:
        """Iterate over comparisons: keys joined by dots, place ``{"size": 256}``, measurements."""
        yield from _find_comparisons(self.data, ())

    def __str__(self) -> str:
        return f"{self.page} ({self.parameters}) on {self.machine}, {self.date:%Y-%m-%d}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON accepts; :meth:`from_dict` reads them back."""
        fields = {name: getattr(self, name) for name in _File.__struct_fields__}
        fields |= {"date": self.date.isoformat(timespec="seconds"), "data": encode(self.data)}
        fields |= {"environment": self.environment.to_dict()}
        kept: dict[str, Any] = msgspec.to_builtins(_File(**fields))
        return kept

    def to_json(self) -> bytes:
        """Return the content of the file."""
        return msgspec.json.encode(self.to_dict()) + b"\n"

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Record":
        """Build a record from what :meth:`to_dict` returned, or raise ``RecordError``."""
        version = fields.get("schema_version") if isinstance(fields, Mapping) else None
        if version != _VERSION:
            raise RecordError(f"not a record: schema_version is {version!r}. Accepted: {_VERSION}")
        try:
            values = msgspec.structs.asdict(msgspec.convert(fields, _File))
            return cls(**{**values, "data": values["data"].read("data")})
        except Exception as error:  # of any kind: a file may have anything
            raise RecordError(f"not a record: {str(error)[:_LONG]}") from error

    @property
    def origin(self) -> dict[str, str]:
        """Machine, its identity, provider and date, which tells samples that decide nothing."""
        uneven = any(is_uneven([*group.values()]) for _, _, group in self.comparisons())
        return {
            "machine": self.environment.hardware,
            "identity": self.environment.identity,
            "provider": self.configuration["provider"],
            "date": f"{self.date:%Y-%m-%d}" + ", measured before the correction" * uneven,
        }

    def save(
        self, judged: "Judged | None" = None, folder: str | os.PathLike[str] | None = None
    ) -> Path:
        """Write ``<folder>/<machine>/<page>--<provider>--<hash>--<date>.json`` atomically.

        The file has the data, and what was judged. The default folder is the environment variable
        ``ORTMETER_RESULTS``, or ``results``; it is created if needed. The last five builds keep
        their data; the conclusions of older ones go to the folder ``history``.
        """
        root = folder or os.environ.get(FOLDER_VARIABLE) or "results"
        file = Path(root, self.machine, self.file_name)
        answer, claims = (judged.answer, judged.claims) if judged else (None, ())
        concluded = dataclasses.replace(self, answer=answer, claims=claims)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, concluded.to_json())
        dated = sorted(file.parent.glob(f"{self.case}--*T*.json"))
        for old in dated[:-KEPT]:
            load(old).summarize(Path(root))
            old.unlink()
        return file

    def summarize(self, folder: Path) -> Path | None:
        """Write the answer and the claims, without samples, to ``<machine>/history``.

        A page recorded twice on a day keeps its last answer. Returns the file, None if it was so.
        """
        file = folder / self.machine / "history" / f"{self.case}--{self.date:%Y-%m-%d}.json"
        content = dataclasses.replace(self, data={}).to_json()
        if file.exists() and file.read_bytes() == content:
            return None
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, content)
        return file


def record(
    page: str,
    args: Arguments,
    provider: Provider,
    data: Mapping[str, Any],
    *,
    on_cpu: Iterable[str] = (),
) -> Record:
    """Make the record of a page.

    Parameters
    ----------
    page : str
        Name of the page.
    args : Arguments
        Its parameters; ``record`` is ignored.
    provider : Provider
        Execution provider that ran; the parameter may be ``auto``.
    data : mapping of str to object
        Inputs of the conclusions: None, bool, int, float, str, Comparison, Comparisons,
        Measurement, DataFrame (with texts as column names), and mappings, lists or tuples of these.
    on_cpu : iterable of str
        What ran on the CPU though CUDA was asked for, one message each.

    Returns
    -------
    Record
        :meth:`Record.save` writes it.

    Raises
    ------
    InvalidArgumentError
        A part of `data` cannot be written in JSON, or ``record`` is true in fast mode.

    Examples
    --------
    >>> from ortmeter.study.args import get_parsed_args
    >>> from ortmeter.runtime.providers import Provider
    >>> args = get_parsed_args("plot_x", args=[], size=256)
    >>> record("plot_x", args, Provider.parse("cpu"), {"error (ulp)": 0.5}).parameters
    'size=256, provider=cpu'
    """
    if args.fast and dict(args).get("record"):
        raise InvalidArgumentError(
            "fast mode cannot be recorded: its sizes are too small. "
            "Accepted: --record without ORTMETER_FAST"
        )
    encode(data)  # what cannot be kept is refused now, not when it is written
    labels = {name: args.label(name) for name, _ in args if name not in UNRECORDED}
    return Record(
        page=page,
        configuration={**labels, "provider": provider.place},
        environment=environment(),
        date=dt.datetime.now(dt.UTC).replace(microsecond=0),
        data=data,
        on_cpu=tuple(on_cpu),
        pace=pace(),
        fast=args.fast,
    )


def load(file: str | os.PathLike[str]) -> Record:
    """Read and check a file written by :meth:`Record.save`.

    Parameters
    ----------
    file : path
        JSON file.

    Returns
    -------
    Record
        What was recorded.

    Raises
    ------
    RecordError
        The file cannot be read, is not JSON, or does not follow the schema.

    Examples
    --------
    >>> import tempfile
    >>> from ortmeter.study.args import get_parsed_args
    >>> args = get_parsed_args("plot_x", args=[], size=256)
    >>> here = record("plot_x", args, Provider.parse("cpu"), {"error (ulp)": 0.5})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = here.save(folder=folder)
    ...     print(load(file).data)
    {'error (ulp)': 0.5}
    """
    try:
        return Record.from_dict(msgspec.json.decode(Path(file).read_bytes()))
    except RecordError as error:
        raise RecordError(f"{Path(file).name}: {error}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise RecordError(f"{Path(file).name} cannot be read: {error}") from error


def load_records(
    page: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> list[Record]:
    """Read the newest record of a page for each machine and configuration.

    Parameters
    ----------
    page : str, optional
        Name of the page, by default all of them.
    folder : path, optional
        Folder of the records, by default the environment variable ``ORTMETER_RESULTS``. If neither
        is set, the list is empty.

    Returns
    -------
    list of Record
        Sorted by machine, then by parameters. The builds before are in ``before``. If a sweep ran
        a configuration several times, only the last run is returned.

    Raises
    ------
    RecordError
        A file is not a record, or its name is that of another page.

    Examples
    --------
    >>> load_records("plot_x", folder="missing")
    []
    """
    folder = folder or os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return []
    files = sorted(Path(folder).glob(f"*/{page or '*'}--*.json"))
    records = [load(file) for file in files]
    for file, loaded in zip(files, records, strict=True):
        if loaded.page != file.name.partition("--")[0]:
            raise RecordError(f"{file.name} is a record of {loaded.page!r}")
    newest: dict[tuple[str, str], Record] = {}
    for loaded in records:
        key = (loaded.machine, loaded.case)
        newest[key] = max(newest.get(key, loaded), loaded, key=lambda r: (r.date, r.run))
    return [loaded.beside(records) for loaded in newest.values()]


class _File(
    msgspec.Struct,
    forbid_unknown_fields=True,
    omit_defaults=True,  # older readers do not know these fields
    tag_field="schema_version",
    tag=_VERSION,
):
    page: Annotated[str, Meta(pattern=r"^(plot_\w+|bench)$(?!\n)")]
    configuration: dict[str, str]
    date: Annotated[dt.datetime, Meta(tz=True)]
    environment: Environment
    answer: Answer | None
    claims: tuple[Prediction, ...]
    data: MappingValue
    run: Count = 1
    on_cpu: tuple[str, ...] = ()
    pace: Annotated[float, Meta(gt=0)] | None = None

    def __post_init__(self) -> None:
        if "provider" not in self.configuration:
            raise ValueError("the configuration has no 'provider'")


def _find_comparisons(
    data: Mapping[Any, Any], path: tuple[str, ...]
) -> Iterator[tuple[str, Mapping[str, Any], Comparison]]:
    for key, item in data.items():
        name = ".".join((*path, str(key)))
        if isinstance(item, Comparison):
            yield name, {}, item
        elif isinstance(item, Comparisons):
            yield from ((name, {item.axis: place}, group) for place, group in item.items())
        elif isinstance(item, Mapping):
            yield from _find_comparisons(item, (*path, str(key)))


def _by_place(build: Record) -> dict[object, Comparison]:
    """Return the comparisons of a record, by keys and place."""
    return {(name, *place.items()): found for name, place, found in build.comparisons()}


def _conditions(build: Record) -> object:
    """Return what two builds share; None when the processor is not known, or in fast mode."""
    known = build.environment.processor and not build.fast
    packages = {n: v for n, v in build.environment.packages.items() if n != "ortmeter"}
    return (build.machine, build.case, packages) if known else None


def machine_name(machine: Environment) -> str:
    """Name a machine by its processor and its GPUs, in small letters, digits and hyphens.

    Four more digits stand for its instructions, its caches and its hypervisor, where they are
    known: a folder has the records of machines that are alike.
    """
    digest = hashlib.sha256(machine.identity.encode()).hexdigest()[:4]
    parts = [machine.cpu, *machine.generation.values(), f"{machine.cores} cores"]
    parts += [*(gpu.name for gpu in machine.gpus), *([digest] if machine.processor else [])]
    return "-".join(map(_slug, parts))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9_.]+", "-", text.lower()).strip("-.")


def replay(report: Callable[[Record], Iterable[Any]], records: Iterable[Record]) -> Shown:
    """Apply the report of a page to records of other machines.

    Parameters
    ----------
    report : callable
        Takes a :class:`Record` and yields the items to show: tables, plots (a figure or its axes),
        conclusions.
    records : iterable of Record
        Records to show.

    Returns
    -------
    Shown
        A page or a notebook shows one part per record.

    Examples
    --------
    >>> print(replay(lambda record: [record.page], []))
    Nothing was recorded on other machines.
    """
    parts = []
    for found in records:
        title = f"{found.environment.hardware}, recorded on {found.date:%Y-%m-%d}"
        machine = Shown((found.parameters,)), found.environment
        parts.append(fold(title, *machine, *report(found)))
    return Shown((*parts,) or ("Nothing was recorded on other machines.",))
