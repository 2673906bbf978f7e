"""Shapes of inputs: chosen from the sizes that are given, or asked for with the options to type."""

import ast
import operator
import shlex
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ortmeter.errors import FeedError
from ortmeter.runtime.inputs import Input


def resolve_shapes(
    inputs: Sequence[Input],
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    filled: Collection[str] = (),
) -> dict[str, tuple[int, ...]]:
    """Choose the shape of each input; the symbolic dimensions of one hold for the others.

    A size that nothing gives is 1 in the inputs that one value fills.
    """
    refuse_unknown("shape", shapes, [declared.name for declared in inputs])
    for sizes in (dims.values(), *shapes.values()):
        for size in sizes:
            if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 0:
                raise FeedError(f"got size {size!r}. Accepted: integers >= 0")
    known = dict(dims)
    for declared in inputs:
        if declared.name in shapes:
            _learn(declared, shapes[declared.name], known)
    refuse_unknown("dimension", dims, symbols(inputs))
    _refuse_unresolved([d for d in inputs if d.name not in shapes and d.name not in filled], known)
    chosen = {
        declared.name: tuple(shapes[declared.name])
        if declared.name in shapes
        else tuple(1 if (n := _resolve(s, known)) is None else n for s in declared.sizes)
        for declared in inputs
    }
    for declared in inputs:
        if any(size < 0 for size in chosen[declared.name]):
            raise FeedError(f"{declared} would have the shape {chosen[declared.name]}")
    return chosen


def symbols(inputs: Sequence[Input]) -> list[str]:
    """List the names that may be given a size: of dimensions, and in those that are formulas."""
    named = [size for declared in inputs for size in declared.sizes if isinstance(size, str)]
    return list(dict.fromkeys(name for size in named for name in (size, *_terms(size))))


def refuse_unknown(what: str, given: Mapping[str, object], accepted: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in accepted]:
        none = "none, all sizes are fixed" if what == "dimension" else "none, there is no input"
        raise FeedError(
            f"{what} given for {', '.join(map(repr, unknown))}. "
            f"Accepted: {', '.join(map(repr, accepted)) or none}"
        )


def _learn(declared: Input, shape: Sequence[int], known: dict[str, int]) -> None:
    if declared.shape is None:
        return
    if len(shape) != len(declared.shape):
        raise FeedError(f"shape {tuple(shape)} given for {declared}: the ranks differ")
    for size, asked in zip(shape, declared.shape, strict=True):
        expected = known.setdefault(asked, size) if isinstance(asked, str) else asked
        if expected is not None and size != expected:
            raise FeedError(
                f"shape {tuple(shape)} given for {declared}: {size} where {expected} is expected"
            )


# An exporter may name a dimension after others: "past + 1", "Max(1, s77 // 2)".
_OPERATIONS: Mapping[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}
_CHOICES: Mapping[str, Callable[[list[int]], int]] = {"Max": max, "Min": min}
_LONGEST_FORMULA = 100


def _resolve(size: int | str | None, known: Mapping[str, int]) -> int | None:
    if isinstance(size, str):
        return known[size] if size in known else _compute(_parse(size), known)
    return size


def lacks_size(declared: Input, dims: Mapping[str, int]) -> bool:
    """Whether the shape of an input is not known once these dimensions are."""
    return declared.shape is None or any(_resolve(size, dims) is None for size in declared.sizes)


def _parse(size: str) -> ast.expr | None:
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        warnings.simplefilter("ignore")
        if len(size) <= _LONGEST_FORMULA:
            return ast.parse(size, mode="eval").body
    return None


def _compute(tree: ast.expr | None, known: Mapping[str, int]) -> int | None:
    match tree:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.Name(id=name):
            return known.get(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATIONS:
            one, two = _compute(left, known), _compute(right, known)
            if one is not None and two is not None and (two or not isinstance(op, ast.FloorDiv)):
                return int(_OPERATIONS[type(op)](one, two))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CHOICES:
            computed = [_compute(one, known) for one in arguments]
            values = [one for one in computed if one is not None]
            if values and len(values) == len(computed):
                return _CHOICES[name](values)
    return None


def _terms(size: str) -> list[str]:
    """List the names in a dimension that is a formula; any other name is its own."""
    tree = _parse(size)
    names = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name)] if tree else []
    names = [name for name in dict.fromkeys(names) if name not in _CHOICES]
    return names if _compute(tree, dict.fromkeys(names, 2**20)) is not None else [size]


def _refuse_unresolved(waiting: Sequence[Input], known: Mapping[str, int]) -> None:
    """List each dimension without a size, the inputs that share it, and the option that sets it."""
    users: dict[str, list[str]] = {}
    guessed = dict(known)
    unnamed = [d for d in waiting if d.shape is None or None in d.shape]
    for declared in waiting:
        lacking = [s for s in declared.sizes if s is None or _resolve(s, known) is None]
        for rank, size in enumerate(lacking):
            for name in _terms(size) if isinstance(size, str) else ():
                if name not in known and declared.name not in users.setdefault(name, []):
                    users[name].append(declared.name)
                guessed.setdefault(name, 128 if rank else 1)
    if not users and not unnamed:
        return
    told = [f"{name!r} (in {', '.join(inputs)})" for name, inputs in users.items()]
    told += [
        f"{d}, which has no rank" if d.shape is None else f"unnamed dimensions of {d}"
        for d in unnamed
    ]
    in_shapes = {size for declared in unnamed for size in declared.sizes}
    dims = [f"--dim {shlex.quote(f'{n}={guessed[n]}')}" for n in users if n not in in_shapes]
    shapes = [f"--shape {shlex.quote(f'{d.name}={_example(d, guessed)}')}" for d in unnamed]
    python = ["dims={name: size}"] * bool(dims) + ["shapes={name: shape}"] * bool(shapes)
    raise FeedError(
        f"no size for {'; '.join(told)}. Accepted: {' and '.join(python)} in Python, for instance "
        f"{' '.join(dims + shapes)} on the command line"
    )


def _example(declared: Input, guessed: Mapping[str, int]) -> str:
    """Write a plausible shape: 1 for the first size that is missing, often a batch, then 128."""
    missing = iter([1])
    sizes = [_resolve(size, guessed) for size in declared.sizes]
    return "x".join(str(next(missing, 128) if s is None else s) for s in sizes) or "1x128"
