"""Keep the samples of ``bench``, and read those of another run to compare with."""

import dataclasses
import datetime as dt
import hashlib
import json
import math
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ortmeter.cli.regression import DIGEST, Description, compare, need
from ortmeter.cli.report import Report, check_writable
from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.files import write_atomically
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.loading import external_files
from ortmeter.runtime.placement import PlacementLog
from ortmeter.study.records import KEPT, Record, load
from ortmeter.study.writer import enumerate_items
from ortmeter.timing import Comparison
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.comparison import join_builds
from ortmeter.timing.runs import check_latencies
from ortmeter.timing.statistics import MIN_PROCESSES

_PAGE = "bench"
_LENGTH = 16  # characters of a digest
_LONG = 200  # characters of names that are shown


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of baselines."""
    group = parser.add_argument_group("baseline")
    group.add_argument(
        "--save",
        metavar="FILE",
        help="keep the samples (JSON), for --baseline; a FILE of the same candidates gets another "
        "build, and the speedups of the report hold over its builds",
    )
    group.add_argument(
        "--baseline", metavar="FILE", help="compare with the samples that --save kept in FILE"
    )
    group.add_argument(
        "--fail-if",
        metavar="slower:1.10",
        type=_bound,
        help="exit with 1 when a candidate is more than 1.10 times slower than the baseline: the "
        "lower bound of the interval is above (slower:10%% is the same); with 2 when the options "
        "do not let it judge one",
    )
    group.add_argument(
        "--drop",
        metavar="NAME",
        action="append",
        default=[],
        help="candidate of the baseline that --fail-if does not expect; may be repeated",
    )
    group.add_argument(
        "--other-machine", action="store_true", help="conclude though the machines differ"
    )
    group.add_argument(
        "--other-model",
        action="store_true",
        help="conclude though the model, its inputs or its settings differ",
    )


def _bound(text: str) -> float:
    what, _, number = text.partition(":")
    try:
        bound = 1 + float(number[:-1]) / 100 if number.endswith("%") else float(number)
    except ValueError:
        bound = math.nan
    if what == "slower" and 1 <= bound < math.inf:
        return bound
    raise ArgumentTypeError(f"got {text!r}, expected slower:1.10 or slower:10%, at least 1 or 0%")


def is_asked(options: Namespace) -> bool:
    """Whether samples are kept or compared."""
    return options.save is not None or options.baseline is not None


@dataclasses.dataclass(frozen=True)
class Baseline:
    """What is done with the samples of a run: they are kept, compared with stored ones, or both."""

    options: Namespace
    described: Mapping[str, Description]
    stored: Record | None
    before: Sequence[Comparison] = ()  # builds that the file has, newest first
    on_cpu: PlacementLog = dataclasses.field(default_factory=PlacementLog)

    def join(self, results: Comparison) -> None:
        """Let the speedups hold over the builds of the file."""
        if self.before:
            join_builds([(results, self.before)])

    def finish(self, report: Report, results: Comparison) -> int:
        """Compare and keep, as asked; not 0 when ``--fail-if`` refuses a candidate."""
        code = 0
        if self.stored is not None:
            code = compare(self.options, report, results, self.described, self.stored)
        if code and self.options.save is not None:  # the next run would pass
            report.conclude(f"samples are not kept in {self.options.save}: this run fails.")
        elif self.options.save is not None:
            _save(self, report, results)
        return code


def check(
    options: Namespace, report: Report, variants: Mapping[str, SessionSpec]
) -> Baseline | None:
    """Read the baseline, refuse what cannot be done: before anything is measured."""
    appended = options.save is not None and not options.force and Path(options.save).is_file()
    if options.save is not None:
        check_writable(Path(options.save), overwrite=options.force or appended)
    if options.baseline is None:
        for name in ("fail_if", "drop", "other_machine", "other_model"):
            if getattr(options, name):
                raise InvalidArgumentError(
                    f"--{name.replace('_', '-')} is about a baseline: add --baseline FILE"
                )
        if options.save is None:
            return None
    described = {name: _describe(variant) for name, variant in variants.items()}
    stored = None if options.baseline is None else _read(Path(options.baseline), variants)
    if stored is not None:
        _refuse_missing(options, stored.data["comparison"], variants)
    before = _builds(Path(options.save), report, described, variants) if appended else ()
    return Baseline(options, described, stored, before)


def _builds(
    file: Path,
    report: Report,
    described: Mapping[str, Description],
    variants: Mapping[str, SessionSpec],
) -> list[Comparison]:
    """Read the builds of a file, which measured the same in the same conditions."""
    how = "choose another name, or replace it with --force"
    try:
        kept = _read(file, variants)
    except (InvalidArgumentError, RecordError) as error:
        raise InvalidArgumentError(f"{error}: {how}") from error
    mine, theirs = report.machine, kept.environment
    differs = {
        "another machine": mine.identity != theirs.identity,
        "other versions": mine.packages != theirs.packages,
        "other candidates, inputs or settings": kept.data["candidates"] != described,
    }
    if wrong := [what for what, is_so in differs.items() if is_so]:
        raise InvalidArgumentError(f"{file} has samples of {wrong[0]}: {how}")
    return [kept.data["comparison"], *kept.data.get("before", [])]


def _refuse_missing(options: Namespace, before: Collection[str], now: Collection[str]) -> None:
    """Refuse to judge a run that lacks a candidate of the baseline, unless it is dropped."""
    missing = [name for name in before if name not in now]
    if unknown := [name for name in options.drop if name not in missing]:
        raise InvalidArgumentError(
            f"--drop: got {_listed(unknown)}. Accepted: candidates of the baseline that are not "
            f"measured again, {_listed(missing) if missing else 'there is none'}"
        )
    left = [name for name in missing if name not in options.drop]
    if left and options.fail_if is not None:
        raise InvalidArgumentError(
            f"--fail-if: {_listed(left)} of the baseline would not be measured again. Accepted: "
            f"the models and options of the run that was saved, or --drop {shlex.quote(left[0])}"
        )


def _listed(names: Iterable[str]) -> str:
    return enumerate_items(list(map(repr, names)))[:_LONG]


def _describe(variant: SessionSpec) -> Description:
    path = Path(variant.model)  # type: ignore[arg-type]  # the command line has paths only
    arrays = {name: as_numpy(array) for name, array in variant.feeds.items()}
    shapes = (f"{n} {a.dtype.name} {'x'.join(map(str, a.shape))}" for n, a in arrays.items())
    settings: dict[str, Any] = {}
    for name, value in {**variant.settings, "run_config": variant.run_config}.items():
        settings |= value if isinstance(value, Mapping) else {name: value}
    return {
        "model": path.name,
        f"{DIGEST}model": _digest(_files(path)),
        "inputs": ", ".join(shapes),
        f"{DIGEST}inputs": _digest(map(_content, arrays.values())),
        **{name: str(value) for name, value in settings.items()},
    }


def _files(path: Path) -> Iterator[bytes]:
    # A session refuses external data that is no regular file.
    for file in (path, *filter(Path.is_file, external_files(path))):
        with file.open("rb") as stream:
            yield hashlib.file_digest(stream, "sha256").digest()


def _content(array: np.ndarray) -> bytes:
    return json.dumps(array.tolist()).encode() if array.dtype.kind in "OUT" else array.tobytes()


def _digest(parts: Iterable[bytes]) -> str:
    digests = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:_LENGTH]


def _read(file: Path, variants: Mapping[str, SessionSpec]) -> Record:
    stored = load(file)
    measured = stored.data.get("comparison")
    try:
        described = msgspec.convert(stored.data.get("candidates"), dict[str, Description])
        msgspec.convert(stored.data.get("fitness"), list[str])
    except msgspec.ValidationError:
        described = {}
    if stored.page != _PAGE or not isinstance(measured, Comparison) or {*measured} - {*described}:
        raise RecordError(f"{file.name} was not written by ortmeter bench --save")
    check_latencies(*filter(None, [*measured.values(), measured.reference_workload]))
    if not {*measured} & {*variants}:
        raise InvalidArgumentError(
            f"{file.name} has other candidates than this run: {_listed(measured)}. This run has "
            f"{_listed(variants)}. Accepted: the models and options of the run that was saved"
        )
    return stored


def _save(kept: Baseline, report: Report, results: Comparison) -> None:
    options, described = kept.options, kept.described
    models = dict.fromkeys(description["model"] for description in described.values())
    fitness = [text for looked in report.preflight.values() for text in looked.findings]
    record = Record(
        page=_PAGE,
        configuration={"model": ", ".join(models), "provider": options.provider},
        environment=report.machine,
        date=dt.datetime.now(dt.UTC).replace(microsecond=0),
        data={
            "comparison": results,
            "candidates": described,
            "fitness": list(dict.fromkeys(fitness)),
            **({"before": [*kept.before][: KEPT - 1]} if kept.before else {}),
        },
        on_cpu=tuple(kept.on_cpu.messages),
    )
    write_atomically(Path(options.save), record.to_json())
    processes = next(iter(results.values())).processes
    few = f"; {need(processes)}" if processes < MIN_PROCESSES else ""
    builds = f", with those of {len(kept.before)} other builds" if kept.before else ""
    report.conclude(f"samples are kept in {options.save}{builds}{few}.")
