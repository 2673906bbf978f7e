"""How many times faster than its peers: one table, by machine, in at most 15 minutes.

``python _benchmarks/peers.py`` measures every part, ``peers.py einsum backend`` some of them. Each
line is a ratio: what the peer takes over what we take, so that larger is better; candidates are
interleaved, or in fresh processes taken in turn. What is found replaces the lines of this machine
in ``results/peers.jsonl``, and ``--write`` makes the table of the documentation from all machines:
a ratio of one processor misleads.
"""

import csv
import functools
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import command
import lines
import numpy as np
import onnx
import onnx.parser
import torch
from scipy.stats import gmean

import ortmeter
from ortmeter.runtime.models import sample_transformer

TABLE = Path(__file__).parents[1] / "_doc" / "peers.csv"


class Ratio(NamedTuple):
    """A line: what is compared, with which peer, the ratio, its interval, what was asked."""

    what: str
    peer: str
    ratio: float
    interval: str = ""
    goal: float | None = None


def compared(
    what: str,
    functions: Mapping[str, Callable[[], object]],
    goals: Mapping[str, float],
    **limits: Any,
) -> Iterator[Ratio]:
    """Measure the first function beside the others, interleaved."""
    results = ortmeter.measure(dict(functions), **{"budget_s": 20, **limits})
    ours, *peers = functions
    for peer in peers:
        claim = results.speedup(peer, ours)
        yield Ratio(what, peer, claim.ratio, claim.brackets, goals.get(peer))


def measure_max_diff() -> Iterator[Ratio]:
    """Compare arrays, beside onnx-diagnostic, which knows less, and the naive formula."""
    from onnx_diagnostic.helpers import max_diff as peer_max_diff

    rng = np.random.default_rng(0)
    expected = rng.standard_normal((8, 1024, 1152), np.float32)
    got = expected + rng.standard_normal(expected.shape, np.float32) * np.float32(1e-3)
    for dtype, library in itertools.product(("float32", "float16"), ("numpy", "torch")):
        a, b = (
            x.astype(dtype) if library == "numpy" else torch.from_numpy(x.astype(dtype))
            for x in (expected, got)
        )
        functions = {
            "ortmeter": functools.partial(ortmeter.max_diff, a, b),
            "onnx-diagnostic": functools.partial(peer_max_diff, a, b, hist=True),
            "abs(a - b).max()": lambda a=a, b=b: abs(a - b).max(),
        }
        goals = {"onnx-diagnostic": 10.0}
        if (dtype, library) == ("float32", "numpy"):
            goals["abs(a - b).max()"] = 0.5
        yield from compared(f"max_diff, {library} {dtype}", functions, goals, repeat=12)


def measure_profiling() -> Iterator[Ratio]:
    """Read and merge a profile of 16 002 events, beside onnx-array-api."""
    from onnx_array_api.ort.ort_profile import merge_ort_profile, ort_profile

    from ortmeter.profiling import merge_profiles, read_profile

    def read_by_peer(path: Path) -> Any:
        """What ort_profile does once the runs are over: it reads, then removes, the file."""
        copy = path.with_suffix(".copy")
        os.link(path, copy)
        session = mock.Mock(end_profiling=lambda: str(copy))
        with mock.patch("onnxruntime.InferenceSession", return_value=session):
            return ort_profile("model", {"x": np.zeros(1)}, repeat=0)

    nodes = " ".join(f"t{i + 1} = {'Abs' if i % 2 else 'Exp'} (t{i})" for i in range(14))
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[1, 16] t0) => (float[1, 16] t14)'
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        how = {"provider": "cpu", "threads": 2, "profile": Path(folder, "small")}
        session = ortmeter.make_session(f"{text} {{ {nodes} }}", **how)
        for _ in range(1000):
            session.run(None, {"t0": np.zeros((1, 16), np.float32)})
        path = Path(session.end_profiling())
        ours, frame = read_profile(path), read_by_peer(path)
        peer, goals = "onnx-array-api", {"onnx-array-api": 10.0}
        pair = {"ortmeter": lambda: read_profile(path), peer: lambda: read_by_peer(path)}
        yield from compared("profile, read", pair, goals, repeat=12)
        pair = {
            "ortmeter": lambda: merge_profiles(ours, ours),
            peer: lambda: merge_ort_profile(frame, frame),
        }
        yield from compared("profiles, merged", pair, goals, repeat=12)


#: Equations that no rule was made for, and the dimensions of their letters.
EQUATIONS = {
    "bsnh,btnh->bnts": "b 2, st 64, n 12, h 32",
    "bsnh,btnh->bnst": "b 2, st 64, n 4, h 32",
    "sbnh,tbnh->bnst": "b 2, st 64, n 4, h 32",
    "bnst,btnh->bsnh": "b 2, st 64, n 4, h 32",
    "bsgnh,btgh->bgnst": "b 1, st 64, gn 2, h 32",
    "bsd,dnh->bsnh": "b 2, s 64, n 4, h 16, d 64",
    "bnsh,tsh->bnst": "b 2, st 32, n 4, h 32",
    "ij,jk->ik": "ijk 64",
    "ij,kj->ik": "ijk 256",
    "bij,bjk->bik": "b 256, ijk 4",
    "ijb,jkb->ikb": "b 16, ijk 24",
    "ijk,kjl->il": "i 7, j 17, k 30, l 50",
    "abcd,dcef->abef": "abcdef 6",
    "ij,j->i": "ij 1024",
    "i,ij->j": "ij 1024",
    "ij,ji->ij": "ij 128",
    "i,i->": "i 1000000",
    "bh,bh->b": "b 200, h 64",
    "ij,k->kji": "ijk 24",
    "ii->": "ij 128",
    "abcd->dcba": "abcd 10",
    "bsnh,btnh,btnd->bsnd": "b 1, st 32, n 4, hd 16",
    "bi,ijk,bk->bj": "b 64, ik 32, j 24",
    "ij,jk,kl->il": "i 64, jkl 128",
    "abc,ia,jb,kc->ijk": "abc 8, ijk 24",
    "ab,bcd,def,fgc,ge->a": "abcdefg 8",
}
EINSUM, AGAIN = "ONNX Runtime's Einsum", "a second session of Einsum"


def compare_einsum(equation: str, dimensions: str, threads: int) -> dict[str, Any]:
    """Measure an equation in this process, whose threads do not spin."""
    import opt_einsum

    from ortmeter.einsum import decompose_einsum, einsum_model, optimize_einsum

    told = [part.split() for part in dimensions.split(",")]
    of = {letter: int(size) for letters, size in told for letter in letters}
    terms, rng = equation.partition("->")[0].split(","), np.random.default_rng(0)
    operands = [rng.standard_normal([of[c] for c in term], np.float32) for term in terms]
    model = einsum_model(equation, *operands)
    first, second = (ortmeter.make_session(model, provider="cpu", threads=threads) for _ in "ab")
    feeds = {node.name: x for node, x in zip(first.get_inputs(), operands, strict=True)}
    path = opt_einsum.contract_expression(equation, *(a.shape for a in operands))
    tensors = [torch.from_numpy(a) for a in operands]
    seconds = timeit.timeit(lambda: decompose_einsum(equation, *operands), number=1)
    fastest = optimize_einsum(equation, *operands, provider="cpu", threads=threads).model
    ours = ortmeter.make_session(fastest, provider="cpu", threads=threads)
    functions = {
        "ortmeter": lambda: ours.run(None, feeds)[0],
        EINSUM: lambda: first.run(None, feeds)[0],
        AGAIN: lambda: second.run(None, feeds)[0],
        "numpy": lambda: np.ascontiguousarray(np.einsum(equation, *operands, optimize=True)),
        "opt_einsum": lambda: np.ascontiguousarray(path(*operands)),
        "torch": lambda: torch.einsum(equation, *tensors).contiguous(),
    }
    expected = np.einsum(equation, *(a.astype(np.float64) for a in operands))
    np.testing.assert_allclose(functions["ortmeter"](), expected, rtol=1e-3, atol=1e-2)
    found = ortmeter.measure(functions, repeat=20, budget_s=3, precision=None)
    medians = {name: one.median for name, one in found.items()}
    return {"operands": len(terms), "plan": seconds, **medians}


def measure_einsum() -> Iterator[Ratio]:
    """Compute equations, beside the Einsum of ONNX Runtime and the best of four libraries."""
    for threads in (1, 2):
        quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
        quiet |= {"OMP_WAIT_POLICY": "PASSIVE", "OPENBLAS_THREAD_TIMEOUT": "4"}
        rows = command.fresh(__file__, "--einsum", threads, **quiet)
        cores = f"einsum, {threads} thread{'s' * (threads > 1)}"
        goals = {"two operands": 1.05 if threads == 1 else 1.3, "three or more": 2.0}
        for what, goal in goals.items():
            kept = [row for row in rows if (row["operands"] == 2) == (what == "two operands")]
            mean = gmean([row[EINSUM] / row["ortmeter"] for row in kept])
            yield Ratio(f"{cores}, {what}", EINSUM, mean, "geometric mean", goal)
        # Below 3 µs, a difference is one of calls.
        worst = min((r[EINSUM] + 3e-6) / (r["ortmeter"] + 3e-6) for r in rows)
        again = min((r[EINSUM] + 3e-6) / (r[AGAIN] + 3e-6) for r in rows)
        told = f"{again:.2f} for {AGAIN}"
        yield Ratio(f"{cores}, the worst", EINSUM, worst, told, 0.95)
        best = [min(r[p] for p in (EINSUM, "numpy", "opt_einsum", "torch")) for r in rows]
        mean = gmean([b / r["ortmeter"] for b, r in zip(best, rows, strict=True)])
        yield Ratio(cores, "the best of four libraries", mean, "geometric mean", 1.05)
        plan = float(np.median([row["plan"] for row in rows[1:]]))
        yield Ratio(f"{cores}, first plan", "200 us", 2e-4 / plan, f"{1e6 * plan:.0f} us", 1.0)


def measure_calls() -> Iterator[Ratio]:
    """Walk a chain of operators, call a session, time a function that does nothing."""
    from onnx.reference import ReferenceEvaluator
    from onnx_diagnostic.reference import TorchOnnxEvaluator
    from polygraphy.backend.onnxrt import OnnxrtRunner

    from ortmeter.evaluator import Evaluator

    chain = " ".join(f"r{i + 1} = Add(r{i}, c)" for i in range(200))
    text = '<ir_version: 10, opset_import: ["": 18]> g (float[4] r0, float[4] c) => (float[4] r200)'
    model = onnx.parser.parse_model(f"{text} {{ {chain} }}")
    tensors = {name: torch.ones(4) for name in ("r0", "c")}
    arrays = {name: value.numpy() for name, value in tensors.items()}
    ours, torch_peer, reference = (
        Evaluator(model),
        TorchOnnxEvaluator(model),
        ReferenceEvaluator(model),
    )
    functions: dict[str, Callable[[], object]] = {
        "ortmeter": lambda: ours.run(None, tensors),
        "onnx-diagnostic": lambda: torch_peer.run(None, tensors),
        "onnx.reference": lambda: reference.run(None, arrays),
    }
    goals = dict.fromkeys(list(functions)[1:], 2.0)
    yield from compared("evaluator, 200 additions", functions, goals)
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[4] X, float[4] Y) => (float[4] Z)'
    session = ortmeter.make_session(f"{text} {{ Z = Add(X, Y) }}", provider="cpu")
    feeds = {name: np.ones(4, np.float32) for name in "XY"}
    bound, binding = ortmeter.BoundSession(session, feeds), session.io_binding()
    for key, array in feeds.items():
        binding.bind_cpu_input(key, array)
    binding.bind_output("Z")
    with OnnxrtRunner(session) as runner:
        functions = {
            "ortmeter": lambda: bound.run(),  # noqa: PLW0108 - the same lambda for all
            "run_with_iobinding": lambda: session.run_with_iobinding(binding),
            "session.run": lambda: session.run(None, feeds),
            "polygraphy": lambda: runner.infer(feeds, check_inputs=False),
        }
        goals = {"run_with_iobinding": 0.95}
        yield from compared("a call of BoundSession", functions, goals, precision=0.01)
    call = np.ones(1000).sum
    ratios = []
    for _ in range(15):
        timer = timeit.Timer(call)
        number = timer.autorange()[0] // 100
        peer = float(np.median(timer.repeat(5, number))) / number
        ratios.append(peer / ortmeter.measure({"f": call}, repeat=50, precision=None)["f"].median)
    told = f"[{min(ratios):.2f}, {max(ratios):.2f}] of 15"
    yield Ratio("a sum of 1,000, timed", "timeit", float(np.median(ratios)), told, 0.95)


class Llama(NamedTuple):
    """Dimensions of a model and of its inputs, and how transformers computes the attention."""

    hidden: int
    heads: int
    mlp: int
    layers: int
    length: int
    attention: str

    def build(self) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
        """Build a model, as a function of the tokens, and draw these."""
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            vocab_size=1024,
            intermediate_size=self.mlp,
            num_attention_heads=self.heads,
            attn_implementation=self.attention,
        )
        model = LlamaModel(config).eval()
        tokens = torch.randint(1024, (2, self.length))
        return lambda given: model(given, use_cache=False).last_hidden_state, [tokens]

    def products(self) -> Callable[[], object]:
        """Make a session of the matrix products that the layers cannot avoid, nothing else."""
        rows, head = 2 * self.length, self.hidden // self.heads
        of, square = (2, self.heads), (self.hidden, self.hidden)
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


PRODUCTS, OURS = "its matrix products alone", "default+onnxruntime"
LLAMAS = {
    "Llama, hidden 1024": Llama(1024, 16, 2816, 2, 256, "sdpa"),
    "Llama, hidden 4096": Llama(4096, 32, 1024, 1, 1024, "eager"),
}
GOALS = {
    ("Llama, hidden 1024", "inductor"): 1.05,
    ("Llama, hidden 4096", "eager"): 3.5,
    ("Llama, hidden 4096", "inductor"): 2.0,
}
ROUNDS = 3  # processes of each way


def run_llama(case: str, way: str) -> list[float]:
    """Measure one way to run a model in this process."""
    from ortmeter.backend import OrtBackend

    torch.manual_seed(0)
    torch.set_num_threads(2)
    function, inputs = LLAMAS[case].build()
    with torch.no_grad():
        run: Callable[[], object] = functools.partial(function, *inputs)
        if way == PRODUCTS:
            run = LLAMAS[case].products()
        elif way != "eager":
            backend: Any = OrtBackend(OURS, fallback=False) if way == OURS else way
            compiled = torch.compile(function, backend=backend)
            compiled(*inputs)
            run = functools.partial(compiled, *inputs)
        return ortmeter.measure({way: run}, repeat=12, precision=None)[way].seconds[0].tolist()


def measure_backend() -> Iterator[Ratio]:
    """Run two Llamas by torch.compile, processes in turn: threads that spin would take cores."""
    from ortmeter.timing import Comparison, Measurement

    ways = [OURS, "eager", "inductor", PRODUCTS]
    with tempfile.TemporaryDirectory() as cache:
        variables = dict.fromkeys(("ORTMETER_CACHE", "TORCHINDUCTOR_CACHE_DIR"), cache)
        for case in LLAMAS:
            found: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _, way in itertools.product(range(ROUNDS), ways):
                found[way].append(command.fresh(__file__, "--llama", case, way, **variables))
            rounds = min(len(own) for runs in found.values() for own in runs)  # a budget cuts some
            isolated = {w: np.array([own[:rounds] for own in s]) for w, s in found.items()}
            results = Comparison(Measurement(w, s, isolated=True) for w, s in isolated.items())
            for peer in ways[1:]:
                claim = results.speedup(peer, OURS)
                yield Ratio(case, peer, claim.ratio, claim.brackets, GOALS.get((case, peer)))


def measure_start() -> Iterator[Ratio]:
    """Start commands in fresh processes."""
    bench = ["-m", "ortmeter", "bench", "model.onnx", "--dim", "batch=1", "--processes", "1"]
    commands = {"--help": (["-m", "ortmeter", "--help"], 0.2), "bench": (bench, 0.9)}
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        onnx.save(sample_transformer(layers=1, width=64), Path(folder) / "model.onnx")
        run = functools.partial(subprocess.run, cwd=folder, capture_output=True, check=True)
        for name, (called, goal) in commands.items():
            start = functools.partial(run, [sys.executable, *called])
            seconds = float(np.median(timeit.repeat(start, number=1, repeat=9)))
            what = f"ortmeter {name}"
            yield Ratio(what, f"{goal} s", goal / seconds, f"{seconds:.2f} s", 1.0)


PARTS = {
    "max_diff": measure_max_diff,
    "profiling": measure_profiling,
    "einsum": measure_einsum,
    "calls": measure_calls,
    "backend": measure_backend,
    "start": measure_start,
}
FILE = lines.RESULTS / "peers.jsonl"


def keep(part: str, found: Sequence[Ratio]) -> None:
    """Replace the lines of a part on this machine."""
    machine = lines.where()["machine"]
    others = [x for x in lines.read(FILE) if (x["part"], x["machine"]) != (part, machine)]
    FILE.write_text("".join(json.dumps(line) + "\n" for line in others))
    for ratio in found:
        lines.add(FILE, {"part": part, **ratio._asdict(), "ratio": round(ratio.ratio, 3)})


def write_table() -> None:
    """Write the ratios of every machine side by side."""
    kept = lines.read(FILE)
    machines = list(dict.fromkeys(line["machine"] for line in kept))
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for line in kept:
        row = rows.setdefault((line["what"], line["peer"]), {"goal": f"{line['goal'] or ''}"})
        row[line["machine"]] = f"{line['ratio']:.2f} {line['interval']}".strip()
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["What", "Times faster than", "Goal", *machines])
        for key, row in rows.items():
            writer.writerow([*key, row["goal"], *(row.get(name, "") for name in machines)])


def main() -> None:
    """Measure the parts that are asked for, print their ratios, keep them."""
    given = command.options(__doc__, "parts", write=False, einsum=0, llama=False)
    if given.einsum:
        torch.set_num_threads(given.einsum)
        rows = [compare_einsum(*told, given.einsum) for told in EQUATIONS.items()]
        print(json.dumps(rows))
    elif given.llama:
        print(json.dumps(run_llama(*given.parts)))
    elif given.write:
        write_table()
    else:
        for part in given.parts or PARTS:
            found = list(PARTS[part]())
            keep(part, found)
            missed = [r for r in found if r.goal and not math.isnan(r.goal) and r.ratio < r.goal]
            title = f"\n{part}, {lines.where()['machine']}: {len(missed)} below the goal"
            command.show([r._replace(ratio=round(r.ratio, 3)) for r in found], title)


if __name__ == "__main__":
    main()
