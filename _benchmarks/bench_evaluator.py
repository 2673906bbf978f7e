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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import command
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
from node_tests import load_cases, run_case

LENGTH, WIDTH, ROWS = 200, 1152, 1024
CHAIN = f"""<ir_version: 10, opset_import: ["": 18]> chain (float[4] r0, float[4] c)
=> (float[4] r{LENGTH}) {{ {" ".join(f"r{i + 1} = Add(r{i}, c)" for i in range(LENGTH))} }}"""
LAYER_NORM = """<ir_version: 10, opset_import: ["": 18]>
g (float[a, b, c] X, float[c] scale, float[c] shift, float[c, c] W, float[c] B)
=> (float[a, b, c] Y) {
normal = LayerNormalization (X, scale, shift)  product = MatMul (normal, W)  Y = Add (product, B) }
"""


def session(model: onnx.ModelProto) -> Any:
    """Run the whole model in a session."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


EVALUATIONS: dict[str, Callable[[onnx.ModelProto], Any]] = {
    "torch": lambda model: Evaluator(model, sources=("torch",)),
    "ort": lambda model: Evaluator(model, sources=("ort",)),
    "reference": lambda model: Evaluator(model, sources=("reference",)),
    "torch, ort, reference": Evaluator,
    "onnx-diagnostic TorchOnnxEvaluator": TorchOnnxEvaluator,
    "onnxruntime session": session,
    "onnx ReferenceEvaluator": ReferenceEvaluator,
}


def print_support(most: int) -> None:
    """Count the cases that each evaluation passes, and list what ours do not."""
    cases = load_cases()[:most]
    print(f"{len(cases)} node tests of onnx {onnx.__version__}")
    for name, made in EVALUATIONS.items():
        outcomes = {
            case.name: run_case(case, lambda m, feeds, f=made: list(f(m).run(None, dict(feeds))))
            for case in cases
        }
        counts = collections.Counter(outcome.status for outcome in outcomes.values())
        print(f"{name:>35}:", ", ".join(f"{counts[s]} {s}" for s in ("pass", "wrong", "error")))
        for case, outcome in outcomes.items() if "torch" in name.split(", ") else ():
            if outcome.status != "pass":
                print(f"    {outcome.status} {case}: {outcome.reason[:160]}")
    known = (f"    {error.source} {error.op_type}: {error.reason}" for error in KNOWN_ERRORS)
    print("Known errors, passed over:", *known, sep="\n")


def print_ratios(candidates: dict[str, Callable[[], Any]], per: int = 1) -> None:
    """Time candidates in turn, beside the first one."""
    results = ortmeter.measure(candidates, budget_s=60)
    first = next(iter(results))
    for name, measurement in results.items():
        share = results.speedup(name, first).interval
        print(f"{name:>35}: {measurement.median / per * 1e6:9.2f} us, {share} of ours")


def print_chain() -> None:
    """Time the walk."""
    model = onnx.parser.parse_model(CHAIN)
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
    functions = {
        "ours": lambda: evaluator.run(None, tensors),
        "ours, sources=('reference',)": lambda: arrays_only.run(None, arrays),
        "onnx-diagnostic TorchOnnxEvaluator": lambda: peer.run(None, tensors),
        "onnx ReferenceEvaluator": lambda: reference.run(None, arrays),
        "torch": direct,
    }
    print_ratios(functions, LENGTH)


def print_layer_norm() -> None:
    """Time a model whose kernels take all the time."""
    rng = np.random.default_rng(0)
    shapes = {"X": (2, ROWS, WIDTH), "scale": WIDTH, "shift": WIDTH, "W": (WIDTH, WIDTH)}
    shapes["B"] = WIDTH
    feeds = {n: torch.from_numpy(rng.random(s, np.float32) - 0.5) for n, s in shapes.items()}
    evaluator, x = Evaluator(onnx.parser.parse_model(LAYER_NORM)), list(feeds.values())

    def direct() -> torch.Tensor:
        normal = torch.nn.functional.layer_norm(x[0], (WIDTH,), x[1], x[2], 1e-5)
        return normal @ x[3] + x[4]

    print(f"LayerNormalization, MatMul, Add of 2x{ROWS}x{WIDTH}")
    print_ratios({"ours": lambda: evaluator.run(None, feeds), "torch": direct})


if __name__ == "__main__":
    most = command.options(__doc__, most=10_000).most
    torch.set_num_threads(1)
    print_chain()
    print_layer_norm()
    print_support(most)
