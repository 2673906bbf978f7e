"""Our rewriting rules beside the fusions of onnxscript, on the models of ``bench_rules.py``.

``bench_ort_fusions.py`` takes the 13 models, ``bench_ort_fusions.py phi3 t5`` some of them. The
graph is the one that the backend exports. A row for each model and each way to rewrite it has the
fusions, the nodes that ONNX Runtime executes (or why it refuses the graph), the time of the
rewriting, the error of the worst output beside eager torch, in float32 ulp of its largest element,
and the latency divided by that of our rules. ``onnx_fusions`` writes operators of the standard,
``ort_fusions`` those of ONNX Runtime.

Models are small, one thread, float32. Rules for CUDA are not compared. A ratio has no interval
where 100 rounds take longer than the budget of a model: on a busy machine, 2048 tokens.
"""

import math
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import command
import onnx_ir as ir
import torch
from bench_rules import LEVEL, MODELS, compile_model
from onnxscript.rewriter import onnx_fusions
from onnxscript.rewriter.ort_fusions import optimize_for_ort

import ortmeter
from ortmeter.backend import weights
from ortmeter.backend.errors import quiet
from ortmeter.backend.export import ExportedGraph, export_graph
from ortmeter.backend.levels import optimize_model, parse_level
from ortmeter.backend.rules import DEFAULT
from ortmeter.backend.session import OPSET
from ortmeter.runtime.sessions import optimized_model


class Captured(NamedTuple):
    """A graph as the backend exports it, the arguments of a call, what it returns."""

    exported: ExportedGraph
    arguments: Sequence[Any]
    expected: list[torch.Tensor]


def capture(name: str) -> Captured:
    """Export a model under torch.compile, and call it."""
    captured: list[Captured] = []

    def backend(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        exported = export_graph(module, examples, OPSET)
        assert exported is not None

        def run(*arguments: Any) -> Any:
            got = module.forward(*arguments)
            captured.append(Captured(exported, arguments, tensors_of(got)))
            return got

        return run

    compile_model(name, backend)
    (only,) = captured
    return only


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def apply_ours(model: ir.Model, level: str = LEVEL) -> Counter[str]:
    """Apply the rules of a level, count what they replace."""
    return Counter(optimize_model(model, parse_level(level)).fusions)


def with_onnx_fusions(model: ir.Model) -> Counter[str]:
    """Apply those of the standard once constants are folded, as before our rules."""
    apply_ours(model, "-".join(["default", *(rule.name for rule in DEFAULT)]))
    with quiet():
        return +Counter(onnx_fusions.fuse(model))


def with_ort_fusions(model: ir.Model) -> Counter[str]:
    """Apply those of ONNX Runtime, which do not count products."""
    before = sum(node.op_type == "FusedMatMul" for node in model.graph)
    with quiet():
        fusions = Counter(optimize_for_ort(model)[1])
    fusions["fused_matmul"] = sum(node.op_type == "FusedMatMul" for node in model.graph) - before
    return +fusions


WAYS: dict[str, Callable[[ir.Model], Counter[str]]] = {
    "none": lambda _: Counter(),
    LEVEL: apply_ours,
    f"{LEVEL}: a control": apply_ours,
    "onnx_fusions": with_onnx_fusions,
    "ort_fusions": with_ort_fusions,
}


def rewrite(captured: Captured, way: str) -> tuple[dict[str, Any], ortmeter.Candidate | None]:
    """Rewrite a graph; return its row, and a candidate unless ONNX Runtime refuses the graph."""
    exported, rewritten = captured.exported, captured.exported.model.clone()
    small, _ = weights.split_weights(exported, captured.arguments)
    weights.take_constants(rewritten, small, captured.arguments)
    start = time.perf_counter()
    fusions = " ".join(f"{kind}:{n}" for kind, n in WAYS[way](rewritten).items())
    row = {"rewriting": way, "found": fusions, "seconds": round(time.perf_counter() - start, 2)}
    model = ir.to_proto(rewritten)
    left = {value.name for value in model.graph.input}
    weight: dict[str, Any] = {}
    feeds: dict[str, Any] = {}
    for given in (given for given in exported.inputs if given.name in left):
        value = torch.as_tensor(captured.arguments[given.position]).detach().numpy()
        (weight if given.is_weight else feeds)[given.name] = value
    model = ortmeter.freeze_inputs(model, weight) if weight else model
    try:
        session = ortmeter.make_session(model, provider="cpu", threads=1)
        got: Any = [torch.from_numpy(array) for array in session.run(None, feeds)]
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has a class for each reason
        reason = str(error).rpartition(" Status Message: ")[2]
        return row | {"nodes": textwrap.shorten(f"refused: {reason}", 90)}, None
    if exported.make_outputs is not None:
        got = exported.make_outputs(*captured.arguments, *got[: len(exported.computed)])
    error = ortmeter.max_diff(captured.expected, tensors_of(got))
    row["nodes"] = len(optimized_model(model, provider="cpu").graph.node)
    row["ulp"] = math.nan if error.n_nan or error.n_inf else float(error.ulp_at_max)
    return row, ortmeter.session_candidate(model, feeds, provider="cpu", threads=1)


def compare(name: str, rounds: int, budget_s: float) -> list[dict[str, Any]]:
    """Make the rows of a model, one for each way to rewrite it."""
    captured = capture(name)
    rows, made = zip(*(rewrite(captured, way) for way in WAYS), strict=True)
    candidates = {way: one for way, one in zip(WAYS, made, strict=True) if one}
    results = ortmeter.measure(candidates, repeat=rounds, precision=None, budget_s=budget_s)
    for row in rows:
        if row["rewriting"] in candidates.keys() - {LEVEL}:
            speedup = results.speedup(row["rewriting"], LEVEL)
            row["latency / ours"] = f"{speedup.ratio:.2f} {speedup.brackets}".strip()
    return list(rows)


if __name__ == "__main__":
    asked = command.options(__doc__, "models", rounds=100, budget=30.0)
    weights.SMALL_BYTES = 256  # as in bench_rules: the weights of small models stand for large ones
    with torch.no_grad():
        for model_name in asked.models or MODELS:
            command.show(compare(model_name, asked.rounds, asked.budget), f"\n{model_name}")
