"""Evaluate an equation on NumPy arrays with ONNX Runtime."""

import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from ortmeter.einsum.parse import require_text
from ortmeter.einsum.plan import decompose_einsum
from ortmeter.einsum.search import optimize_einsum
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.sessions import make_session

_Array: TypeAlias = np.ndarray[Any, Any]
_Run: TypeAlias = Callable[[Sequence[_Array]], _Array]

_SESSIONS = 256
# Copying this many bytes costs less than naming arrays at every call.
_SMALL_BYTES = 32_768
_NUMBERS = "biuf"
_KIND = operator.attrgetter("dtype", "shape")

#: What :func:`einsum` keeps, the last used at the end, by equation, options, types and shapes.
einsum_cache: OrderedDict[Hashable, _Run] = OrderedDict()
_building = threading.Lock()


def einsum(
    equation: str,
    *operands: Any,
    optimize: bool = False,
    threads: int | None = None,
) -> _Array:
    """Evaluate an equation on ONNX Runtime, on CPU.

    The first call builds a model and a session. The 256 most recently used ones are cached, for all
    threads of the process.

    Parameters
    ----------
    equation : str
        Equation, as in :func:`numpy.einsum`.
    *operands : array_like
        One per term of the equation, converted to their common type, see
        :func:`numpy.result_type`.
    optimize : bool
        If true, search for the fastest model, see :func:`~ortmeter.einsum.optimize_einsum`: the
        first call for given types and shapes takes up to two seconds. If false, use the model of
        :func:`~ortmeter.einsum.decompose_einsum`.
    threads : int, optional
        Threads inside an operator; by default, ONNX Runtime chooses. With *optimize*, this number
        or one, whichever is faster.

    Returns
    -------
    numpy.ndarray
        The result, of the common type; its shape is () for a scalar.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        There is no operand, or ONNX cannot multiply the common type.
    ModelError
        ONNX Runtime has no kernel for the common type.

    Examples
    --------
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> einsum("ij,jk->ik", a, b)
    array([[ 3.,  3.],
           [12., 12.]])
    """
    require_text(equation)
    arrays = [*map(np.asarray, operands)]
    key = (equation, optimize, threads, *map(_KIND, arrays))
    run = einsum_cache.get(key)
    if run is None:
        with _building:  # one at a time: two searches would disturb each other
            run = einsum_cache.get(key)
            if run is None:
                run = _build(equation, arrays, optimize, threads or 0)
                while len(einsum_cache) >= _SESSIONS:
                    einsum_cache.popitem(last=False)
                einsum_cache[key] = run
    try:  # noqa: SIM105 - faster, at every call
        einsum_cache.move_to_end(key)
    except KeyError:  # dropped meanwhile
        pass
    return run(arrays)


def _build(equation: str, arrays: Sequence[_Array], optimize: bool, threads: int) -> _Run:
    """Make what evaluates an equation on operands of these types and shapes."""
    if not arrays:
        raise InvalidArgumentError(f"{equation!r} has no operand. Accepted: at least one")
    common = np.result_type(*arrays)
    if any(x.dtype != common for x in arrays):

        def convert(operands: Sequence[_Array]) -> list[_Array]:
            return [x.astype(common, copy=False) for x in operands]

        run = _build(equation, convert(arrays), optimize, threads)
        return lambda operands: run(convert(operands))
    if not optimize:
        return _runner(decompose_einsum(equation, *arrays).to_onnx(), arrays, threads)
    search = optimize_einsum(equation, *arrays, provider="cpu", threads=threads, at_most=True)
    return _runner(search.model, arrays, search.best.threads)


def _runner(model: onnx.ModelProto, operands: Sequence[_Array], threads: int) -> _Run:
    """Return what runs a model on arrays of the types and shapes of these operands.

    Arrays that are small are copied to memory that was bound once, the result from there; a thread
    that finds it in use names its arrays as usual.
    """
    session = make_session(model, provider="cpu", threads=threads)
    names = [node.name for node in session.get_inputs()]
    outputs, run_named = [session.get_outputs()[0].name], session.run

    def named(operands: Sequence[_Array]) -> _Array:
        output: _Array = run_named(outputs, dict(zip(names, operands, strict=True)))[0]
        return output

    result = named(operands)
    sizes = [x.nbytes for x in (*operands, result)]
    if min(sizes) == 0 or sum(sizes) > _SMALL_BYTES or result.dtype.kind not in _NUMBERS:
        return named
    buffers, output = [np.empty(x.shape, x.dtype) for x in operands], np.empty_like(result)
    binding = session.io_binding()
    for name, buffer in zip(names, buffers, strict=True):
        binding.bind_cpu_input(name, buffer)
    address = output.ctypes.data
    binding.bind_output(outputs[0], "cpu", 0, output.dtype, output.shape, address)
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
