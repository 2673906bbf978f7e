"""Time candidates in turn, in this process or in fresh ones."""

import itertools
import math
import time
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.providers import Provider
from ortmeter.timing.collector import collector_off
from ortmeter.timing.comparison import Comparison, Comparisons
from ortmeter.timing.measurement import Candidate, Measurement
from ortmeter.timing.processes import measure_in_processes
from ortmeter.timing.statistics import MIN_ROUNDS

__all__ = ["measure", "measure_each"]

_MIN_SAMPLE_S = 2e-4
_CLOCK_TICKS = 1000
_MAX_NUMBER = 1_000_000
_GROWTH = 1.5
_STABLE_CALLS = 5
_STABLE_CHANGE = 0.05
_MAX_WARMUP_CALLS = 100
_MAX_WARMUP_S = 1.0
_WARMUP_SHARE = 0.3  # of the budget, for all candidates together
_ROUNDS_OF_A_PROCESS = 12

_Function = Callable[[], object]
_Timer = Callable[[], float]


def measure(
    candidates: Mapping[str, Candidate | _Function],
    *,
    repeat: int | None = None,
    warmup: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
    processes: int = 1,
    sync: _Function | str | None = None,
    seed: int = 0,
    timer: _Timer = time.perf_counter,
) -> Comparison:
    """Time candidates in turn inside the same loop.

    Each round takes one sample of every candidate, in an order shuffled from *seed*: a slow spell
    of the machine hits them alike. A sample is the mean of ``number`` calls, calibrated so that it
    lasts well above the resolution of the clock. The garbage collector is off meanwhile.

    Parameters
    ----------
    candidates : mapping of str to Candidate or callable
        What to compare, by name.
    repeat : int, optional
        Rounds, at least: 100 by default, 12 in each process when there are several. An interval
        needs 100 rounds in one process, or 3 processes.
    warmup : int, optional
        Calls of each candidate before the samples. By default until their times are stable (the
        medians of the last two groups of 5 calls differ by less than 5 %), 100 calls, one
        second, or its part of 30 % of the budget.
    precision : float, optional
        Half-width, relative, of the 99 % interval of a ratio. While an interval between two
        candidates is wider, rounds are added. With several processes it is the interval of 99.9 %,
        and processes are added, up to three times as many as asked for. None takes exactly
        *repeat* rounds.
    budget_s : float
        Seconds for everything, warm-up and processes included, after which no sample is taken, even
        below *repeat* rounds. One sample of each candidate is always taken.
    processes : int
        Above 1, the whole is repeated in that many fresh processes (memory layout and threads
        differ from one process to the next); every candidate needs a ``recipe``.
    sync : callable or str, optional
        Waits for the device after each call of candidates which have no ``sync`` of their own; a
        provider such as ``cuda:1`` stands for the synchronisation of torch on that device.
    seed : int
        Seed of the order of the candidates.
    timer : callable
        Clock, in seconds.

    Returns
    -------
    Comparison
        Mapping of names to :class:`~ortmeter.timing.Measurement`, in the order of *candidates*,
        all with the same samples. It tells what stopped the measurement.

    Raises
    ------
    InvalidArgumentError
        There is no candidate, a number is out of range, or a recipe is missing.

    Examples
    --------
    >>> results = measure({"sum": lambda: sum(range(100))}, repeat=3, precision=None)
    >>> results["sum"].repeat, results.stopped
    (3, 'repeat')
    """
    options: dict[str, Any] = {"repeat": repeat, "warmup": warmup, "precision": precision}
    _check({"": candidates}, processes=processes, budget_s=budget_s, **options)
    prepared = _prepare(candidates)
    if processes > 1:
        options |= {"repeat": repeat or _ROUNDS_OF_A_PROCESS, "processes": processes, "seed": seed}
        return measure_in_processes({"": prepared}, budget_s=budget_s, **options)[""]
    deadline = timer() + budget_s
    calls = {name: _synchronized(c, sync) for name, c in prepared.items()}
    most = min(_MAX_WARMUP_S, _WARMUP_SHARE * budget_s / len(calls))
    with collector_off():
        warmups = {n: _warm_up(n, c, warmup, most, deadline, timer) for n, c in calls.items()}
        numbers = {name: _calibrate(call, timer, deadline) for name, call in calls.items()}
        samples, stopped = _rounds(
            calls, numbers, repeat or MIN_ROUNDS, precision, deadline, seed, timer
        )
    measured = [
        Measurement(
            name, samples[:, i].reshape(1, -1), numbers[name], warmups[name], c.flop, c.bytes_moved
        )
        for i, (name, c) in enumerate(prepared.items())
    ]
    return Comparison(measured, stopped)


def measure_each(
    groups: Mapping[Any, Mapping[str, Candidate | _Function]],
    *,
    axis: str,
    budget_s: float = 10.0,
    processes: int = 1,
    **options: Any,
) -> Comparisons:
    """Time groups of candidates, one group after the other: a group per size, per type.

    Parameters
    ----------
    groups : mapping of mappings
        For each value of the axis, candidates as in :func:`measure`.
    axis : str
        Name of the axis: ``size``.
    budget_s : float
        Seconds for everything, shared by the groups.
    processes : int
        Fresh processes; each one measures all the groups, so that it starts once.
    **options
        Other options of :func:`measure`.

    Returns
    -------
    Comparisons
        A comparison for each group.

    Raises
    ------
    InvalidArgumentError
        As in :func:`measure`.

    Examples
    --------
    >>> groups = {n: {"sum": lambda n=n: sum(range(n))} for n in (10, 100)}
    >>> found = measure_each(groups, axis="n", repeat=3, precision=None)
    >>> found[100]["sum"].repeat
    3
    """
    _check(groups, processes=processes, budget_s=budget_s, **_numbers(options))
    if processes > 1:
        prepared = {key: _prepare(group) for key, group in groups.items()}
        options["repeat"] = options.get("repeat") or _ROUNDS_OF_A_PROCESS
        found = measure_in_processes(prepared, processes=processes, budget_s=budget_s, **options)
        return Comparisons(found, axis)
    timer = options.get("timer", time.perf_counter)
    deadline = timer() + budget_s
    results: dict[Any, Comparison] = {}
    for key, group in groups.items():
        share = max(deadline - timer(), 0.0) / (len(groups) - len(results))
        results[key] = measure(group, budget_s=share, **options)
    return Comparisons(results, axis)


def _numbers(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options.get(name) for name in ("repeat", "warmup", "precision")}


def _prepare(candidates: Mapping[str, Candidate | _Function]) -> dict[str, Candidate]:
    return {n: c if isinstance(c, Candidate) else Candidate(c) for n, c in candidates.items()}


def _check(groups: Mapping[Any, Mapping[str, object]], **numbers: Any) -> None:
    for group in groups.values() if isinstance(groups, Mapping) and groups else (None,):
        if not isinstance(group, Mapping) or not group:
            what = "is empty" if not group else f"is a {type(group).__name__}"
            raise InvalidArgumentError(
                f"candidates {what}. Accepted: a mapping of names to functions"
            )
        for name, candidate in group.items():
            if not callable(getattr(candidate, "function", candidate)):
                raise InvalidArgumentError(
                    f"candidate {name!r} is a {type(candidate).__name__}. Accepted: a function "
                    "without arguments, or a Candidate"
                )
    for name, least in {"repeat": 1, "processes": 1, "warmup": 0}.items():
        given = numbers[name]
        if given is not None and (not isinstance(given, int) or given < least):
            raise InvalidArgumentError(f"{name}={given!r}. Accepted: an integer from {least}")
    for name in ("precision", "budget_s"):
        given = numbers[name]
        if given is not None and not (isinstance(given, Real) and 0 <= float(given) < math.inf):
            raise InvalidArgumentError(f"{name}={given!r}. Accepted: a finite number from 0")


def _synchronized(candidate: Candidate, default: _Function | str | None) -> _Function:
    sync = candidate.sync or (_synchronizer(default) if isinstance(default, str) else default)
    if sync is None:
        return candidate.function
    function = candidate.function

    def call() -> None:
        function()
        sync()

    return call


def _synchronizer(provider: str) -> _Function | None:
    """Return what waits for a device of torch, None for the CPU, which needs nothing."""
    device = Provider.parse(provider)
    if device.name == "cpu":
        return None
    torch = import_optional("torch", "torch")
    return lambda: torch.cuda.synchronize(device.index)


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
    calls: Mapping[str, _Function],
    numbers: Mapping[str, int],
    repeat: int,
    precision: float | None,
    deadline: float,
    seed: int,
    timer: _Timer,
) -> tuple[npt.NDArray[np.float64], str]:
    """Take rounds of samples: seconds per call, of shape (rounds, candidates), why it stopped."""
    rng = np.random.default_rng(seed)
    plan = [(call, numbers[name]) for name, call in calls.items()]
    rows: list[list[float]] = []
    wanted = repeat
    with progress_bar("rounds", total=wanted) as bar:
        while True:
            rows.append(_round(plan, rng, timer))
            bar.update()
            if len(rows) == wanted:
                # A sample of zero seconds: the clock is too coarse, whatever the rounds.
                if precision is None or min(map(min, rows)) <= 0:
                    return np.array(rows), "repeat"
                if _is_precise(rows, precision):
                    return np.array(rows), "precision"
                wanted = bar.total = math.ceil(_GROWTH * wanted)
            if timer() >= deadline:
                return np.array(rows), "budget"


def _is_precise(rows: list[list[float]], precision: float) -> bool:
    """Look at the intervals that will be printed."""
    columns = np.array(rows).T
    found = Comparison(Measurement(str(i), column[None]) for i, column in enumerate(columns))
    half = found.half_width()
    return half is not None and half <= precision


def _round(
    plan: list[tuple[_Function, int]], rng: np.random.Generator, timer: _Timer
) -> list[float]:
    """Take one sample of each candidate, in a random order."""
    row = [0.0] * len(plan)
    for i in rng.permutation(len(plan)).tolist():
        call, number = plan[i]
        row[i] = _sample(call, number, timer)
    return row


def _sample(call: _Function, number: int, timer: _Timer) -> float:
    loop = itertools.repeat(None, number)
    start = timer()
    for _ in loop:
        call()
    return (timer() - start) / number
