"""Compare a run of ``bench`` with one that was kept, and say whether a model got slower."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pandas as pd

from ortmeter.cli.github import annotate, summarize
from ortmeter.pages.records import Record
from ortmeter.plotting.latency import speedup_plot
from ortmeter.report import Report
from ortmeter.runtime.environment import Environment
from ortmeter.timing import Comparison
from ortmeter.timing.claims import Claim, enumerate_items
from ortmeter.timing.comparison import UNITS, common_unit
from ortmeter.timing.control import STEADY
from ortmeter.timing.measurement import rounded
from ortmeter.timing.runs import compare_runs, control_ratio, is_steady
from ortmeter.timing.statistics import MIN_PROCESSES

#: Fresh processes of a run that is kept or compared, rounds of each, seconds that all may take.
PROCESSES, REPEAT, BUDGET_S = 5, 50, 30.0
#: What decides what a candidate measures, as texts: model, inputs, session and their digests.
Description: TypeAlias = dict[str, str]

_NAME = "model"  # of the file, which may change
_SHOWN = ("CPU", "GPU", "System", "Threads", "Variables", "Python")


class _Outcome(NamedTuple):
    """A candidate beside its baseline, and why nothing is concluded."""

    claim: Claim
    medians: tuple[float, float]
    reasons: list[str]

    def verdict(self, bound: float) -> str:
        """Say whether the slowdown is above a bound: fails, passes or undecided."""
        slower = self.claim.reversed
        if slower.low is None or slower.high is None:
            return "undecided"
        return "fails" if slower.low > bound else "passes" if slower.high <= bound else "undecided"


def compare(
    options: Namespace,
    report: Report,
    found: Comparison,
    described: Mapping[str, Description],
    stored: Record,
    *,
    fitness: Sequence[str],
) -> int:
    """Fill the report with a claim on each candidate; 1 when one is slower than allowed."""
    before: Comparison = stored.data["comparison"]
    same = [name for name in found if name in before]
    changes = {n: _differences(stored.data["candidates"][n], described[n]) for n in same}
    shared, told, pace = _machine(options, report, found, stored)
    outcomes = []
    for name in same:
        pair = before[name], found[name]
        reasons = [*shared, *_unlike(options, name, changes[name])]
        if (least := min(m.processes for m in pair)) < MIN_PROCESSES:
            reasons.append(need(least))
        claim = compare_runs(*pair, moved=pace, name=f"the baseline of {stored.date:%Y-%m-%d}")
        if not reasons and not claim.has_interval:
            reasons.append(f"processes of {name} differ too much for an interval")
        if reasons:
            claim = dataclasses.replace(claim, verdict="undecided", low=None, high=None)
        outcomes.append(_Outcome(claim, (pair[0].median, pair[1].median), reasons))
    left = _left_out(before, found)
    reasons = list(dict.fromkeys(reason for outcome in outcomes for reason in outcome.reasons))
    sentences = [f"{o.claim}." for o in outcomes]
    sentences += [f"nothing is concluded: {reason}." for reason in reasons]
    sentences += [*left, *told]
    table = _table(outcomes)
    plot = speedup_plot(
        [dataclasses.replace(o.claim, baseline="the baseline") for o in outcomes],
        title="Speedup over the baseline",
        caption="99% intervals; nothing is concluded on a point that has none",
    )
    report.add("Beside the baseline", table, plot)
    report.add("The two runs", _two_runs(report, found, stored, changes, fitness))
    code, judged = _judge(options, outcomes, left)
    report.sentences[:0] = [*judged, *sentences]  # what was asked comes first
    summarize(report.title, table, [*judged, *sentences])
    return code


def need(processes: int) -> str:
    """Say what an interval needs."""
    return (
        f"an interval needs {MIN_PROCESSES} processes in both runs, not {processes}: ask for "
        f"--processes {PROCESSES}, and for more --budget if it was spent"
    )


def _machine(
    options: Namespace, report: Report, found: Comparison, stored: Record
) -> tuple[list[str], list[str], float]:
    """Compare the machines: why nothing is concluded, what to tell, how far they are apart."""
    then, now = stored.environment, report.machine
    if _hardware(then) != _hardware(now):
        text = f"the baseline is of another machine, {_hardware(then)}"
        if options.other_machine:
            return [], [f"{text}."], 1.0
        return [f"{text} (--other-machine compares)"], [], 1.0
    first, second = stored.data["comparison"].control, found.control
    versions = then.packages.get("numpy"), now.packages.get("numpy")
    if first is None or second is None or versions[0] != versions[1]:
        why = "NumPy differs" if first and second else "a run has no control"
        return [], [f"how far the machine moved between the two runs is not known: {why}."], 1.0
    pace = control_ratio(first, second)
    share = max(pace, 1 / pace) - 1
    moved = f"the machine moved by {share:.1%} between the two runs (a fixed product on the CPU)"
    if is_steady(pace):
        return [], [f"{moved}: the intervals are that much wider."], pace
    return [f"{moved}, more than {STEADY:.0%}"], [], pace


def _hardware(machine: Environment) -> str:
    return ", ".join([machine.cpu, f"{machine.cores} cores", *(gpu.name for gpu in machine.gpus)])


def _differences(before: Description, now: Description) -> dict[str, tuple[str, str]]:
    keys = dict.fromkeys([*before, *now])
    pairs = {key: (before.get(key, ""), now.get(key, "")) for key in keys}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _unlike(options: Namespace, name: str, changes: Mapping[str, object]) -> Iterator[str]:
    changed = [what for what in changes if what != _NAME]
    if changed and not options.other_model:
        yield f"{name} has another {enumerate_items(changed)} (--other-model compares)"


def _left_out(before: Comparison, found: Comparison) -> list[str]:
    pairs = (("is not in the baseline", found, before), ("was not measured again", before, found))
    return [
        f"{name!r} {why}." for why, these, those in pairs for name in these if name not in those
    ]


def _judge(
    options: Namespace, outcomes: Sequence[_Outcome], left: Sequence[str]
) -> tuple[int, list[str]]:
    """Apply ``--fail-if``: the exit code, a sentence by candidate; GitHub is told."""
    if (bound := options.fail_if) is None:
        return 0, []
    limit = f"--fail-if slower:{bound:.2f}"
    failed, sentences = 0, []
    for outcome in outcomes:
        verdict = outcome.verdict(bound)
        name = outcome.claim.subject
        if verdict == "fails":
            failed = 1
            sentences.append(f"{name} fails {limit}.")
            annotate("error", f"{name} is slower", f"{outcome.claim}.", as_json=options.json)
        elif verdict == "passes":
            sentences.append(f"{name} passes {limit}.")
        else:
            sentences.append(f"{name} is undecided for {limit}, which lets it pass.")
            why = "; ".join([str(outcome.claim), *outcome.reasons])
            annotate("warning", f"{name} is undecided", f"{why}.", as_json=options.json)
    for sentence in left:
        annotate("warning", "not compared", sentence, as_json=options.json)
    return failed, sentences


def _table(outcomes: Sequence[_Outcome]) -> pd.DataFrame:
    unit = common_unit(median for outcome in outcomes for median in outcome.medians)
    columns = ["candidate", f"baseline ({unit})", f"now ({unit})", "speedup", "low", "high"]
    rows = [
        (o.claim.subject, *(rounded(m * UNITS[unit]) for m in o.medians), *_interval(o.claim))
        for o in outcomes
    ]
    table = pd.DataFrame(rows, columns=columns).set_index("candidate")
    return table.assign(verdict=[outcome.claim.verdict for outcome in outcomes])


def _interval(claim: Claim) -> list[float]:
    return [rounded(value) for value in (claim.ratio, claim.low, claim.high)]


def _two_runs(
    report: Report,
    found: Comparison,
    stored: Record,
    changes: Mapping[str, Mapping[str, tuple[str, str]]],
    fitness: Sequence[str],
) -> pd.DataFrame:
    """Put the machines and versions of both beside each other, and mark what differs."""
    then = _facts(stored.environment, stored.data["fitness"])
    now = _facts(report.machine, fitness)
    rows = {what: (then.get(what, ""), now.get(what, "")) for what in {**then, **now}}
    for name, pairs in changes.items():
        rows |= {f"{name}: {what}": pair for what, pair in pairs.items()}
    marked = [(what, *pair, "differs" if pair[0] != pair[1] else "") for what, pair in rows.items()]
    controls = [c for c in (stored.data["comparison"].control, found.control) if c is not None]
    if len(controls) > 1:
        first, second = (control.median * UNITS["µs"] for control in controls)
        change = f"{second / first - 1:+.1%}"
        marked.append(("Control (µs)", f"{first:.4g}", f"{second:.4g}", change))
    return pd.DataFrame(marked, columns=["what", "baseline", "now", "differs"]).set_index("what")


def _facts(machine: Environment, fitness: Sequence[str]) -> dict[str, str]:
    rows = dict(machine.to_rows())
    return {
        **{name: rows[name] for name in _SHOWN},
        **machine.packages,
        "Commit": rows["Commit"],
        "Fitness": "; ".join(fitness) or "fit",
    }
