"""Keep the tables of a page."""

import base64
import html
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional

__all__ = ["SavedTables", "save_tables"]

_TYPES = {
    ".csv": "text/csv",
    ".xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}


@dataclass(frozen=True)
class SavedTables:
    """Files written by :func:`save_tables`; a page or a notebook shows links to download them.

    Parameters
    ----------
    files : tuple of Path
        One CSV file per table, then one Excel file with a sheet per table.
    """

    files: tuple[Path, ...]

    def __str__(self) -> str:
        # The folder is of no use to the reader of a page: names only.
        return "saved " + ", ".join(file.name for file in self.files)

    def _repr_html_(self) -> str:
        links = (
            f'<a class="ortmeter-download" download="{html.escape(file.name)}" '
            f'href="data:{_TYPES[file.suffix]};base64,{_base64(file)}">{html.escape(file.name)}</a>'
            for file in self.files
        )
        return f'<p class="ortmeter-downloads">Download the tables: {" ".join(links)}</p>'


def save_tables(
    name: str,
    tables: Mapping[str, pd.DataFrame],
    folder: str | os.PathLike[str] | None = None,
) -> SavedTables:
    """Write tables as CSV and Excel files.

    Parameters
    ----------
    name : str
        Start of the names of the files.
    tables : mapping of str to DataFrame
        Tables by name, which becomes the name of the sheet. The index is written.
    folder : path, optional
        Where to write, a new temporary folder by default.

    Returns
    -------
    SavedTables
        The files: shown by a page or a notebook, it offers them for download.

    Raises
    ------
    InvalidArgumentError
        There is no table, or a name is not a plain file name.
    MissingDependencyError
        openpyxl is missing.

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as temporary:
    ...     saved = save_tables("page", {"times": pd.DataFrame({"n": [1]})}, temporary)
    >>> print(saved)
    saved page-times.csv, page.xlsx
    """
    if not tables:
        raise InvalidArgumentError("tables is empty. Accepted: at least one table")
    for part in (name, *tables):
        if part in {"", ".", ".."} or Path(part).name != part:
            raise InvalidArgumentError(f"{part!r} is not a plain name for a file")
    import_optional("openpyxl", "excel")
    target = Path(folder or tempfile.mkdtemp(prefix="ortmeter-"))
    csv_files = []
    with pd.ExcelWriter(target / f"{name}.xlsx", engine="openpyxl") as workbook:
        for key, table in tables.items():
            csv_files.append(target / f"{name}-{key}.csv")
            table.to_csv(csv_files[-1])
            table.to_excel(workbook, sheet_name=key)
    return SavedTables((*csv_files, target / f"{name}.xlsx"))


def _base64(file: Path) -> str:
    return base64.b64encode(file.read_bytes()).decode("ascii")
