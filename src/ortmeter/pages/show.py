"""Show a result wherever a page runs."""

import sys
from typing import TypeVar

from ortmeter.host import in_ipython

__all__ = ["show"]

_T = TypeVar("_T")


def show(result: _T) -> _T | None:
    """Show a result at the end of a cell.

    A notebook and the published gallery display the last value of a cell, a script does not: there
    the result is printed.

    Parameters
    ----------
    result : object
        What to show.

    Returns
    -------
    object or None
        The result itself, for whoever displays it; None once printed.

    Examples
    --------
    >>> show("median 2 ms")
    median 2 ms
    """
    if "sphinx_gallery" in sys.modules or in_ipython():
        return result
    # A frame shortens its text to the width of a terminal unless asked for all of it.
    print(result.to_string() if hasattr(result, "to_string") else result)  # noqa: T201
    return None
