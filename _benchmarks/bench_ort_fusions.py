"""Our rewriting rules beside the fusions of onnxscript for ONNX Runtime.

``bench_ort_fusions.py`` takes the 13 models of ``bench_rules.py``, ``bench_ort_fusions.py phi3 t5``
some of them. It prints two tables.

The first one has a row for each model and each way to rewrite it: fusions, nodes, the time of the
rewriting, the error and the latency, relative to that of our rules. The graph is the one that the
backend exports: opset 23, the weights are inputs. onnxscript is also given what its patterns are
written for, weights that are constants, and opset 18, where torch writes an attention as
primitives.

The second one has a row for each of our rules, and for each part of onnxscript that could stand for
it: where the rule applies, where onnxscript finds as much on the same graph, where it does in place
of the rule, how fast and how precise that is. *replaceable* asks for all of them. ``ort_fusions``
follows our other rules, since it reads nothing but primitives and writes what they do not read;
``onnx_fusions`` comes first, as it writes standard operators. Without CUDA, the rules for CUDA are
counted and their results compared, on the kernels of the CPU; their latency is not known.

The last lines take the graphs of the tests that our rules refuse, since their pattern nearly holds:
those that onnxscript rewrites into something else, or that ONNX Runtime refuses.

Errors are those of the worst output beside torch in float64, in float32 ulp of its largest element.
Models are small, one thread, float32: what differs is mostly the number of nodes.
"""

import argparse
import copy
import csv
import dataclasses
import importlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import pandas as pd
import torch
from bench_rules import LEVEL, MODELS, ROOT, differ
from onnxscript.rewriter import onnx_fusions
from onnxscript.rewriter.ort_fusions import optimize_for_ort
from torch.fx.node import map_aggregate

import ortmeter
from ortmeter.backend import weights
from ortmeter.backend.errors import quiet
from ortmeter.backend.export import ExportedGraph, export_graph
from ortmeter.backend.levels import optimize_model, parse_level
from ortmeter.backend.rules import DEFAULT, RULES
from ortmeter.backend.rules.products import allow_copies
from ortmeter.backend.session import OPSET
from ortmeter.runtime.sessions import optimized_model

from backend_models import ARCHITECTURES, VOCABULARY  # isort: skip - bench_rules finds it

OURS, CONTROL, BOTH = LEVEL, f"{LEVEL}: a control", f"{LEVEL}, then ort_fusions"
THEIRS, STANDARD, OLDER = "ort_fusions", "onnx_fusions", "ort_fusions, opset 18"
#: Fusions of ort_fusions that stand for a rule, by the names of its counts. Those of a rotary
#: embedding and of an attention that nothing takes further are written back as they were.
FOR_ORT: dict[str, tuple[str, ...]] = {
    "RMSNorm": ("rms_normalization",),
    "Rotary": ("cos_sin_cache",),
    "PartialRotary": ("partial_rotary_embedding",),
    "EagerAttention": ("mha1", "mha2", "sdpa_via_mha", "gqa"),
    "RepeatedHeads": ("gqa",),
    "AttentionBeforeSplit": ("mha1", "mha2", "gqa"),
    "TanhGelu": ("gelu",),
    "SkipRMSNorm": ("skip_rms_normalization",),
    "SkipLayerNorm": ("skip_layer_normalization",),
    "BiasGelu": ("bias_gelu",),
    "TransposedWeight": ("fused_matmul",),
    "GroupQuery": ("gqa",),
    "PackedGroupQuery": ("packed_qkv_for_gqa",),
}
#: The same of onnx_fusions, which writes the operators of the standard.
FOR_ONNX: dict[str, tuple[str, ...]] = {
    "RMSNorm": ("RMSNormalization",),
    "Rotary": ("RotaryEmbedding",),
    "RepeatedHeads": ("GQA",),
}
SAME = {THEIRS: FOR_ORT, STANDARD: FOR_ONNX}
#: What ort_fusions looks for in the results of its own fusions only: these rules go together.
TOGETHER = {
    "SkipRMSNorm": ("RMSNorm",),
    "PartialRotary": ("Rotary",),
    "AttentionBeforeSplit": ("EagerAttention",),
    "RepeatedHeads": ("EagerAttention",),
}
#: Sums in another order round otherwise: a maximum of errors moves by less than this.
SAME_ERROR = 2.0
#: A latency that is above ours by this share, or may be, is worse.
MIN_EFFECT = 0.05
COLUMNS = (
    "model",
    "rewriting",
    "fusions",
    "nodes",
    "nodes executed",
    "seconds",
    "ulp",
    "latency / ours",
)


@dataclasses.dataclass(frozen=True)
class Captured:
    """A graph of dynamo, what it is compiled and called with, and what it should return."""

    module: Any
    examples: Sequence[Any]
    arguments: Sequence[Any]
    expected: list[torch.Tensor]

    def start(
        self, opset: int = OPSET, *, constants: bool = False
    ) -> tuple[ExportedGraph, ir.Model]:
        """Export as the backend does; *constants* makes constants of the weights, large or not."""
        exported = export_graph(self.module, self.examples, opset)
        assert exported is not None
        small, large = weights.split_weights(exported, self.arguments)
        model = exported.model
        weights.take_constants(model, small | (large if constants else {}), self.arguments)
        allow_copies(value for value in model.graph.inputs if value.name in large)
        return exported, model


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """What a rewriting made: ``ulp`` is a text when the result does not run."""

    fusions: Counter[str]
    nodes: int
    executed: int
    seconds: float
    ulp: float | str
    candidate: ortmeter.Candidate | None


def capture(name: str) -> Captured:
    """Trace a model as torch.compile does, and compute in float64 what it should return."""
    architecture, attention, options, dynamic = MODELS[name]
    model, inputs = ARCHITECTURES[architecture].build(attention, **options)
    if "max_position_embeddings" in options:
        size = (1, options["max_position_embeddings"])
        inputs = {"input_ids": torch.randint(2, VOCABULARY, size)}
    for axis in (1, 0)[:dynamic]:
        torch._dynamo.mark_dynamic(inputs["input_ids"], axis)  # noqa: SLF001 - torch documents it
    torch._dynamo.reset()  # noqa: SLF001 - the same
    found: list[Captured] = []

    def backend(module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            found.append(Captured(module, examples, arguments, in_double(module, arguments)))
            return module.forward(*arguments)

        return run

    with torch.no_grad():
        torch.compile(model, backend=backend, fullgraph=True, dynamic=None if dynamic else False)(
            **inputs
        )
    (only,) = found
    return only


def in_double(module: Any, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Run a graph in 64 bits, also where it asks for 32."""
    wide = copy.deepcopy(module).double()
    swap = {torch.float32: torch.float64}
    for node in wide.graph.nodes:
        node.args, node.kwargs = (
            map_aggregate(given, lambda x: swap.get(x, x) if isinstance(x, torch.dtype) else x)
            for given in (node.args, node.kwargs)
        )
        if (node.op, node.target) == ("call_method", "float"):
            node.target = "double"
    wide.recompile()
    return only_tensors(wide(*(x.double() if is_real(x) else copy.deepcopy(x) for x in arguments)))


def is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def only_tensors(values: Sequence[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def apply_ours(model: ir.Model, level: str, provider: str = "cpu") -> Counter[str]:
    """Apply the rules of a level, count what they replace."""
    return Counter(optimize_model(model, parse_level(level), provider=provider).fusions)


def apply_theirs(model: ir.Model) -> Counter[str]:
    """Apply the fusions of onnxscript, count what they replace; it does not count products."""
    before = count_fused_products(model)
    with quiet():
        _, fusions = optimize_for_ort(model)
    fusions["fused_matmul"] = count_fused_products(model) - before
    return +Counter(fusions)


def apply_standard(model: ir.Model) -> Counter[str]:
    """Fold the constants, as before our rules, then apply the fusions into standard operators."""
    apply_ours(model, "-".join(["default", *(rule.name for rule in DEFAULT)]))
    with quiet():
        return +Counter(onnx_fusions.fuse(model))


def count_fused_products(model: ir.Model) -> int:
    return sum(node.op_type == "FusedMatMul" for node in model.graph)


def rewrite(
    captured: Captured,
    apply: Callable[[ir.Model], Counter[str]],
    *,
    repeat: int = 1,
    **options: Any,
) -> Rewritten:
    """Rewrite a graph, and run what it becomes."""
    exported, start = captured.start(**options)
    seconds = []
    for _ in range(repeat):
        model = start.clone()
        begin = time.perf_counter()
        fusions = apply(model)
        seconds.append(time.perf_counter() - begin)
    nodes, took = len(list(model.graph)), statistics.median(seconds)
    try:
        proto, feeds = with_weights(exported, ir.to_proto(model), captured.arguments)
        executed = len(optimized_model(proto, provider="cpu").graph.node)
        ulp = error(captured, exported, proto, feeds)
        candidate = ortmeter.session_candidate(proto, feeds, provider="cpu", threads=1)
    except Exception as refusal:  # noqa: BLE001 - ONNX Runtime has a class for each
        return Rewritten(fusions, nodes, 0, took, f"does not run: {shortened(refusal)}", None)
    return Rewritten(fusions, nodes, executed, took, ulp, candidate)


def shortened(refusal: Exception) -> str:
    """Keep what ONNX Runtime says of a node."""
    return str(refusal).splitlines()[0].rpartition("Status Message: ")[2][:160]


def with_weights(
    exported: ExportedGraph, model: onnx.ModelProto, arguments: Sequence[Any]
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Make constants of the weights, as the backend does; return what is left to feed."""
    left = {value.name for value in model.graph.input}
    values = {
        given: torch.as_tensor(arguments[given.position]).detach().numpy()
        for given in exported.inputs
        if given.name in left
    }
    constants = {given.name: array for given, array in values.items() if given.is_weight}
    feeds = {given.name: array for given, array in values.items() if not given.is_weight}
    return ortmeter.freeze_inputs(model, constants) if constants else model, feeds


def error(
    captured: Captured, exported: ExportedGraph, model: onnx.ModelProto, feeds: dict[str, Any]
) -> float:
    """Measure how far a model is from torch in 64 bits."""
    session = ortmeter.make_session(model, provider="cpu", threads=1)
    got: Any = [torch.from_numpy(array) for array in session.run(None, feeds)]
    got = got[: len(exported.computed)]
    if exported.make_outputs is not None:
        got = exported.make_outputs(*captured.arguments, *got)
    found = ortmeter.max_diff(captured.expected, only_tensors(got))
    return float("nan") if found.n_nan or found.n_inf else float(found.ulp_at_max)


def compare(
    name: str, budget_s: float, processes: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of a model: one for each rewriting, then one for each rule."""
    captured = capture(name)
    eager = ortmeter.max_diff(
        captured.expected, only_tensors(captured.module.forward(*captured.arguments))
    )
    ways: dict[str, tuple[Callable[[ir.Model], Counter[str]], dict[str, Any]]] = {
        level: (lambda model, level=level: apply_ours(model, level), {})
        for level in ("none", "default", OURS)
    }
    ways[THEIRS] = (apply_theirs, {})
    ways[f"{THEIRS}, weights constant"] = (apply_theirs, {"constants": True})
    ways[OLDER] = (apply_theirs, {"opset": 18})
    ways[STANDARD] = (apply_standard, {})
    done = {
        way: rewrite(captured, apply, repeat=3, **options) for way, (apply, options) in ways.items()
    }
    done[BOTH] = rewrite(captured, with_theirs())
    cuda = rewrite(captured, lambda model: apply_ours(model, OURS, "cuda"))
    applied = {rule: ("cpu", n) for rule, n in done[OURS].fusions.items()}
    applied |= {rule: ("cuda", n) for rule, n in cuda.fusions.items() if on_cuda_only(rule)}
    replaced = {
        (rule, by): rewrite(captured, with_theirs(rule, by, provider))
        for rule, (provider, _) in applied.items()
        for by, same in SAME.items()
        if rule in same
    }

    candidates: dict[Any, Any] = {way: made.candidate for way, made in done.items()}
    for (rule, by), made in replaced.items():
        if applied[rule][0] == "cpu" and found_by(made, rule, by):
            candidates[f"{rule} by {by}"] = made.candidate
    candidates[CONTROL] = candidates[OURS]
    candidates = {way: candidate for way, candidate in candidates.items() if candidate}
    results = ortmeter.measure(candidates, processes=processes, budget_s=budget_s * len(candidates))
    latencies = {way: results.speedup(way, OURS) for way in candidates if way != OURS}
    rows = [
        row(name, way, made, latencies.get(way))
        for way, made in (done | {CONTROL: done[OURS]}).items()
    ]
    rows.append(row(name, "torch, float32", None, None) | {"ulp": f"{eager.ulp_at_max:.3g}"})
    by_rule = []
    for rule, (provider, times) in applied.items():
        base = done[OURS] if provider == "cpu" else cuda
        for by, same in SAME.items():
            if rule not in same and by != THEIRS:
                continue
            made, claim = replaced.get((rule, by)), latencies.get(f"{rule} by {by}")
            by_rule.append(
                {
                    "rule": rule,
                    "by": by,
                    "model": name,
                    "times": times,
                    "same graph": found_by(done[by], rule, by),
                    "opset 18": found_by(done[OLDER], rule, by) if by == THEIRS else 0,
                    "in place": found_by(made, rule, by) if made else 0,
                    "claim": claim,
                    "speed": judge_speed(claim, latencies[CONTROL]),
                    "errors": (made.ulp if made else None, base.ulp),
                    "nodes": (made.executed if made else None, base.executed),
                }
            )
    return rows, by_rule


def on_cuda_only(rule: str) -> bool:
    return "cpu" not in RULES[rule].fusions


def with_theirs(
    rule: str = "", by: str = THEIRS, provider: str = "cpu"
) -> Callable[[ir.Model], Counter[str]]:
    """Make what applies our rules but one, and fusions of onnxscript, and counts the latter."""
    without = (rule, *TOGETHER.get(rule, ())) if by == THEIRS else (rule,)
    level = "-".join([OURS, *filter(None, without)])

    def apply(model: ir.Model) -> Counter[str]:
        if by == STANDARD:
            fusions = apply_standard(model)
            apply_ours(model, level, provider)
            return fusions
        apply_ours(model, level, provider)
        return apply_theirs(model)

    return apply


def found_by(made: Rewritten, rule: str, by: str) -> int:
    """Count what onnxscript found of what a rule replaces, in a result that runs."""
    if made.candidate is None:
        return 0
    return sum(made.fusions[kind] for kind in SAME[by].get(rule, ()))


def judge_speed(claim: Any, control: Any) -> str:
    """Tell whether a latency is above ours, beyond what two equal sessions show."""
    if claim is None:
        return ""
    if claim.ratio > 1 and differ(claim, control):
        return "slower"
    return "undecided" if claim.high is None or claim.high > 1 + MIN_EFFECT else "not slower"


def row(name: str, way: str, made: Rewritten | None, claim: Any) -> dict[str, Any]:
    """Make a row of the first table."""
    values: tuple[Any, ...] = ("", "", "", "", "")
    if made is not None:
        fusions = " ".join(f"{kind}:{n}" for kind, n in made.fusions.items())
        ulp = made.ulp if isinstance(made.ulp, str) else f"{made.ulp:.3g}"
        values = (fusions, made.nodes, made.executed, f"{made.seconds:.2f}", ulp)
    return dict(zip(COLUMNS, (name, way, *values, written(claim)), strict=True))


def written(claim: Any) -> str:
    return "" if claim is None else f"{claim.ratio:.2f} {claim.brackets}".strip()


def judge(rule: str, by: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a row of the second table from those of the models where a rule applies."""
    claims = [each["claim"] for each in found if each["claim"] is not None]
    speeds = Counter(each["speed"] for each in found)
    errors = [each["errors"] for each in found if each["in place"]]
    ratios = [theirs / ours for theirs, ours in errors]
    same = sum(each["in place"] >= each["times"] for each in found)
    worse = sum(not ratio <= SAME_ERROR for ratio in ratios)
    known = rule in SAME[by]
    reasons = [
        "" if known else "no such fusion",
        f"found on {same} of {len(found)}" if known and same < len(found) else "",
        *(f"{speed} on {speeds[speed]}" for speed in ("slower", "undecided") if speeds[speed]),
        f"less precise on {worse}" if worse else "",
        "latency on CUDA not measured" if on_cuda_only(rule) and known else "",
    ]
    return {
        "rule": rule,
        "by": by if known else "",
        "models": len(found),
        "same graph": sum(each["same graph"] >= each["times"] for each in found),
        "opset 18": sum(each["opset 18"] >= each["times"] for each in found),
        "in place": same,
        "latency / ours": span(claim.ratio for claim in claims),
        "error / ours": span(ratios),
        "verdict": "; ".join(filter(None, reasons)) or "replaceable",
    }


def span(values: Any) -> str:
    """Write the smallest and the largest of some numbers."""
    known = sorted(values)
    return f"{known[0]:.2f} to {known[-1]:.2f}" if known else ""


def near_misses() -> None:
    """Print what becomes of graphs that our rules refuse."""
    sys.path.insert(0, str(ROOT / "_unittests" / "backend"))
    refusals = importlib.import_module("test_rules_refusals").NEAR_MISSES
    graphs = importlib.import_module("backend_graphs")
    for by, apply in ((THEIRS, apply_theirs), (STANDARD, apply_standard)):
        counts: Counter[str] = Counter()
        for parameters in refusals:
            _, graph = parameters.values  # noqa: PD011 - of pytest
            try:
                models = [graph.model(), graph.model()]
                fusions = apply(models[1])
                before = max(graphs.relative_errors(graph, models[0]))
            except Exception:  # noqa: BLE001, S112 - a graph of booleans, of another type
                continue
            try:
                after = max(graphs.relative_errors(graph, models[1]))
                reason = "" if after <= max(10 * before, 1e-5) else f"error {after:.1e}"
            except Exception as refusal:  # noqa: BLE001 - whatever ONNX Runtime says
                reason = f"does not run: {shortened(refusal)}"
            wrong = bool(fusions and reason)
            counts.update(graphs=1, rewritten=bool(fusions), wrong=wrong)
            if wrong:
                print(f"{by} on {parameters.id}: {reason}")
        print(f"{by}: {dict(counts)}")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    parser.add_argument("--budget", type=float, default=1.5, help="seconds for each candidate")
    parser.add_argument("--processes", type=int, default=6, help="fresh processes that measure")
    arguments = parser.parse_args()
    weights.SMALL_BYTES = 256  # as in bench_rules: the weights of small models stand for large ones
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with torch.no_grad():
        for name in arguments.models or MODELS:
            rows, by_rule = compare(name, arguments.budget, arguments.processes)
            writer.writerows(rows)
            sys.stdout.flush()
            for each in by_rule:
                found.setdefault((each["rule"], each["by"]), []).append(each)
    order = list(RULES)
    keys = sorted(found, key=lambda key: (order.index(key[0]), key[1] != THEIRS))
    print()
    for rule, by in keys:
        for each in found[rule, by]:
            if each["claim"] is not None:
                print(
                    f"{rule} by {by} on {each['model']}: {each['in place']} of {each['times']},"
                    f" nodes {each['nodes'][0]} for {each['nodes'][1]},"
                    f" latency / ours {written(each['claim'])} {each['speed']}"
                )
    table = pd.DataFrame([judge(*key, found[key]) for key in keys])
    print(f"\n{table.to_string(index=False)}")
    if unused := sorted(set(RULES).difference(rule for rule, _ in keys), key=order.index):
        print(f"\nNowhere: {', '.join(unused)}")
    print()
    near_misses()


if __name__ == "__main__":
    main()
