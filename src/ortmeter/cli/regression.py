"""Compare a run of ``bench`` with one that was kept, and say whether a model got slower."""

import dataclasses
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import pandas as pd

from ortmeter.cli.github import annotate
from ortmeter.cli.report import Report
from ortmeter.evidence import UNITS, Speedup, common_unit, rounded
from ortmeter.machine.environment import Environment
from ortmeter.plotting.latency import speedup_plot
from ortmeter.study.records import Record
from ortmeter.study.writer import enumerate_items
from ortmeter.timing import Comparison
from ortmeter.timing.drift import STEADY
from ortmeter.timing.runs import compare_runs, drift_ratio, is_steady
from ortmeter.timing.statistics import MIN_PROCESSES, PROCESSES

#: Rounds of each process of a run that is kept or compared.
REPEAT = 50
#: What decides what a candidate measures, as texts: model, inputs, their digests, settings.
Description: TypeAlias = dict[str, str]

#: What the names of digests begin with.
DIGEST = "digest of the "
_NAME = "model"  # of the file, which may change
_UNJUDGED = 2  # exit code
_SHOWN = ("CPU", "Processor", "GPU", "System", "Threads", "Variables", "Python", "Commit")


class _Outcome(NamedTuple):
    """A candidate beside its baseline, and why nothing is concluded: other options would do it."""

    claim: Speedup
    medians: tuple[float, float]
    reasons: list[str]
    lacking: list[str]


def compare(
    options: Namespace,
    report: Report,
    results: Comparison,
    described: Mapping[str, Description],
    stored: Record,
) -> int:
    """Fill the report with claims; 1 when one is slower than allowed, 2 when one is not judged."""
    before: Comparison = stored.data["comparison"]
    same = [name for name in results if name in before]
    changes = {n: _differences(stored.data["candidates"][n], described[n]) for n in same}
    shared, told, pace = _machine(options, report, results, stored)
    is_other = stored.environment.identity != report.machine.identity
    outcomes = []
    for name in same:
        pair = before[name], results[name]
        lacking = [*(shared if is_other else []), *_unlike(options, name, changes[name])]
        if (least := min(m.processes for m in pair)) < MIN_PROCESSES:
            lacking.append(need(least))
        reasons = list(dict.fromkeys([*shared, *lacking]))
        claim = compare_runs(*pair, drift=pace, name=f"the baseline of {stored.date:%Y-%m-%d}")
        if not reasons and not claim.has_interval:
            reasons.append(f"processes of {name} differ too much for an interval")
        if reasons:
            nothing = dataclasses.replace(claim.estimate, low=None, high=None)
            claim = Speedup(claim.subject, claim.baseline, nothing)
        outcomes.append(_Outcome(claim, (pair[0].median, pair[1].median), reasons, lacking))
    left = [f"{name!r} is not in the baseline." for name in results if name not in before]
    left += [f"{name!r} was not measured again." for name in before if name not in results]
    code, judged = _judge(options, outcomes, left)
    reasons = list(dict.fromkeys(reason for outcome in outcomes for reason in outcome.reasons))
    report.sentences[:0] = [  # what was asked comes first
        *judged,
        *(f"{outcome.claim}." for outcome in outcomes),
        *(f"nothing is concluded: {reason}." for reason in reasons),
        *left,
        *told,
    ]
    plot = partial(
        speedup_plot,
        [o.claim.named(baseline="the baseline") for o in outcomes],
        title="Speedup over the baseline",
        caption="99% intervals; nothing is concluded on a point that has none",
    )
    report.add("Beside the baseline", _table(outcomes), plot)
    report.add("What differs from the run of the baseline", _changed(report, stored, changes))
    return code


def need(processes: int) -> str:
    """Say what an interval needs."""
    return (
        f"an interval needs {MIN_PROCESSES} processes in both runs, not {processes}: ask for "
        f"--processes {PROCESSES}, and for more --budget if it was spent"
    )


def _machine(
    options: Namespace, report: Report, results: Comparison, stored: Record
) -> tuple[list[str], list[str], float]:
    """Compare the machines: why nothing is concluded, what to tell, how much slower this one is."""
    then, now = stored.environment, report.machine
    noisy = "; ".join(stored.data["fitness"])
    told = [f"the machine was not fit to measure the baseline: {noisy}."] if noisy else []
    if then.identity != now.identity:
        which = then.hardware if then.hardware != now.hardware else then.identity
        text = f"the baseline is of another machine, {which}"
        if options.other_machine:
            return [], [f"{text}.", *told], 1.0
        return [f"{text} (--other-machine compares)"], told, 1.0
    first, second = stored.data["comparison"].reference_workload, results.reference_workload
    if first is None or second is None or then.packages.get("numpy") != now.packages.get("numpy"):
        why = "NumPy differs" if first and second else "a run has no reference workload"
        unknown = f"how far the machine drifted between the two runs is not known: {why}."
        return [], [unknown, *told], 1.0
    pace = drift_ratio(first, second)
    moved = (
        f"the machine became {max(pace, 1 / pace) - 1:.1%} {'slower' if pace > 1 else 'faster'} "
        "between the two runs (a fixed product on the CPU)"
    )
    if is_steady(pace):
        return [], [f"{moved}: the intervals are that much wider.", *told], pace
    return [f"{moved}, more than {STEADY:.0%}"], told, pace


def _differences(
    before: Mapping[str, str], now: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    pairs = {key: (before.get(key), now.get(key)) for key in {**before, **now}}
    return {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}


def _unlike(options: Namespace, name: str, changes: Mapping[str, object]) -> Iterator[str]:
    changed = [what.removeprefix(DIGEST) for what in changes if what != _NAME]
    if changed and not options.other_model:
        what = enumerate_items(list(dict.fromkeys(changed)))
        yield f"{name} differs in {what} (--other-model compares)"


def _judge(
    options: Namespace, outcomes: Sequence[_Outcome], left: Sequence[str]
) -> tuple[int, list[str]]:
    """Apply ``--fail-if``: the exit code, a sentence by candidate; GitHub is told."""
    if (bound := options.fail_if) is None:
        return 0, []
    limit = f"--fail-if slower:{bound:.2f}"
    code, sentences = 0, []
    for claim, _, reasons, lacking in outcomes:
        name, passes = claim.subject, claim.exceeds(1 / bound)
        if lacking:
            code = _UNJUDGED
            sentences.append(f"{name} is not judged by {limit}: {'; '.join(lacking)}.")
            annotate("error", f"{name} is not judged", sentences[-1], as_json=options.json)
        elif passes:
            sentences.append(f"{name} passes {limit}.")
        elif passes is None:
            sentences.append(f"{name} is undecided for {limit}, which lets it pass.")
            why = "; ".join([str(claim), *reasons])
            annotate("warning", f"{name} is undecided", f"{why}.", as_json=options.json)
        else:
            code = max(code, 1)
            sentences.append(f"{name} fails {limit}.")
            annotate("error", f"{name} is slower", f"{claim}.", as_json=options.json)
    for sentence in left:
        annotate("warning", "not compared", sentence, as_json=options.json)
    return code, sentences


def _table(outcomes: Sequence[_Outcome]) -> pd.DataFrame:
    unit = common_unit(median for outcome in outcomes for median in outcome.medians)
    columns = ["candidate", f"baseline ({unit})", f"now ({unit})", "speedup", "low", "high"]
    rows = [
        [claim.subject]
        + [rounded(median * UNITS[unit]) for median in medians]
        + [rounded(value) for value in (claim.ratio, claim.low, claim.high)]
        for claim, medians, *_ in outcomes
    ]
    table = pd.DataFrame(rows, columns=columns).set_index("candidate")
    return table.assign(verdict=[outcome.claim.verdict for outcome in outcomes])


def _changed(
    report: Report,
    stored: Record,
    changes: Mapping[str, Mapping[str, tuple[str | None, str | None]]],
) -> pd.DataFrame | str:
    """List what differs in the machine, the versions, and what each candidate measures."""
    pairs = _differences(_facts(stored.environment), _facts(report.machine))
    rows = [(what, *pair) for what, pair in pairs.items()]
    for name, changed in changes.items():
        prefix = f"{name}: " if len(changes) > 1 else ""
        rows += [(f"{prefix}{what}", *pair) for what, pair in changed.items()]
    if not rows:
        return "Nothing: the machine, versions, model, inputs and session are the same."
    return pd.DataFrame(rows, columns=["what", "baseline", "now"]).set_index("what")


def _facts(machine: Environment) -> dict[str, str]:
    rows = dict(machine.to_rows())
    return {**{name: rows[name] for name in _SHOWN}, **machine.packages}
