"""torch.compile on ONNX Runtime beside torch, inductor and its own matrix products.

Everything is for the CPU, two threads, float32. Llama: hidden 1024, two layers, sequences of 256
tokens, random weights. Latencies are interleaved in one process; compile times and memory come
from fresh processes (the memory on Linux only). Goals: latency at most 1.15 of the matrix products
alone, and below inductor's; compile time below inductor's; at most 5 % of extra memory for large
weights without prepacking; a call for one operator at most 1.3 of ``session.run`` on arrays that
are ready.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as oh
import torch
from transformers import LlamaConfig, LlamaModel

import ortmeter
from ortmeter.backend import OrtBackend

THREADS, BATCH, LENGTH, HIDDEN, HEADS, MLP, LAYERS = 2, 2, 256, 1024, 16, 2816, 2
LEVELS = ("none", "default", "default+onnxruntime")
LARGE, LARGE_LAYERS = 4096, 8
MIB = 2**20


def llama() -> Callable[[torch.Tensor], torch.Tensor]:
    """Build the model, as a function of the tokens."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_hidden_layers=LAYERS,
        vocab_size=1024,
        intermediate_size=MLP,
        num_attention_heads=HEADS,
        attn_implementation="sdpa",
    )
    model = LlamaModel(config).eval()
    return lambda tokens: model(tokens, use_cache=False).last_hidden_state


def tokens() -> torch.Tensor:
    """Draw a batch of sequences."""
    return torch.randint(0, 1023, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))


def matrix_products(seed: int) -> ortmeter.Candidate:
    """Make the matrix products of one layer, and nothing else, a candidate."""
    rng = np.random.default_rng(seed)
    rows, size = BATCH * LENGTH, HIDDEN // HEADS
    weights = {
        **dict.fromkeys(("query", "key", "value", "output"), (HIDDEN, HIDDEN)),
        "gate": (HIDDEN, MLP),
        "up": (HIDDEN, MLP),
        "down": (MLP, HIDDEN),
    }
    feeds = {
        "X": (rows, HIDDEN),
        "M": (rows, MLP),
        "Q": (BATCH, HEADS, LENGTH, size),
        "K": (BATCH, HEADS, size, LENGTH),
        "P": (BATCH, HEADS, LENGTH, LENGTH),
        "V": (BATCH, HEADS, LENGTH, size),
    }
    nodes = [
        oh.make_node("MatMul", ["M" if name == "down" else "X", name], [f"{name}_out"])
        for name in weights
    ]
    nodes.append(oh.make_node("MatMul", ["Q", "K"], ["scores"]))
    nodes.append(oh.make_node("MatMul", ["P", "V"], ["context"]))
    graph = oh.make_graph(
        nodes,
        "products",
        [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in feeds.items()],
        [oh.make_tensor_value_info(n.output[0], onnx.TensorProto.FLOAT, None) for n in nodes],
        [onnx.numpy_helper.from_array(_draw(rng, s), n) for n, s in weights.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=11)
    arrays = {name: _draw(rng, shape) for name, shape in feeds.items()}
    return ortmeter.session_candidate(model, arrays, provider="cpu", threads=THREADS)


def _draw(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 32


def compare_latencies() -> None:
    """Print the latency of every way to run the model."""
    model, x = llama(), tokens()
    products = [matrix_products(layer) for layer in range(LAYERS)]
    backends: dict[str, Any] = {level: OrtBackend(level, fallback=False) for level in LEVELS}
    backends["default+onnxruntime, prepack=False"] = OrtBackend(prepack=False, fallback=False)
    compiled = {name: torch.compile(model, backend=backend) for name, backend in backends.items()}
    compiled["inductor"] = torch.compile(model)
    candidates: dict[str, Any] = {
        "matrix products alone": lambda: [candidate.function() for candidate in products],
        "eager": lambda: model(x),
    }
    with torch.no_grad():
        expected = model(x)
        for name, function in compiled.items():
            error = ortmeter.max_diff(expected, function(x)).ulp_at_max
            print(f"    {name}: {error:.3g} ulp of the largest from eager")
            candidates[name] = lambda function=function: function(x)
        results = ortmeter.measure(candidates, repeat=30, precision=0.01, budget_s=60)
    for name, result in results.items():
        shares = " ".join(
            f"{result.median / results[other].median:.2f} of {other}"
            for other in ("matrix products alone", "eager", "inductor")
        )
        graph = getattr(backends.get(name), "graphs", [None])[0]
        print(f"{name}: {result.median * 1e3:.1f} ms, {shares}{f' ({graph})' if graph else ''}")


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
    model, x = llama(), tokens()
    with torch.no_grad():
        model(x)
        start = time.perf_counter()
        torch.compile(model, backend=backend)(x)
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


def in_fresh_process(function: Callable[[str], float], name: str, **variables: str) -> float:
    """Call one of the functions above in a process of its own."""
    command = [sys.executable, __file__, function.__name__, name]
    child = subprocess.run(  # noqa: S603 - this script
        command, check=True, capture_output=True, text=True, env={**os.environ, **variables}
    )
    return float(child.stdout.splitlines()[-1])


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


def main() -> None:
    """Print everything, or the result of one function for :func:`in_fresh_process`."""
    torch.set_num_threads(THREADS)
    if sys.argv[1:]:
        children = {f.__name__: f for f in (compile_seconds, extra_memory)}
        print(children[sys.argv[1]](sys.argv[2]))
        return
    compare_calls()
    compare_memory()
    compare_compile_times()
    compare_latencies()


if __name__ == "__main__":
    main()
