"""Inputs of a model: given, or random as its graph declares them."""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.runtime.feed_values import as_declared
from ortmeter.runtime.inputs import Input, declared_inputs, half_of_memory, index_bounds
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.shapes import refuse_unknown, resolve_shapes, symbols

__all__ = ["random_feeds"]

# Integers that index nothing: small, so that a shape or a count made of them is small.
_DEFAULT_BOUND = 10


def random_feeds(
    model: ModelLike,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Draw the inputs of a model at random, except those whose values are given.

    Floating-point numbers follow a normal distribution. Integers of 8 bits or less take every
    value; wider ones are small, and valid indices where the graph uses them as indices. Masks
    (booleans, and inputs with *mask* in their name) are ones.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    dims : mapping of str to int, optional
        Sizes of the symbolic dimensions.
    shapes : mapping of str to sequence of int, optional
        Shapes by input.
    values : mapping of str to number, bool, str, nested list of them, or array, optional
        Values by input, written in its element type: ``{"sr": 16000, "names": ["a", "b"]}``. An
        array has this type already. A single value fills the input; a size that nothing else
        gives is then 1.
    seed : int
        Seed of the random generator.

    Returns
    -------
    dict of str to array
        One array for each input that is not an initializer.

    Raises
    ------
    FeedError
        A dimension has no size, a shape or a value contradicts the model, an input is not a dense
        tensor, or the arrays need more than half of the memory.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n, 4] X, int64[n] I) => (float[n, 4] Y) { Y = Gather(X, I) }'''
    >>> {name: array.shape for name, array in random_feeds(text, dims={"n": 2}).items()}
    {'X': (2, 4), 'I': (2,)}
    >>> random_feeds(text, values={"I": [3, 1]})["I"]
    array([3, 1])
    """
    return shared_feeds([model], dims=dims, shapes=shapes, values=values, seed=seed)[0]


def shared_feeds(
    models: Sequence[ModelLike],
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> list[dict[str, np.ndarray]]:
    """Draw the inputs of models that are compared: each array once, for all those that read it.

    Inputs of the same name, shape and kind (floating point numbers, integers...) have the same
    values, whatever the order in which they are declared; then those that are left have, by rank,
    the values of those that the first model declares. Values fit in every element type that they
    are read in, and indices are valid in every model. Sizes and shapes are for the models that have
    such a dimension or such an input.
    """
    protos = [load_model(model) for model in models]
    declared = [declared_inputs(proto) for proto in protos]
    names = list(dict.fromkeys(one.name for inputs in declared for one in inputs))
    known_dims = {size for inputs in declared for size in symbols(inputs)}
    refuse_unknown("value", values or {}, names)
    arrays: dict[tuple[int, str], np.ndarray] = {}
    draws: list[list[_Reader]] = []
    for rank, (proto, inputs) in enumerate(zip(protos, declared, strict=True)):
        own = {one.name: one for one in inputs}
        given = {
            name: as_declared(own[name], value)
            for name, value in (values or {}).items()
            if name in own
        }
        chosen = resolve_shapes(
            inputs,
            _of_this(dims or {}, symbols(inputs), known_dims),
            _with_shapes_of(given, _of_this(shapes or {}, own, names)),
            filled=given,
        )
        _refuse_too_large(inputs, chosen)
        for name, value in given.items():
            filled = np.broadcast_to(value, chosen[name]).copy()
            arrays[rank, name] = value if value.ndim else filled
        bounds = index_bounds(proto)
        drawn = [one for one in inputs if one.name not in given]
        _join(draws, [_Reader(rank, d, chosen[d.name], bounds.get(d.name)) for d in drawn])
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError):
        raise FeedError(f"seed={seed!r}. Accepted: an integer >= 0") from None
    for readers in draws:
        array = _draw(readers, rng)
        arrays |= {(r.model, r.declared.name): array.astype(r.declared.dtype) for r in readers}
    return [
        {one.name: arrays[rank, one.name] for one in inputs} for rank, inputs in enumerate(declared)
    ]


def feeds_of_each(
    models: Sequence[ModelLike], feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
) -> list[Mapping[str, Any]]:
    """Return the inputs of each model: drawn for all by default, else those of all or of each."""
    if feeds is None:
        return [*shared_feeds(models)]
    given = [feeds] * len(models) if isinstance(feeds, Mapping) else list(feeds)
    if len(given) != len(models):
        raise InvalidArgumentError(
            f"{len(given)} feeds for {len(models)} models. Accepted: one for each, or one for all"
        )
    return given


@dataclass(frozen=True)
class _Reader:
    """An input of one of the models; its bound is 0 for an index into an unknown size."""

    model: int
    declared: Input
    shape: tuple[int, ...]
    bound: int | None

    def same_values(self, other: "_Reader") -> bool:
        """Return whether both may have the same values."""
        return (self.declared.kind, self.shape) == (other.declared.kind, other.shape)


def _with_shapes_of(
    given: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """Add the shapes of the arrays that are given; a single value fills any shape."""
    arrays = {name: array.shape for name, array in given.items() if array.ndim}
    if both := [name for name in arrays if name in shapes]:
        raise FeedError(f"{both[0]!r} is given a shape and values, which have theirs: remove one")
    return {**shapes, **arrays}


def _of_this(given: Mapping[str, Any], own: Collection[Any], all_known: Collection[Any]) -> Any:
    """Leave out what is for another model; what is for none is refused with the rest."""
    return {key: value for key, value in given.items() if key in own or key not in all_known}


def _join(draws: list[list[_Reader]], readers: Sequence[_Reader]) -> None:
    """Share what was drawn with the inputs of another model: by names, then by ranks."""
    free, waiting = list(draws), []
    for reader in readers:
        same = [d for d in free if d[0].declared.name == reader.declared.name]
        if same and same[0][0].same_values(reader):
            same[0].append(reader)
            free.remove(same[0])
        else:
            waiting.append(reader)
    for reader, draw in itertools.zip_longest(waiting, free[: len(waiting)]):
        if draw is not None and draw[0].same_values(reader):
            draw.append(reader)
        else:
            draws.append([reader])


def _refuse_too_large(inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]]) -> None:
    sizes = {d.name: math.prod(shapes[d.name]) * d.dtype.itemsize for d in inputs}
    if (total := sum(sizes.values())) > (most := half_of_memory()):
        largest = max(sizes, key=lambda name: sizes[name])
        raise FeedError(
            f"inputs need {total / 2**30:.3g} GiB, the largest is {largest!r}. "
            f"Accepted: {most / 2**30:.3g} GiB in all, half of the memory"
        )


def _draw(readers: Sequence[_Reader], rng: np.random.Generator) -> np.ndarray:
    """Draw values that all the types hold."""
    first, kind = readers[0], readers[0].declared.kind
    types = list(dict.fromkeys(reader.declared.dtype for reader in readers))
    shape = first.shape
    if kind == "text":
        return rng.integers(_DEFAULT_BOUND, size=shape).astype(str).astype(object)
    if kind == "boolean" or "mask" in first.declared.name.lower():
        return np.ones(shape, types[0])
    if kind == "integer":
        return _draw_integers(readers, types, rng)
    array = rng.standard_normal(shape)
    for dtype in types:
        array = array.astype(dtype)
    return array


def _draw_integers(
    readers: Sequence[_Reader], types: Sequence[np.dtype], rng: np.random.Generator
) -> np.ndarray:
    shape, bounds = readers[0].shape, [reader.bound for reader in readers]
    if any(bound is not None for bound in bounds):  # indices in one of the models
        bound = min((bound for bound in bounds if bound), default=1)
        return rng.integers(bound, size=shape).astype(types[0])
    limits: list[Any] = [ml_dtypes.iinfo(dtype) for dtype in types]  # of 4 and 2 bits too
    if len(types) == 1 and types[0].itemsize == 1:
        low, high = int(limits[0].min), int(limits[0].max)
        return rng.integers(low, high + 1, shape).astype(types[0])
    bound = min(_DEFAULT_BOUND, *(int(limit.max) + 1 for limit in limits))
    return rng.integers(bound, size=shape).astype(types[0])
