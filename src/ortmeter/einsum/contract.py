"""Evaluate an equation on NumPy arrays with ONNX Runtime."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx

from ortmeter.einsum.candidates import PLAIN
from ortmeter.einsum.plan import decompose_einsum
from ortmeter.einsum.search import fastest, optimize_einsum
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.sessions import make_session

_Array: TypeAlias = np.ndarray[Any, Any]
_Run: TypeAlias = Callable[[Sequence[_Array]], _Array]

_SESSIONS = 256
# Copying this many bytes costs less than naming arrays at every call.
_SMALL_BYTES = 32_768
_NUMBERS = "biuf"
_KEPT = 3  # models that a call may choose again, beside Einsum
_WARM, _ROUNDS, _PERIOD = 2, 32, 1000

#: What :func:`einsum` keeps, the last used at the end, by equation, options, types and shapes.
einsum_cache: OrderedDict[Hashable, _Run] = OrderedDict()
_building = threading.Lock()


def einsum(
    equation: str,
    *operands: Any,
    optimize: bool = False,
    adapt: bool = False,
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
    adapt : bool
        With *optimize*, keep the fastest models of the search and ``Einsum``, time them on calls in
        turn, and choose again: at once, then after 1 000 calls, 2 000, 4 000... A search in a bad
        moment is not paid for ever, but two calls may differ in their last bits.
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
        There is no operand, ONNX cannot multiply the common type, or *adapt* is given without
        *optimize*.
    ModelError
        ONNX Runtime has no kernel for the common type.

    Examples
    --------
    >>> a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 2))
    >>> einsum("ij,jk->ik", a, b)
    array([[ 3.,  3.],
           [12., 12.]])
    """
    arrays = [x if type(x) is np.ndarray else np.asarray(x) for x in operands]
    key = (
        equation,
        optimize,
        adapt,
        threads,
        *[x.dtype for x in arrays],
        *[x.shape for x in arrays],
    )
    run = einsum_cache.get(key)
    if run is None:
        with _building:  # one at a time: two searches would disturb each other
            run = einsum_cache.get(key)
            if run is None:
                run = _build(equation, arrays, optimize, adapt, threads or 0)
                while len(einsum_cache) >= _SESSIONS:
                    einsum_cache.popitem(last=False)
                einsum_cache[key] = run
    try:  # noqa: SIM105 - faster, at every call
        einsum_cache.move_to_end(key)
    except KeyError:  # dropped meanwhile
        pass
    return run(arrays)


def _build(
    equation: str, arrays: Sequence[_Array], optimize: bool, adapt: bool, threads: int
) -> _Run:
    """Make what evaluates an equation on operands of these types and shapes."""
    if adapt and not optimize:
        raise InvalidArgumentError("adapt=True, optimize=False. Accepted: adapt with optimize=True")
    if not arrays:
        raise InvalidArgumentError(f"{equation!r} has no operand. Accepted: at least one")
    common = np.result_type(*arrays)
    if any(x.dtype != common for x in arrays):

        def convert(operands: Sequence[_Array]) -> list[_Array]:
            return [x.astype(common, copy=False) for x in operands]

        run = _build(equation, convert(arrays), optimize, adapt, threads)
        return lambda operands: run(convert(operands))
    if not optimize:
        return _runner(decompose_einsum(equation, *arrays).to_onnx(), arrays, threads)
    search = optimize_einsum(equation, *arrays, provider="cpu", threads=threads, at_most=True)
    if not adapt or search.race is None:
        return _runner(search.model, arrays, search.best.threads)
    quartile = {name: search.race.measured[name].quartiles[0] for name in search.race.finalists}
    kept = {search.best.name, PLAIN, *sorted(quartile, key=lambda name: quartile[name])[:_KEPT]}
    ways = [c for c in search.candidates if c.name in kept & {*search.race.measured}]
    runs = {way.name: _runner(way.model, arrays, way.threads) for way in ways}
    return _Adaptive(runs, search.best.name)


class _Adaptive:
    """Ways to evaluate an equation, timed in use, in turn, to choose the one of the next calls."""

    def __init__(self, runs: Mapping[str, _Run], best: str) -> None:
        self._runs, self._best = dict(runs), best
        self._period = self._wait = 0  # calls until the next choice
        self._turns = self._new_turns()

    def __call__(self, operands: Sequence[_Array]) -> _Array:
        if self._wait > 0:
            self._wait -= 1
            return self._runs[self._best](operands)
        try:
            name, times = next(self._turns)
        except ValueError:  # another thread takes its turn
            return self._runs[self._best](operands)
        begin = time.perf_counter()
        result = self._runs[name](operands)
        times.append(time.perf_counter() - begin)
        return result

    def _new_turns(self) -> Iterator[tuple[str, list[float]]]:
        """Give each call its way and where its time goes, then choose, for ever."""
        while True:
            times: dict[str, list[float]] = {name: [] for name in self._runs}
            for name in [*self._runs] * (_WARM + _ROUNDS):
                yield name, times[name]
            count = min(map(len, times.values()))  # a thread may still be running
            timed = {name: np.array(taken[_WARM:count]) for name, taken in times.items()}
            self._best = fastest(timed, PLAIN)
            self._wait = self._period = max(2 * self._period, _PERIOD)


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
