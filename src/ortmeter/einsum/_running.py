"""Call a session on arrays, with as little as possible around it."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Run", "named_runner", "small_runner"]

_Array: TypeAlias = np.ndarray[Any, Any]
Run: TypeAlias = Callable[[Sequence[_Array]], _Array]

# Copying this many bytes costs less than naming arrays at every call.
_SMALL_BYTES = 32_768
_NUMBERS = "biuf"


def named_runner(session: "onnxruntime.InferenceSession") -> Run:
    """Return a function that runs a session on arrays, given in the order of its inputs.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        It has one output.
    """
    inputs = [node.name for node in session.get_inputs()]
    outputs = [node.name for node in session.get_outputs()]
    run = session.run

    def call(operands: Sequence[_Array]) -> _Array:
        found: _Array = run(outputs, dict(zip(inputs, operands, strict=True)))[0]
        return found

    return call


def small_runner(session: "onnxruntime.InferenceSession", operands: Sequence[_Array]) -> Run:
    """Return a function that runs a session on arrays of given types and shapes.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        It has one output.
    operands : sequence of array
        Arrays of these types and shapes.

    Notes
    -----
    Arrays that are small are copied to memory that was bound once, the result from there; a thread
    that finds it in use names its arrays as usual.
    """
    named = named_runner(session)
    result = named(operands)
    sizes = [x.nbytes for x in (*operands, result)]
    if min(sizes) == 0 or sum(sizes) > _SMALL_BYTES or result.dtype.kind not in _NUMBERS:
        return named
    buffers, output = [np.empty(x.shape, x.dtype) for x in operands], np.empty_like(result)
    binding = session.io_binding()
    for node, buffer in zip(session.get_inputs(), buffers, strict=True):
        binding.bind_cpu_input(node.name, buffer)
    name, address = session.get_outputs()[0].name, output.ctypes.data
    binding.bind_output(name, "cpu", 0, output.dtype, output.shape, address)
    run, lock, copy = session.run_with_iobinding, threading.Lock(), np.copyto

    def call(operands: Sequence[_Array]) -> _Array:
        if not lock.acquire(blocking=False):
            return named(operands)
        try:
            for buffer, operand in zip(buffers, operands, strict=True):
                copy(buffer, operand)
            run(binding)
            return output.copy()
        finally:
            lock.release()

    return call
