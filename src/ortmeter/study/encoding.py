"""Convert measurements of a page to values that JSON accepts, and back.

Texts, booleans, integers and finite numbers are unchanged; any other value is an object whose key
``$`` is its kind.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta, Struct, field

from ortmeter.errors import InvalidArgumentError, RecordError
from ortmeter.evidence import Scalar
from ortmeter.optional import pd
from ortmeter.study.rendering import flatten
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.workloads.load import Load, Point, Turn


def encode(value: Any, path: str = "data") -> Any:
    """Turn what :func:`~ortmeter.study.records.record` accepts into plain values.

    *path* is for errors.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (bool, int, str)) or _is_finite(value):
        return value
    for kind, encoder in _ENCODERS.items():
        if isinstance(value, kind):
            return encoder(value, path)
    pandas = sys.modules.get("pandas")  # until it is imported, nothing is a table
    if pandas and isinstance(value, pandas.DataFrame):
        return _encode_table(value, path)
    raise InvalidArgumentError(
        f"{path} is of type {type(value).__name__}. Accepted: None, bool, int, float, str, "
        "Comparison, Comparisons, Load, Measurement, DataFrame, and mappings, lists or tuples of "
        "these"
    )


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


def _plain(value: Struct) -> Any:
    return msgspec.to_builtins(value, enc_hook=np.ndarray.tolist)


def _measurement(measured: Measurement) -> "_Measurement":
    names = _Measurement.__struct_fields__[1:]
    return _Measurement("s", *(getattr(measured, name) for name in names))


def _comparison(found: Comparison) -> "_Comparison":
    control = _measurement(found.reference_workload) if found.reference_workload else None
    stopped: Any = found.stopped
    return _Comparison(stopped, [*map(_measurement, found.values())], control)


def _encode_comparisons(comparisons: Comparisons, path: str) -> Any:
    groups = [(_encode_key(k, path), _comparison(g)) for k, g in comparisons.items()]
    return _plain(_Comparisons(comparisons.axis, groups))


def _encode_load(load: Load, _path: str) -> Any:
    """Write nanoseconds between arrivals, of the wait and of the run: short numbers, and exact."""
    turns: list[Any] = []
    for turn in load.turns:
        times = np.rint(1e9 * np.array([turn.arrivals, turn.starts, turn.ends])).astype(np.int64)
        _, waits, services = np.diff(times, axis=0, prepend=0).tolist()
        between = np.diff(times[0], prepend=0).tolist()
        turns.append([turn.requests_per_s, turn.left, between, waits, services])
    point = load.point
    return _plain(_Load(len(point.calls), point.rate, point.batch, point.full, turns))


def _encode_table(table: "pd.DataFrame", path: str) -> dict[str, Any]:
    named = [name for name in table.index.names if name is not None]
    flat = flatten(table)
    if wrong := [name for name in flat.columns if not isinstance(name, str)]:
        raise InvalidArgumentError(
            f"{path} has columns {wrong!r}. Accepted: names that are texts, units included"
        )
    columns = []
    for name, column in flat.items():
        values = [None if item is pd.NA else item for item in column.tolist()]
        dtype = str(column.dtype) if column.dtype.kind in "biuf" else None
        encoded = _encode_list(values, f"{path}[{name!r}]")
        columns.append({"name": name, "dtype": dtype, "values": encoded})
    return {"$": "table", "index": named, "columns": columns}


_ENCODERS: Mapping[type, Callable[[Any, str], Any]] = {
    float: lambda value, _path: {"$": "float", "text": str(value)},
    Comparison: lambda value, _path: _plain(_comparison(value)),
    Comparisons: _encode_comparisons,
    Load: _encode_load,
    Measurement: lambda value, _path: _plain(_measurement(value)),
    Mapping: _encode_mapping,
    list: _encode_list,
    tuple: lambda value, path: {"$": "tuple", "items": _encode_list(value, path)},
}


def decode(value: Any, path: str = "data") -> Any:
    """Read back what :func:`encode` returned; numpy scalars came back as Python ones."""
    if isinstance(value, list) and not {list, dict}.isdisjoint(map(type, value)):
        return [decode(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, dict):  # a scalar, or a list of them
        return value
    try:
        return msgspec.convert(value, Kind).read(path)
    except msgspec.ValidationError as error:
        raise RecordError(f"{path}: {error}") from None


class _Tagged(Struct, forbid_unknown_fields=True, tag_field="$", tag=lambda n: n[1:].lower()):
    """An object whose key ``$`` says what it is; :meth:`read` makes it."""

    def read(self, path: str, /) -> Any:
        raise NotImplementedError


class _Float(_Tagged):
    text: Literal["nan", "inf", "-inf"]

    def read(self, _path: str, /) -> float:
        return float(self.text)


class _Tuple(_Tagged):
    items: list[Any]

    def read(self, path: str, /) -> tuple[Any, ...]:
        return tuple(decode(self.items, path))


class _Mapping(_Tagged):
    items: list[tuple[Scalar, Any]]

    def read(self, path: str, /) -> dict[Any, Any]:
        return {key: decode(item, f"{path}[{key!r}]") for key, item in self.items}


class _Column(Struct, forbid_unknown_fields=True):
    name: str
    dtype: Annotated[str, Meta(pattern=r"^(bool|u?int(8|16|32|64)|float(16|32|64))$(?!\n)")] | None
    values: list[Any]


class _Table(_Tagged):
    index: list[str]
    columns: list[_Column]

    def read(self, path: str, /) -> "pd.DataFrame":
        columns = {}
        for column in self.columns:
            values = decode(column.values, path)
            # Without a dtype, pandas chooses one; that of texts has NaN instead of None.
            mixed = None in values and any(isinstance(value, str) for value in values)
            columns[column.name] = pd.Series(values, dtype=object if mixed else column.dtype)
        table = pd.DataFrame(columns)
        return table.set_index(self.index) if self.index else table


Count = Annotated[int, Meta(ge=1)]
_Positive = Annotated[float, Meta(ge=0)]
_Row = Annotated[list[_Positive], Meta(min_length=1)]


class _Measurement(_Tagged, omit_defaults=True):  # older readers do not know what is rare
    unit: Literal["s"]
    repeat: Count
    name: str
    seconds: Annotated[list[_Row], Meta(min_length=1)]
    number: Count
    warmup: tuple[_Positive, ...]
    flop: _Positive | None
    bytes_moved: _Positive | None
    isolated: bool = field(name="apart", default=False)
    settling: Annotated[int, Meta(ge=0)] = 0
    after_switch: tuple[_Positive, ...] = ()
    sets: Annotated[int, Meta(ge=1)] = 1

    def read(self, _path: str, /) -> Measurement:
        names = self.__struct_fields__[2:]  # a unit and a number of samples come first
        return Measurement(**{name: getattr(self, name) for name in names})


class _Comparison(_Tagged, omit_defaults=True):
    stopped: Literal["precision", "budget", "repeat"]
    measurements: Annotated[list[_Measurement], Meta(min_length=1)]
    reference_workload: _Measurement | None = field(name="control", default=None)

    def read(self, _path: str, /) -> Comparison:
        reference = self.reference_workload.read("") if self.reference_workload else None
        measured = [measurement.read("") for measurement in self.measurements]
        return Comparison(measured, self.stopped, reference_workload=reference)


class _Comparisons(_Tagged):
    axis: str
    groups: list[tuple[Scalar, _Comparison]]

    def read(self, _path: str, /) -> Comparisons:
        return Comparisons({key: group.read("") for key, group in self.groups}, self.axis)


_Natural = Annotated[int, Meta(ge=0)]
_Nanoseconds = list[_Natural]
_Turn = tuple[_Positive, _Natural, _Nanoseconds, _Nanoseconds, _Nanoseconds]


class _Load(_Tagged):
    threads: Count
    rate: Annotated[float, Meta(gt=0)] | None
    batch: Count
    full: bool
    turns: Annotated[list[_Turn], Meta(min_length=1)]

    def read(self, _path: str, /) -> Load:
        point = Point([_recorded] * self.threads, self.rate, self.batch, self.full)
        turns = []
        for speed, left, between, waits, services in self.turns:
            rows = np.array([np.cumsum(between), waits, services])
            arrivals, starts, ends = np.cumsum(rows, axis=0) / 1e9
            turns.append(Turn(arrivals, starts, ends, speed, left))
        return Load(point, tuple(turns))


def _recorded() -> None:
    raise RecordError("A load that was recorded cannot be measured again")


MappingValue = _Mapping
Kind = _Comparison | _Comparisons | _Float | _Load | _Mapping | _Measurement | _Table | _Tuple
