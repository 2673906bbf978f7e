"""Time candidates in turn in this process, and what a fresh process does for its parent."""

import gc
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.providers import Provider
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.drift import make_reference
from ortmeter.timing.measurement import Candidate, Measurement, SpawnSpec
from ortmeter.timing.statistics import MIN_ROUNDS

_MIN_SAMPLE_S = 2e-4
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

_Function = Callable[[], object]
_Timer = Callable[[], float]


def measure_here(
    candidates: Mapping[str, Candidate],
    *,
    repeat: int | None = None,
    warmup: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
    sync: str | None = None,
    seed: int = 0,
    reference_workload: bool = False,
    timer: _Timer = time.perf_counter,
) -> Comparison:
    """Take samples of each candidate in turn, until they are precise or the budget is spent."""
    deadline = timer() + budget_s
    timed = [(n, c, _synchronized(c.function, sync)) for n, c in candidates.items()]
    if reference_workload:  # the last one; it waits for no device
        product = make_reference()
        timed.append(("reference", product, product.function))
    most = min(_MAX_WARMUP_S, _WARMUP_SHARE * budget_s / len(timed))
    with collector_off():
        warmups = [_warm_up(n, call, warmup, most, deadline, timer) for n, _, call in timed]
        numbers = [_calibrate(call, timer, deadline) for *_, call in timed]
        if reference_workload and all(warmups):  # the budget may be spent before
            longest = max(w[-1] * n for w, n in zip(warmups[:-1], numbers[:-1], strict=True))
            enough = min(longest, _CONTROL_S) / max(warmups[-1][-1], 1e-9)
            numbers[-1] = max(numbers[-1], min(math.ceil(enough), _MAX_NUMBER))
        plan = [(call, number) for (*_, call), number in zip(timed, numbers, strict=True)]
        samples, stopped = _rounds(
            plan, len(candidates), repeat or MIN_ROUNDS, precision, deadline, seed, timer
        )
    measured = [
        Measurement(
            name, samples[:, i].reshape(1, -1), numbers[i], warmups[i], c.flop, c.bytes_moved
        )
        for i, (name, c, _) in enumerate(timed)
    ]
    return Comparison(
        measured[: len(candidates)],
        stopped,
        reference_workload=measured[-1] if reference_workload else None,
    )


def as_candidates(functions: Mapping[str, Candidate | _Function]) -> dict[str, Candidate]:
    return {n: c if isinstance(c, Candidate) else Candidate(c) for n, c in functions.items()}


def measure_task(
    groups: list[dict[str, SpawnSpec]], asked_at: float, budget_s: float, seed: int, **options: Any
) -> list[tuple[list[Measurement], Measurement | None]]:
    """Build candidates and measure them, in a fresh process: those of each group, its reference."""
    measured = []
    for i, spawn_specs in enumerate(groups):
        # The order gives each one its place in memory: it changes from one process to the next.
        order = np.random.default_rng(seed).permutation(list(spawn_specs)).tolist()
        candidates = as_candidates({name: spawn_specs[name].build() for name in order})
        spent = max(time.time() - asked_at, 0.0)
        if i == 0:  # as long as it took to start, at least: cold calls say nothing
            budget_s = max(budget_s, 2 * spent)
        share = max(budget_s - spent, 0.0) / (len(groups) - i)
        results = measure_here(candidates, precision=None, budget_s=share, seed=seed, **options)
        measured.append(([results[name] for name in spawn_specs], results.reference_workload))
        del candidates  # the memory of a group is free for the next one
    return measured


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


def _warm_up(  # noqa: PLR0917 - private, called once with everything
    name: str,
    call: _Function,
    warmup: int | None,
    most_s: float,
    deadline: float,
    timer: _Timer,
) -> tuple[float, ...]:
    """Call until the times are stable; return the seconds of each call, at least one."""
    seconds: list[float] = []
    try:
        while not _is_warm(seconds, warmup, most_s) and not (seconds and timer() >= deadline):
            seconds.append(_sample(call, 1, timer))
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


def _calibrate(call: _Function, timer: _Timer, deadline: float) -> int:
    """Return how many calls make a sample long enough for the clock."""
    least = max(_MIN_SAMPLE_S, _CLOCK_TICKS * time.get_clock_info("perf_counter").resolution)
    number = 1
    while number < _MAX_NUMBER and timer() < deadline:
        per_call = _sample(call, number, timer)
        # Two samples: a single one may have been interrupted.
        if per_call * number >= least:
            per_call = min(per_call, _sample(call, number, timer))
        if per_call * number >= least:
            break
        # The first samples of a short call are mostly clock: never trust one for more than tenfold.
        number = min(math.ceil(least / max(per_call, 1e-9)), 10 * number)
    return number


def _rounds(  # noqa: PLR0917 - private, called once with everything
    plan: list[tuple[_Function, int]],
    compared: int,
    repeat: int,
    precision: float | None,
    deadline: float,
    seed: int,
    timer: _Timer,
) -> tuple[npt.NDArray[np.float64], str]:
    """Take rounds of samples: seconds per call, of shape (rounds, candidates), why it stopped.

    The first *compared* candidates decide when their ratios are precise.
    """
    rng = np.random.default_rng(seed)
    rows: list[list[float]] = []
    wanted = repeat
    with progress_bar("rounds", total=wanted) as bar:
        while True:
            row = [0.0] * len(plan)
            for i in rng.permutation(len(plan)).tolist():  # a random order
                call, number = plan[i]
                row[i] = _sample(call, number, timer)
            rows.append(row)
            bar.update()
            if len(rows) == wanted:
                # A sample of zero seconds: the clock is too coarse, whatever the rounds.
                if precision is None or min(map(min, rows)) <= 0:
                    return np.array(rows), "repeat"
                if _is_precise(rows, compared, precision):
                    return np.array(rows), "precision"
                wanted = bar.total = math.ceil(_GROWTH * wanted)
            if timer() >= deadline:
                return np.array(rows), "budget"


def _is_precise(rows: list[list[float]], compared: int, precision: float) -> bool:
    """Look at the intervals that will be printed."""
    columns = np.array(rows).T[:compared]
    found = Comparison(Measurement(str(i), column[None]) for i, column in enumerate(columns))
    half = found.half_width()
    return half is not None and half <= precision


def _sample(call: _Function, number: int, timer: _Timer) -> float:
    if elsewhere := getattr(call, "sample", None):  # another process has the clock
        return float(elsewhere(number))
    loop = itertools.repeat(None, number)
    start = timer()
    for _ in loop:
        call()
    return (timer() - start) / number
