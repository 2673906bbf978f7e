"""A page as one object: what it measures, shows and concludes, here and from records."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

from ortmeter.errors import InvalidArgumentError
from ortmeter.machine.environment import environment
from ortmeter.optional import import_optional, pd
from ortmeter.progress import follow
from ortmeter.runtime.placement import PlacementLog
from ortmeter.runtime.providers import resolve_provider
from ortmeter.study.args import Param, get_parsed_args, in_ipython
from ortmeter.study.claims import Judged, Judgement, read_claims
from ortmeter.study.records import Record, load_records, machine_name, record, replay
from ortmeter.study.rendering import Folded, Shown, Table, fold, show, table

if TYPE_CHECKING:
    import onnx

#: A function of the data that returns the findings that its docstring cites.
Claims: TypeAlias = Callable[[SimpleNamespace], Mapping[str, Any]]
#: A function of the data that returns a frame, a table or a plot.
View: TypeAlias = Callable[[SimpleNamespace], Any]

#: The model in the command of a page.
MODEL = "model.onnx"
_CUDA = (
    "The same lines run on CUDA: make html RUNTIME=gpu PROVIDER=cuda builds this site on a GPU "
    "machine, python {page}.py --provider cuda runs this page, and make record PROVIDER=cuda "
    "keeps its samples for other builds."
)
_ON_YOURS = "python {page}.py --model model.onnx runs the command of this page on your model. "
_IN_NOTEBOOK = (
    'The same lines run on CUDA: set os.environ["ORTMETER_PROVIDER"] = "cuda" before the first '
    "cell. The defaults of the other parameters are in the call of Study."
)


class Study:
    """What a page repeats: parameters, provider, record, files, machine, records of others.

    A page keeps what it measured, shows views of it, and concludes. A view is a function of the
    data, and its docstring is the caption of its table; the record of another machine is shown by
    the same functions.

    Parameters
    ----------
    page : str
        Name of the file, ``plot_x``.
    title : str
        The question that the page answers.
    command : str
        What a reader tries in a terminal: on ``model.onnx``, which ``--model FILE`` replaces.
    **params : Param
        Parameters of the page, see :func:`~ortmeter.get_parsed_args`; ``provider``, ``record``
        and ``output`` are added.

    Attributes
    ----------
    args : Arguments
        Values of the parameters.
    provider : Provider
        Execution provider that runs.

    Raises
    ------
    InvalidArgumentError
        A declaration is wrong, or a value is not accepted.
    ProviderUnavailableError
        The provider that is asked for does not work here.

    Examples
    --------
    >>> from ortmeter.timing import Comparison, Measurement
    >>> study = Study("plot_sum", "How long does a sum take?", size=Param(999))
    >>> study.keep("CPU", times=Comparison([Measurement("sum", [[0.002, 0.002]])]))
    >>> def latencies(data):
    ...     '''Latency of a sum'''
    ...     return data.times.summary()[["median (ms)"]]
    >>> study.show(latencies)  # doctest: +NORMALIZE_WHITESPACE
    Latency of a sum, CPU
              median (ms)
    candidate
    sum                 2
    """

    follow = staticmethod(follow)

    def __init__(self, page: str, title: str, command: str = "", **params: Any) -> None:
        if MODEL in command.split():
            params["model"] = Param(None, help="run the command of the page on this model instead")
        self.args = get_parsed_args(
            page,
            description=title,
            **params,
            provider=Param("auto", env="ORTMETER_PROVIDER", help="cpu, cuda, cuda:1, webgpu, auto"),
            record=Param(False, env="ORTMETER_RECORD", help="keep the samples for other builds"),
            output=Param(None, help="folder for the files of tables and figures"),
        )
        if getattr(self.args, "model", None) is not None:
            sys.exit(_run_command(command, self.args.model))
        if self.args.output is not None:  # before anything is measured
            Path(self.args.output).mkdir(parents=True, exist_ok=True)
        self.page = page
        self.provider = resolve_provider(self.args.provider)
        self._on_cpu = PlacementLog()
        self._here: Record | None = None
        self._recalled: Record | None = None
        self._views: list[tuple[View, bool]] = []
        self._claims: Claims | None = None
        self._to_copy = {"setting_name": "", "command": command}
        self._saved: list[str] = []

    def keep(self, legend: str = "", **data: Any) -> None:
        """Keep what was measured: views and the conclusion read it, and nothing else.

        What is kept by another call is added, for a page that measures several things.

        Parameters
        ----------
        legend : str
            What all the numbers share: types, provider, threads. It ends every caption; by default
            that of the call before.
        **data : object
            What a record accepts, see :func:`~ortmeter.study.records.record`.
        """
        before = self._here
        data = {**(before.data if before else {}), **data}
        data["legend"] = legend or data.get("legend", "")
        on_cpu = dict.fromkeys((*(before.on_cpu if before else ()), *self._on_cpu.messages))
        here = record(self.page, self.args, self.provider, data, on_cpu=on_cpu)
        here = dataclasses.replace(here, date=before.date) if before else here  # one build
        stored = load_records(self.page)
        self._here = here.beside([build for past in stored for build in (past, *past.before)])
        if self.args.record:  # nothing is lost when a cell below fails
            self._here.save()

    def recall(self) -> bool:
        """Show the newest record of this provider instead of measuring, unless it is to be made.

        For a page that needs what a build does not install, such as other releases.

        Returns
        -------
        bool
            Whether there is one.
        """
        records = [] if self.args.record else load_records(self.page)
        mine = [past for past in records if past.configuration["provider"] == self.provider.place]
        if mine:
            self._here = self._recalled = max(mine, key=lambda past: past.date)
        return bool(mine)

    @property
    def here(self) -> Record:
        """What was measured here, or recalled."""
        if self._here is None:
            raise InvalidArgumentError(f"{self.page} has no data yet: call study.keep() first")
        return self._here

    @property
    def data(self) -> SimpleNamespace:
        """What was kept, as views read it."""
        return _namespace(self.here)

    def show(self, view: View, *, folded: bool = False) -> Any:
        """Show what a view makes of the data, and of the data of every record at the end.

        It is the last expression of a cell, which the gallery and a notebook display.

        Parameters
        ----------
        view : callable
            Takes the data, with what was kept as attributes, and returns a frame, a
            :class:`~ortmeter.study.rendering.Table` or a plot.
        folded : bool
            Whether a page opens its table on click.

        Returns
        -------
        object
            What is displayed.
        """
        self._views.append((view, folded))
        shown = _seen(view, self.data)
        if isinstance(shown, Table):
            self._save(f"{view.__name__}.csv", shown.frame.reset_index().to_csv)
            return show(_folded(shown) if folded else shown)
        how = {"dpi": 150, "bbox_inches": "tight"}
        self._save(f"{view.__name__}.png", partial(shown.get_figure().savefig, **how))
        return shown

    def _save(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a table or a figure where ``--output`` asks for it."""
        if self.args.output is not None:
            file = Path(self.args.output, f"{self.page}-{name}")
            write(file)
            self._saved.append(file.name)

    def conclude(self, claims: Claims, *, setting: str = "") -> Any:
        """Show what holds, on this machine and on those of the records.

        Parameters
        ----------
        claims : callable
            Takes the data and returns the findings that its docstring cites, see
            :mod:`ortmeter.study.claims`.
        setting : str
            Name of a file in the folder ``settings`` beside the page: what to copy.

        Returns
        -------
        Judged
            What is displayed.
        """
        self._claims = claims
        self._to_copy["setting_name"] = setting
        judged = self.concluded(self.here)
        if folder := os.environ.get("ORTMETER_CONCLUSIONS"):  # a build of the site
            Path(folder, f"{self.page}.json").write_text(json.dumps(judged.to_dict()), "utf-8")
        return show(judged)

    def judged(self, *sources: Record) -> Judged:
        """Judge the claims on records, the first of which is that of this build.

        What was measured in fast mode decides nothing.
        """
        if self._claims is None:
            raise InvalidArgumentError(f"{self.page} has no claims: call study.conclude first")
        first, judgements, otherwise = sources[0], [], ""
        for source in sources:
            data = _namespace(source)
            sentences, otherwise = read_claims(self._claims, data)
            if source.fast:
                sentences = tuple(sentence.undecided for sentence in sentences)
            judgements.append(Judgement(source.origin, sentences, self._is_here(source)))
        return Judged(
            tuple(judgements),
            otherwise,
            f"{first.environment}, {_namespace(first).legend}",
            setting=_read_setting(self._to_copy["setting_name"]),
            on_cpu=first.on_cpu,
            **self._to_copy,
        )

    def _is_here(self, source: Record) -> bool:
        """Whether this build, or a record of this machine that it recalls, is the source."""
        if source is self._recalled:
            return source.machine == machine_name(environment())
        return source is self._here

    def concluded(self, source: Record) -> Judged:
        """Judge the claims on a record, beside the newest ones of every machine."""
        records = sorted(load_records(self.page), key=lambda record: record.date)
        newest = {(r.machine, r.configuration["provider"]): r for r in records}
        same = source.machine, source.case
        return self.judged(source, *(r for r in newest.values() if (r.machine, r.case) != same))

    def replay(self, source: Record) -> Iterator[Any]:
        """Iterate over what the page shows of a record: its views."""
        data = _namespace(source)
        for view, folded in self._views:
            shown = _seen(view, data)
            yield _folded(shown) if folded and isinstance(shown, Table) else shown

    def appendix(
        self, models: "Mapping[str, onnx.ModelProto] | None" = None, **raw: "pd.DataFrame"
    ) -> Any:
        """Show what every page ends with, and save what was asked.

        Parameters, how to run it on CUDA, machine, models, raw tables, files of tables and figures,
        then the records of other machines.

        Parameters
        ----------
        models : mapping of str to ModelProto, optional
            Models to write and to draw, by title.
        **raw : DataFrame
            Tables that few readers need, by name.

        Returns
        -------
        object
            What is displayed.
        """
        if self.args.record:
            self.here.save(self.judged(self.here))
        own = _ON_YOURS if MODEL in self._to_copy["command"].split() else ""
        how = _IN_NOTEBOOK if in_ipython() else (own + _CUDA).format(page=self.page)
        shown = self._recalled  # which has its own parameters
        measured_on = shown.environment if shown else environment()
        parts: list[Any] = [shown.parameters if shown else self.args, how, measured_on]
        if models:
            parts.append(fold("Models", *_drawn(models)))
        if raw:
            parts.append(fold("Raw tables", *raw.values()))
        for name, frame in raw.items():
            self._save(f"{name}.csv", frame.reset_index().to_csv)
        if self._saved:
            parts.append(f"saved in {self.args.output}: {', '.join(dict.fromkeys(self._saved))}")
        past = load_records(self.page)
        mine = {(build.machine, build.file_name) for build in (self.here, *self.here.before)}
        others = [other for other in past if (other.machine, other.file_name) not in mine]
        parts.append(replay(self.replay, others))
        return show(Shown(tuple(parts)))


def _run_command(command: str, model: str) -> int:
    """Run the command of a page on a model of the reader."""
    _, *options = (model if word == MODEL else word for word in shlex.split(command))
    told = [sys.executable, "-m", "ortmeter", *options]
    return subprocess.run(told, check=False).returncode  # noqa: S603 - the command of the page


def _namespace(source: Record) -> SimpleNamespace:
    provider = source.configuration["provider"].partition(":")[0]
    kept = {"legend": source.parameters, "provider": provider, **source.data}
    if source.before:
        kept["legend"] += f", ratios over {1 + len(source.before)} builds"
    return SimpleNamespace(**{name.replace(" ", "_"): x for name, x in kept.items()})


def _read_setting(name: str) -> str:
    """Read a setting beside the page; a notebook that was downloaded alone has none."""
    folders = Path.cwd(), Path(sys.argv[0]).parent
    files = (folder / "settings" / name for folder in folders)
    return next((f.read_text(encoding="utf-8").strip() for f in files if f.is_file()), "")


def _seen(view: View, data: SimpleNamespace) -> Any:
    """Make a plot, or a table whose caption is the docstring of its view, then the legend."""
    result = view(data)
    if isinstance(result, Table) or hasattr(result, "get_figure"):
        return result
    text = " ".join((view.__doc__ or view.__name__.replace("_", " ")).split()).rstrip(".")
    return table(result, f"{text}, {data.legend}")


def _folded(shown: Table) -> Folded:
    return fold(shown.caption, dataclasses.replace(shown, caption=""))


def _drawn(models: "Mapping[str, onnx.ModelProto]") -> Iterator[Any]:
    from ortmeter.plotting import draw_model

    text_plot = import_optional("onnx_array_api.plotting.text_plot", "pages")
    for name, model in models.items():
        yield f"-- {name}\n{text_plot.onnx_simple_text_plot(model)}"
        yield draw_model(model, title=name)
