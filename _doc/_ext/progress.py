"""Tell in the log of the build how far it is: nothing that a page writes reaches a terminal."""

import json
import logging
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from sphinx.util import logging as sphinx_logging

logger = sphinx_logging.getLogger(__name__)

#: Seconds of a page that never ran here.
TYPICAL_S = 20.0
_heard = logging.getLogger("ortmeter.progress")
_heard.propagate = False  # a handler of the root would write into the page
_begun: list[str] = []  # pages of this build


class _Teller(logging.Handler):
    """Sends ``3 of 24, about 6 min left: plot_threads, 120 of 400 sessions, 31 s`` to the log."""

    def __init__(self, page: str, left: dict[str, float]) -> None:
        super().__init__()
        self._begin, self._left = time.perf_counter(), dict(left)
        self._page, self._mine = page, self._left.pop(page, TYPICAL_S)
        self._place = f"{len(_begun)} of {len(_begun) + len(self._left)}"

    def emit(self, record: logging.LogRecord) -> None:
        """Send a line."""
        seconds = time.perf_counter() - self._begin
        minutes = (sum(self._left.values()) + max(self._mine - seconds, 0)) / 60
        left = f"about {minutes:.0f} min" if minutes >= 1 else "less than 1 min"
        line = f"{self._place}, {left} left: {self._page}, {record.getMessage()}, {seconds:.0f} s"
        if sys.__stdout__ and sys.__stdout__.isatty():
            # One line that is written again, as Sphinx writes that of the pages.
            width = shutil.get_terminal_size().columns - 1
            logger.info("\x1b[2K%s\r", line[:width], nonl=True)
        else:
            logger.info("%s", line)


def follow(gallery_conf: dict[str, Any], page: str | None, when: str) -> None:
    """Follow a page while it runs; sphinx-gallery calls it before and after each page."""
    before, name = when == "before", Path(page or "").stem
    if before:
        _begun.append(name)
    _heard.handlers = [_Teller(name, expect_seconds(gallery_conf))] if before else []
    _heard.setLevel(logging.INFO if before else logging.NOTSET)
    _heard.info("started")


def expect_seconds(gallery_conf: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each page that this build has not finished: those of its last run."""
    source, found = Path(gallery_conf["src_dir"]), {}
    examples, gallery = (source / gallery_conf[key][0] for key in ("examples_dirs", "gallery_dirs"))
    for script in examples.rglob("plot_*.py"):
        copy = gallery / script.relative_to(examples)
        is_begun = script.stem in _begun[:-1] or copy.with_suffix(".py.md5").exists()
        if not is_begun and re.search(gallery_conf["filename_pattern"], str(script)):
            found[script.stem] = _last_seconds(copy.with_suffix(".cost.json"))
    return found


def _last_seconds(file: Path) -> float:
    try:
        return float(json.loads(file.read_text(encoding="utf-8"))["time"])
    except (OSError, ValueError):  # it never ran, or a build was interrupted
        return TYPICAL_S
