"""Write the events of a profile for other tools, and read them back.

Types and shapes are written as JSON in text cells.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import orjson
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional
from ortmeter.profiling.events import COLUMNS

_NESTED = [name for name, dtype in COLUMNS.items() if dtype == "object"]
_XLSX_ROWS = 1_048_576
_XLSX_CELL = 32_767


def read_events(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read the events that :class:`Profile` wrote.

    Parameters
    ----------
    path : path
        File written by ``to_csv``, ``to_xlsx`` or ``to_parquet``, recognised by its extension.

    Returns
    -------
    pandas.DataFrame
        The columns and the dtypes of ``Profile.events``. Nothing in the file is evaluated.

    Raises
    ------
    InvalidArgumentError
        The file cannot be read, has another extension, lacks columns, or a cell is not valid.
    MissingDependencyError
        openpyxl (extra ``excel``) or pyarrow (extra ``parquet``) is missing.

    Examples
    --------
    >>> import tempfile
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> found = profile(text, {"X": np.float32([1])}, provider="cpu", repeat=1, overhead=False)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = read_events(found.to_csv(f"{folder}/events.csv"))
    >>> again.equals(found.events)
    True
    """
    file = Path(path)
    if file.suffix not in _READERS:
        raise InvalidArgumentError(
            f"{file.name!r} has another extension. Accepted: {', '.join(_READERS)}"
        )
    try:
        table = _READERS[file.suffix](file)
    except (OSError, ValueError, KeyError, BadZipFile) as cause:
        raise InvalidArgumentError(f"{file.name!r} cannot be read: {cause}") from cause
    if missing := [name for name in COLUMNS if name not in table.columns]:
        raise InvalidArgumentError(f"{file.name!r} lacks the columns {', '.join(missing)}")
    try:
        return pd.DataFrame({name: _restore(table[name], kind) for name, kind in COLUMNS.items()})
    except (TypeError, ValueError) as cause:
        raise InvalidArgumentError(
            f"{file.name!r} holds a cell that is not valid: {cause}"
        ) from cause


def write_csv(events: pd.DataFrame, path: str | os.PathLike[str]) -> Path:
    _with_text_cells(events).to_csv(path, index=False)
    return Path(path)


def write_parquet(events: pd.DataFrame, path: str | os.PathLike[str]) -> Path:
    import_optional("pyarrow", "parquet")
    _with_text_cells(events).to_parquet(path, index=False)
    return Path(path)


def write_xlsx(tables: Mapping[str, pd.DataFrame], path: str | os.PathLike[str]) -> Path:
    """Write one sheet per table, where every text stays a text."""
    openpyxl = import_optional("openpyxl", "excel")
    texts = {name: _with_text_cells(table) for name, table in tables.items()}
    for name, table in texts.items():
        _check_sheet(name, table)
    try:
        with pd.ExcelWriter(path, engine="openpyxl") as workbook:
            for name, table in texts.items():
                table.to_excel(workbook, sheet_name=name, index=False)
            cells = (cell for sheet in workbook.book for row in sheet.iter_rows() for cell in row)
            for cell in cells:
                # A name that starts with = is a text, not a formula.
                if cell.data_type == "f":
                    cell.data_type = "s"
    except openpyxl.utils.exceptions.IllegalCharacterError as cause:
        raise InvalidArgumentError(
            f"Excel does not accept the control characters of {cause}. Accepted: to_csv, to_parquet"
        ) from cause
    return Path(path)


def write_trace(
    events: pd.DataFrame, session_events: pd.DataFrame, path: str | os.PathLike[str]
) -> Path:
    """Write the *Trace Event Format* of Chrome (Google, 2016)."""
    shown = ["iteration", "op", "domain", "provider", "signature", "output_size", "in_use"]
    trace = {
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "ONNX Runtime"}},
            *_slices(session_events, ["iteration"]),
            *_slices(events.assign(category="Node"), shown),
        ],
        "displayTimeUnit": "ms",
    }
    Path(path).write_bytes(orjson.dumps(trace))
    return Path(path)


def _slices(events: pd.DataFrame, shown: list[str]) -> list[dict[str, Any]]:
    fields = {"name": "name", "cat": "category", "tid": "thread", "ts": "start", "dur": "duration"}
    rows = zip(*(_plain(events[name]) for name in fields.values()), strict=True)
    details = zip(*(_plain(events[name]) for name in shown), strict=True)
    return [
        {
            "ph": "X",
            "pid": 0,
            **dict(zip(fields, row, strict=True)),
            "args": {
                name: value for name, value in zip(shown, detail, strict=True) if value is not None
            },
        }
        for row, detail in zip(rows, details, strict=True)
    ]


def _plain(column: "pd.Series[Any]") -> list[Any]:
    """Values of a column as Python values, None when missing."""
    values = column.astype(object)
    return values.where(column.notna(), None).tolist()


def _with_text_cells(table: pd.DataFrame) -> pd.DataFrame:
    """Replace tuples by their JSON text; what is missing stays missing."""
    columns = {str(name): column for name, column in table.items()}
    return pd.DataFrame(
        {
            name: _map_distinct(column, lambda value: orjson.dumps(value).decode())
            if column.dtype == object
            else column
            for name, column in columns.items()
        }
    )


def _map_distinct(column: "pd.Series[Any]", function: Any) -> Any:
    """Apply a function once to each distinct value."""
    codes, values = pd.factorize(column.to_numpy(object))
    # The last one is for what is missing, whose code is -1.
    return np.fromiter([*map(function, values), None], object)[codes]


def _check_sheet(name: str, table: pd.DataFrame) -> None:
    if len(table) >= _XLSX_ROWS:
        raise InvalidArgumentError(
            f"{name} has {len(table)} rows. Accepted in a sheet: {_XLSX_ROWS - 1}. Without this "
            "limit: to_csv, to_parquet"
        )
    for column, values in table.items():
        if not pd.api.types.is_numeric_dtype(values.dtype):
            length = max((len(str(text)) for text in values.unique()), default=0)
            if length > _XLSX_CELL:
                raise InvalidArgumentError(
                    f"Column {column} of {name} holds a text of {length} characters. Accepted in "
                    f"a cell: {_XLSX_CELL}. Without this limit: to_csv, to_parquet"
                )


def _restore(column: "pd.Series[Any]", dtype: str) -> Any:
    if dtype == "object":
        return _map_distinct(column, lambda text: _as_tuples(orjson.loads(text)))
    if dtype == "category":
        return pd.Categorical(column.astype("str"))
    integers = column.astype("Int64")
    return integers if dtype == "Int64" else integers.astype("int64")


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _read_csv(file: Path) -> pd.DataFrame:
    return pd.read_csv(file, dtype="str", keep_default_na=False, na_values=[""])


def _read_xlsx(file: Path) -> pd.DataFrame:
    import_optional("openpyxl", "excel")
    options: dict[str, Any] = {"keep_default_na": False, "na_values": [""]}
    return pd.read_excel(file, sheet_name="events", dtype="str", engine="openpyxl", **options)


def _read_parquet(file: Path) -> pd.DataFrame:
    import_optional("pyarrow", "parquet")
    return pd.read_parquet(file, engine="pyarrow")


_READERS = {".csv": _read_csv, ".xlsx": _read_xlsx, ".parquet": _read_parquet}
