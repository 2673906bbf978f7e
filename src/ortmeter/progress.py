"""Progress: a bar in a terminal or a notebook, lines in a log."""

import io
import logging
import sys
import time
from typing import Any

from tqdm import tqdm

_SHOW_AFTER_S = 1.0
_LINE_EVERY_S = 5.0

logger = logging.getLogger(__name__)


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without the monitoring thread, which would run beside what is timed."""

    monitor_interval = 0


class _Lines(_Bar):
    """A bar whose refreshes are lines of the log, those of all bars together at a distance."""

    _last_s = -_LINE_EVERY_S

    def display(self, msg: str | None = None, pos: int | None = None) -> None:  # noqa: ARG002
        """Log how far it is, unless a line was written a moment ago."""
        now = time.perf_counter()
        if self.n and now >= _Lines._last_s + _LINE_EVERY_S:
            _Lines._last_s = now
            logger.info("%d of %d %s", self.n, max(self.n, self.total), self.desc)


def progress_bar(description: str, total: int) -> Any:
    """Return a tqdm bar, shown in a terminal or a notebook only, after one second.

    A page or a file keeps every refresh of a bar as text, so nothing is written there. Where the
    logger of this module is enabled for ``INFO``, it gets ``120 of 400 rounds`` every few seconds.
    """
    if logger.isEnabledFor(logging.INFO):
        return _Lines(desc=description, total=total, file=io.StringIO(), mininterval=0)
    watched = sys.stderr.isatty() or "ipykernel" in type(sys.stderr).__module__
    return _Bar(
        desc=description, total=total, disable=not watched, delay=_SHOW_AFTER_S, leave=False
    )
