"""Run kernels beside what they replace, in a process of its own.

The process may crash, and starts without torch. The model has pairs of outputs, expected then got,
that are computed from inputs of 32-bit real numbers.
"""

import re
from typing import Any

import numpy as np
import onnxruntime

from ortmeter.backend.errors import KernelError
from ortmeter.runtime.providers import load_cuda_libraries

SHAPES = ((2, 5, 67), (67,), (5, 1), ())
TOLERANCES = {"bfloat16": 1e-1, "float16": 2e-2, "float32": 1e-4, "float64": 1e-9}
# A comparison of two numbers that are equal but for their rounding may go either way.
SHARE = 0.98
#: What ONNX Runtime and CUDA say when there is no memory left.
NO_MEMORY = re.compile(r"(?i)out of memory|allocate memory|bad_alloc|ALLOC_FAILED")


class StoppedError(KernelError):
    """The trial could not run; the kernels may still be valid."""


class FailedError(KernelError):
    """The kernels do not run."""


class LibraryError(FailedError):
    """ONNX Runtime does not load the library: none of its kernels can be used."""


def run_trial(library: str, model: str, provider: str, device: str) -> dict[str, str]:
    """Return what is wrong, by kernel; nothing when the results agree."""
    options = onnxruntime.SessionOptions()
    try:
        options.register_custom_ops_library(library)
    except Exception as error:
        raise LibraryError(str(error)) from error
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 2
    on_device: list[Any] = []
    if provider.startswith("CUDA"):
        load_cuda_libraries()
        on_device = [(provider, {"device_id": device})]
    providers = [*on_device, "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model, options, providers=providers, enable_fallback=0)
    if session.get_providers()[0] != provider:
        raise StoppedError(f"the session runs on {session.get_providers()[0]}")
    names = [value.name for value in session.get_inputs()]
    outputs = [value.name for value in session.get_outputs()]
    wrong: dict[str, str] = {}
    for positive in (False, True):
        feeds = {name: draw(i, positive=positive) for i, name in enumerate(names)}
        results = session.run(None, feeds)
        for name, expected, got in zip(outputs[1::2], results[::2], results[1::2], strict=True):
            kernel, *_, precision = name.split(":")
            if not agree(expected, got, TOLERANCES[precision]):
                wrong[kernel] = f"{expected.ravel()[:4]} expected, {got.ravel()[:4]} got"
    return wrong


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


def try_kernels(library: str, model: str, provider: str, device: str) -> dict[str, str]:
    """Run the trial; whatever goes wrong is a KernelError that says of what kind."""
    try:
        return run_trial(library, model, provider, device)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        if isinstance(error, StoppedError | MemoryError) or NO_MEMORY.search(why):
            raise StoppedError(f"the compiled kernels cannot be tried: {why}") from error
        raise (LibraryError if isinstance(error, LibraryError) else FailedError)(why) from error
