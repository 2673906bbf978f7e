"""What a page measured, as plain values that JSON accepts, and back.

Texts, booleans, integers and finite numbers stand for themselves; everything else is an object
whose key ``$`` says what it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.pages.rendering import flatten
from ortmeter.timing import Comparison, Comparisons, Measurement

__all__ = ["decode", "encode"]


def encode(value: Any, path: str = "data") -> Any:
    """Turn measurements, tables, mappings and sequences of them into plain values.

    Parameters
    ----------
    value : None, bool, int, float, str, Comparison, Comparisons, Measurement, DataFrame, mapping, \
list or tuple
        What to encode. The keys of mappings are None, bool, int, float or str; a frame has columns
        named by texts, its index is kept when it is named.
    path : str
        Where the value comes from, for errors.

    Returns
    -------
    object
        Plain value; :func:`decode` reads it back.

    Raises
    ------
    InvalidArgumentError
        A part has another type.

    Examples
    --------
    >>> encode({256: (1, math.inf)})
    {'$': 'mapping', 'items': [[256, {'$': 'tuple', 'items': [1, {'$': 'float', 'text': 'inf'}]}]]}
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, str)) or _is_finite(value):
        return value
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value, path)
    raise InvalidArgumentError(
        f"{path} is of type {type(value).__name__}. Accepted: None, bool, int, float, str, "
        "Comparison, Comparisons, Measurement, DataFrame, and mappings, lists or tuples of these"
    )


def decode(value: Any) -> Any:
    """Read back what :func:`encode` returned.

    Parameters
    ----------
    value : object
        Plain value that follows :data:`~ortmeter.pages.SCHEMA`.

    Returns
    -------
    object
        What was encoded: numpy scalars came back as Python ones.

    Examples
    --------
    >>> decode(encode({256: (1, 2.5)}))
    {256: (1, 2.5)}
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    return _DECODERS[value["$"]](value) if isinstance(value, dict) else value


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _encode_list(values: Sequence[Any], path: str) -> list[Any]:
    return [encode(item, f"{path}[{i}]") for i, item in enumerate(values)]


def _encode_mapping(value: Mapping[Any, Any], path: str) -> dict[str, Any]:
    items = [[_encode_key(k, path), encode(v, f"{path}[{k!r}]")] for k, v in value.items()]
    return {"$": "mapping", "items": items}


def _encode_key(key: Any, path: str) -> Any:
    encoded = encode(key, path)
    if isinstance(encoded, (list, dict)):
        raise InvalidArgumentError(
            f"{path} has the key {key!r}. Accepted: None, bool, int, finite float, str"
        )
    return encoded


def _encode_measurement(measured: Measurement, _path: str) -> dict[str, Any]:
    return {"$": "measurement", "unit": "s", "repeat": measured.repeat, **measured.to_dict()}


def _decode_measurement(value: Mapping[str, Any]) -> Measurement:
    fields = {key: item for key, item in value.items() if key not in {"$", "unit", "repeat"}}
    return Measurement.from_dict(fields)


def _encode_comparison(found: Comparison, path: str) -> dict[str, Any]:
    measured = [_encode_measurement(m, path) for m in found.values()]
    return {"$": "comparison", "stopped": found.stopped, "measurements": measured}


def _encode_comparisons(found: Comparisons, path: str) -> dict[str, Any]:
    groups = [[_encode_key(k, path), _encode_comparison(g, path)] for k, g in found.items()]
    return {"$": "comparisons", "axis": found.axis, "groups": groups}


def _encode_table(table: pd.DataFrame, path: str) -> dict[str, Any]:
    named = [name for name in table.index.names if name is not None]
    flat = flatten(table)
    if wrong := [name for name in flat.columns if not isinstance(name, str)]:
        raise InvalidArgumentError(
            f"{path} has columns {wrong!r}. Accepted: names that are texts, units included"
        )
    columns = [
        {
            "name": name,
            "dtype": str(flat[name].dtype) if flat[name].dtype.kind in "biuf" else None,
            "values": _encode_cells(flat[name], f"{path}[{name!r}]"),
        }
        for name in flat.columns
    ]
    return {"$": "table", "index": named, "columns": columns}


def _encode_cells(column: "pd.Series[Any]", path: str) -> list[Any]:
    return _encode_list([None if item is pd.NA else item for item in column.tolist()], path)


def _decode_table(value: Mapping[str, Any]) -> pd.DataFrame:
    # Without a dtype, pandas chooses the one that it has for such values.
    columns = {
        column["name"]: pd.Series(decode(column["values"]), dtype=column["dtype"])
        for column in value["columns"]
    }
    table = pd.DataFrame(columns)
    return table.set_index(value["index"]) if value["index"] else table


_ENCODERS: Mapping[type, Callable[[Any, str], Any]] = {
    float: lambda value, _path: {"$": "float", "text": str(value)},
    Comparison: _encode_comparison,
    Comparisons: _encode_comparisons,
    Measurement: _encode_measurement,
    pd.DataFrame: _encode_table,
    Mapping: _encode_mapping,
    list: _encode_list,
    tuple: lambda value, path: {"$": "tuple", "items": _encode_list(value, path)},
}
_DECODERS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "comparison": lambda value: Comparison(map(decode, value["measurements"]), value["stopped"]),
    "comparisons": lambda value: Comparisons(
        {key: decode(group) for key, group in value["groups"]}, value["axis"]
    ),
    "float": lambda value: float(value["text"]),
    "mapping": lambda value: {key: decode(item) for key, item in value["items"]},
    "measurement": _decode_measurement,
    "table": _decode_table,
    "tuple": lambda value: tuple(decode(value["items"])),
}
