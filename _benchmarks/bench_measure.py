"""What measuring adds to a call: measure beside timeit and torch.utils.benchmark.

Each one times the same function, which does nothing or sums a small array. What they report above
the time of an empty loop of Python is their overhead per call.
"""

import time
import timeit
from collections.abc import Callable

import numpy as np
from torch.utils.benchmark import Timer

import ortmeter

ROUNDS = 15
ARRAY = np.ones(1000)


def nothing() -> None:
    """Do nothing."""


def add() -> None:
    """Sum a small array."""
    ARRAY.sum()


def with_measure(function: Callable[[], None]) -> float:
    """Seconds per call found by this package."""
    return ortmeter.measure({"f": function}, repeat=50, precision=None)["f"].median


def with_timeit(function: Callable[[], None]) -> float:
    """Seconds per call found by timeit, the median of its samples."""
    timer = timeit.Timer(function)
    number, _ = timer.autorange()
    return float(np.median(timer.repeat(5, max(1, number // 100)))) / max(1, number // 100)


def with_torch(function: Callable[[], None]) -> float:
    """Seconds per call found by torch."""
    timer = Timer("function()", globals={"function": function})
    return float(timer.blocked_autorange(min_run_time=0.02).median)


def main() -> None:
    """Print the median over interleaved rounds, and the ratio to timeit."""
    tools = {"timeit": with_timeit, "measure": with_measure, "torch Timer": with_torch}
    for function in (nothing, add):
        found: dict[str, list[float]] = {name: [] for name in tools}
        spent = dict.fromkeys(tools, 0.0)
        for _ in range(ROUNDS):
            for name, tool in tools.items():
                start = time.perf_counter()
                found[name].append(tool(function))
                spent[name] += time.perf_counter() - start
        reference = np.median(found["timeit"])
        for name, seconds in found.items():
            median = np.median(seconds)
            print(
                f"{function.__name__:>7} by {name:<11}: {median * 1e9:7.1f} ns per call, "
                f"{median / reference:.3f} of timeit, {spent[name] / ROUNDS * 1e3:.0f} ms spent"
            )


if __name__ == "__main__":
    main()
