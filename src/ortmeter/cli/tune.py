"""Find the fastest setting of a model that is safe, prove it, and write it."""

import dataclasses
import math
import os
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from functools import partial
from pathlib import Path
from typing import Any

from ortmeter.cli import baseline
from ortmeter.cli.inputs import add_feeds, inputs_table, make_feeds
from ortmeter.cli.options import number, split
from ortmeter.cli.report import Report, Rows
from ortmeter.cli.terminal import tell
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import rounded
from ortmeter.plotting.latency import speedup_plot
from ortmeter.study.writer import enumerate_items
from ortmeter.timing.comparison import Comparison
from ortmeter.tuning import Tuning, tune
from ortmeter.tuning.files import is_of_another, write_session
from ortmeter.tuning.race import DEFAULT, LEAST_GAIN
from ortmeter.tuning.space import TRIES
from ortmeter.tuning.tuner import BUDGET_S, LATE
from ortmeter.tuning.waves import OBJECTIVES

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_MIB = {"MB": 1e6 / 2**20, "MiB": 1, "GB": 1e9 / 2**20, "GiB": 1024}
_JOURNAL, _PAGE, _SAMPLES = "journal.json", "report.html", "samples.json"
_PLOTTED = 12  # candidates
_DRAWN = 4  # samples, where a conversion is calibrated


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
    add("--limit", metavar="memory:500MB", type=_limit, help=told)
    add("--provider", default="cpu", help="where the default runs (cpu)")
    told = "use so many cores; the default has as many threads then"
    add("--cores", type=number(1), help=told)
    told = f"time of the search, in s, m or h ({BUDGET_S / 60:g}m); Ctrl-C ends it and confirms "
    told += "the best so far; the same command goes on from there"
    add("--budget", metavar="10m", type=_duration, default=BUDGET_S, help=told)
    add("--output", metavar="FOLDER", default="tuned", help="folder of the result (tuned)")
    add_feeds(parser)


def _duration(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if match is None:
        raise ArgumentTypeError(f"got {text!r}, expected seconds, or 10m, or 1h")
    return float(match[1]) * _UNITS[match[2]]


def _limit(text: str) -> float:
    match = re.fullmatch(r"memory:(\d+(?:\.\d+)?)([MG]i?B)", text)
    if match is None:
        raise ArgumentTypeError(f"got {text!r}, expected memory:500MB or memory:1GiB")
    return float(match[1]) * _MIB[match[2]]


def run(options: Namespace, report: Report) -> int:
    """Fill the report with what was found, and write it."""
    os.environ["MPLBACKEND"] = "agg"
    model, folder = Path(options.models[0]), Path(options.output)
    samples = _samples(options, model)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / _JOURNAL).is_file():
        raise InvalidArgumentError(
            f"--output {folder} holds other files. Accepted: a new folder, or that of a search"
        )
    if options.force:
        (folder / _JOURNAL).unlink(missing_ok=True)
    elif is_of_another(folder, model):
        raise InvalidArgumentError(
            f"{folder} has what was found for another model. Use --output FOLDER, or --force to "
            "replace it"
        )
    tell(
        f"ortmeter tune: about {options.budget:.0f} s; Ctrl-C ends the search and confirms the "
        "best so far"
    )
    folder.mkdir(parents=True, exist_ok=True)
    given = {"objective", "max_error", "metric", "at_least", "cores", "provider", "seed"}
    found = tune(
        model,
        samples,
        memory_limit=options.limit,
        tries=split("--try", options.tries) if options.tries else (),
        budget_s=options.budget,
        journal=folder / _JOURNAL,
        **{name: getattr(options, name) for name in given},
    )
    report.draws = True  # the page of the folder has the plot
    try:
        _tell(report, found)
        _add_tables(report, found)
        report.add("Inputs", inputs_table(options, {model: samples[0]}))
        _write(options, report, found, folder)
    finally:
        report.draws = options.html is not None
    return 0


def _samples(options: Namespace, model: Path) -> list[Any]:
    """Read the inputs: each file that has them all is a sample; or draw them."""
    whole = [text for text in options.feeds if Path(text).exists()]
    named = [text for text in options.feeds if text not in whole]
    if whole:
        asked = [{"feeds": [*named, file]} for file in whole]
    else:  # others calibrate
        count = _DRAWN if "precision" in options.tries else 1
        asked = [{"seed": options.seed + rank} for rank in range(count)]
    return [make_feeds(Namespace(**vars(options) | one), [model])[model] for one in asked]


def _tell(report: Report, found: Tuning) -> None:
    """Say what to set, what was refused and why, and what was not judged."""
    tried = found.tried
    default = found.default.settings
    few = f", with as many threads as --cores {default['threads']}" if default["threads"] else ""
    report.session = f"the default is onnxruntime.InferenceSession(path){few}: " + ", ".join(
        f"{name}={value}" for name, value in default.items()
    )
    report.preflight["during"] = found.machine
    report.conclude(str(found), *(f"{c.name}: {c.reason}" for c in found.setup.changes))
    if any(change.axis == "shapes" for change in found.setup.changes):
        feeds = found.default.feeds.items()
        shapes = [f"{n} of {'x'.join(map(str, a.shape))}" for n, a in feeds if a.shape]
        report.conclude(f"the model that was written takes {enumerate_items(shapes)} only")
    lossy = [t for t in tried.values() if t.outcome == "faster" and t.not_chosen]
    for names, text in (
        (
            [f"{n} ({t.outcome})" for n, t in tried.items() if "roundings" in t.outcome],
            "refused, since ONNX Runtime gives other results: {}; ortmeter diff explains",
        ),
        (
            [f"{t.setup.name} ({t.interval}, {t.not_chosen})" for t in lossy],
            "faster and not chosen, since values change: {}; --max-error allows it",
        ),
        (
            list(dict.fromkeys(change.axis for change in found.unjudged)),
            "not judged, since other processes use the cores: {}; run again on an idle machine",
        ),
        (
            [name for name, t in tried.items() if t.outcome == LATE],
            "not tried, since the time was over: {}; --budget gives more",
        ),
    ):
        if names:
            report.conclude(text.format(enumerate_items(names)))
    if found.is_changed and found.objective in {"memory", "start"}:
        report.conclude("its latency was not compared: ortmeter bench --config does")
    if found.interrupted:
        report.conclude("the search was interrupted; the same command goes on from there")
    if few:
        report.conclude(f"this is for {default['threads']} core{'s' * (default['threads'] > 1)}")
    count = sum(t.speedup is not None for t in tried.values())
    report.conclude(
        f"{count} of {len(tried)} candidates were timed, in {found.seconds:.0f} s; outputs were "
        f"compared with those of the default on {found.checks} inputs"
    )


def _add_tables(report: Report, found: Tuning) -> None:
    """Add what the confirmation and the race measured, and what was not timed."""
    if (done := found.confirmation) is not None:
        scale, unit = (1.0, "MiB") if found.objective == "memory" else (1e3, "ms")
        medians = [rounded(scale * measured.median) for measured in done.comparison.values()]
        ratios = ["", done.again.interval, done.speedup.interval]
        head = ("fresh processes", f"{found.objective} ({unit})", "times better [99%]")
        rows = zip(done.comparison, medians, ratios, strict=True)
        report.add("Confirmation", Rows(head, tuple(rows)))
    timed = sorted((t for t in found.tried.values() if t.speedup), key=lambda t: -t.ratio)
    if timed:
        single = [t.speedup for t in timed if len(t.setup.changes) == 1]  # short names
        claims = [claim for claim in single if claim and claim.has_interval][:_PLOTTED]
        plot = partial(speedup_plot, claims, title="Candidates compared with the default")
        raced = [(t.setup.name, t.interval, t.error, t.told) for t in timed]
        columns = ("candidate", "times better [95%]", "error", "outcome")
        report.add("Race", Rows(columns, tuple(raced)), *([plot] if claims else []))
    untimed = [t for t in found.tried.values() if not t.speedup]
    if refused := [(t.setup.name, t.outcome) for t in untimed if t.outcome != LATE]:
        report.add("Not timed", Rows(("candidate", "why"), tuple(refused)))


def _write(options: Namespace, report: Report, found: Tuning, folder: Path) -> None:
    """Write the model, the session, the samples of the confirmation, and the page."""
    done, result = found.confirmation, {"objective": found.objective, "answer": str(found)}
    written = write_session(folder, found.setup, found.default, result)
    if done is not None and found.is_changed:
        tuned = dataclasses.replace(found.setup.spec, model=written.model)
        names = {DEFAULT: DEFAULT, done.winner: "tuned"}
        pair = [dataclasses.replace(done.comparison[n], name=new) for n, new in names.items()]
        kept = baseline.KeptSamples(
            folder / _SAMPLES, True, None, None, False, False, options.provider
        )
        kept.begin({DEFAULT: found.default, "tuned": tuned}).finish(report, Comparison(pair))
    report.save(folder / _PAGE, overwrite=True)
    report.conclude(f"wrote {folder}: {enumerate_items([*written.names, _PAGE])}")
