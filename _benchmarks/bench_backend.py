"""torch.compile on ONNX Runtime beside torch, inductor and matrix products alone.

``bench_backend.py`` measures every case, ``bench_backend.py medium calls`` some of them: two Llamas
with random weights, weights of 512 MiB, chains of element-wise operators, and a model made of such
chains. ``calls`` is what a call of one operator costs.

Everything is for the CPU, float32. Each way to run a model has processes of its own, taken in turn:
the threads of torch and those of ONNX Runtime spin after their work, and would take the cores of
each other. Memory is read on Linux only, and excludes what the libraries load once.

Goals: for ``llama`` at most 1.1 of the latency of the matrix products alone; for ``medium``, 3.5
times faster than eager and twice as fast as inductor, on a machine where ONNX Runtime multiplies
matrices twice as fast as torch, which not all do; no level slower than the one before, and 1.3
times faster with kernels for a model of chains; compile time below inductor's; at most 5% of extra
memory for large weights without prepacking; a call for one operator at most 1.2 of ``session.run``
on arrays that are ready.
"""

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import command
import numpy as np
import onnx.parser
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaModel

import ortmeter
from ortmeter.backend import LEVELS, OrtBackend
from ortmeter.timing import Comparison, Measurement

PRODUCTS, NOT_PACKED = "matrix products alone", ", not packed"
BEST = list(LEVELS)[-1]
PEERS = [PRODUCTS, "eager", "inductor"]
WAYS = [*PEERS[1:], *LEVELS, f"{BEST}{NOT_PACKED}"]
# For each case: what to compare with, and how many times faster the best level must be.
GOALS = {
    "llama": {PRODUCTS: 1 / 1.1},
    "medium": {"eager": 3.5, "inductor": 2.0},
    "model of chains": {"default+onnxruntime": 1.3},
}
VOCABULARY, COLUMNS = 1024, 1024


class Llama(NamedTuple):
    """Dimensions of a model and of its inputs, and how transformers computes the attention."""

    hidden: int
    heads: int
    mlp: int
    layers: int
    batch: int
    length: int
    attention: str

    def build(self) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
        """Build a model, as a function of the tokens, and draw these."""
        config = LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            vocab_size=VOCABULARY,
            intermediate_size=self.mlp,
            num_attention_heads=self.heads,
            attn_implementation=self.attention,
        )
        model = LlamaModel(config).eval()
        tokens = torch.randint(VOCABULARY, (self.batch, self.length))
        return lambda given: model(given, use_cache=False).last_hidden_state, [tokens]

    def products(self) -> Callable[[], object]:
        """Make a session of the matrix products that the layers cannot avoid, nothing else."""
        rows, head = self.batch * self.length, self.hidden // self.heads
        of, square = (self.batch, self.heads), (self.hidden, self.hidden)
        shapes = {"X": (rows, self.hidden), "M": (rows, self.mlp)}
        shapes |= {"Q": (*of, self.length, head), "K": (*of, head, self.length)}
        shapes |= {"P": (*of, self.length, self.length), "V": (*of, self.length, head)}
        own = dict.fromkeys(("query", "key", "value", "output"), square)
        own |= dict.fromkeys(("gate", "up"), (self.hidden, self.mlp))
        own |= {"down": (self.mlp, self.hidden)}
        layers = range(self.layers)
        weights = {f"{name}{i}": shape for i in layers for name, shape in own.items()}
        pairs = {w: ("M" if w.startswith("down") else "X", w) for w in weights}
        pairs |= {f"scores{i}": ("Q", "K") for i in layers}
        pairs |= {f"context{i}": ("P", "V") for i in layers}
        inputs = ", ".join(f"float{[*shape]} {n}" for n, shape in (shapes | weights).items())
        outputs = ", ".join(f"float[] {name}_out" for name in pairs)
        nodes = " ".join(f"{name}_out = MatMul({a}, {b})" for name, (a, b) in pairs.items())
        model = onnx.parser.parse_model(
            f'<ir_version: 11, opset_import: ["": 23]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
        )
        rng = np.random.default_rng(0)
        arrays = {n: rng.standard_normal(s, np.float32) / 32 for n, s in (shapes | weights).items()}
        model = ortmeter.freeze_inputs(model, {name: arrays.pop(name) for name in weights})
        threads = torch.get_num_threads()
        return ortmeter.session_candidate(model, arrays, provider="cpu", threads=threads).function


LLAMAS = {
    "llama": Llama(1024, 16, 2816, 2, 2, 256, "sdpa"),
    "medium": Llama(4096, 32, 1024, 1, 2, 1024, "eager"),
}


def block(x: torch.Tensor, u: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A residual, a scale, a bias and activations."""
    h = (x + r) * b + b
    return functional.gelu(h) * torch.sigmoid(u) + 0.1 * h


def gelu(x: torch.Tensor, _: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The approximation by tanh, after a bias and before a residual."""
    h = x + b
    return r + 0.5 * h * (1 + torch.tanh(0.7978845608 * (h + 0.044715 * h * h * h)))


def losses(x: torch.Tensor, u: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
    """Exponentials, logarithms and a choice."""
    return torch.where(x > u, torch.log1p(torch.exp(-x.abs())), torch.exp(-u * u)) - x.clamp(-1, 1)


def chains(x: torch.Tensor, u: torch.Tensor, r: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Take each chain once, with a normalization between them."""
    h = functional.layer_norm(gelu(block(x, u, r, b), u, r, b), (COLUMNS,))
    return losses((h * b - u * r) * 0.5 + (h * r + u * b) * 0.25, u)


CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "swiglu": lambda x, u, *_: functional.silu(x) * u,
    "gelu written out": gelu,
    "rotation": lambda x, u, r, b: (x * b - u * r) * 0.5 + (x * r + u * b) * 0.25,
    "block": block,
    "losses": losses,
    "model of chains": chains,
}
CASES = [*LLAMAS, "large weights", *CHAINS]


def make(case: str, rows: int) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    """Make a function, and its arguments."""
    torch.manual_seed(0)
    if case in LLAMAS:
        return LLAMAS[case].build()
    if case in CHAINS:
        return CHAINS[case], [*torch.randn(3, rows, COLUMNS), torch.randn(COLUMNS)]
    layers = [torch.nn.Linear(4096, 4096, bias=False) for _ in range(8)]
    return torch.nn.Sequential(*layers).eval(), [torch.randn(8, 4096)]


def measured(case: str, way: str, rows: int, repeat: int) -> dict[str, Any]:
    """Measure one way to run a case, in this process."""
    function, inputs = make(case, rows)
    about: dict[str, Any] = {}
    with torch.no_grad():
        if way == PRODUCTS:
            run = LLAMAS[case].products()
        else:
            expected, run = function(*inputs), lambda: function(*inputs)
        if way not in {PRODUCTS, "eager"}:
            level = way.removesuffix(NOT_PACKED)
            ours = OrtBackend(level, prepack=level == way, fallback=False) if level in LEVELS else 0
            torch.compile(torch.nn.Linear(4, 4), backend=ours or way)(torch.ones(1, 4))
            before, start = command.resident(), time.perf_counter()
            compiled = torch.compile(function, backend=ours or way)
            got, run = compiled(*inputs), lambda: compiled(*inputs)
            about["first call s"] = round(time.perf_counter() - start, 1)
            about["memory MiB"] = round((command.resident() - before) / 2**20)
            about["ulp"] = round(ortmeter.max_diff(expected, got).ulp_at_max, 1)
            if ours:
                graph = ours.graphs[-1]
                about |= {"nodes": graph.node_count, "custom": graph.custom_count}
        found = ortmeter.measure({way: run}, repeat=repeat, precision=None)[way]
    return {"seconds": found.seconds[0].tolist(), **about}


def compare(case: str, given: Any) -> None:
    """Print what every way to run a case takes, and what it says of the goals."""
    ways = [PRODUCTS] * (case in LLAMAS) + WAYS
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    asked = [f"--{name}={getattr(given, name)}" for name in ("threads", "rows", "repeat")]
    with tempfile.TemporaryDirectory() as cache:
        variables = dict.fromkeys(("ORTMETER_CACHE", "TORCHINDUCTOR_CACHE_DIR"), cache)
        for _ in range(given.rounds):
            for way in ways:
                told = command.fresh(__file__, *asked, "--way", way, case, **variables)
                found[way].append(told)
    results = Comparison(Measurement(w, [r["seconds"] for r in runs]) for w, runs in found.items())
    rows = []
    for way, result in results.items():
        row = {"way": way, "ms": round(result.median * 1e3, 3)}
        row |= {f"x {w}": round(results[w].median / result.median, 2) for w in ways if w in PEERS}
        rows.append(row | {k: v for k, v in found[way][0].items() if k != "seconds"})
    command.show(rows, f"\n{case}, {given.threads} threads")
    for before, after in pairwise(LEVELS):
        print(f"  {results.speedup(before, after)}")
    for baseline, goal in GOALS.get(case, {}).items():
        claim = results.speedup(baseline, BEST)
        verdict = {True: "reached", False: "missed", None: "undecided"}[claim.exceeds(goal)]
        print(f"  over {baseline}: {claim.interval}; at least {goal:.2f} asked: {verdict}")


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
        ways = {
            "session.run": lambda: session.run(None, feeds),
            "backend, one graph": lambda: found[0](x),
            "torch.compile, guards included": lambda: compiled(x),
            "eager": lambda: torch.relu(x),
        }
        results = ortmeter.measure(ways, repeat=300, precision=0.003)
    for name, result in results.items():
        share = result.median / results["session.run"].median
        print(f"{name}: {result.median * 1e6:.2f} us, {share:.2f} of session.run")


def main() -> None:
    """Print the cases asked for, or what one way takes in this process, as JSON."""
    given = command.options(__doc__, "cases", threads=2, rounds=3, rows=256, repeat=15, way="")
    torch.set_num_threads(given.threads)
    if given.way:
        print(json.dumps(measured(*given.cases, given.way, given.rows, given.repeat)))
        return
    for case in given.cases or ["calls", *CASES]:
        compare_calls() if case == "calls" else compare(case, given)


if __name__ == "__main__":
    main()
