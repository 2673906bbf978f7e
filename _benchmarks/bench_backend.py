"""torch.compile on ONNX Runtime beside torch, inductor and its own matrix products.

``bench_backend.py`` prints everything, ``bench_backend.py medium calls`` some parts: ``calls``,
``memory``, ``compile``, and the sizes of Llama, ``llama`` and ``medium``, described in
``llama_sizes.py``.

Everything is for the CPU, two threads, float32. Each way to run a model has processes of its own,
taken in turn: the threads of torch and those of ONNX Runtime spin after their work, and would take
the cores of each other. So do compile times and memory (the latter on Linux only).

Goals: for ``llama`` at most 1.1 of the latency of the matrix products alone; for ``medium``, 3.5
times faster than eager and twice as fast as inductor, on a machine where ONNX Runtime multiplies
matrices twice as fast as torch, which not all do; for both no level slower than the one before;
compile time below inductor's; at most 5% of extra memory for large weights without prepacking; a
call for one operator at most 1.2 of ``session.run`` on arrays that are ready.
"""

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from llama_sizes import SIZES, build_llama, draw_tokens, matrix_products

import ortmeter
from ortmeter.backend import LEVELS, CompiledGraph, OrtBackend
from ortmeter.evidence import Claim
from ortmeter.timing import Comparison, Measurement

THREADS = 2
LARGE, LARGE_LAYERS = 4096, 8
MIB = 2**20
PRODUCTS = "matrix products alone"
NOT_PACKED = ", not packed"
BEST = list(LEVELS)[-1]
# For each size: what to compare with, and how many times faster the best level must be.
GOALS = {"llama": {PRODUCTS: 1 / 1.1}, "medium": {"eager": 3.5, "inductor": 2.0}}


def compare_latencies(size: str) -> None:
    """Print the latency of every way to run a model, and what it says of the goals."""
    names = [PRODUCTS, "eager", "inductor", *LEVELS, f"{BEST}{NOT_PACKED}"]
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(SIZES[size].rounds):
        for name in names:
            found[name].append(in_fresh_process(latency, size, name))
    measured = Comparison(
        Measurement(name, [run["seconds"] for run in runs]) for name, runs in found.items()
    )
    print(f"\n{size}: {SIZES[size]}\n")
    first = {name: runs[0] for name, runs in found.items()}
    with pd.option_context("display.width", 200, "display.max_columns", None):
        print(latency_table(measured, first))
    print("\nEach level beside the one before:")
    for before, after in pairwise(LEVELS):
        print(f"  {measured.speedup(before, after)}")
    print("\nGoals:")
    for baseline, goal in GOALS[size].items():
        print(f"  {compare_to_goal(measured.speedup(baseline, BEST), goal)}")
        ceiling = measured[baseline].median / measured[PRODUCTS].median
        print(f"    {PRODUCTS} over {baseline}: {ceiling:.2f}, what no level can exceed")


def latency_table(
    measured: Mapping[str, Measurement], runs: Mapping[str, Mapping[str, Any]]
) -> pd.DataFrame:
    """Tabulate a row for each way: latency, how many times as fast as three of them, costs."""
    rows = {}
    for name, result in measured.items():
        medians = [statistics.median(process) * 1e3 for process in result.seconds]
        rows[name] = {
            "ms": round(result.median * 1e3, 1),
            "processes": f"{min(medians):.1f} to {max(medians):.1f}",
            **{
                f"over {other.partition(' ')[0]}": round(measured[other].median / result.median, 2)
                for other in (PRODUCTS, "eager", "inductor")
            },
            **{key: f"{value:g}" for key, value in runs[name].items() if key != "seconds"},
        }
    return pd.DataFrame.from_dict(rows, orient="index").astype(object).fillna("")


def compare_to_goal(found: Claim, goal: float) -> str:
    """Say whether a goal is reached, beyond noise or not."""
    verdict = {True: "reached", False: "missed", None: "undecided"}[found.exceeds(goal)]
    pair = f"{found.subject} over {found.baseline}"
    return f"{pair}: {found.interval}; at least {goal:.2f} asked: {verdict}"


def latency(size: str, name: str) -> dict[str, Any]:
    """Measure one way to run a model, in this process."""
    about: dict[str, Any] = {}
    if name == PRODUCTS:
        function = matrix_products(SIZES[size], THREADS)
    else:
        model, tokens = build_llama(SIZES[size]), draw_tokens(SIZES[size])
        compiled, about = compile_model(name, model, tokens)
        function = functools.partial(compiled, tokens)
    with torch.no_grad():
        (result,) = ortmeter.measure(
            {name: function}, repeat=SIZES[size].repeat, precision=None
        ).values()
    return {"seconds": result.seconds[0].tolist(), **about}


def compile_model(
    name: str, model: Callable[..., Any], tokens: torch.Tensor
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Compile a model; tell what it took, what it became and how far it is from eager."""
    if name == "eager":
        return model, {}
    level = name.removesuffix(NOT_PACKED)
    ours = OrtBackend(level, prepack=level == name, fallback=False) if level in LEVELS else None
    with torch.no_grad():
        expected = model(tokens)
        compiled = torch.compile(model, backend=ours or name)
        memory, start = resident(), time.perf_counter()
        got = compiled(tokens)
        about = {
            "first call s": round(time.perf_counter() - start, 1),
            "memory MiB": round((resident() - memory) / MIB),
            "ulp": round(ortmeter.max_diff(expected, got).ulp_at_max, 1),
        }
    return compiled, about | (describe(ours.graphs[0]) if ours else {})


def describe(graph: CompiledGraph) -> dict[str, int]:
    """Count the nodes of a graph, and those out of the ONNX standard."""
    return {"nodes": graph.node_count, "custom": graph.custom_count}


def compare_calls() -> None:
    """Print what a call of a session costs for one operator."""
    found: list[Callable[..., Any]] = []
    backend = OrtBackend(fallback=False, threads=1)

    def keep(module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        found.append(backend(module, arguments))
        return found[-1]

    x = torch.randn(8, 16)
    with torch.no_grad():
        compiled = torch.compile(torch.relu, backend=keep)
        compiled(x)
        session = ortmeter.make_session(backend.graphs[0].model, provider="cpu")
        feeds = {session.get_inputs()[0].name: x.numpy()}
        run = found[0]
        results = ortmeter.measure(
            {
                "session.run": lambda: session.run(None, feeds),
                "backend, one graph": lambda: run(x),
                "torch.compile, guards included": lambda: compiled(x),
                "eager": lambda: torch.relu(x),
            },
            repeat=300,
            precision=0.003,
        )
    baseline = results["session.run"].median
    for name, result in results.items():
        share = result.median / baseline
        print(f"{name}: {result.median * 1e6:.2f} us, {share:.2f} of session.run")


def compile_seconds(name: str) -> float:
    """Time the first call, in this process."""
    backend: Any = "inductor" if name == "inductor" else OrtBackend(name, fallback=False)
    model, tokens = build_llama(SIZES["llama"]), draw_tokens(SIZES["llama"])
    with torch.no_grad():
        model(tokens)
        start = time.perf_counter()
        torch.compile(model, backend=backend)(tokens)
        return time.perf_counter() - start


def extra_memory(name: str) -> float:
    """Compile a model of large weights; return what the process gains, relative to the weights."""
    layers = [torch.nn.Linear(LARGE, LARGE, bias=False) for _ in range(LARGE_LAYERS)]
    model, x = torch.nn.Sequential(*layers).eval(), torch.randn(8, LARGE)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with torch.no_grad():
        # What the libraries load once is not the weights' doing.
        torch.compile(torch.nn.Linear(4, 4), backend=OrtBackend(fallback=False))(torch.ones(1, 4))
        model(x)
        before = resident()
        compiled = torch.compile(model, backend=OrtBackend(prepack=name == "prepack"))
        for _ in range(3):
            compiled(x)
        return (resident() - before) / weights


def resident() -> int:
    """Read the resident memory of this process."""
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if "VmRSS" in line).split()[1]) * 1024


def in_fresh_process(function: Callable[..., Any], *arguments: str, **variables: str) -> Any:
    """Call one of the functions of ``CHILDREN`` in a process of its own."""
    command = [sys.executable, __file__, function.__name__, *arguments]
    child = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
    )
    return json.loads(child.stdout.splitlines()[-1])


def compare_compile_times(rounds: int = 3) -> None:
    """Print the time of the first call, in fresh processes taken in turn."""
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for i in range(rounds):
            for name in ("inductor", *LEVELS):
                label = f"{name}, {'cache' if i else 'empty cache'}" if name == "inductor" else name
                found = in_fresh_process(compile_seconds, name, TORCHINDUCTOR_CACHE_DIR=cache)
                seconds.setdefault(label, []).append(found)
    for name, values in seconds.items():
        print(f"first call, {name}: {statistics.median(values):.1f} s")


def compare_memory() -> None:
    """Print the extra memory of large weights."""
    total = LARGE_LAYERS * LARGE * LARGE * 4 / MIB
    for name in ("no prepack", "prepack"):
        share = in_fresh_process(extra_memory, name)
        print(f"{total:.0f} MiB of weights, {name}: {share:.1%} of extra memory")


PARTS: dict[str, Callable[[], None]] = {
    "calls": compare_calls,
    "memory": compare_memory,
    "compile": compare_compile_times,
    **{size: functools.partial(compare_latencies, size) for size in SIZES},
}
CHILDREN = {f.__name__: f for f in (compile_seconds, extra_memory, latency)}


def main(arguments: Sequence[str]) -> None:
    """Print the parts asked for, or the result of one function for :func:`in_fresh_process`."""
    torch.set_num_threads(THREADS)
    if arguments and arguments[0] in CHILDREN:
        print(json.dumps(CHILDREN[arguments[0]](*arguments[1:])))
        return
    if unknown := [part for part in arguments if part not in PARTS]:
        sys.exit(f"Unknown parts: {', '.join(unknown)}. Accepted: {', '.join(PARTS)}")
    for part in arguments or PARTS:
        PARTS[part]()


if __name__ == "__main__":
    main(sys.argv[1:])
