"""Our rewriting rules beside the fusions of onnxscript, on the models of ``bench_rules.py``.

``bench_ort_fusions.py`` takes the 13 models, ``bench_ort_fusions.py phi3 t5`` some of them. The
graph is the one that the backend exports. It prints rows of two kinds, the second one with
``--rules``, which takes twice as long:

* a row for each model and each way to rewrite it: fusions, nodes that ONNX Runtime executes (or why
  it refuses the graph), the time of the rewriting, the error, and the latency divided by that of
  our rules;
* a row for each model and each of our rules that onnxscript may stand for: the same rules but this
  one, with the fusions of onnxscript. ``onnx_fusions`` writes operators of the standard and comes
  first; ``ort_fusions`` writes those of ONNX Runtime and comes last.

The error is that of the worst output beside torch in float64, in float32 ulp of its largest
element.
Models are small, one thread, float32. Rules for CUDA are not compared. A ratio has no interval
where 100 rounds take longer than the budget of a model: on a busy machine, 2048 tokens.
"""

import argparse
import copy
import csv
import math
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
import torch
from bench_rules import LEVEL, MODELS, compile_model
from onnxscript.rewriter import onnx_fusions
from onnxscript.rewriter.ort_fusions import optimize_for_ort
from torch.fx.node import map_aggregate

import ortmeter
from ortmeter.backend import weights
from ortmeter.backend.errors import quiet
from ortmeter.backend.export import ExportedGraph, export_graph
from ortmeter.backend.levels import optimize_model, parse_level
from ortmeter.backend.rules import DEFAULT
from ortmeter.backend.session import OPSET
from ortmeter.runtime.sessions import optimized_model

CONTROL = f"{LEVEL}: a control"
#: Rules for CPU that onnxscript has too, where it finds something in these models, by who has them:
#: the names of its counts, and our rules that go as well, since ``ort_fusions`` reads the results
#: of its own fusions only. What it may find for others (``gqa``, ``cos_sin_cache``,
#: ``partial_rotary_embedding``) is counted in the rows of the first kind.
SAME: dict[tuple[str, str], tuple[tuple[str, ...], tuple[str, ...]]] = {
    ("RMSNorm", "onnx_fusions"): (("RMSNormalization",), ()),
    ("RMSNorm", "ort_fusions"): (("rms_normalization",), ()),
    ("Rotary", "onnx_fusions"): (("RotaryEmbedding",), ()),
    ("EagerAttention", "ort_fusions"): (("mha1", "mha2", "sdpa_via_mha", "gqa"), ()),
    ("AttentionBeforeSplit", "ort_fusions"): (("mha1", "mha2", "gqa"), ("EagerAttention",)),
    ("TransposedWeight", "ort_fusions"): (("fused_matmul",), ()),
}
BUDGET_S = 30.0  # for a model
COLUMNS = ("model", "rewriting", "found", "nodes", "seconds", "ulp", "latency / ours")


class Captured(NamedTuple):
    """A graph as the backend exports it, the arguments of a call, what it returns in float64."""

    exported: ExportedGraph
    arguments: Sequence[Any]
    expected: list[torch.Tensor]


class Rewritten(NamedTuple):
    """What a rewriting made; there is no candidate when ONNX Runtime refuses the graph."""

    fusions: Counter[str]
    seconds: float
    nodes: int | str
    ulp: float = math.nan
    candidate: ortmeter.Candidate | None = None


def capture(name: str) -> Captured:
    """Export a model under torch.compile, and compute in float64 what it returns."""
    captured: list[Captured] = []

    def backend(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        exported = export_graph(module, examples, OPSET)
        assert exported is not None

        def run(*arguments: Any) -> Any:
            captured.append(Captured(exported, arguments, run_in_float64(module, arguments)))
            return module.forward(*arguments)

        return run

    compile_model(name, backend)
    (only,) = captured
    return only


def run_in_float64(module: Any, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Run a graph in 64 bits, also where it asks for 32."""
    wide = copy.deepcopy(module).double()
    for node in wide.graph.nodes:
        node.args, node.kwargs = (
            map_aggregate(given, lambda x: torch.float64 if x is torch.float32 else x)
            for given in (node.args, node.kwargs)
        )
        if (node.op, node.target) == ("call_method", "float"):
            node.target = "double"
    wide.recompile()
    real = [isinstance(x, torch.Tensor) and x.is_floating_point() for x in arguments]
    doubled = [x.double() if r else copy.deepcopy(x) for x, r in zip(arguments, real, strict=True)]
    return tensors_of(wide(*doubled))


def tensors_of(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def apply_ours(model: ir.Model, level: str = LEVEL) -> Counter[str]:
    """Apply the rules of a level, count what they replace."""
    return Counter(optimize_model(model, parse_level(level)).fusions)


def apply_theirs(model: ir.Model, by: str) -> Counter[str]:
    """Apply fusions of onnxscript, count what they replace; it does not count products."""
    if by == "onnx_fusions":  # after the constants are folded, as before our rules
        apply_ours(model, "-".join(["default", *(rule.name for rule in DEFAULT)]))
        with quiet():
            return +Counter(onnx_fusions.fuse(model))
    before = sum(node.op_type == "FusedMatMul" for node in model.graph)
    with quiet():
        fusions = Counter(optimize_for_ort(model)[1])
    fusions["fused_matmul"] = sum(node.op_type == "FusedMatMul" for node in model.graph) - before
    return +fusions


def swap(rule: str, by: str) -> Callable[[ir.Model], Counter[str]]:
    """Make what applies our rules without one, and the fusions of onnxscript; count the latter."""
    level = "-".join([LEVEL, rule, *SAME[rule, by][1]])

    def apply(model: ir.Model) -> Counter[str]:
        if by == "ort_fusions":
            apply_ours(model, level)
        fusions = apply_theirs(model, by)
        if by == "onnx_fusions":
            apply_ours(model, level)
        return fusions

    return apply


def rewrite(captured: Captured, apply: Callable[[ir.Model], Counter[str]]) -> Rewritten:
    """Rewrite a graph, and measure the error of what it becomes."""
    exported, rewritten = captured.exported, captured.exported.model.clone()
    small, _ = weights.split_weights(exported, captured.arguments)
    weights.take_constants(rewritten, small, captured.arguments)
    start = time.perf_counter()
    fusions = apply(rewritten)
    seconds = time.perf_counter() - start
    model = ir.to_proto(rewritten)
    left = {value.name for value in model.graph.input}
    weight: dict[str, Any] = {}
    feeds: dict[str, Any] = {}
    for given in exported.inputs:
        if given.name in left:
            value = torch.as_tensor(captured.arguments[given.position]).detach().numpy()
            (weight if given.is_weight else feeds)[given.name] = value
    model = ortmeter.freeze_inputs(model, weight) if weight else model
    try:
        session = ortmeter.make_session(model, provider="cpu", threads=1)
        got: Any = [torch.from_numpy(array) for array in session.run(None, feeds)]
    except Exception as error:  # noqa: BLE001 - ONNX Runtime has a class for each reason
        return Rewritten(fusions, seconds, f"refused: {short(error)}")
    if exported.make_outputs is not None:
        got = exported.make_outputs(*captured.arguments, *got[: len(exported.computed)])
    error = ortmeter.max_diff(captured.expected, tensors_of(got))
    nodes = len(optimized_model(model, provider="cpu").graph.node)
    candidate = ortmeter.session_candidate(model, feeds, provider="cpu", threads=1)
    ulp = math.nan if error.n_nan or error.n_inf else float(error.ulp_at_max)
    return Rewritten(fusions, seconds, nodes, ulp, candidate)


def short(error: Exception) -> str:
    """Cut an error of ONNX Runtime to its reason."""
    reason = str(error).rpartition(" Status Message: ")[2]
    return textwrap.shorten(reason, 80, placeholder="...")


def compare(name: str, rounds: int, *, rules: bool) -> list[dict[str, Any]]:
    """Make the rows of a model: one for each way to rewrite it, then one for each rule if asked."""
    captured = capture(name)
    ours = rewrite(captured, apply_ours)
    done: dict[str, Any] = {
        "none": rewrite(captured, lambda _: Counter()),
        LEVEL: ours,
        CONTROL: ours,
        "onnx_fusions": rewrite(captured, lambda model: apply_theirs(model, "onnx_fusions")),
        "ort_fusions": rewrite(captured, lambda model: apply_theirs(model, "ort_fusions")),
    }
    counted = {
        way: " ".join(f"{k}:{n}" for k, n in made.fusions.items()) for way, made in done.items()
    }
    for (rule, by), (kinds, _) in SAME.items():
        if rules and rule in ours.fusions:
            way = f"{by} for {rule}"
            done[way] = made = rewrite(captured, swap(rule, by))
            counted[way] = f"{sum(made.fusions[k] for k in kinds)} of {ours.fusions[rule]}"
    # What finds nothing for a rule is not worth a measurement.
    candidates = {
        w: made.candidate for w, made in done.items() if made.candidate and counted[w][:2] != "0 "
    }
    results = ortmeter.measure(candidates, repeat=rounds, precision=None, budget_s=BUDGET_S)
    rows = []
    for way, made in done.items():
        speedup = results.speedup(way, LEVEL) if way in candidates and way != LEVEL else None
        latency = "" if speedup is None else f"{speedup.ratio:.2f} {speedup.brackets}".strip()
        values = (counted[way], made.nodes, f"{made.seconds:.2f}", f"{made.ulp:.3g}", latency)
        rows.append(dict(zip(COLUMNS, (name, way, *values), strict=True)))
    return rows


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--rounds", type=int, default=100, help="samples of each candidate")
    parser.add_argument("--rules", action="store_true", help="replace each rule as well")
    arguments = parser.parse_args()
    weights.SMALL_BYTES = 256  # as in bench_rules: the weights of small models stand for large ones
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    with torch.no_grad():
        for name in arguments.models or MODELS:
            writer.writerows(compare(name, arguments.rounds, rules=arguments.rules))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
