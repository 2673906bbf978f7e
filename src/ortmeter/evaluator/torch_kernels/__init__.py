"""Kernels of ONNX operators on torch tensors, with the semantics of ONNX, opset by opset.

A kernel takes the inputs of a node as positional arguments and its attributes as keywords. It
calls the torch operator of the same name wherever both mean the same.
"""

# ruff: noqa: F401 - a theme registers its kernels when it is imported

from ortmeter.evaluator.torch_kernels import (
    _arithmetic,
    _attention,
    _batch_normalization,
    _casting,
    _comparison,
    _convolution,
    _creation,
    _functions,
    _indexing,
    _losses,
    _matrices,
    _normalization,
    _ordering,
    _padding,
    _pooling,
    _quantization,
    _recurrent,
    _reductions,
    _resize,
    _sampling,
    _sequences,
    _shapes,
    _signal,
    _slicing,
    _state_space,
)
from ortmeter.evaluator.torch_kernels._registry import UnsupportedError, find_kernel

__all__ = ["UnsupportedError", "find_kernel"]
