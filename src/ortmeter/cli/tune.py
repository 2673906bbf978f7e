"""Find the fastest setting of a model that is safe, prove it, and write it."""

import math
import os
import re
import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ortmeter.cli import baseline
from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.cli.options import number, split
from ortmeter.cli.report import Code, Report, Rows
from ortmeter.cli.terminal import tell
from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import axes
from ortmeter.runtime.feeds import write_feeds
from ortmeter.runtime.loading import load_model, write_model
from ortmeter.study.writer import enumerate_items
from ortmeter.tuning import Tuning, files, tune
from ortmeter.tuning.race import AGAIN, DEFAULT, LATE, LEAST_GAIN
from ortmeter.tuning.space import TRIES, Setup, apply
from ortmeter.tuning.tuner import BUDGET_S, DRAWN, SHARED, in_unit
from ortmeter.tuning.waves import OBJECTIVES

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_MIB = {"memory:MB": 1e6 / 2**20, "memory:MiB": 1, "memory:GB": 1e9 / 2**20, "memory:GiB": 1024}
_JOURNAL, _PAGE, _SAMPLES = "journal.json", "report.html", "samples.json"
_ASKED = ("objective", "max_error", "metric", "at_least", "memory_limit", "provider", "cores")
_COSTS = ("candidate", "times better", "error", "memory (MiB)", "start (ms)")


def register(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] MODEL"
    add = parser.add_argument
    add("models", metavar="MODEL", nargs=1, help="ONNX file")
    told = f"what to improve (p50, the median latency); less than {LEAST_GAIN} times is no gain"
    add("--objective", choices=OBJECTIVES, default="p50", help=told)
    told = f"also try what changes the interface or the values of the model: {', '.join(TRIES)}"
    add("--try", dest="tries", metavar="NAME,NAME", default="", help=told)
    told = "largest error, over the largest value of an output, of a model whose values change; "
    told += "without it or --metric, such a model is timed and not chosen"
    add("--max-error", type=number(0, kind=float), help=told)
    told = "judges such a model: it gets its file and session.json, and prints a score, or one per "
    add("--metric", metavar="COMMAND", help=f"{told}sample")
    told = "least score; of several, the low end of the 99%% interval of their mean"
    add("--at-least", metavar="X", type=number(-math.inf, kind=float), help=told)
    told = "growth of the memory of a process until its first result, at most"
    limit = _quantity(_MIB, "memory:500MB or memory:1GiB")
    add("--limit", dest="memory_limit", metavar="memory:500MB", type=limit, help=told)
    add("--provider", default="cpu", help="where the default runs (cpu)")
    add("--cores", type=number(1), help="use so many cores; the default has as many threads then")
    told = f"time of the search, in s, m or h ({BUDGET_S / 60:g}m); Ctrl-C ends it and confirms "
    told += "the best so far; the same command goes on from there"
    duration = _quantity(_SECONDS, "seconds, or 10m, or 1h")
    add("--budget", dest="budget_s", metavar="10m", type=duration, default=BUDGET_S, help=told)
    add("--output", metavar="FOLDER", default="tuned", help="folder of the result (tuned)")
    add_feeds(parser)


def _quantity(units: Mapping[str, float], expected: str) -> Callable[[str], float]:
    """Make the type of an option that is a number between a name and a unit."""

    def read(text: str) -> float:
        match = re.fullmatch(r"(\D*)(\d+(?:\.\d+)?)(\D*)", text)
        if match is None or match[1] + match[3] not in units:
            raise ArgumentTypeError(f"got {text!r}, expected {expected}")
        return float(match[2]) * units[match[1] + match[3]]

    return read


def run(options: Namespace, report: Report) -> int:
    """Fill the report with what was found, and write it."""
    os.environ["MPLBACKEND"] = "agg"
    report.draws = True  # the page of the folder has the plots
    model, folder = Path(options.models[0]), Path(options.output)
    samples, journal = _samples(options, model), folder / _JOURNAL
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if names and not names & {_JOURNAL, files.SESSION}:
        raise InvalidArgumentError(
            f"--output {folder} holds other files. Accepted: a new folder, or that of a search"
        )
    if options.force:
        journal.unlink(missing_ok=True)
    elif files.is_of_another(folder, model):
        raise InvalidArgumentError(
            f"{folder} has the result of another model. Use another --output, or --force to replace"
        )
    tell(f"ortmeter tune: about {options.budget_s:.0f} s; Ctrl-C confirms the best so far")
    folder.mkdir(parents=True, exist_ok=True)
    asked = {name: getattr(options, name) for name in (*_ASKED, "budget_s", "seed")}
    tries = split("--try", options.tries) if options.tries else ()
    found = tune(model, samples, tries=tries, journal=journal, **asked)
    result = {**found.measured, "answer": str(found)}
    session = files.write_session(folder, found.setup, found.default, result)
    _tell(report, found, session)
    _add_tables(report, found)
    wrong = enumerate(tried for tried in found.tried.values() if tried.feeds)
    if commands := [_diff_command(found, one, folder / f"refused-{i}") for i, one in wrong]:
        report.add("Commands that show what was refused", Code("\n".join(commands)))
    report.add("Inputs", inputs_table(options, {model: samples[0]}))
    if found.confirmation is not None and found.setup.changes:
        specs = files.session_specs(files.read_session(folder / files.SESSION), samples[0])
        kept = baseline.KeptSamples(folder / _SAMPLES, options.provider, force=True)
        kept.begin(specs).finish(report, found.confirmation.comparison.select(specs))
    report.add(files.SCRIPT, Code((folder / files.SCRIPT).read_text(encoding="utf-8")))
    report.save(folder / _PAGE, overwrite=True)
    report.conclude(f"{folder} has {enumerate_items(sorted(p.name for p in folder.iterdir()))}")
    return 0


def _samples(options: Namespace, model: Path) -> list[Any]:
    """Read the inputs: each file that has them all is a sample; or draw them."""
    whole = [text for text in options.feeds if Path(text).exists()]
    named = [text for text in options.feeds if text not in whole]
    count = DRAWN if "precision" in options.tries else 1  # others calibrate
    drawn = [{"seed": options.seed + rank} for rank in range(count)]
    asked: list[dict[str, Any]] = [{"feeds": [*named, file]} for file in whole] or drawn
    return [make_feeds(Namespace(**vars(options) | one), [model])[model] for one in asked]


def _tell(report: Report, found: Tuning, session: files.Session) -> None:
    """Say what to set, what was refused and why, and what was not judged."""
    tried, chosen = found.tried, found.setup.changes
    settings = ", ".join(f"{name}={value}" for name, value in found.default.settings.items())
    report.session = f"the default is onnxruntime.InferenceSession(path): {settings}"
    report.preflight["during"] = found.machine
    report.measurement = found.measured
    report.conclude(str(found), *(f"{change.name}: {change.reason}" for change in chosen))
    if any(change.axis == "shapes" for change in chosen):
        report.conclude(f"the written model takes {enumerate_items(session.inputs['shape'])} only")
    for name, one in tried.items():
        if one.feeds or (one.outcome == "faster" and one.not_chosen):
            report.conclude(f"{name}: {one.told}")
    for why in (SHARED, LATE):
        out = [one for one in tried.values() if one.outcome == why]
        if names := dict.fromkeys(o.changes[0].axis if why == SHARED else o.name for o in out):
            report.conclude(f"{why}: {enumerate_items([*names])}")
    if chosen and found.objective in {"memory", "start"}:
        report.conclude("its latency was not compared: ortmeter bench --config does")
    if found.interrupted:
        report.conclude("the search was interrupted; the same command goes on from there")
    count = sum(one.speedup is not None for one in tried.values())
    report.conclude(
        f"{count} of {len(tried)} candidates were timed, in {found.seconds:.0f} s; outputs were "
        f"compared with those of the default on {found.checks} inputs"
    )


def _add_tables(report: Report, found: Tuning) -> None:
    """Add what was confirmed, what speed costs, and what became of each candidate."""
    if (done := found.confirmation) is not None:
        medians = [in_unit(found.objective, one.median)[0] for one in done.comparison.values()]
        ratios = ["", done.again.interval, done.speedup.interval]
        confirmed = zip((DEFAULT, AGAIN, done.winner), medians, ratios, strict=True)
        unit = "{objective} ({unit})".format_map(found.measured)
        head = ("fresh processes", unit, "times better [99%]")
        report.add("Confirmation", Rows(head, tuple(confirmed)), found.control)
    costs = []
    for name, phase in found.starts.items():
        one = found.tried.get(name, Setup(found.default, error=0.0))
        ratio = done.speedup.ratio if done and name == done.winner else one.ratio or 1.0
        costs.append((name, ratio, one.error, phase.peak or math.nan, 1e3 * phase.seconds))
    if costs:
        report.add("What speed costs", Rows(_COSTS, tuple(costs)), partial(_costs_plot, costs))
    ranked = sorted(found.tried.values(), key=lambda one: -one.ratio)
    rows = [(one.name, one.interval, one.error, one.told) for one in ranked]
    columns = ("candidate", "times better [99%]", "error", "outcome")
    report.add("Candidates", Rows(columns, tuple(rows)))


def _costs_plot(costs: Iterable[tuple[Any, ...]]) -> Any:
    """Draw each cost of a candidate against its speed, in a panel of its own."""
    figure = axes.new_figure(4.2)
    names, ratios, *values = zip(*costs, strict=True)
    panels = figure.subplots(1, len(values), sharex=True)
    panels[0].set_yscale("symlog", linthresh=1e-9)
    for ax, label, column in zip(panels, _COSTS[2:], values, strict=True):
        for ratio, value, style in zip(ratios, column, axes.series_styles(names), strict=True):
            ax.errorbar([ratio], [value], clip_on=False, **style)
        ax.set(xlabel=_COSTS[1], ylabel=label, ylim=(0, 1.05 * ax.get_ylim()[1]))
        axes.paint(ax)
    figure.suptitle("What speed costs, lower is better", color=axes.GREY)
    axes.add_legend(panels[0], list(names))
    return figure


def _diff_command(found: Tuning, wrong: Setup, stem: Path) -> str:
    """Write the inputs that a candidate gets wrong, and the command that shows it."""
    options, models = ["--feeds", str(stem)], [str(found.default.model)]
    write_feeds(wrong.feeds or {}, stem)
    spec = apply(found.default, wrong.changes).spec
    if spec.model is not found.default.model:
        models.append(str(stem.with_suffix(".onnx")))
        write_model(load_model(spec.model), Path(models[1]))
    for name, value in spec.settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, Mapping):
            options += [f"{option.removesuffix('s')}={key}={one}" for key, one in value.items()]
        else:
            options += [option, str(value)]
    return shlex.join(["ortmeter", "diff", *models, *options])
