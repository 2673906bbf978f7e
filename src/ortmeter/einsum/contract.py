"""Evaluate an equation on ONNX Runtime, numpy in and numpy out."""

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ortmeter.einsum._cache import BoundedCache
from ortmeter.einsum._running import Run, named_runner, small_runner
from ortmeter.einsum.emit import einsum_model
from ortmeter.einsum.plan import decompose_einsum
from ortmeter.einsum.search import optimize_einsum
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.sessions import make_session

__all__ = ["einsum", "einsum_cache"]

_SESSIONS = 256
_Array: TypeAlias = np.ndarray[Any, Any]

#: What :func:`einsum` keeps, by equation, types, shapes and options; ``clear()`` drops it.
einsum_cache: BoundedCache[Run] = BoundedCache(_SESSIONS)


def einsum(
    equation: str,
    *operands: Any,
    optimize: bool = False,
    decompose: bool = True,
    threads: int | None = None,
) -> _Array:
    """Evaluate an equation on ONNX Runtime, on CPU.

    The first call builds a model and a session, which are kept for the next calls of any thread of
    the process: 256 of them, those in use.

    Parameters
    ----------
    equation : str
        As :func:`numpy.einsum` accepts.
    *operands : array_like
        As many as the equation has terms. They are converted to their common type, see
        :func:`numpy.result_type`.
    optimize : bool
        Search for the fastest model, see :func:`~ortmeter.einsum.optimize_einsum`: the first call
        on operands of these types and shapes takes up to two seconds.
    decompose : bool
        Replace ``Einsum`` by the steps of :func:`~ortmeter.einsum.decompose_einsum`. Without effect
        when *optimize* is True: both are candidates.
    threads : int, optional
        Threads inside an operator; by default, ONNX Runtime chooses.

    Returns
    -------
    numpy.ndarray
        The result, of the common type; without dimension for a scalar.

    Raises
    ------
    EinsumError
        The equation is not valid or does not suit the operands.
    InvalidArgumentError
        There is no operand, or the common type is not one that ONNX multiplies.
    ModelError
        ONNX Runtime has no kernel for the common type, as for the ``Einsum`` of int8.

    Examples
    --------
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> einsum("ij,jk->ik", a, b)
    array([[ 3.,  3.],
           [12., 12.]])
    """
    arrays = [x if type(x) is np.ndarray else np.asarray(x) for x in operands]
    fixed = optimize or decompose
    # The plain Einsum does not depend on the dimensions.
    sizes = [x.shape for x in arrays] if fixed else [x.ndim for x in arrays]
    key = (equation, optimize, decompose, threads, *[x.dtype for x in arrays], *sizes)
    run = einsum_cache.find(key)
    if run is None:
        build = functools.partial(_build, equation, arrays, optimize, decompose, threads or 0)
        run = einsum_cache.get(key, build)
    return run(arrays)


def _build(
    equation: str, arrays: Sequence[_Array], optimize: bool, decompose: bool, threads: int
) -> Run:
    """Make what evaluates an equation on operands of these types, and shapes when they matter."""
    if not arrays:
        raise InvalidArgumentError(f"{equation!r} was given no operand. Accepted: one at least")
    common = np.result_type(*arrays)
    if any(x.dtype != common for x in arrays):
        convert = functools.partial(_convert, common)
        run = _build(equation, convert(arrays), optimize, decompose, threads)
        return lambda operands: run(convert(operands))
    if optimize:
        model = optimize_einsum(equation, *arrays, provider="cpu", threads=threads).model
    elif decompose:
        model = decompose_einsum(equation, *arrays).to_onnx()
    else:
        model = einsum_model(equation, *((None,) * x.ndim for x in arrays), dtype=common)
    session = make_session(model, provider="cpu", threads=threads)
    return small_runner(session, arrays) if optimize or decompose else named_runner(session)


def _convert(dtype: Any, arrays: Sequence[_Array]) -> list[_Array]:
    return [x.astype(dtype, copy=False) for x in arrays]
