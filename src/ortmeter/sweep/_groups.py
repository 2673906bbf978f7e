"""Find what was measured together in the data of the records of a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ortmeter.results import Record
from ortmeter.timing import Measurement

__all__ = ["Group", "find_groups", "name_keys"]

_UNNAMED = "key"


@dataclass(frozen=True)
class Group:
    """Candidates that a page measured together.

    Parameters
    ----------
    name : str
        First key of the way to them in the data, for instance ``results``.
    keys : tuple
        Other keys of the way, for instance a size.
    measured : mapping of str to Measurement
        Candidates, in the order of the page.
    """

    name: str
    keys: tuple[Any, ...]
    measured: Mapping[str, Measurement]


def find_groups(data: Mapping[Any, Any]) -> list[Group]:
    """Find the mappings that hold measurements, at any depth.

    Parameters
    ----------
    data : mapping
        Data of a record.

    Returns
    -------
    list of Group
        In the order of the data.

    Examples
    --------
    >>> copy = Measurement("copy", [[1e-3]])
    >>> [(g.name, g.keys) for g in find_groups({"results": {8: {"copy": copy}}, "legend": "CPU"})]
    [('results', (8,))]
    """
    return [
        Group(str(path[0]) if path else "", path[1:], measured)
        for path, measured in _walk(data, ())
    ]


def name_keys(records: Sequence[Record], group: str) -> list[str]:
    """Name the keys of the groups of one name.

    Parameters
    ----------
    records : sequence of Record
        Records of one page.
    group : str
        Name of the groups.

    Returns
    -------
    list of str
        For each key, the column of a table, or else the parameter, that holds the same values in
        all of the records; ``key`` when there is none.
    """
    values = [_values_of_keys(record, group) for record in records]
    named = [(record, keys) for record, keys in zip(records, values, strict=True) if keys]
    names: list[str] = []
    for level in range(max((len(keys) for keys in values), default=0)):
        holding = [_holders(record, keys[level]) for record, keys in named if level < len(keys)]
        common = [name for name in holding[0] if all(name in others for others in holding)]
        fallback = _UNNAMED if level == 0 else f"{_UNNAMED} {level + 1}"
        names.append(next((name for name in common if name not in names), fallback))
    return names


def _walk(
    data: Mapping[Any, Any], path: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], Mapping[str, Measurement]]]:
    measured = {str(key): item for key, item in data.items() if isinstance(item, Measurement)}
    if measured:
        yield path, measured
    for key, item in data.items():
        if isinstance(item, Mapping):
            yield from _walk(item, (*path, key))


def _values_of_keys(record: Record, group: str) -> list[list[Any]]:
    """Return the values that each key takes, in the order of the data."""
    ways = [found.keys for found in find_groups(record.data) if found.name == group]
    depth = max(map(len, ways), default=0)
    return [list(dict.fromkeys(way[i] for way in ways if i < len(way))) for i in range(depth)]


def _holders(record: Record, values: Sequence[Any]) -> list[str]:
    """Return the names of the columns, then of the parameters, that hold these values."""
    tables = [item for item in record.data.values() if isinstance(item, pd.DataFrame)]
    columns = [
        str(name)
        for table in tables
        for name in table.columns
        if list(dict.fromkeys(table[name].tolist())) == list(values)
    ]
    label = ",".join(map(str, values))
    return columns + [name for name, text in record.configuration.items() if text == label]
