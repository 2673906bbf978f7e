"""Edge values and shapes of a case, by the types and the shapes of its inputs."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import onnx.shape_inference

from ortmeter.dtypes import float_info
from ortmeter.errors import OrtMeterError
from ortmeter.observatory.case import RANGES, Case

__all__ = ["edge_cases"]

_Arrays = Mapping[str, np.ndarray]
_Shape = list[int]
_Change = Callable[[Case, int, _Shape], _Shape]  # an input by its rank

_SMALL, _SHARE, _KEPT = (3, 5, 17), 8, 4  # sizes up to the last one stay: kernels, batches
_UNEVEN = (17, 5, 3, 2)  # from the last axis
_EVERY = 23  # one element in so many is an edge value
# Their values are sizes: those of edges would fill the memory.
_SIZED = {"ConstantOfShape", "Range"}


def edge_cases(cases: Mapping[str, Case]) -> dict[str, Case]:
    """Add a case in int64 for each operator of ONNX that takes it and has none.

    Parameters
    ----------
    cases : mapping of str to Case
        Cases by name.

    Returns
    -------
    dict of str to Case
        The same ones, then those in int64.

    Examples
    --------
    >>> from ortmeter.observatory.case import call
    >>> cases = [call("Abs", "T[8] X"), call("Exp", "T[8] X")]
    >>> list(edge_cases({case.name: case for case in cases}))
    ['Abs-f32-L1', 'Exp-f32-L1', 'Abs-i64-L1']
    """
    known = {case.op for case in cases.values() if case.type == "i64"}
    added: dict[str, Case] = {}
    for case in cases.values():
        other = dataclasses.replace(case, type="i64")
        if case.op in known or not re.search(r"\bT\[", case.inputs):
            continue
        with suppress(OrtMeterError, onnx.shape_inference.InferenceError):
            model = other.model()
            onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
            if other.feeds() and not any(node.domain for node in model.graph.node):
                added.setdefault(case.op, other)
    return {**cases, **{case.name: case for case in added.values()}}


def edge_feeds(case: Case) -> Iterator[tuple[str, _Arrays]]:
    """Yield inputs with edge values: all of them together, then one among those that are drawn."""
    if case.op in _SIZED:
        return
    feeds = case.feeds()
    pools = {name: _edge_values(feeds[name].dtype) for name in _data(case, feeds)}
    labels = dict.fromkeys(itertools.chain(*pools.values()))
    if labels:
        yield "all together", {**feeds, **_together(feeds, pools)}
    for label in labels:
        changed = dict(feeds)
        for rank, (name, pool) in enumerate(pools.items()):
            array = feeds[name].copy()
            start = (array.size // 2 + rank) % min(_EVERY, max(array.size, 1))
            array.reshape(-1)[start::_EVERY] = pool[label] if label in pool else array.flat[0]
            changed[name] = array
        yield label, changed
    if case.op in ("Div", "Mod") and feeds["Z"].dtype.kind == "i":  # the quotient overflows
        smallest = np.full_like(feeds["X"], np.iinfo(feeds["X"].dtype).min)
        yield "smallest / -1", {"X": smallest, "Z": np.full_like(feeds["Z"], -1)}


def _together(feeds: _Arrays, pools: Mapping[str, Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Fill inputs so that every pair of their edge values meets."""
    filled, step = {}, 1
    for name, values in pools.items():
        array = feeds[name]
        pool = np.array([*values.values(), 0, 1], array.dtype)
        filled[name] = pool[np.arange(array.size) // step % len(pool)].reshape(array.shape)
        step *= len(pool)
    return filled


def _data(case: Case, feeds: _Arrays) -> list[str]:
    """Name the inputs that are data: those of any value, else those in a range, else the typed."""
    kinds = {n: case.tensors[n].values for n, array in feeds.items() if array.dtype.kind in "iuf"}
    free = [name for name, values in kinds.items() if values == "normal"]
    ranged = [name for name, values in kinds.items() if values in (*RANGES, "denormal")]
    return free or ranged or [n for n in kinds if re.search(rf"\bT\[\S* {n}\b", case.inputs)]


def _edge_values(dtype: np.dtype[Any]) -> dict[str, Any]:
    if dtype.kind == "f":
        info = float_info(dtype)
        ends = {"denormal": float(info.smallest_subnormal), "largest": float(info.max)}
        return {"-0.0": -0.0, **ends, "infinity": np.inf, "-infinity": -np.inf, "NaN": np.nan}
    ends = {"smallest": int(np.iinfo(dtype).min), "largest": int(np.iinfo(dtype).max)}
    odd = {"2^24 + 1": 2**24 + 1, "2^31": 2**31, "2^53 + 1": 2**53 + 1}
    return {**ends, **{name: value for name, value in odd.items() if value < ends["largest"]}}


def reshaped(case: Case, change: _Change) -> Case:
    """Give other sizes to the inputs, but for those whose numbers are given."""
    ranks = itertools.count()

    def resized(match: re.Match[str]) -> str:
        if isinstance(case.tensors[match[2]].values, list):
            return match[0]
        sizes = change(case, next(ranks), [int(size) for size in match[1].split(",")])
        return f"[{','.join(map(str, sizes))}] {match[2]}"

    def below(match: re.Match[str]) -> str:
        return str(change(case, 0, [int(match[0])])[0])

    inputs = re.sub(r"\[([\d,]+)\] (\w+)", resized, case.inputs)
    return dataclasses.replace(case, inputs=re.sub(r"(?<=below )\d+", below, inputs))


def _by_size(case: Case, _rank: int, shape: _Shape) -> _Shape:
    """Make each size small, the same ones the same."""
    sizes = itertools.chain(*(tensor.shape or () for tensor in case.tensors.values()))
    distinct = dict.fromkeys(size for size in sizes if size > _KEPT)
    few = [_SMALL[0]] * (len(distinct) - len(_SMALL)) + [*_SMALL[-len(distinct) :]]
    small = dict(zip(distinct, few, strict=False))
    return [small.get(size, size) for size in shape]


def _by_share(_case: Case, _rank: int, shape: _Shape) -> _Shape:
    """Keep the ratios of the sizes."""
    return [-(-size // _SHARE) if size > _KEPT else size for size in shape]


def _uneven(_case: Case, _rank: int, shape: _Shape) -> _Shape:
    axes = [*_UNEVEN, *[_UNEVEN[-1]] * len(shape)][: len(shape)][::-1]
    return [size if size == 1 else axis for size, axis in zip(shape, axes, strict=True)]


def _broadcast(_case: Case, rank: int, shape: _Shape) -> _Shape:
    """Give one element to the first axis of the first input, to the last axis of the others."""
    return [1, *shape[1:]] if rank == 0 else [*shape[:-1], 1]


def _empty(axis: int, case: Case, _rank: int, shape: _Shape) -> _Shape:
    """Empty an axis of the first input, and those of its size."""
    first = re.search(r"\[([\d,]+)\]", case.inputs)
    none = first and int(first[1].split(",")[axis])
    return [0 if size == none else size for size in shape]


#: Shapes that keep what a case is, the smallest first.
SMALL: tuple[_Change, ...] = (_by_size, _by_share, lambda _case, _rank, shape: shape)
#: Shapes that may break, where the references take them.
SHAPES: dict[str, _Change] = {
    "one element": lambda _case, _rank, shape: [1] * len(shape),
    "not square": _uneven,
    "broadcast": _broadcast,
    "first axis empty": functools.partial(_empty, 0),
    "last axis empty": functools.partial(_empty, -1),
}
