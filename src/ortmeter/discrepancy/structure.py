"""Pairs of arrays of two nested structures, each with its path."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from ortmeter.discrepancy.result import Difference
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import is_array

# Attributes that hold the arrays of the caches of transformers, whose classes change with its
# versions: for an encoder and a decoder, of layers, one layer, two lists, state space models.
_CACHES = (
    ("self_attention_cache", "cross_attention_cache"),
    ("layers",),
    ("keys", "values"),
    ("key_cache", "value_cache"),
    ("conv_states", "ssm_states"),
)


class Pair(NamedTuple):
    """Two arrays to compare."""

    path: str
    expected: Any
    got: Any


class Children(NamedTuple):
    """What a structure holds, by key, and the Python expression that gets it."""

    is_sequence: bool
    held: dict[Hashable, tuple[str, Any]]


def pairs(expected: Any, got: Any, path: str = "") -> Iterator[Pair | Difference]:
    """Walk two structures at once; a place where they differ is not entered.

    A list and a tuple match, a mapping matches what has attributes of these names, in any order.
    """
    left, right = children(expected, path), children(got, path)
    if expected is None and got is None:
        return
    if left is None and right is None and expected is not None and got is not None:
        yield Pair(path, expected, got)
    elif left is None or right is None or left.is_sequence != right.is_sequence:
        yield Difference("structure", path, _type_name(expected), _type_name(got))
    elif left.is_sequence and len(left.held) != len(right.held):
        yield Difference("structure", path, *(f"{len(node.held)} items" for node in (left, right)))
    else:
        for key, (step, _) in (left.held | right.held | left.held).items():
            if key in left.held and key in right.held:
                yield from pairs(left.held[key][1], right.held[key][1], path + step)
            else:
                there = (node.held.get(key) for node in (left, right))
                kinds = (_type_name(entry[1]) if entry else "nothing" for entry in there)
                yield Difference("structure", path + step, *kinds)


def children(value: Any, path: str = "") -> Children | None:
    """List what a structure holds, None for an array and for None. The path is for the error."""
    if value is None or is_array(value):
        return None
    if isinstance(value, Mapping):
        return Children(False, {key: (f"[{key!r}]", item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return Children(True, {i: (f"[{i}]", item) for i, item in enumerate(value)})
    if (names := _attributes(value)) is not None:
        return Children(False, {name: (f".{name}", getattr(value, name)) for name in names})
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
