"""Einsum: ortmeter beside numpy, opt_einsum, torch and the Einsum of ONNX Runtime.

Every equation runs at three sizes, in float32, interleaved, with the same number of threads for
all. opt_einsum has its path found beforehand, ONNX Runtime its session created, torch its tensors:
what is compared is a call. A result that is a view to be computed later is none, so all of them
are made contiguous. Goals of the model that a search by time finds:

* slower than ONNX Runtime's Einsum beyond 3 µs or 5%, whichever is larger, no more often than a
  second session of Einsum is;
* geometric mean over it, two operands: 1.05 with one thread and 1.3 with two; three operands and
  more: 2;
* geometric mean over the best of the four per equation: 1.05;
* planning by cost, of a case that was planned before, faster than the path of opt_einsum and a
  call of torch;
* a search by time within its budget, 2 s.

python _benchmarks/bench_einsum.py [--threads 1 2] [--budget 30] [--repeat 40] [--only btnh]
[--sizes medium]

Threads that spin after their work would slow down what is measured next: each number of threads
has its own process, where those of OpenMP and OpenBLAS sleep at once.
"""

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import command
import numpy as np
import onnx
import opt_einsum
import pandas as pd
import torch
from scipy.stats import gmean

import ortmeter
from ortmeter.einsum import einsum_model, optimize_einsum

HEADS = "b 1 2 4, st 16 64 128, n 2 4 8, h 16 32 64"
PROJECTION = "b 1 2 4, s 16 64 128, n 2 4 8, h 16 16 32, d 32 64 256"
#: Equations, and the dimensions of their letters at the three sizes.
CASES = (
    # attention, with the heads at several places; grouped queries, projections, positions
    ("bsnh,btnh->bnts", "bsnth 4 12 20"),
    ("bsnh,btnh->bnst bnsh,bnth->bnst sbnh,tbnh->bnst bnst,btnh->bsnh bnst,tbnh->sbnh", HEADS),
    ("bsgnh,btgh->bgnst", "b 1 1 2, st 16 64 128, gn 2 2 4, h 16 32 64"),
    ("bsd,dnh->bsnh bsd,dnh->bnsh bsnh,nhd->bsd", PROJECTION),
    ("bnsh,tsh->bnst", "b 1 2 4, st 8 32 64, n 2 4 8, h 16 32 32"),
    ("bsnh,btnh,btnd->bsnd", "b 1 1 2, st 8 32 64, n 2 4 8, hd 8 16 32"),
    # products of matrices
    ("ij,jk->ik ij,kj->ik ji,kj->ik ij,jk->ki", "ijk 16 64 256"),
    ("bij,bjk->bik ijb,jkb->ikb", "b 4 16 64, ijk 8 24 64"),
    ("bij,bjk->bik", "b 16 256 4096, ijk 4 4 4"),
    ("ijk,kjl->il", "i 3 7 31, j 5 17 40, k 2 30 64, l 11 50 200"),
    ("abcd,dcef->abef", "abcdef 3 6 10"),
    # one or no sum
    ("ij,j->i i,ij->j i,j->ij ij,ij->ij ij,ji->ij", "ij 16 128 1024"),
    ("i,i->", "i 100 10000 1000000"),
    ("ij,ij->", "ij 10 100 1000"),
    ("bh,bh->b", "b 20 200 2000, h 16 64 256"),
    ("ij,k->kji", "ijk 8 24 96"),
    ("bchw,c->bchw", "b 1 2 8, c 4 16 32, hw 8 16 32"),
    ("i,ijk->jk", "i 4 16 64, jk 8 32 128"),
    # one operand, or a repeated letter
    ("ii-> ij->j", "ij 16 128 1024"),
    ("bii->bi", "b 4 16 64, i 8 32 128"),
    ("abcd->dcba", "abcd 4 10 24"),
    ("aab,b->a", "a 8 32 128, b 8 32 64"),
    # three operands and more
    ("bi,ijk,bk->bj", "b 16 64 128, ik 16 32 64, j 8 24 64"),
    ("bi,ij,bj->b bi,bj,ij->b", "b 32 128 512, ij 16 64 256"),
    ("ij,jk,kl->il", "i 16 64 256, jkl 32 128 256"),
    ("ij,jk,kl->il", "ijk 32 128 256, l 1 2 4"),
    ("ij,jk,kl,lm->im", "im 8 32 128, jkl 16 48 128"),
    ("ir,jr,kr->ijk", "ijk 12 32 80, r 8 16 32"),
    ("abc,ia,jb,kc->ijk", "abc 4 8 12, ijk 8 24 64"),
    ("ab,bcd,def,fgc,ge->a", "abcdefg 4 8 14"),
    ("ab,bc,cd,de,ea->", "abcde 6 16 40"),
)
SIZES = ["small", "medium", "large"]
NUMPY, OPT_EINSUM, TORCH, ORT = PEERS = ["numpy", "opt_einsum", "torch", "ONNX Runtime Einsum"]
AGAIN = "Einsum again"  # another session of the same model: what the machine alone makes slower
OURS = "ortmeter"


class Case(NamedTuple):
    """An equation at a size, with its operands."""

    equation: str
    size: str
    operands: list[np.ndarray]


def cases(only: str, kept: Sequence[str]) -> Iterator[Case]:
    """Yield every equation that contains a text, at some sizes."""
    rng = np.random.default_rng(0)
    for equations, dimensions in CASES:
        told = [part.split() for part in dimensions.split(",")]
        found = (equation for equation in equations.split(" ") if only in equation)
        for equation, size in itertools.product(found, kept):
            of = {c: int(own[SIZES.index(size)]) for letters, *own in told for c in letters}
            terms = equation.partition("->")[0].split(",")
            shapes = [tuple(of[c] for c in term) for term in terms]
            yield Case(equation, size, [rng.standard_normal(s, np.float32) for s in shapes])


def candidates(case: Case, found: onnx.ModelProto, threads: int) -> dict[str, Callable[[], object]]:
    """What is compared, everything that can be done beforehand being done."""
    equation, operands = case.equation, case.operands
    model = einsum_model(equation, *operands)
    first, second, ours = (
        ortmeter.make_session(one, provider="cpu", threads=threads) for one in (model, model, found)
    )
    feeds = {node.name: x for node, x in zip(first.get_inputs(), operands, strict=True)}
    expression = opt_einsum.contract_expression(equation, *(a.shape for a in operands))
    tensors = [torch.from_numpy(a) for a in operands]
    contiguous = np.ascontiguousarray
    return {
        NUMPY: lambda: contiguous(np.einsum(equation, *operands, optimize=True)),
        OPT_EINSUM: lambda: contiguous(expression(*operands)),
        TORCH: lambda: torch.einsum(equation, *tensors).contiguous(),
        ORT: lambda: first.run(None, feeds),
        AGAIN: lambda: second.run(None, feeds),
        OURS: lambda: ours.run(None, feeds),
    }


def planners(case: Case, threads: int) -> dict[str, Callable[[], object]]:
    """Ways to use an equation for the first time: a path and a call of torch, or our cost."""
    equation, operands = case.equation, case.operands

    def peers() -> None:
        opt_einsum.contract_path(equation, *operands)
        torch.einsum(equation, *map(torch.from_numpy, operands))

    ours = functools.partial(optimize_einsum, by="cost", provider="cpu", threads=threads)
    return {"plan by cost": lambda: ours(equation, *operands), "plan peers": peers}


def compare(case: Case, threads: int, budget: float, repeat: int) -> dict[str, Any]:
    """Measure one equation at one size."""
    plan, again = command.in_turn(planners(case, threads), 2).to_dict("records")
    found = optimize_einsum(case.equation, *case.operands, provider="cpu", threads=threads)
    functions = candidates(case, found.model, threads)
    (got,) = functions[OURS]()
    expected = np.einsum(case.equation, *(a.astype(np.float64) for a in case.operands))
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-2)
    measured = ortmeter.measure(functions, repeat=repeat, budget_s=budget, precision=None)
    return {
        "case": case.equation,
        "size": case.size,
        "operands": len(case.operands),
        **{name: m.median for name, m in measured.items()},
        "search": found.seconds,
        **plan,
        "planned again": again["plan peers"] / again["plan by cost"],
    }


def report(table: pd.DataFrame, threads: int) -> None:
    """Print the table in µs, then the goals with what was found."""
    timed = [*PEERS, AGAIN, OURS, "plan by cost", "plan peers"]
    shown = table.assign(**(1e6 * table[timed]).round(1)).round(2)
    again = "planned again: times faster than peers"
    command.show(shown, f"\nmedians in µs, search in s, {threads} thread(s); {again}")
    over_ort = table[ORT] / table[OURS]
    slower, itself = (
        table[table[name] - table[ORT] > np.maximum(3e-6, 0.05 * table[ORT])]
        for name in (OURS, AGAIN)
    )
    goal = f"as a second session of it, {len(itself)}"
    print(f"slower than Einsum beyond 3 µs or 5%: {len(slower)} of {len(table)} (goal: {goal})")
    for row in slower.to_dict("records"):
        print(f"  {row['case']}, {row['size']}: {1e6 * row[OURS]:.1f} and {1e6 * row[ORT]:.1f} µs")
    means = {
        f"over it, two operands (goal {1.05 if threads == 1 else 1.3})": table["operands"] == 2,
        "over it, three operands and more (goal 2)": table["operands"] > 2,
        **{f"over it, {size}": table["size"] == size for size in SIZES},
    }
    for what, kept in means.items():
        print(f"{what}: {gmean(over_ort[kept]):.2f}")
    best = gmean(table[PEERS].min(axis=1) / table[OURS])
    print(f"over the best of the four (goal 1.05): {best:.2f}")
    planned = table["plan peers"] / table["plan by cost"]
    for what, times in (("first", planned), ("again (goal 1)", table["planned again"])):
        least = f"at least {times.min():.2f}"
        print(f"planning by cost over the peers, {what}: {gmean(times):.2f}, {least}")
    print(f"longest search: {table['search'].max():.2f} s (goal 2)")


def main() -> None:
    """Start a process for each number of threads."""
    given = command.options(__doc__, threads=[1, 2], budget=30.0, repeat=40, only="", sizes=SIZES)
    if os.environ.get("OMP_WAIT_POLICY") == "PASSIVE":
        (threads,) = given.threads
        torch.set_num_threads(threads)
        every = cases(given.only, given.sizes)
        print(json.dumps([compare(c, threads, given.budget, given.repeat) for c in every]))
        return
    asked = ["--budget", given.budget, "--repeat", given.repeat, "--only", given.only]
    for count in given.threads:
        quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(count))
        quiet |= {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
        own = [*asked, "--threads", count, "--sizes", *given.sizes]
        report(pd.DataFrame(command.fresh(__file__, *own, **quiet)), count)


if __name__ == "__main__":
    main()
