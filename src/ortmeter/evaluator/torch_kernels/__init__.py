"""Kernels of ONNX operators on torch tensors, with the semantics of ONNX, opset by opset.

A kernel takes the inputs of a node as positional arguments and its attributes as keywords. It
calls the torch operator of the same name wherever both mean the same.
"""

# ruff: noqa: F401 - a theme registers its kernels when it is imported

from ortmeter.evaluator.torch_kernels import (
    attention,
    convolution,
    elementwise,
    images,
    matrices,
    movement,
    normalization,
    quantization,
    recurrent,
    reductions,
    sequences,
)
from ortmeter.evaluator.torch_kernels.registry import find_kernel

__all__ = ["find_kernel"]
