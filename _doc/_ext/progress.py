"""Tell in the log of the build how far a page is: nothing that a page writes reaches a terminal."""

import logging
import sys
import time
from pathlib import Path
from typing import Any

from sphinx.util import logging as sphinx_logging

logger = sphinx_logging.getLogger(__name__)

_heard = logging.getLogger("ortmeter.progress")


class _Teller(logging.Handler):
    """Sends ``plot_threads: 120 of 400 sessions, 31 s`` to the log: the time of the page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._page, self._begin = page, time.perf_counter()
        # On a terminal, one line that is written again, as Sphinx writes that of the pages.
        self._format = "\x1b[2K%s: %s, %.0f s\r" if sys.__stdout__.isatty() else "%s: %s, %.0f s"

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        seconds = time.perf_counter() - self._begin
        single = self._format.endswith("\r")
        logger.info(self._format, self._page, record.getMessage(), seconds, nonl=single)


def follow(_gallery_conf: dict[str, Any], page: str | None, when: str) -> None:
    """Follow a page while it runs; sphinx-gallery calls it before and after each page."""
    before = when == "before"
    _heard.handlers = [_Teller(Path(page or "").stem)] if before else []
    _heard.setLevel(logging.INFO if before else logging.NOTSET)
