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

from collections import Counter
from collections.abc import Callable
from typing import Any

import command
import onnx_ir as ir
import torch
from bench_rules import LEVEL, MODELS, capture, rewrite, rules_of
from onnxscript.rewriter import onnx_fusions
from onnxscript.rewriter.ort_fusions import optimize_for_ort

import ortmeter
from ortmeter.backend import weights
from ortmeter.backend.errors import quiet
from ortmeter.backend.rules import DEFAULT


def with_onnx_fusions(model: ir.Model) -> Counter[str]:
    """Apply those of the standard once constants are folded, as before our rules."""
    rules_of("-".join(["default", *(rule.name for rule in DEFAULT)]))(model)
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
    LEVEL: rules_of(LEVEL),
    f"{LEVEL}: a control": rules_of(LEVEL),
    "onnx_fusions": with_onnx_fusions,
    "ort_fusions": with_ort_fusions,
}


def compare(name: str, rounds: int, budget_s: float) -> list[dict[str, Any]]:
    """Make the rows of a model, one for each way to rewrite it."""
    captured = capture(name)
    made = {way: rewrite(captured, apply) for way, apply in WAYS.items()}
    candidates = {way: one.candidate for way, one in made.items() if one.candidate}
    results = ortmeter.measure(candidates, repeat=rounds, precision=None, budget_s=budget_s)
    rows = []
    for way, one in made.items():
        found = " ".join(f"{kind}:{n}" for kind, n in one.fusions.items())
        row = {
            "rewriting": way,
            **one._asdict(),
            "fusions": found,
            "seconds": round(one.seconds, 2),
        }
        if row.pop("candidate") is not None and way != LEVEL:
            speedup = results.speedup(way, LEVEL)
            row["latency / ours"] = f"{speedup.ratio:.2f} {speedup.brackets}".strip()
        rows.append(row)
    return rows


if __name__ == "__main__":
    asked = command.options(__doc__, "models", rounds=100, budget=30.0)
    weights.SMALL_BYTES = 256  # as in bench_rules: the weights of small models stand for large ones
    with torch.no_grad():
        for model_name in asked.models or MODELS:
            command.show(compare(model_name, asked.rounds, asked.budget), f"\n{model_name}")
