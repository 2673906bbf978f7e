"""Measure how often the interval of a percentile misses it.

Samples are drawn with known percentiles: normal samples whose neighbours are correlated, processes
that differ, and the latencies of a queue (M/M/1, exponential), which are correlated for longer as
it fills. An interval that is not given is not wrong.

``python _benchmarks/percentile_coverage.py --trials 400``
"""

import argparse
import sys
from collections.abc import Callable, Iterator

import numpy as np
from numpy.random import Generator
from scipy import stats
from scipy.signal import lfilter

from ortmeter.timing.percentiles import LEVELS, percentiles

Array = np.ndarray
Draw = Callable[[Generator], Array | list[Array]]
MOST_WRONG = 0.04
SHARES = np.array(LEVELS) / 100


def correlated(rng: Generator, count: int, correlation: float) -> Array:
    """Normal samples of unit variance."""
    steps = rng.standard_normal(count) * np.sqrt(1 - correlation**2)
    steps[0] = rng.standard_normal()
    filtered: Array = lfilter([1.0], [1.0, -correlation], steps)
    return filtered


def queue(rng: Generator, count: int, rho: float) -> Array:
    """Latencies of M/M/1, once the queue has filled; a service takes 1."""
    count += 500
    between, service = rng.exponential(1 / rho, count), rng.exponential(1, count)
    walk = np.cumsum(service - between)
    wait = np.concatenate([[0.0], walk - np.minimum.accumulate(np.minimum(walk, 0))])
    latencies: Array = (wait[:-1] + service)[500:]
    return latencies


def cases() -> Iterator[tuple[str, Draw, Array]]:
    """Yield the name of a case, how its samples are drawn, and its percentiles."""
    normal = stats.norm.ppf(SHARES)
    for count in (100, 1000, 10000):
        for c in (0.0, 0.5, 0.8, 0.9):
            yield (
                f"{count} samples, correlation {c}",
                lambda r, n=count, c=c: correlated(r, n, c),
                normal,
            )
    for processes in (3, 10):
        yield (
            f"{processes} processes of 1000, effect 0.6",
            lambda r, n=processes: [
                correlated(r, 1000, 0.5) + 0.6 * r.standard_normal() for _ in range(n)
            ],
            normal * np.sqrt(1.36),
        )
    for count in (1000, 10000):
        for rho in (0.3, 0.5, 0.7, 0.9):
            true = stats.expon(scale=1 / (1 - rho)).ppf(SHARES)
            yield f"{count} requests, busy {rho}", lambda r, n=count, b=rho: queue(r, n, b), true


def main() -> int:
    """Print a line per case: for each percentile, wrong intervals, and intervals given."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=400)
    trials = parser.parse_args().trials
    print(f"{'wrong / given':38s}" + "".join(f"p{level:<15g}" for level in LEVELS))
    failures = 0
    for name, draw, true in cases():
        wrong, given = np.zeros((2, len(LEVELS)))
        for seed in range(trials):
            for i, p in enumerate(percentiles(draw(np.random.default_rng(seed)))):
                given[i] += p.low is not None
                wrong[i] += p.low is not None and not p.low <= true[i] <= p.high
        failed = (wrong / trials).max() > MOST_WRONG
        failures += failed
        cells = [
            f"{w / trials:5.1%} /{g / trials:5.0%}    " for w, g in zip(wrong, given, strict=True)
        ]
        print(f"{name:38s}{''.join(cells)}{'FAILS' if failed else ''}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
