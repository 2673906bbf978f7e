"""torch.compile on ONNX Runtime beside torch, inductor and its own matrix products.

Everything is for the CPU, two threads, float32. Llama: hidden 1024, two layers, sequences of 256
tokens, random weights. Each way to run it has processes of its own, taken in turn: the threads of
torch and those of ONNX Runtime spin after their work, and would take the cores of each other. So
do compile times and memory (the latter on Linux only). Goals: latency at most 1.15 of the matrix
products alone, and below inductor's; compile time below inductor's; at most 5 % of extra memory for
large weights without prepacking; a call for one operator at most 1.3 of ``session.run`` on arrays
that are ready.
"""

import functools
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
PRODUCTS = "matrix products alone"


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


def matrix_products() -> Callable[[], object]:
    """Make a session of the matrix products of all the layers, and nothing else."""
    rng = np.random.default_rng(0)
    rows, size = BATCH * LENGTH, HIDDEN // HEADS
    of_a_layer = {
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
    operands = {name: ("M" if name == "down" else "X", name) for name in of_a_layer}
    operands |= {"scores": ("Q", "K"), "context": ("P", "V")}
    weights, nodes = {}, []
    for layer in range(LAYERS):
        weights |= {f"{name}_{layer}": shape for name, shape in of_a_layer.items()}
        for name, (left, right) in operands.items():
            own = f"{right}_{layer}" if right in of_a_layer else right
            nodes.append(oh.make_node("MatMul", [left, own], [f"{name}_out_{layer}"]))
    graph = oh.make_graph(
        nodes,
        "products",
        [oh.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in feeds.items()],
        [oh.make_tensor_value_info(n.output[0], onnx.TensorProto.FLOAT, None) for n in nodes],
        [onnx.numpy_helper.from_array(_draw(rng, s), n) for n, s in weights.items()],
    )
    model = oh.make_model(graph, opset_imports=[oh.make_opsetid("", 23)], ir_version=11)
    arrays = {name: _draw(rng, shape) for name, shape in feeds.items()}
    return ortmeter.session_candidate(model, arrays, provider="cpu", threads=THREADS).function


def _draw(rng: np.random.Generator, shape: Sequence[int]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) / 32


def latency(name: str) -> float:
    """Measure one way to run the model, in this process; tell on stderr what it is."""
    if name == PRODUCTS:
        function = matrix_products()
    else:
        model, x = llama(), tokens()
        function = functools.partial(compiled_by(name, model, x), x)
    with torch.no_grad():
        (result,) = ortmeter.measure({name: function}, repeat=15, precision=None).values()
    return result.median


def compiled_by(name: str, model: Callable[..., Any], x: torch.Tensor) -> Callable[..., Any]:
    """Compile the model and tell how far it is from eager."""
    if name == "eager":
        return model
    level, _, weights = name.partition(", ")
    backend = OrtBackend(level, prepack=not weights, fallback=False) if level in LEVELS else name
    with torch.no_grad():
        function = torch.compile(model, backend=backend)
        error = ortmeter.max_diff(model(x), function(x)).ulp_at_max
    graph = backend.graphs[0] if isinstance(backend, OrtBackend) else ""
    print(f"    {name}: {error:.3g} ulp of the largest from eager {graph}", file=sys.stderr)
    return function


def compare_latencies(rounds: int = 5) -> None:
    """Print the latency of every way to run the model."""
    names = (PRODUCTS, "eager", "inductor", *LEVELS, f"{LEVELS[-1]}, not packed")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names:
            seconds[name].append(in_fresh_process(latency, name, quiet=i > 0))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        shares = ", ".join(
            f"{medians[name] / medians[other]:.2f} of {other}"
            for other in (PRODUCTS, "eager", "inductor")
        )
        spread = f"{min(values) * 1e3:.1f} to {max(values) * 1e3:.1f}"
        print(f"{name}: {medians[name] * 1e3:.1f} ms ({spread}), {shares}")


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


def in_fresh_process(
    function: Callable[[str], float], name: str, *, quiet: bool = True, **variables: str
) -> float:
    """Call one of the functions above in a process of its own."""
    command = [sys.executable, __file__, function.__name__, name]
    child = subprocess.run(  # noqa: S603 - this script
        command, check=True, capture_output=True, text=True, env={**os.environ, **variables}
    )
    if not quiet:
        print(child.stderr, end="")
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
        children = {f.__name__: f for f in (compile_seconds, extra_memory, latency)}
        print(children[sys.argv[1]](sys.argv[2]))
        return
    compare_calls()
    compare_memory()
    compare_compile_times()
    compare_latencies()


if __name__ == "__main__":
    main()
