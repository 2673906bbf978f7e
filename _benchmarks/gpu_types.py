"""Types and models of the steps of gpu_check."""

import onnx
import onnx.parser
import torch

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
F32, F16, BF16 = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
TORCH = {F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16}
NAMES = {F32: "float32", F16: "float16", BF16: "bfloat16"}
TEXT = {**NAMES, F32: "float"}  # of the language of models


def parse(text: str, opset: int = 23) -> onnx.ModelProto:
    """Read a graph."""
    head = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    return onnx.parser.parse_model(f"{head} {text}")
