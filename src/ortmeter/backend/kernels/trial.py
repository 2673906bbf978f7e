"""Run kernels beside what they replace, in a process of its own.

The process may crash, and starts without torch. The model has pairs of outputs, expected then got,
that are computed from inputs of 32-bit real numbers. The last line of the standard output is a
JSON object: the ``reason`` of a failure, empty when there is none.
"""

import json
import sys

import numpy as np
import onnxruntime

SHAPES = ((2, 5, 67), (67,), (5, 1), ())
TOLERANCES = {"bfloat16": 1e-1, "float16": 2e-2, "float32": 1e-4, "float64": 1e-9}
# A comparison of two numbers that are equal but for their rounding may go either way.
SHARE = 0.98


def run_trial(library: str, model: str, provider: str) -> str:
    """Return what is wrong, nothing when the results agree."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    if provider.startswith("CUDA"):
        onnxruntime.preload_dlls()
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    if session.get_providers()[0] != provider:
        return f"the session runs on {session.get_providers()[0]}"
    names = [value.name for value in session.get_inputs()]
    for positive in (False, True):
        feeds = {name: draw(i, positive=positive) for i, name in enumerate(names)}
        results = session.run(None, feeds)
        outputs = [value.name for value in session.get_outputs()]
        for name, expected, got in zip(outputs[1::2], results[::2], results[1::2], strict=True):
            if not agree(expected, got, TOLERANCES[name.rpartition(":")[2]]):
                return f"{name} is wrong: {expected.ravel()[:4]} expected, {got.ravel()[:4]} got"
    return ""


def draw(index: int, *, positive: bool) -> np.ndarray:
    """Numbers of both signs and of the same shape, or positive ones to be broadcast."""
    rng = np.random.default_rng(index)
    shape = SHAPES[index % len(SHAPES)] if positive else SHAPES[0]
    values = 2 * rng.standard_normal(shape, np.float32)
    values = np.where(rng.random(shape) < 0.2, np.float32(0), values)  # noqa: PLR2004
    return np.asarray(np.abs(values) if positive else values)


def agree(expected: np.ndarray, got: np.ndarray, tolerance: float) -> bool:
    """Return whether two arrays are close, at nearly every place."""
    if expected.shape != got.shape:
        return False
    with np.errstate(invalid="ignore"):
        close = np.abs(got - expected) <= tolerance * (1 + np.abs(expected))
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    return bool(np.mean(close | same) >= SHARE)


def main(library: str, model: str, provider: str) -> None:
    """Print the answer as the last line."""
    try:
        reason = run_trial(library, model, provider)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, the library is not used
        reason = f"{type(error).__name__}: {error}"
    sys.stdout.write("\n" + json.dumps({"reason": reason}) + "\n")
