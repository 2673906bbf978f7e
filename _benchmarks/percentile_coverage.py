"""Measure how often the interval of a percentile misses it.

Samples are drawn with known percentiles: normal samples whose neighbours are correlated, processes
that differ, and the latencies of a queue (M/M/1, exponential), which are correlated for longer as
it fills. An interval that is not given is not wrong.

``python _benchmarks/percentile_coverage.py --trials 400``
"""

import functools
import itertools
import sys
from collections.abc import Callable, Iterator

import command
import numpy as np
from numpy.random import Generator
from scipy import stats
from verdict_coverage import correlated

from ortmeter.timing.percentiles import LEVELS, percentiles

Array = np.ndarray
Draw = Callable[[Generator], Array | list[Array]]
MOST_WRONG = 0.04
SHARES = np.array(LEVELS) / 100


def queue(rng: Generator, count: int, rho: float) -> Array:
    """Latencies of M/M/1, once the queue has filled; a service takes 1."""
    count += 500
    between, service = rng.exponential(1 / rho, count), rng.exponential(1, count)
    walk = np.cumsum(service - between)
    wait = np.concatenate([[0.0], walk - np.minimum.accumulate(np.minimum(walk, 0))])
    return (wait[:-1] + service)[500:]


def processes(rng: Generator, count: int) -> list[Array]:
    """Draw the samples of processes that differ."""
    return [correlated(rng, 1000, 1.0, 0.5) + 0.6 * rng.standard_normal() for _ in range(count)]


def cases() -> Iterator[tuple[str, Draw, Array]]:
    """Yield the name of a case, how its samples are drawn, and its percentiles."""
    normal = stats.norm.ppf(SHARES)
    for n, c in itertools.product((100, 1000, 10000), (0.0, 0.5, 0.8, 0.9)):
        draw = functools.partial(correlated, rounds=n, deviation=1.0, correlation=c)
        yield f"{n} samples, correlation {c}", draw, normal
    for n in (3, 10):
        draw = functools.partial(processes, count=n)
        yield f"{n} processes of 1000, effect 0.6", draw, normal * np.sqrt(1.36)
    for n, rho in itertools.product((1000, 10000), (0.3, 0.5, 0.7, 0.9)):
        true = stats.expon(scale=1 / (1 - rho)).ppf(SHARES)
        yield f"{n} requests, busy {rho}", functools.partial(queue, count=n, rho=rho), true


def main(trials: int) -> int:
    """Print a line per case: for each percentile, wrong intervals, and intervals given."""
    rows = []
    for name, draw, true in cases():
        wrong, given = np.zeros((2, len(LEVELS)))
        for seed in range(trials):
            for i, p in enumerate(percentiles(draw(np.random.default_rng(seed)))):
                given[i] += p.low is not None
                wrong[i] += p.low is not None and not p.low <= true[i] <= p.high
        cells = zip(LEVELS, wrong / trials, given / trials, strict=True)
        row = {"wrong / given": name} | {f"p{n:g}": f"{w:.1%} / {g:.0%}" for n, w, g in cells}
        rows.append(row | {"": "FAILS" if (wrong / trials).max() > MOST_WRONG else ""})
    command.show(rows)
    return sum(row[""] == "FAILS" for row in rows)


if __name__ == "__main__":
    sys.exit(main(command.options(__doc__, trials=400).trials))
