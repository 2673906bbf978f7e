"""Start processes until intervals are narrow, and put together what each one measured."""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ortmeter.progress import progress_bar
from ortmeter.timing.comparison import Comparison, log_ratio
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.statistics import MIN_PROCESSES, student

_MOST_TIMES = 3  # as many processes as asked for, when intervals stay wide
# Level at which an interval is narrow enough to stop: at 99% it may be so by luck, and each
# process that is added is another chance.
_SURE = 0.999

_Key = TypeVar("_Key")
_Results = Mapping[_Key, Mapping[str, Measurement]]


def share_budget(
    keys: Sequence[_Key], budget_s: float, measure: Callable[[_Key, float], Comparison]
) -> dict[_Key, Comparison]:
    """Measure one after the other, each with its part of the seconds that are left."""
    ends = time.perf_counter() + budget_s
    found: dict[_Key, Comparison] = {}
    for key in keys:
        share = max(ends - time.perf_counter(), 0.0) / (len(keys) - len(found))
        found[key] = measure(key, share)
    return found


def measure_isolated(
    candidates: Mapping[str, Callable[[float], Comparison]], *, budget_s: float, seed: int
) -> Comparison:
    """Measure candidates one after the other, in random order, and put them side by side.

    Each one is a function of the seconds that it may take, which measures it in a fresh process.
    """
    order = np.random.default_rng(seed).permutation(list(candidates)).tolist()
    parts = share_budget(order, budget_s, lambda name, share: candidates[name](share))
    references = [part.reference_workload for part in parts.values() if part.reference_workload]
    both = _cut([*(parts[name][name] for name in candidates), *references])
    measured, references = both[: len(candidates)], both[len(candidates) :]
    joined = None
    if references:  # a round of each, then the next: the first rounds are those of all
        seconds = np.stack([one.seconds[0] for one in references], axis=1)
        joined = dataclasses.replace(references[0], seconds=seconds.reshape(1, -1), sets=1)
    return Comparison(
        [dataclasses.replace(m, isolated=True) for m in measured], reference_workload=joined
    )


def collect(
    keys: Sequence[_Key],
    run: Callable[[int, Sequence[_Key], float], _Results[_Key]],
    *,
    processes: int,
    precision: float | None,
    budget_s: float,
) -> dict[_Key, Comparison]:
    """Run processes until every interval is narrow enough, or the budget is spent.

    ``run(i, keys, budget_s)`` measures these groups in one fresh process. Every process ends with
    as many rounds as the one that had time for the fewest.
    """
    begin = time.perf_counter()
    parts: dict[_Key, list[Mapping[str, Measurement]]] = {key: [] for key in keys}
    stopped = dict.fromkeys(keys, "repeat")
    wanted = list(keys)
    longest = 0.0
    most = processes if precision is None else _MOST_TIMES * processes
    with progress_bar("processes", total=processes) as bar:
        for i in range(most):
            started = time.perf_counter()
            left = budget_s - (started - begin)
            # A process that could not end in time is not started, but for the first one.
            if i and left < longest * (1 if i >= processes else 0.5):
                stopped |= dict.fromkeys(wanted, "budget")
                break
            share = left / max(processes - i, 1)
            for key, found in run(i, wanted, share).items():
                parts[key].append(found)
            longest = max(longest, time.perf_counter() - started)
            bar.update()
            if i + 1 >= processes:
                for key in list(wanted):
                    if precision is None or _is_precise(parts[key], precision):
                        stopped[key] = "repeat" if precision is None else "precision"
                        wanted.remove(key)
                if not wanted:
                    break
    return {key: _pooled(found, stopped[key]) for key, found in parts.items()}


def processes_needed(
    baseline: Measurement, candidate: Measurement, confidence: float, effect: float
) -> int | None:
    """Return how many processes decide in nine runs of ten, as noisy as this one of several.

    An interval whose half-width is below half of the *effect* leaves 1 out, or is within the effect
    of 1, wherever it lies. A large difference needs less. None beyond 1000.
    """
    from scipy.special import chdtri

    sets, freedom = baseline.sets, len(baseline.rows) - 1
    log, half = log_ratio(baseline, candidate, confidence)
    error = math.inf if half is None else half / student(freedom, confidence)
    # The deviation and the ratio are estimated from few processes: what they are in nine of ten.
    deviation = error * math.sqrt((freedom + 1) * freedom / chdtri(freedom, 0.9))
    goal = max(math.log1p(effect) / 2, abs(log) - 1.3 * error)
    enough = (
        count
        for count in range(MIN_PROCESSES, 1000)
        if (student(sets * count - 1, confidence) + 1.3) * deviation / math.sqrt(sets * count)
        <= goal
    )
    return next(enough, None)


def _is_precise(parts: list[Mapping[str, Measurement]], precision: float) -> bool:
    half = _pooled(parts).half_width(_SURE)
    return half is not None and half <= precision


def _pooled(parts: Sequence[Mapping[str, Measurement]], stopped: str = "repeat") -> Comparison:
    """Put the processes of each candidate together, and those of the reference workload."""
    measured = [_stack([part[name] for part in parts]) for name in parts[0]]
    compared = (part.reference_workload for part in parts if isinstance(part, Comparison))
    references = [reference for reference in compared if reference]
    return Comparison(
        measured, stopped, reference_workload=_stack(references) if references else None
    )


def _stack(measured: Sequence[Measurement]) -> Measurement:
    alike = _cut(measured)
    seconds = np.concatenate([one.seconds for one in alike])
    after_switch = tuple(itertools.chain.from_iterable(one.after_switch for one in measured))
    return dataclasses.replace(alike[0], seconds=seconds, after_switch=after_switch)


def _cut(measured: Sequence[Measurement]) -> list[Measurement]:
    """Keep as many sets of sessions, and rounds of each, as the one that has the fewest."""
    sets = min(one.sets for one in measured)
    rounds = min(one.repeat // one.sets for one in measured)
    return [dataclasses.replace(m, seconds=m.cut(sets, rounds), sets=sets) for m in measured]
