"""The evaluator: what it supports and how long it takes, beside its peers.

Support is counted on the node tests of ONNX, without those that compare random draws: a type, a
shape and values within rtol=1e-3 and atol=1e-5 (two steps of float16 and bfloat16, as ONNX does).
Goals: the torch kernels alone pass 1000 cases, all the sources 1700, and nothing is wrong.

Speed: the time per node of a chain of 200 additions of 4 floats, where walking is what is measured
(goal: at least twice as fast as the faster of the two other evaluators), and the layer-norm model
beside the same expression in torch (goal: at most 1.05 of it).
"""

import collections
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import torch
from onnx.reference import ReferenceEvaluator
from onnx_diagnostic.reference import TorchOnnxEvaluator

import ortmeter
from ortmeter.evaluator import KNOWN_ERRORS, Evaluator

sys.path.insert(0, str(Path(__file__).parents[1] / "_unittests"))
from node_tests import Evaluate, load_cases, run_case

LENGTH = 200
WIDTH = 1152
SHAPE = (2, 1024, WIDTH)


def ours(*sources: str) -> Evaluate:
    """Evaluate with some of our sources."""
    return lambda model, feeds: Evaluator(model, sources=sources).run(None, feeds)


def with_torch_evaluator(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Evaluate with onnx-diagnostic."""
    return list(TorchOnnxEvaluator(model).run(None, dict(feeds)))


def with_reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Evaluate with onnx."""
    return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def with_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Run the whole model in a session."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return list(session.run(None, dict(feeds)))


EVALUATIONS: dict[str, Evaluate] = {
    "torch": ours("torch"),
    "ort": ours("ort"),
    "reference": ours("reference"),
    "torch, ort, reference": ours("torch", "ort", "reference"),
    "onnx-diagnostic TorchOnnxEvaluator": with_torch_evaluator,
    "onnxruntime session": with_onnxruntime,
    "onnx ReferenceEvaluator": with_reference,
}


def print_support() -> None:
    """Count the cases that each evaluation passes, and list what ours do not."""
    cases = load_cases()
    print(f"{len(cases)} node tests of onnx {onnx.__version__}")
    for name, evaluate in EVALUATIONS.items():
        outcomes = {case.name: run_case(case, evaluate) for case in cases}
        counts = collections.Counter(outcome.status for outcome in outcomes.values())
        statuses = ", ".join(f"{counts[status]} {status}" for status in ("pass", "wrong", "error"))
        print(f"{name:>35}: {statuses}")
        if "torch" in name.split(", "):
            for case, outcome in outcomes.items():
                if outcome.status != "pass":
                    print(f"    {outcome.status} {case}: {outcome.reason[:160]}")
    print("Known errors, passed over:")
    for error in KNOWN_ERRORS:
        print(f"    {error.source} {error.op_type}: {error.reason}")


def chain() -> onnx.ModelProto:
    """Build a chain of additions."""
    nodes = "\n".join(f"r{i + 1} = Add(r{i}, c)" for i in range(LENGTH))
    return onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 18]>'
        f"g (float[4] r0, float[4] c) => (float[4] r{LENGTH}) {{ {nodes} }}"
    )


def layer_norm() -> onnx.ModelProto:
    """Build LayerNormalization, MatMul, Add."""
    return onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        g (float[a, b, c] X, float[c] scale, float[c] shift, float[c, c] W, float[c] B)
        => (float[a, b, c] Y) {
        normal = LayerNormalization (X, scale, shift)
        product = MatMul (normal, W)
        Y = Add (product, B) }""")


def print_ratios(candidates: dict[str, Callable[[], Any]], per: int) -> None:
    """Time candidates in turn, beside the first one."""
    results = ortmeter.measure(candidates, budget_s=60)
    first = next(iter(results))
    for name, measurement in results.items():
        share = results.speedup(name, first).interval
        print(f"{name:>35}: {measurement.median / per * 1e6:9.2f} us, {share} of ours")


def print_chain() -> None:
    """Time the walk."""
    model = chain()
    tensors = {name: torch.ones(4) for name in ("r0", "c")}
    arrays = {name: value.numpy() for name, value in tensors.items()}

    def direct() -> torch.Tensor:
        result = tensors["r0"]
        for _ in range(LENGTH):
            result = torch.add(result, tensors["c"])
        return result

    evaluator, arrays_only = Evaluator(model), Evaluator(model, sources=("reference",))
    peer, reference = TorchOnnxEvaluator(model), ReferenceEvaluator(model)
    print(f"Chain of {LENGTH} additions, time per node")
    print_ratios(
        {
            "ours": lambda: evaluator.run(None, tensors),
            "ours, sources=('reference',)": lambda: arrays_only.run(None, arrays),
            "onnx-diagnostic TorchOnnxEvaluator": lambda: peer.run(None, tensors),
            "onnx ReferenceEvaluator": lambda: reference.run(None, arrays),
            "torch": direct,
        },
        LENGTH,
    )


def print_layer_norm() -> None:
    """Time a model whose kernels take all the time."""
    rng = np.random.default_rng(0)
    shapes = {"X": SHAPE, "scale": (WIDTH,), "shift": (WIDTH,), "W": (WIDTH, WIDTH), "B": (WIDTH,)}
    feeds = {n: torch.from_numpy(rng.random(s, np.float32) - 0.5) for n, s in shapes.items()}
    evaluator = Evaluator(layer_norm())

    def direct() -> torch.Tensor:
        normal = torch.nn.functional.layer_norm(
            feeds["X"], (WIDTH,), feeds["scale"], feeds["shift"], 1e-5
        )
        return normal @ feeds["W"] + feeds["B"]

    print(f"LayerNormalization, MatMul, Add of {'x'.join(map(str, SHAPE))}")
    print_ratios({"ours": lambda: evaluator.run(None, feeds), "torch": direct}, 1)


def main() -> None:
    """Print everything."""
    torch.set_num_threads(1)
    print_chain()
    print_layer_norm()
    print_support()


if __name__ == "__main__":
    main()
