"""Time candidates in turn, in one process."""

import itertools
import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ortmeter.collector import collector_off
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.providers import Provider
from ortmeter.timing.fresh import measure_in_fresh_processes
from ortmeter.timing.measurement import Candidate, Measurement

__all__ = ["measure"]

_MIN_SAMPLE_S = 2e-4
_CLOCK_TICKS = 1000
_MAX_NUMBER = 1_000_000
_BATCHES = 10
_MIN_BATCH = 2
_GROWTH = 1.5
_STABLE_CALLS = 5
_STABLE_CHANGE = 0.05
_MAX_WARMUP_CALLS = 100
_MAX_WARMUP_S = 1.0

_Function = Callable[[], object]
_Timer = Callable[[], float]


def measure(
    candidates: Mapping[str, Candidate | _Function],
    *,
    repeat: int = 50,
    warmup: int | None = None,
    precision: float | None = 0.01,
    budget_s: float = 10.0,
    processes: int = 1,
    sync: _Function | str | None = None,
    seed: int = 0,
    timer: _Timer = time.perf_counter,
) -> dict[str, Measurement]:
    """Time candidates in turn inside the same loop.

    Each round takes one sample of every candidate, in an order shuffled from *seed*: a slow spell
    of the machine hits them alike. A sample is the mean of ``number`` calls, calibrated so that it
    lasts well above the resolution of the clock. Rounds go on until the ratios between the medians
    are known well enough. The garbage collector is off meanwhile.

    Parameters
    ----------
    candidates : mapping of str to Candidate or callable
        What to compare, by name.
    repeat : int
        Rounds, at least.
    warmup : int, optional
        Calls of each candidate before the samples. By default until their times are stable (the
        medians of the last two groups of 5 calls differ by less than 5 %), 100 calls or one
        second.
    precision : float, optional
        Rounds are added while the standard error of a ratio of medians is above this. None takes
        exactly *repeat* rounds.
    budget_s : float
        No round is added after that many seconds of sampling, over all processes.
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
    dict of str to Measurement
        In the order of *candidates*, all with the same number of samples.

    Raises
    ------
    InvalidArgumentError
        There is no candidate, a number is out of range, or a recipe is missing.

    Examples
    --------
    >>> results = measure({"sum": lambda: sum(range(100))}, repeat=3, precision=None)
    >>> results["sum"].repeat
    3
    """
    _check(candidates, repeat, warmup, processes)
    prepared = {
        name: c if isinstance(c, Candidate) else Candidate(c) for name, c in candidates.items()
    }
    if processes > 1:
        return measure_in_fresh_processes(
            prepared,
            processes=processes,
            precision=precision,
            options={"repeat": repeat, "warmup": warmup, "budget_s": budget_s / processes},
            seed=seed,
        )
    calls = {name: _synchronized(c, sync) for name, c in prepared.items()}
    with collector_off():
        warmups = {name: _warm_up(name, call, warmup, timer) for name, call in calls.items()}
        numbers = {name: _calibrate(call, timer) for name, call in calls.items()}
        samples = _rounds(calls, numbers, repeat, precision, budget_s, seed, timer)
    return {
        name: Measurement(
            name, samples[:, i].reshape(1, -1), numbers[name], warmups[name], c.flop, c.bytes_moved
        )
        for i, (name, c) in enumerate(prepared.items())
    }


def _check(
    candidates: Mapping[str, object], repeat: int, warmup: int | None, processes: int
) -> None:
    if not candidates:
        raise InvalidArgumentError("candidates is empty. Accepted: a mapping of names to functions")
    minimum = {"repeat": (repeat, 1), "processes": (processes, 1), "warmup": (warmup, 0)}
    for name, (given, least) in minimum.items():
        if given is not None and given < least:
            raise InvalidArgumentError(f"{name}={given}. Accepted: an integer from {least}")


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


def _warm_up(name: str, call: _Function, warmup: int | None, timer: _Timer) -> tuple[float, ...]:
    """Call until the times are stable; return the seconds of each call, at least one."""
    seconds: list[float] = []
    try:
        while not _is_warm(seconds, warmup):
            seconds.append(_sample(call, 1, timer))
    except Exception as error:
        error.add_note(f"This happened while measuring candidate {name!r}.")
        raise
    return tuple(seconds)


def _is_warm(seconds: list[float], warmup: int | None) -> bool:
    if warmup is not None:
        return len(seconds) >= max(warmup, 1)
    # The first call may initialise a device for seconds, after which the kernels are still cold.
    if len(seconds) >= _MAX_WARMUP_CALLS or sum(seconds[1:]) >= _MAX_WARMUP_S:
        return True
    if len(seconds) < 2 * _STABLE_CALLS:
        return False
    before = float(np.median(seconds[-2 * _STABLE_CALLS : -_STABLE_CALLS]))
    after = float(np.median(seconds[-_STABLE_CALLS:]))
    return abs(before - after) <= _STABLE_CHANGE * after


def _calibrate(call: _Function, timer: _Timer) -> int:
    """Return how many calls make a sample long enough for the clock."""
    least = max(_MIN_SAMPLE_S, _CLOCK_TICKS * time.get_clock_info("perf_counter").resolution)
    number = 1
    while number < _MAX_NUMBER:
        per_call = _sample(call, number, timer)
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
    budget_s: float,
    seed: int,
    timer: _Timer,
) -> npt.NDArray[np.float64]:
    """Take rounds of samples; return seconds per call, of shape (rounds, candidates)."""
    rng = np.random.default_rng(seed)
    plan = [(call, numbers[name]) for name, call in calls.items()]
    rows: list[list[float]] = []
    wanted = repeat
    deadline = timer() + budget_s
    with progress_bar("rounds", total=wanted) as bar:
        while len(rows) < wanted:
            rows.append(_round(plan, rng, timer))
            bar.update()
            if len(rows) >= repeat and timer() >= deadline:
                break
            if len(rows) == wanted and _is_imprecise(rows, precision):
                wanted = bar.total = math.ceil(_GROWTH * wanted)
    return np.array(rows)


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


def _is_imprecise(rows: list[list[float]], precision: float | None) -> bool:
    """Tell whether the standard error of a ratio of medians is above *precision*, relative.

    Batch means: the median is taken over batches of consecutive rounds, so that correlated samples
    count for what they are worth. What all candidates share (a slow spell) cancels in the ratios.
    """
    length = len(rows) // _BATCHES
    if precision is None or length < _MIN_BATCH:
        return False
    batches = np.array(rows[: length * _BATCHES]).reshape(_BATCHES, length, -1)
    logs = np.log(np.maximum(np.median(batches, axis=1), np.finfo(np.float64).tiny))
    # A difference of two candidates varies up to sqrt(2) times more than one from their mean.
    shared = logs.mean(axis=1, keepdims=True) if logs.shape[1] > 1 else 0.0
    error = (logs - shared).std(axis=0, ddof=1).max() * math.sqrt(2 / _BATCHES)
    return bool(error > precision)
