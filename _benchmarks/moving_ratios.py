"""Find what moves the ratio of two models that wait for the memory: process, pages or hour.

``python _benchmarks/moving_ratios.py [--blocks 8]``. A block times Transpose beside Add, of 0.5 to
32 MiB, in fresh processes, once for each way to have memory pages. What is printed is the
standard deviation of the logarithm of the ratio between the processes of a block, and between the
blocks of a way: an interval of one build does not hold the second.
"""

import argparse
import os
import random

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
    texts = {
        "Transpose": f"(float[{rows},512] X) => (float[512,{rows}] Y)"
        "{ Y = Transpose<perm=[1,0]>(X) }",
        "Add": f"(float[{rows},512] X) => (float[{rows},512] Y) {{ Y = Add(X, X) }}",
    }
    return {
        name: ortmeter.session_candidate(f"{HEAD} g {text}", feeds, provider="cpu", threads=1)
        for name, text in texts.items()
    }


def main() -> None:
    """Measure, then print a line for each size and way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--processes", type=int, default=5)
    options = parser.parse_args()
    groups = {rows: candidates(rows) for rows in ROWS}
    logs = {(way, rows): [] for way in WAYS for rows in ROWS}
    chance = random.Random(0)  # noqa: S311 - no secret
    for block in range(options.blocks):
        for way in chance.sample(list(WAYS), len(WAYS)):
            before = dict(os.environ)
            os.environ.update(WAYS[way])
            found = measure_each(
                groups, axis="rows", processes=options.processes, budget_s=8, seed=block
            )
            os.environ.clear()
            os.environ.update(before)
            for rows in ROWS:
                medians = {
                    name: np.median(found[rows][name].seconds, axis=1)
                    for name in ("Add", "Transpose")
                }
                logs[way, rows].append(np.log(medians["Transpose"] / medians["Add"]))
        print(f"block {block + 1} of {options.blocks}", flush=True)
    print(f"{'way':<26}{'MiB':>6}{'ratio':>8}{'SD of processes':>17}{'SD of blocks':>14}")
    for (way, rows), blocks in logs.items():
        within = np.mean([block.var(ddof=1) for block in blocks])
        share = np.mean([1 / len(block) for block in blocks])
        between = max(np.var([block.mean() for block in blocks], ddof=1) - within * share, 0.0)
        ratio = np.exp(np.mean(np.concatenate(blocks)))
        print(
            f"{way:<26}{rows * 2 / 1024:>6}{ratio:>8.2f}{within**0.5:>17.1%}{between**0.5:>14.1%}"
        )


if __name__ == "__main__":
    main()
