"""Compare the waits of requests that a fixed service time serves with queueing theory.

Requests arrive at random (Poisson) and take the same time, one at a time: M/D/1. The mean wait is
``rho / (2 * (1 - rho))`` service times, where rho is the rate times the service time, times
``1 + c**2`` if the service times have a coefficient of variation c (Pollaczek and Khinchine). Both
come from the service times that were measured: a busy machine lengthens some. The interval is
Student's over independent runs.

``python _benchmarks/load_theory.py --service-ms 10 --runs 10 --seconds 6``
"""

import sys
import time
from collections.abc import Callable

import command
import numpy as np
from scipy import stats

from ortmeter.workloads.load import Load, Point, measure_load


def stand_in(seconds: float) -> Callable[[], None]:
    """Return a function that lasts that long, and leaves the interpreter to the others."""

    def call() -> None:
        end = time.perf_counter_ns() + int(1e9 * seconds)
        time.sleep(max(seconds - 3e-4, 0))
        while time.perf_counter_ns() < end:
            pass

    return call


def summarize(load: Load) -> tuple[float, float]:
    """Return the mean wait and the theory, in services."""
    waits = [(turn.starts - turn.arrivals)[load.settled(turn)] for turn in load.turns]
    service = np.concatenate([turn.ends - turn.starts for turn in load.turns])
    busy = load.point.rate * service.mean()
    expected = busy / (2 * (1 - busy)) * (1 + service.var() / service.mean() ** 2)
    return np.concatenate(waits).mean() / service.mean(), expected


def main() -> int:
    """Print a line per utilization; return how many miss the theory."""
    given = command.options(__doc__, service_ms=10.0, runs=10, seconds=6.0)
    service = given.service_ms / 1e3
    points = {rho: Point([stand_in(service)], rho / service) for rho in (0.3, 0.5, 0.7)}
    found: dict[float, list[tuple[float, ...]]] = {rho: [] for rho in points}
    for seed in range(given.runs):
        for rho, load in measure_load(points, seconds=given.seconds, seed=seed).items():
            found[rho].append(summarize(load))
    rows = []
    for rho, each in found.items():
        waits, theory = np.array(each).T
        low, high = stats.t.interval(0.99, len(waits) - 1, waits.mean(), stats.sem(waits))
        row = {"rho": rho, "mean wait (services)": waits.mean(), "low": low, "high": high}
        rows.append(row | {"theory": theory.mean()})
    command.show(rows)
    return sum(not row["low"] <= row["theory"] <= row["high"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
