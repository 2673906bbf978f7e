"""Find what moves the ratio of two models that wait for the memory: process, pages or hour.

``python _benchmarks/moving_ratios.py [--blocks 8]``. A block times Transpose beside Add, of 0.5 to
32 MiB, in fresh processes, once for each way to have memory pages. What is printed is the
standard deviation of the logarithm of the ratio between the processes of a block, and between the
blocks of a way: an interval of one build does not hold the second.
"""

import os
import random
from unittest import mock

import command
import numpy as np

import ortmeter
from ortmeter.timing import measure_each

#: Environment variables of the processes: who asks the kernel for huge pages.
WAYS = {
    "default": {},
    "no huge pages for inputs": {"NUMPY_MADVISE_HUGEPAGE": "0"},
    "huge pages for all": {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
}
ROWS = (256, 1024, 4096, 16384)
HEAD = '<ir_version: 10, opset_import: ["": 21]>'


def candidates(rows: int) -> dict[str, object]:
    """Return both models on a matrix of so many rows and 512 columns."""
    feeds = {"X": np.random.default_rng(0).standard_normal((rows, 512), dtype=np.float32)}
    head = f"{HEAD} g (float[{rows},512] X) => (float[a,b] Y)"
    nodes = {"Transpose": "Transpose<perm=[1,0]>(X)", "Add": "Add(X, X)"}
    return {
        name: ortmeter.session_candidate(
            f"{head} {{ Y = {node} }}", feeds, provider="cpu", threads=1
        )
        for name, node in nodes.items()
    }


def main() -> None:
    """Measure, then print a line for each size and way."""
    options = command.options(__doc__, blocks=8, processes=5, budget=8.0)
    groups = {rows: candidates(rows) for rows in ROWS}
    limits = {"axis": "rows", "processes": options.processes, "budget_s": options.budget}
    logs: dict[tuple, list] = {(way, rows): [] for way in WAYS for rows in ROWS}
    chance = random.Random(0)  # noqa: S311 - no secret
    for block in range(options.blocks):
        for way in chance.sample(list(WAYS), len(WAYS)):
            with mock.patch.dict(os.environ, WAYS[way]):
                found = measure_each(groups, **limits, seed=block)
            for rows, each in found.items():
                add, transpose = (
                    np.median(each[name].seconds, axis=1) for name in ("Add", "Transpose")
                )
                logs[way, rows].append(np.log(transpose / add))
    table = []
    for (way, rows), blocks in logs.items():
        within = np.mean([block.var(ddof=1) for block in blocks])
        share = np.mean([1 / len(block) for block in blocks])
        between = max(np.var([block.mean() for block in blocks], ddof=1) - within * share, 0.0)
        row = {"way": way, "MiB": rows * 2 / 1024, "ratio": np.exp(np.mean(np.concatenate(blocks)))}
        deviations = {"SD of processes": within**0.5, "SD of blocks": between**0.5}
        table.append(row | {name: f"{value:.1%}" for name, value in deviations.items()})
    command.show(table)


if __name__ == "__main__":
    main()
