"""Pairs of arrays of two nested structures, each with its path."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from ortmeter.discrepancy.result import Difference
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import is_array

# Attributes that hold the arrays of the caches of transformers: for an encoder and a decoder, of
# layers, one layer.
_CACHES = (("self_attention_cache", "cross_attention_cache"), ("layers",), ("keys", "values"))


class Pair(NamedTuple):
    """Two arrays to compare."""

    path: str
    expected: Any
    got: Any


def pairs(expected: Any, got: Any, path: str = "") -> Iterator[Pair | Difference]:
    """Walk two structures at once; a place where they differ is not entered.

    A list and a tuple match, a mapping matches what has attributes of these names, in any order.
    """
    if expected is None and got is None:
        return
    left, right = _children(expected, path), _children(got, path)
    is_sequence, other = (isinstance(side, list | tuple) for side in (expected, got))
    if left is None and right is None and expected is not None and got is not None:
        yield Pair(path, expected, got)
    elif left is None or right is None or is_sequence != other:
        yield Difference("structure", path, _type_name(expected), _type_name(got))
    elif is_sequence and len(left) != len(right):
        yield Difference("structure", path, f"{len(left)} items", f"{len(right)} items")
    else:
        for key, (step, _) in (left | right | left).items():
            if key in left and key in right:
                yield from pairs(left[key][1], right[key][1], path + step)
            else:
                kinds = (_type_name(x[key][1]) if key in x else "nothing" for x in (left, right))
                yield Difference("structure", path + step, *kinds)


def _children(value: Any, path: str) -> dict[Hashable, tuple[str, Any]] | None:
    """List what a structure holds by key, with the Python expression that gets it.

    None for an array and for None. The path is for the error.
    """
    if value is None or is_array(value):
        return None
    if isinstance(value, Mapping):
        return {key: (f"[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return {i: (f"[{i}]", item) for i, item in enumerate(value)}
    if (names := _attributes(value)) is not None:
        return {name: (f".{name}", getattr(value, name)) for name in names}
    where = f"{path}: " if path else ""
    raise InvalidArgumentError(
        f"{where}{type(value).__name__} cannot be compared. Accepted: arrays (numpy, torch, "
        "OrtValue, TensorProto, anything with __array__ or __dlpack__), numbers, strings, None; "
        "mappings, lists, tuples, dataclasses and caches of transformers of these"
    )


def _attributes(value: Any) -> tuple[str, ...] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    for names in _CACHES:
        if all(hasattr(value, name) and not callable(getattr(value, name)) for name in names):
            return names
    return None


def _type_name(value: Any) -> str:
    return "None" if value is None else type(value).__name__
