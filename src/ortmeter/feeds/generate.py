"""Draw the inputs of a model at random."""

import math
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

from ortmeter.dtypes import short_name
from ortmeter.errors import FeedError
from ortmeter.feeds.indices import index_bounds
from ortmeter.feeds.inputs import Input, declared_inputs, resolve_shapes
from ortmeter.feeds.limits import half_of_memory
from ortmeter.loading import ModelLike, load_model

__all__ = ["random_feeds"]

# Integers that index nothing: small, so that a shape or a count made of them is small.
_DEFAULT_BOUND = 10


def random_feeds(
    model: ModelLike,
    *,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
) -> dict[str, np.ndarray]:
    """Draw the inputs of a model at random.

    Floating point numbers follow a normal law. Integers of 8 bits or less take every value, the
    others are small, and valid indices where the graph uses them so. Masks (booleans, and inputs
    whose name says *mask*) are made of ones.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.loading.load_model`.
    dims : mapping of str to int, optional
        Sizes of the symbolic dimensions.
    shapes : mapping of str to sequence of int, optional
        Whole shapes, by input.
    seed : int
        Seed of the random generator.
    max_bytes : int, optional
        Total size that is not exceeded, by default half of the memory of the machine.

    Returns
    -------
    dict of str to array
        One array for each input that is not an initializer.

    Raises
    ------
    FeedError
        A dimension has no size, a shape contradicts the model, an input is not a dense tensor, or
        the arrays are too large.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n, 4] X, int64[n] I) => (float[n, 4] Y) { Y = Gather(X, I) }'''
    >>> {name: array.shape for name, array in random_feeds(text, dims={"n": 2}).items()}
    {'X': (2, 4), 'I': (2,)}
    """
    loaded = load_model(model)
    inputs = declared_inputs(loaded)
    chosen = resolve_shapes(inputs, dims or {}, shapes or {})
    _refuse_too_large(inputs, chosen, half_of_memory() if max_bytes is None else max_bytes)
    bounds = index_bounds(loaded)
    rng = np.random.default_rng(seed)
    return {
        declared.name: _draw(declared, chosen[declared.name], rng, bounds.get(declared.name))
        for declared in inputs
    }


def _refuse_too_large(
    inputs: Sequence[Input], shapes: Mapping[str, tuple[int, ...]], max_bytes: int
) -> None:
    sizes = {d.name: math.prod(shapes[d.name]) * d.dtype.itemsize for d in inputs}
    if (total := sum(sizes.values())) > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        raise FeedError(
            f"inputs of {total / 2**30:.3g} GiB are asked, the largest is {largest!r}. "
            f"Accepted: {max_bytes / 2**30:.3g} GiB in all"
        )


def _draw(
    declared: Input, shape: tuple[int, ...], rng: np.random.Generator, bound: int | None
) -> np.ndarray:
    dtype = declared.dtype
    if dtype.kind == "O":
        return rng.integers(_DEFAULT_BOUND, size=shape).astype(str).astype(object)
    if dtype.kind == "b" or "mask" in declared.name.lower():
        return np.ones(shape, dtype=dtype)
    if short_name(declared.element_type).startswith(("i", "u")):
        return _draw_integers(dtype, shape, rng, bound)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _draw_integers(
    dtype: np.dtype, shape: tuple[int, ...], rng: np.random.Generator, bound: int | None
) -> np.ndarray:
    if bound is None and dtype.itemsize == 1:
        limits = ml_dtypes.iinfo(dtype)  # of 4 and 2 bits too
        return rng.integers(int(limits.min), int(limits.max) + 1, shape).astype(dtype)
    return rng.integers(bound or _DEFAULT_BOUND, size=shape).astype(dtype)
