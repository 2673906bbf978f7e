"""Interleave candidates in this process, and time them."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.providers import Provider
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.drift import make_reference
from ortmeter.timing.measurement import Candidate, Measurement
from ortmeter.timing.statistics import MIN_ROUNDS

_MIN_SAMPLE_S = 5e-5
_CLOCK_TICKS = 1000
_MAX_NUMBER = 1_000_000
_GROWTH = 1.5
_STABLE_CALLS = 5
_STABLE_CHANGE = 0.05
_MAX_WARMUP_CALLS = 100
_MAX_WARMUP_S = 1.0
_WARMUP_SHARE = 0.3  # of the budget, for all candidates together
# A sample of the reference workload: as long as it takes to be interrupted as candidates are.
_CONTROL_S = 4e-3
# Calls of new sessions before their samples, where sessions of the same models are known.
_WARMUP_AGAIN = 3
# A call that takes longer makes a sample, whatever the noise of the one that said so.
_LONG_S = 5e-3
# Longest sample of a candidate that makes as many calls as a quicker one of its group.
_LONGEST_SAMPLE_S = 2e-2
# Calls after a switch that are looked at, in how many switches, and the share of the budget that
# this may take. A call is settled when it is this near to the last three.
_LOOKED_AT, _SWITCHES, _SETTLING_SHARE = 12, 3, 0.1
_SETTLED = 1.02

_Function = Callable[[], object]


def measure_here(
    candidates: Mapping[str, Candidate],
    *,
    repeat: int | None = None,
    warmup: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
    sync: str | None = None,
    least_s: float = 0.0,
    before: Comparison | None = None,
    seed: int = 0,
    reference_workload: bool = False,
    switching: bool = False,
) -> Comparison:
    """Take interleaved samples of the candidates, until they are precise or the budget is spent.

    What was found *before* of other sessions of the same candidates is not looked for again: calls
    of a sample, calls that settle the caches.
    """
    deadline = time.perf_counter() + budget_s
    timed = [(n, c, _synchronized(c.function, sync)) for n, c in candidates.items()]
    if reference_workload:  # the last one; it waits for no device
        product = make_reference()
        timed.append(("reference", product, product.function))
    most = min(_MAX_WARMUP_S, _WARMUP_SHARE * budget_s / len(timed))
    if before is not None and warmup is None:
        warmup = _WARMUP_AGAIN
    with collector_off():
        warmups = [_warm_up(n, call, warmup, most, deadline) for n, _, call in timed]
        calls = [call for *_, call in timed]
        numbers, settling = [1] * len(calls), [0] * len(calls)
        if before is not None:
            known = {m.name: m for m in (*before.values(), before.reference_workload) if m}
            numbers, settling = (
                [getattr(known[n], what) for n, *_ in timed] for what in ("number", "settling")
            )
        elif not switching:
            warm = [seconds[-1] if seconds else 0.0 for seconds in warmups]
            numbers, seconds = _calibrate(calls, warm, len(candidates), deadline)
            most_s = min(_SETTLING_SHARE * budget_s, deadline - time.perf_counter())
            settling = _settling(calls, seconds, most_s)
        plan = list(zip(calls, settling, numbers, strict=True))
        ends = time.perf_counter() + least_s, deadline
        samples, first, stopped = _rounds(
            plan, len(candidates), repeat or MIN_ROUNDS, precision, ends, seed
        )
    measured = [
        Measurement(
            name,
            samples[:, i].reshape(1, -1),
            numbers[i],
            warmups[i],
            c.flop,
            c.bytes_moved,
            settling=settling[i],
            after_switch=(float(np.median(first[:, i])),) if np.isfinite(first[0, i]) else (),
        )
        for i, (name, c, _) in enumerate(timed)
    ]
    return Comparison(
        measured[: len(candidates)],
        stopped,
        reference_workload=measured[-1] if reference_workload else None,
    )


def as_candidate(given: Any) -> Candidate:
    """Make a candidate of a function, or of a model, whose session is created."""
    made = given.candidate() if hasattr(given, "candidate") else given
    return made if isinstance(made, Candidate) else Candidate(made)


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch the garbage collector off, and on again if it was: it stays out of what is timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _synchronized(function: _Function, sync: str | None) -> _Function:
    """Add to a function a wait for a device of torch; the CPU needs none."""
    if sync is None or not (device := Provider.parse(sync)).on_cuda:
        return function
    torch = import_optional("torch", "torch")

    def call() -> None:
        function()
        torch.cuda.synchronize(device.index)

    return call


def _warm_up(
    name: str, call: _Function, warmup: int | None, most_s: float, deadline: float
) -> tuple[float, ...]:
    """Call until the times are stable; return the seconds of each call, at least one."""
    seconds: list[float] = []
    try:
        while not _is_warm(seconds, warmup, most_s):
            seconds.append(_sample(call, 1))
            if time.perf_counter() >= deadline:
                break
    except Exception as error:
        error.add_note(f"This happened while measuring candidate {name!r}.")
        raise
    return tuple(seconds)


def _is_warm(seconds: list[float], warmup: int | None, most_s: float) -> bool:
    if warmup is not None:
        return len(seconds) >= max(warmup, 1)
    # The first call may initialise a device for seconds, after which the kernels are still cold.
    if len(seconds) >= _MAX_WARMUP_CALLS or sum(seconds[1:]) >= most_s:
        return True
    if len(seconds) < 2 * _STABLE_CALLS:
        return False
    before = float(np.median(seconds[-2 * _STABLE_CALLS : -_STABLE_CALLS]))
    after = float(np.median(seconds[-_STABLE_CALLS:]))
    return abs(before - after) <= _STABLE_CHANGE * after


def _calibrate(
    calls: Sequence[_Function], warm: Sequence[float], compared: int, deadline: float
) -> tuple[list[int], list[float]]:
    """Return how many calls of each candidate make a sample, and the seconds of a call.

    A mean of more calls hides more of what is rare: the first *compared* candidates, those that are
    not the reference workload, have the same number, unless a slow one would take too long.
    """
    found = [_calls_of_a_sample(*pair, deadline) for pair in zip(calls, warm, strict=True)]
    seconds = [each for _, each in found]
    most = max(number for number, _ in found[:compared])
    numbers = [max(n, min(most, int(_LONGEST_SAMPLE_S / each))) for n, each in found[:compared]]
    longest = max(n * each for n, each in zip(numbers, seconds, strict=False))
    for number, each in found[compared:]:
        numbers.append(max(number, math.ceil(min(longest, _CONTROL_S) / each)))
    return [min(number, _MAX_NUMBER) for number in numbers], seconds


def _calls_of_a_sample(call: _Function, warm: float, deadline: float) -> tuple[int, float]:
    """Return how many calls make a sample long enough for the clock, and the seconds of a call."""
    least = max(_MIN_SAMPLE_S, _CLOCK_TICKS * time.get_clock_info("perf_counter").resolution)
    number, per_call = 1, warm
    if warm > _LONG_S:
        return number, per_call
    while number < _MAX_NUMBER and time.perf_counter() < deadline:
        per_call = _sample(call, number)
        # Two samples: a single one may have been interrupted.
        if per_call * number >= least:
            per_call = min(per_call, _sample(call, number))
        if per_call * number >= least:
            break
        # The first samples of a short call are mostly clock: never trust one for more than tenfold.
        number = min(math.ceil(least / max(per_call, 1e-9)), 10 * number)
    return number, max(per_call, 1e-9)


def settling_calls(seconds: float) -> int:
    """Return how many calls after a switch are not timed, at least, by the seconds of one.

    Trained networks of 3 to 13 ms pay 1% to 3% in the fourth call, shorter ones in the sixth; one
    of 20 ms brings what it reads into the caches while it lasts, and what a switch costs is nothing
    beside a quarter of a second.
    """
    return sum(seconds < most for most in (5e-4, 5e-3, 2e-2, 2e-2, 2e-2, 0.25))


def _settling(calls: Sequence[_Function], seconds: Sequence[float], most_s: float) -> list[int]:
    """Return how many calls of each candidate, after another one, are not timed.

    As many as still pay for the switch, in three switches that are looked at if there is time. None
    when one candidate runs alone, or when the budget is spent.
    """
    if len(calls) == 1 or most_s <= 0:
        return [0] * len(calls)
    counts = [settling_calls(each) for each in seconds]
    if _SWITCHES * _LOOKED_AT * sum(seconds) > most_s:
        return counts
    found = np.array(
        [
            [[_sample(call, 1) for _ in range(_LOOKED_AT)] for call in calls]
            for _ in range(_SWITCHES)
        ]
    )
    settled = _SETTLED * np.median(found[..., -3:], axis=(0, 2))
    paying = np.median(found, axis=0)[:, :-3] > settled[:, None]
    most = int(np.flatnonzero(paying.any(axis=0)).max(initial=-1)) + 1
    return [max(count, most) for count in counts]


def _rounds(  # noqa: PLR0917 - private, called once with everything
    plan: list[tuple[_Function, int, int]],
    compared: int,
    repeat: int,
    precision: float | None,
    ends: tuple[float, float],
    seed: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], str]:
    """Take rounds of samples: seconds per call, of shape (rounds, candidates), why it stopped.

    Each candidate of the plan has its function, the calls that settle its caches after a switch,
    and those of a sample. As many samples as settling calls follow each other. Also returns the
    seconds of the first call after each switch. The first *compared* candidates decide when their
    ratios are precise. It ends between the two times of *ends*.
    """
    earliest, deadline = ends
    rng = np.random.default_rng(seed)
    rows: list[list[float]] = []
    first: list[list[float]] = []
    burst = max(min(settling for _, settling, _ in plan), 1)
    wanted = repeat
    with progress_bar("rounds", total=wanted) as bar:
        while True:
            turn: list[list[float]] = [[]] * len(plan)
            count = min(burst, wanted - len(rows))
            for i in rng.permutation(len(plan)).tolist():  # a random order
                turn[i] = _turn(plan[i], count)
            first.append([seconds[0] for seconds in turn])
            rows += map(list, zip(*(seconds[1:] for seconds in turn), strict=True))
            bar.update(count)
            if len(rows) == wanted:
                # A sample of zero seconds: the clock is too coarse, whatever the rounds.
                coarse = min(map(min, rows)) <= 0
                if coarse or (precision is None and time.perf_counter() >= earliest):
                    return np.array(rows), np.array(first), "repeat"
                if precision is not None and _is_precise(rows, compared, precision):
                    return np.array(rows), np.array(first), "precision"
                wanted = bar.total = math.ceil(_GROWTH * wanted)
            if time.perf_counter() >= deadline:
                return np.array(rows), np.array(first), "budget"


def _turn(plan: tuple[_Function, int, int], count: int) -> list[float]:
    """Return the seconds of the first call, NaN if it is not known, then of *count* samples."""
    call, settling, number = plan
    if elsewhere := getattr(call, "sample", None):  # another process has the clock
        return [math.nan, *(elsewhere(number, 0 if i else settling) for i in range(count))]
    first = _sample(call, 1) if settling else math.nan
    for _ in range(settling - 1):
        call()
    return [first, *(_sample(call, number) for _ in range(count))]


def _is_precise(rows: list[list[float]], compared: int, precision: float) -> bool:
    """Look at the intervals that will be printed."""
    columns = np.array(rows).T[:compared]
    found = Comparison(Measurement(str(i), column[None]) for i, column in enumerate(columns))
    half = found.half_width()
    return half is not None and half <= precision


def _sample(call: _Function, number: int) -> float:
    if elsewhere := getattr(call, "sample", None):
        return float(elsewhere(number, 0))
    timer, loop = time.perf_counter, itertools.repeat(None, number)
    start = timer()
    for _ in loop:
        call()
    return (timer() - start) / number
