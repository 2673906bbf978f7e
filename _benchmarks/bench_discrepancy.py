"""Comparing two arrays: max_diff beside onnx-diagnostic and the naive formula.

The same arrays go through each function in turn, the median of a few rounds is printed. The
temporary memory is what the resident memory of a fresh process gains at most during one call
(Linux only). The peer and the naive formula return less: the peer has no ulp, no quantile, no count
of the infinities; the naive formula has one number.
"""

import functools
import itertools
import multiprocessing
from collections.abc import Callable
from typing import Any

import command
import numpy as np
import torch
from onnx_diagnostic.helpers import max_diff as peer_max_diff

from ortmeter import max_diff

SHAPE = (32, 1024, 1152)
MIB = 2**20
TOOLS: dict[str, Callable[[Any, Any], Any]] = {
    "ours": lambda expected, got: max_diff(expected, got).abs,
    "peer": lambda expected, got: peer_max_diff(expected, got, hist=True)["abs"],
    "naive": lambda expected, got: abs(expected - got).max(),
}


def two_arrays(library: str, dtype: str, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Draw an array, and add an error to it."""
    rng = np.random.default_rng(0)
    expected = rng.standard_normal(shape, np.float32)
    got = (expected + rng.standard_normal(shape, np.float32) * np.float32(1e-3)).astype(dtype)
    arrays = expected.astype(dtype), got
    return arrays if library == "numpy" else tuple(map(torch.from_numpy, arrays))


def temporary_memory(tool: str, *case: Any) -> int:
    """Return what one call adds at most to the memory of this process, in bytes."""
    arrays = two_arrays(*case)
    TOOLS[tool](*two_arrays(*case[:2], (2**18,)))  # imports, threads
    return command.added_memory(lambda: TOOLS[tool](*arrays))


def timed(case: tuple[Any, ...], tools: Any = TOOLS, rounds: int = 5, number: int = 1) -> Any:
    """Return the median of each tool, in seconds."""
    arrays = two_arrays(*case)
    calls = {name: functools.partial(TOOLS[name], *arrays) for name in tools}
    return command.in_turn(calls, rounds, number).median()


def main(size: float) -> None:
    """Print time and memory by library and type, then the time by size."""
    shape = (max(int(SHAPE[0] * size), 1), *SHAPE[1:])
    rows = []
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for case in itertools.product(("numpy", "torch"), ("float32", "float16")):
            medians = timed((*case, shape))
            for name, median in medians.items():
                memory = pool.apply(temporary_memory, (name, *case, shape)) / MIB
                row = {"arrays": " ".join(case), "tool": name, "ms": round(1e3 * median, 1)}
                times = round(medians["peer"] / median, 1)
                rows.append({**row, "MiB": round(memory), "times faster than the peer": times})
    command.show(rows, f"arrays of {shape}")
    for count in (10, *(int(size * 10**exponent) for exponent in range(3, 9))):
        median = timed(("numpy", "float32", (count,)), ["ours"], number=max(1, 10**6 // count))
        print(f"{count:.0e} elements: {1e9 * median['ours'] / count:.2f} ns for each")
    for library in ("numpy", "torch"):
        medians = 1e6 * timed((library, "float32", (10,)), rounds=20, number=50).round(8)
        print(f"{library}, 10 elements, in us: {medians.to_dict()}")


if __name__ == "__main__":
    main(command.options(__doc__, size=1.0).size)
