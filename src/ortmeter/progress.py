"""Progress: a bar in a terminal or a notebook, lines in a log."""

import io
import logging
import sys
import time
from collections.abc import Collection, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

_SHOW_AFTER_S = 1.0
_LINE_EVERY_S = 5.0

logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without the monitoring thread, which would run beside what is timed."""

    monitor_interval = 0


class _Lines(_Bar):
    """A bar whose refreshes are lines of the log, those of all bars together at a distance."""

    _last_s = -_LINE_EVERY_S

    def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002
        """Log how far it is, unless a line was written a moment ago."""
        now = time.perf_counter()
        if self.n and msg is None and now >= _Lines._last_s + _LINE_EVERY_S:
            _Lines._last_s = now
            logger.info("%d of %d %s", self.n, max(self.n, self.total), self.desc)


def progress_bar(description: str, total: int) -> Any:
    """Return a tqdm bar, shown in a terminal or a notebook only, after one second.

    A page or a file keeps every refresh of a bar as text, so nothing is written there. Where the
    logger of this module has a level of its own, ``INFO``, it gets ``120 of 400 rounds`` every few
    seconds: libraries set that of the root.
    """
    if logger.level and logger.isEnabledFor(logging.INFO):
        sink = io.StringIO()
        return _Lines(desc=description, total=total, file=sink, mininterval=0, leave=False)
    watched = sys.stderr.isatty() or "ipykernel" in type(sys.stderr).__module__
    return _Bar(
        desc=description, total=total, disable=not watched, delay=_SHOW_AFTER_S, leave=False
    )


def follow(items: Collection[_Item], description: str) -> Iterator[_Item]:
    """Iterate over what takes seconds; a terminal, a notebook or the log of a build tells how far.

    Parameters
    ----------
    items : collection
        What to iterate over.
    description : str
        What they are, in the plural.

    Yields
    ------
    object
        Each item.

    Examples
    --------
    >>> [size**2 for size in follow((1, 2), "sizes")]
    [1, 4]
    """
    with progress_bar(description, len(items)) as bar:
        for item in items:
            yield item
            bar.update()
