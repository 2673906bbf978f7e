"""Keep the samples of ``bench``, and read those of another run to compare with."""

import dataclasses
import datetime as dt
import itertools
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from ortmeter.cli.report import Report, Rows, check_writable, speedup_rows
from ortmeter.errors import InvalidArgumentError, OrtMeterError, RecordError
from ortmeter.evidence import UNITS, Speedup, common_unit
from ortmeter.files import write_atomically
from ortmeter.machine.environment import Environment
from ortmeter.plotting.latency import speedup_plot
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.digests import content, digest, model_digest
from ortmeter.runtime.placement import PlacementLog
from ortmeter.study.writer import enumerate_items
from ortmeter.timing import Comparison, Measurement
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.runs import (
    MOST_DRIFT,
    check_latencies,
    compare_runs,
    drift_ratio,
    is_steady,
)
from ortmeter.timing.statistics import MIN_PROCESSES, PROCESSES

if TYPE_CHECKING:
    from ortmeter.study.records import Record

# What decides what a candidate measures, as texts: model, inputs, their digests, settings.
_Description: TypeAlias = dict[str, str]

# What the names of digests begin with.
_DIGEST = "digest of the "
_NAME = "model"  # of the file, which may change
_UNJUDGED = 2  # exit code
_SHOWN = ("CPU", "Processor", "GPU", "System", "Threads", "Variables", "Python", "Commit")
_PAGE = "bench"
_BEGINS = b'{"schema_version"'
_LONG = 200  # characters of names that are shown


def add_options(parser: ArgumentParser) -> None:
    """Declare the options of baselines."""
    group = parser.add_argument_group("baseline")
    group.add_argument("--save", metavar="FILE", help="keep the samples (JSON), for --baseline")
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
        "--other-machine", action="store_true", help="conclude even if the machines differ"
    )
    group.add_argument(
        "--other-model",
        action="store_true",
        help="conclude even if the model, its inputs or its settings differ",
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


@dataclasses.dataclass(frozen=True)
class KeptSamples:
    """What is asked of the samples of a run: they are kept, compared with stored ones, or both."""

    save: Path | None
    provider: str
    force: bool = False
    baseline: Path | None = None
    bound: float | None = None
    other_machine: bool = False
    other_model: bool = False

    def begin(self, variants: Mapping[str, SessionSpec]) -> "_Run":
        """Read the baseline, refuse what cannot be compared: before anything is measured."""
        described = {name: _describe_variant(variant) for name, variant in variants.items()}
        stored = None
        if self.baseline is not None:
            stored = _read_stored(self.baseline, [*variants], other_model=self.other_model)
        return _Run(self, described, stored)


def read_kept(options: Namespace) -> KeptSamples | None:
    """Read the options of baselines; refuse a file that cannot be written."""
    given = options.save, options.baseline
    save, baseline = (None if text is None else Path(text) for text in given)
    if baseline is None:
        for name in ("fail_if", "other_machine", "other_model"):
            if getattr(options, name):
                raise InvalidArgumentError(
                    f"--{name.replace('_', '-')} is about a baseline: add --baseline FILE"
                )
        if save is None:
            return None
    if save is not None:
        check_writable(save, _BEGINS, overwrite=options.force)
        if options.html and Path(options.html).resolve() == save.resolve():
            raise InvalidArgumentError(f"--save and --html: got {options.save!r} twice")
    asked = options.fail_if, options.other_machine, options.other_model
    return KeptSamples(save, options.provider, options.force, baseline, *asked)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run whose samples are kept or compared: what its candidates are, and the stored one."""

    asked: KeptSamples
    described: Mapping[str, _Description]
    stored: "Record | None"
    on_cpu: PlacementLog = dataclasses.field(default_factory=PlacementLog)

    def finish(self, report: Report, results: Comparison) -> int:
        """Compare and keep, as asked; not 0 when ``--fail-if`` refuses a candidate."""
        code = self._compare(report, results, self.stored) if self.stored else 0
        if (save := self.asked.save) is None:
            return code
        if code:  # the next run would pass
            report.conclude(f"samples are not kept in {save}: this run fails.")
            return code
        try:
            self._save(save, report, results)
        except (OrtMeterError, OSError) as error:  # what was measured is reported
            report.conclude(f"samples are not kept: {error}")
            return _UNJUDGED
        return code

    def _save(self, file: Path, report: Report, results: Comparison) -> None:
        from ortmeter.study.records import Record

        models = dict.fromkeys(description["model"] for description in self.described.values())
        fitness = [text for looked in report.preflight.values() for text in looked.findings]
        record = Record(
            page=_PAGE,
            configuration={"model": ", ".join(models), "provider": self.asked.provider},
            environment=report.machine,
            date=dt.datetime.now(dt.UTC).replace(microsecond=0),
            data={
                "comparison": results,
                "candidates": self.described,
                "fitness": list(dict.fromkeys(fitness)),
            },
            on_cpu=tuple(self.on_cpu.messages),
        )
        check_writable(file, _BEGINS, overwrite=self.asked.force)  # another run may have written it
        write_atomically(file, record.to_json())
        processes = next(iter(results.values())).processes
        few = f"; {_need(processes)}" if processes < MIN_PROCESSES else ""
        report.conclude(f"samples are kept in {file}{few}.")

    def _compare(self, report: Report, results: Comparison, stored: "Record") -> int:
        """Fill the report with claims; 1 when one is slower than allowed, 2 when not judged."""
        bound, before = self.asked.bound, stored.data["comparison"]
        other, drifted, told, references = _compare_machines(self.asked, report, results, stored)
        claims, medians, verdicts, reasons = list[Speedup](), [], [], []
        changes = {}
        for name in results:
            pair = before[name], results[name]
            changes[name] = _differences(stored.data["candidates"][name], self.described[name])
            lacking = [*other, *self._lacking(name, changes[name], *pair)]
            claim = compare_runs(
                *pair, references=references, name=f"the baseline of {stored.date:%Y-%m-%d}"
            )
            why = [*drifted, *lacking]
            if not why and not claim.has_interval:
                why.append(f"processes of {name} differ too much for an interval")
            if why:
                nothing = dataclasses.replace(claim.estimate, low=None, high=None)
                claim = Speedup(claim.subject, claim.baseline, nothing)
            claims.append(claim)
            medians.append([measured.median for measured in pair])
            reasons += why
            if bound is not None:
                verdicts.append(_judge(bound, claim, lacking))
        report.sentences[:0] = [  # what was asked comes first
            *(sentence for _, sentence in verdicts),
            *(f"{claim}." for claim in claims),
            *(f"nothing is concluded: {reason}." for reason in dict.fromkeys(reasons)),
            *told,
        ]
        unit = common_unit(itertools.chain(*medians))
        table = [
            {
                "candidate": row["candidate"],
                f"baseline ({unit})": before * UNITS[unit],
                f"now ({unit})": now * UNITS[unit],
                **row,
            }
            for row, (before, now) in zip(speedup_rows(claims), medians, strict=True)
        ]
        plot = partial(
            speedup_plot,
            [claim.named(baseline="the baseline") for claim in claims],
            title="Speedup over the baseline",
            caption="99% intervals; nothing is concluded on a point that has none",
        )
        report.add("Beside the baseline", Rows.of(table), plot)
        report.add("What differs from the run of the baseline", _changed(report, stored, changes))
        return max((code for code, _ in verdicts), default=0)

    def _lacking(
        self, name: str, changes: Mapping[str, object], *pair: Measurement
    ) -> Iterator[str]:
        """Say why a candidate is not compared, where other options would do it."""
        changed = dict.fromkeys(what.removeprefix(_DIGEST) for what in changes if what != _NAME)
        if changed and not self.asked.other_model:
            yield f"{name} differs in {enumerate_items(list(changed))} (--other-model compares)"
        if (least := min(measured.processes for measured in pair)) < MIN_PROCESSES:
            yield _need(least)


def _listed(names: Iterable[str]) -> str:
    return enumerate_items(list(map(repr, names)))[:_LONG]


def _describe_variant(variant: SessionSpec) -> _Description:
    path = Path(variant.model)  # type: ignore[arg-type]  # the command line has paths only
    arrays = {name: as_numpy(array) for name, array in variant.feeds.items()}
    shapes = (f"{n} {a.dtype.name} {'x'.join(map(str, a.shape))}" for n, a in arrays.items())
    settings: dict[str, Any] = {}
    for name, value in {**variant.settings, "run_config": variant.run_config}.items():
        settings |= value if isinstance(value, Mapping) else {name: value}
    return {
        "model": path.name,
        f"{_DIGEST}model": model_digest(path),
        "inputs": ", ".join(shapes),
        f"{_DIGEST}inputs": digest(map(content, arrays.values())),
        **({} if variant.bound else {"bound": "False"}),
        **{name: str(value) for name, value in settings.items()},
    }


def _read_stored(file: Path, names: list[str], *, other_model: bool) -> "Record":
    """Read the samples of the same candidates: beside others, a latency is another one."""
    from ortmeter.study.records import load

    stored = load(file)
    measured = stored.data.get("comparison")
    try:
        described = msgspec.convert(stored.data.get("candidates"), dict[str, _Description])
        msgspec.convert(stored.data.get("fitness"), list[str])
    except msgspec.ValidationError:
        described = {}
    if not isinstance(measured, Comparison) or stored.page != _PAGE or {*measured} - {*described}:
        raise RecordError(f"{file.name} was not written by ortmeter bench --save")
    check_latencies(*filter(None, (*measured.values(), measured.reference_workload)))
    if other_model and len(measured) == len(names) == 1:  # its file may have another name
        ((name, one),), (other,) = measured.items(), names
        renamed = [dataclasses.replace(one, name=other)]
        measured = Comparison(renamed, reference_workload=measured.reference_workload)
        data = {**stored.data, "comparison": measured, "candidates": {other: described[name]}}
        stored = dataclasses.replace(stored, data=data)
    if {*measured} != {*names}:
        raise InvalidArgumentError(
            f"{file.name} has other candidates than this run: {_listed(measured)}. This run has "
            f"{_listed(names)}. Accepted: the models and options of the run that was saved, since "
            "candidates slow each other down"
        )
    return stored


def _need(processes: int) -> str:
    """Say what an interval needs."""
    return (
        f"an interval needs {MIN_PROCESSES} processes in both runs, not {processes}: ask for "
        f"--processes {PROCESSES}, and for more --budget if it was spent"
    )


def _compare_machines(
    asked: KeptSamples, report: Report, results: Comparison, stored: "Record"
) -> tuple[list[str], list[str], list[str], tuple[Measurement, Measurement] | None]:
    """Say how the machines differ, how one drifted, what else to tell; its reference workloads."""
    then, now = stored.environment, report.machine
    noisy = "; ".join(stored.data["fitness"])
    told = [f"the machine was not fit to measure the baseline: {noisy}."] if noisy else []
    if then.identity != now.identity:
        which = then.hardware if then.hardware != now.hardware else then.identity
        text = f"the baseline is of another machine, {which}"
        if asked.other_machine:
            return [], [], [f"{text}.", *told], None
        return [f"{text} (--other-machine compares)"], [], told, None
    first, second = stored.data["comparison"].reference_workload, results.reference_workload
    if first is None or second is None or then.packages.get("numpy") != now.packages.get("numpy"):
        why = "NumPy differs" if first and second else "a run has no reference workload"
        unknown = f"how far the machine drifted between the two runs is not known: {why}."
        return [], [], [unknown, *told], None
    pace = drift_ratio(first, second)
    moved = (
        f"the machine became {max(pace, 1 / pace) - 1:.1%} {'slower' if pace > 1 else 'faster'} "
        "between the two runs (a fixed product on the CPU)"
    )
    if is_steady(pace):
        wider = f"{moved}: the intervals are that much wider."
        return [], [], [wider, *told], (first, second)
    return [], [f"{moved}, more than {MOST_DRIFT:.0%}"], told, (first, second)


def _differences(
    before: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _judge(bound: float, claim: Speedup, lacking: Iterable[str]) -> tuple[int, str]:
    """Apply ``--fail-if`` to a candidate: the exit code, a sentence."""
    name, limit = claim.subject, f"--fail-if slower:{bound:.2f}"
    if lacking:
        return _UNJUDGED, f"{name} is not judged by {limit}: {'; '.join(lacking)}."
    passes = claim.exceeds(1 / bound)
    if passes is None:
        return 0, f"{name} is undecided for {limit}, which lets it pass."
    return int(not passes), f"{name} {'passes' if passes else 'fails'} {limit}."


def _changed(
    report: Report,
    stored: "Record",
    changes: Mapping[str, Mapping[str, tuple[str | None, str | None]]],
) -> Rows | str:
    """List what differs in the machine, the versions, and what each candidate measures."""
    pairs = _differences(_facts(stored.environment), _facts(report.machine))
    rows = [(what, *pair) for what, pair in pairs.items()]
    for name, changed in changes.items():
        prefix = f"{name}: " if len(changes) > 1 else ""
        rows += [(f"{prefix}{what}", *pair) for what, pair in changed.items()]
    if not rows:
        return "Nothing: the machine, versions, model, inputs and session are the same."
    return Rows(("what", "baseline", "now"), tuple(rows))


def _facts(machine: Environment) -> dict[str, str]:
    rows = dict(machine.to_rows())
    return {**{name: rows[name] for name in _SHOWN}, **machine.packages}
