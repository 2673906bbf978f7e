"""Comparing two arrays: max_diff beside onnx-diagnostic and the naive formula.

The same arrays go through each function in turn, the median of a few rounds is printed. The
temporary memory is what the resident memory of a fresh process gains at most during one call
(Linux only). The peer and the naive formula return less: the peer has no ulp, no quantile, no count
of the infinities; the naive formula has one number.
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx_diagnostic.helpers import max_diff as peer_max_diff

from ortmeter import max_diff

SHAPE = (32, 1024, 1152)
ROUNDS = 5
MIB = 2**20


def ours(expected: Any, got: Any) -> float:
    """Compare with this package."""
    return float(max_diff(expected, got).abs)


def peer(expected: Any, got: Any) -> float:
    """Compare with onnx-diagnostic."""
    return float(peer_max_diff(expected, got, hist=True)["abs"])


def naive(expected: Any, got: Any) -> float:
    """Compute the largest error, and nothing else."""
    return float(abs(expected - got).max())


TOOLS: dict[str, Callable[[Any, Any], float]] = {"ours": ours, "peer": peer, "naive": naive}


def two_arrays(library: str, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Draw an array, and add an error to it."""
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(shape, np.float32)
    got = (expected + rng.standard_normal(shape, np.float32) * np.float32(1e-3)).astype(dtype)
    arrays = expected.astype(dtype), got
    return arrays if library == "numpy" else tuple(map(torch.from_numpy, arrays))


def seconds(arrays: tuple[Any, Any], rounds: int, number: int = 1) -> dict[str, list[float]]:
    """Time the tools in turn."""
    times: dict[str, list[float]] = {name: [] for name in TOOLS}
    for _ in range(rounds):
        for name, tool in TOOLS.items():
            start = time.perf_counter()
            for _ in range(number):
                tool(*arrays)
            times[name].append((time.perf_counter() - start) / number)
    return times


def resident(key: str) -> int:
    """Read the resident memory of this process: VmRSS now, VmHWM at most."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if key in x)
    return int(line.split()[1]) * 1024


def temporary_memory(tool: str, library: str, dtype: str) -> int:
    """Return what one call adds at most to the memory of this process, in bytes."""
    arrays = two_arrays(library, dtype, SHAPE)
    TOOLS[tool](*two_arrays(library, dtype, (2**18,)))  # imports, threads
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the largest value
    TOOLS[tool](*arrays)
    return resident("VmHWM") - before


def compare_with_peers() -> None:
    """Print the table of the issue: time and memory per library and type."""
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for library in ("numpy", "torch"):
            for dtype in ("float32", "float16"):
                times = seconds(two_arrays(library, dtype, SHAPE), ROUNDS)
                medians = {name: statistics.median(found) for name, found in times.items()}
                for name, median in medians.items():
                    memory = pool.apply(temporary_memory, (name, library, dtype)) / MIB
                    print(
                        f"{library:>5} {dtype} {name:<5}: {median * 1e3:7.1f} ms "
                        f"({min(times[name]) * 1e3:.1f} at best), {memory:6.0f} MiB, "
                        f"peer / {name} = {medians['peer'] / median:.1f}"
                    )


def scale() -> None:
    """Print the time per element from 1e3 to 1e8 elements."""
    for exponent in range(3, 9):
        arrays = two_arrays("numpy", "float32", (10**exponent,))
        number = max(1, 10 ** (6 - exponent))
        found = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            for _ in range(number):
                ours(*arrays)
            found.append((time.perf_counter() - start) / number)
        median = statistics.median(found)
        each = median / 10**exponent * 1e9
        print(f"1e{exponent} float32: {median * 1e3:9.3f} ms, {each:.2f} ns per element")


def compare_tiny_arrays() -> None:
    """Print the time of an array of ten elements."""
    for library in ("numpy", "torch"):
        times = seconds(two_arrays(library, "float32", (10,)), 20, number=50)
        medians = {name: statistics.median(found) * 1e6 for name, found in times.items()}
        print(
            f"{library:>5}, 10 elements:", ", ".join(f"{k} {v:.1f} us" for k, v in medians.items())
        )


def main() -> None:
    """Print everything."""
    print(f"{math.prod(SHAPE):.3g} elements, medians of {ROUNDS} interleaved rounds")
    compare_with_peers()
    scale()
    compare_tiny_arrays()


if __name__ == "__main__":
    main()
