"""Show results, tables and plots of a page, as text and as HTML."""

import html
import math
import sys
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import pd
from ortmeter.pictures import freeze
from ortmeter.study.args import in_ipython

__all__ = ["Answer", "Table", "fold", "show", "table", "to_frame"]

# Outside of these, a number is written with an exponent.
_SMALL, _LARGE = 1e-4, 1e7
_COLUMNS = 7
_DIGITS = 3
_T = TypeVar("_T")


def show(result: _T) -> _T | None:
    """Show a result at the end of a cell.

    A notebook and the published gallery display the last value of a cell. A script does not, so
    the result is printed.

    Parameters
    ----------
    result : object
        Result to show.

    Returns
    -------
    object or None
        The result in a notebook or the gallery, None if it was printed.

    Examples
    --------
    >>> show("median 2 ms")
    median 2 ms
    """
    displayed = "sphinx_gallery" in sys.modules or in_ipython()
    if displayed and not isinstance(result, str):  # which would be displayed in quotes
        return result
    # A frame shortens its text to the width of a terminal unless asked for all of it.
    print(result.to_string() if hasattr(result, "to_string") else result)  # noqa: T201
    return None


class Answer(msgspec.Struct, frozen=True):
    """What answers the title of a page.

    Parameters
    ----------
    text : str
        One or two sentences.
    verdict : str
        Verdict of the first one on the machine that measured.
    """

    text: str
    verdict: str = ""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """A table of a page: three significant digits, seven columns at most."""

    frame: "pd.DataFrame"
    caption: str = ""

    def __str__(self) -> str:
        if self.frame.empty:
            return f"{self.caption}: none"
        title = f"{self.caption}\n" if self.caption else ""
        return title + str(self._written().to_string())

    def _repr_html_(self) -> str:
        if self.frame.empty:
            return f"<p>{html.escape(str(self))}</p>"
        return str(self._written().rename_axis(columns=self.caption or None).to_html())

    def _written(self) -> "pd.DataFrame":
        written = self.frame.map(_cell)
        if self.frame.columns.nlevels == 1:
            return written
        levels = ([str(level) for level in name if level != ""] for name in self.frame.columns)
        return written.set_axis([", ".join(name) for name in levels], axis="columns")


def table(frame: "pd.DataFrame", caption: str = "") -> Table:
    """Prepare a table for a page.

    Parameters
    ----------
    frame : DataFrame
        Rows and columns, with units in the names of the columns. Named levels of the index count
        as columns.
    caption : str
        One line above the table: what the numbers are, and the provider.

    Returns
    -------
    Table
        Numbers have three significant digits; a missing value is a dash.

    Raises
    ------
    InvalidArgumentError
        There are more than seven columns, which a reader would have to scroll; :func:`fold` shows
        wider frames.

    Examples
    --------
    >>> import pandas as pd
    >>> print(table(pd.DataFrame({"kind": ["a", None], "median (ms)": [1.23456, float("nan")]})))
      kind median (ms)
    0    a        1.23
    1    -           -
    """
    levels = sum(name is not None for name in frame.index.names)
    if frame.shape[1] + levels > _COLUMNS:
        raise InvalidArgumentError(
            f"got {frame.shape[1] + levels} columns. Accepted: {_COLUMNS} at most; "
            "ortmeter.study.rendering.fold() shows wider frames"
        )
    return Table(frame, caption)


def to_frame(rows: "Mapping[Any, Mapping[str, Any]]", *levels: str) -> "pd.DataFrame":
    """Make the frame of a table, row by row.

    Parameters
    ----------
    rows : mapping of mapping
        By label, or by tuple of labels, the cells of a row by column.
    *levels : str
        What the labels are.

    Returns
    -------
    pandas.DataFrame
        Rows and columns in their order; a cell that a row lacks is missing.

    Examples
    --------
    >>> to_frame({("one", 8): {"ms": 1.5}, ("one", 16): {"ms": 3.0}}, "model", "size")["ms"]["one"]
    size
    8     1.5
    16    3.0
    Name: ms, dtype: float64
    """
    return pd.DataFrame.from_dict(dict(rows), orient="index").rename_axis(index=levels)


@dataclass(frozen=True)
class Folded:
    """Details hidden behind a title, see :func:`fold`."""

    title: str
    items: tuple[Any, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.title}:", *map(as_text, self.items)])

    def _repr_html_(self) -> str:
        shown = "".join(map(as_html, self.items))
        title = html.escape(self.title)
        return f'<details class="ortmeter-fold"><summary>{title}</summary>{shown}</details>'


def fold(title: str, *items: Any) -> Folded:
    """Hide details behind a title, such as raw frames, dumps of models or long lists.

    Parameters
    ----------
    title : str
        Short description of the details.
    *items : object
        Texts, tables, plots (a figure or its axes) or results.

    Returns
    -------
    Folded
        A page opens it on click; a terminal prints everything.

    Examples
    --------
    >>> print(fold("The equation", "ij,jk->ik"))
    The equation:
    ij,jk->ik
    """
    return Folded(title, tuple(map(freeze, items)))


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (float, np.floating)):
        return "-" if math.isnan(value) else digits(float(value))
    return str(value)


@dataclass(frozen=True)
class Shown:
    """Items shown one after the other."""

    items: tuple[Any, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(as_text, self.items))

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{html.escape(item)}</p>" if isinstance(item, str) else as_html(item)
            for item in self.items
        )


def bullets(texts: Iterable[str], width: int) -> list[str]:
    """Write texts as a list; names are not broken at their hyphens."""
    writer = textwrap.TextWrapper(
        width, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
    )
    return [writer.fill(text) for text in texts]


def as_text(item: Any) -> str:
    """Write an item for a terminal: all the rows of a table."""
    if not hasattr(item, "to_string"):
        return str(item)
    return str(item.to_string(float_format=digits))


def flatten(table: "pd.DataFrame") -> "pd.DataFrame":
    """Make columns of the levels of an index that have a name; another index says nothing."""
    named = any(name is not None for name in table.index.names)
    return table.reset_index() if named else table


def digits(value: float) -> str:
    """Write a number with three significant digits, in full unless it is very small or large."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if _SMALL <= abs(value) < _LARGE:
        return np.format_float_positional(value, precision=_DIGITS, fractional=False, trim="-")
    return f"{value:.{_DIGITS - 1}e}"


def as_html(item: Any) -> str:
    """Write an item as HTML, escaped when it has no HTML of its own."""
    if hasattr(item, "to_string"):
        return str(item.to_html())  # a frame would leave rows out
    if hasattr(item, "_repr_html_"):
        return str(item._repr_html_())
    return f"<pre>{html.escape(str(item))}</pre>"
