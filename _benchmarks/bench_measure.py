"""What measuring adds to a call: measure beside timeit and torch.utils.benchmark.

Each one times the same function, which does nothing or sums a small array. What they report above
the time of an empty loop of Python is their overhead per call.
"""

import functools
import timeit
from collections.abc import Callable

import command
import numpy as np
from torch.utils.benchmark import Timer

import ortmeter


def with_measure(function: Callable[[], object]) -> float:
    """Seconds per call found by this package."""
    return ortmeter.measure({"f": function}, repeat=50, precision=None)["f"].median


def with_timeit(function: Callable[[], object]) -> float:
    """Seconds per call found by timeit, the median of its samples."""
    timer = timeit.Timer(function)
    number = max(1, timer.autorange()[0] // 100)
    return float(np.median(timer.repeat(5, number))) / number


def with_torch(function: Callable[[], object]) -> float:
    """Seconds per call found by torch."""
    timer = Timer("function()", globals={"function": function})
    return float(timer.blocked_autorange(min_run_time=0.02).median)


if __name__ == "__main__":
    tools = {"timeit": with_timeit, "measure": with_measure, "torch Timer": with_torch}
    for what, call in (("nothing", lambda: None), ("sum of 1000", np.ones(1000).sum)):
        found: dict[str, list[float]] = {name: [] for name in tools}
        keep = {
            name: functools.partial(lambda *a: a[0].append(a[1](a[2])), seconds, tools[name], call)
            for name, seconds in found.items()
        }
        spent = command.in_turn(keep, rounds=15).mean()
        for name, seconds in found.items():
            share = np.median(seconds) / np.median(found["timeit"])
            print(
                f"{what} by {name}: {np.median(seconds) * 1e9:.1f} ns per call, "
                f"{share:.3f} of timeit, {spent[name] * 1e3:.0f} ms spent"
            )
