"""Pairs of arrays of two nested structures, each with its path."""

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from ortmeter.discrepancy.result import Difference
from ortmeter.errors import InvalidArgumentError
from ortmeter.runtime.arrays import is_array

__all__ = ["Node", "Pair", "children", "pairs"]

# Attributes that hold the arrays of the caches of transformers, whose classes change with its
# versions: for an encoder and a decoder, of layers, one layer, two lists, state space models.
_CACHES = (
    ("self_attention_cache", "cross_attention_cache"),
    ("layers",),
    ("keys", "values"),
    ("key_cache", "value_cache"),
    ("conv_states", "ssm_states"),
)


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two arrays to compare."""

    path: str
    expected: Any
    got: Any


@dataclasses.dataclass(frozen=True)
class Node:
    """What a structure holds, by key, and the Python expression that gets it."""

    is_sequence: bool
    items: dict[Hashable, tuple[str, Any]]

    def describe(self, key: Hashable) -> str:
        """Name what is under a key."""
        return _describe(self.items[key][1]) if key in self.items else "nothing"


def pairs(expected: Any, got: Any, path: str = "") -> Iterator[Pair | Difference]:
    """Walk two structures at once.

    Parameters
    ----------
    expected, got : array, None, or nested mapping, list, tuple, dataclass, cache of transformers
        A list and a tuple match, a mapping matches what has attributes of these names, in any
        order.
    path : str
        Where they are in a larger structure.

    Yields
    ------
    Pair or Difference
        Two arrays, or a place where the structures differ, which is not entered.

    Raises
    ------
    InvalidArgumentError
        Something is neither an array nor one of these structures.
    """
    nodes = children(expected, path), children(got, path)
    if expected is None and got is None:
        return
    if nodes == (None, None) and expected is not None and got is not None:
        yield Pair(path, expected, got)
    elif nodes[0] and nodes[1] and nodes[0].is_sequence == nodes[1].is_sequence:
        yield from _pairs_of_children(nodes[0], nodes[1], path)
    else:
        yield Difference("structure", path, _describe(expected), _describe(got))


def _pairs_of_children(expected: Node, got: Node, path: str) -> Iterator[Pair | Difference]:
    if expected.is_sequence and len(expected.items) != len(got.items):
        yield Difference("structure", path, *(f"{len(n.items)} items" for n in (expected, got)))
        return
    for key, (step, _) in (expected.items | got.items | expected.items).items():
        if key in expected.items and key in got.items:
            yield from pairs(expected.items[key][1], got.items[key][1], path + step)
        else:
            yield Difference("structure", path + step, expected.describe(key), got.describe(key))


def children(value: Any, path: str = "") -> Node | None:
    """List what a structure holds.

    Parameters
    ----------
    value : object
        Anything.
    path : str
        Where it is, for the error.

    Returns
    -------
    Node or None
        None for an array and for None.

    Raises
    ------
    InvalidArgumentError
        *value* is neither an array nor a structure.
    """
    if value is None or is_array(value):
        return None
    if isinstance(value, Mapping):
        return Node(False, {key: (f"[{key!r}]", item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return Node(True, {i: (f"[{i}]", item) for i, item in enumerate(value)})
    if (names := _attributes(value)) is not None:
        return Node(False, {name: (f".{name}", getattr(value, name)) for name in names})
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


def _describe(value: Any) -> str:
    return "None" if value is None else type(value).__name__
