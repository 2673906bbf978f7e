"""What a step of gpu_check yields: a case, what is expected, what is found."""

from typing import Any

import onnx
import torch

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
F32, F16, BF16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
Row = dict[str, Any]


def check(case: str, expected: object, found: object, *, agrees: bool | None = None) -> Row:
    """Compare; by default they agree when they are written alike."""
    return {
        "case": case,
        "expected": str(expected),
        "found": str(found),
        "agrees": str(expected) == str(found) if agrees is None else agrees,
    }


def note(case: str, found: object) -> Row:
    """Keep what nothing is expected of."""
    return {"case": case, "expected": "", "found": str(found), "agrees": None}


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
