"""Progress bars in a terminal or a notebook."""

import sys
from typing import Any

from tqdm import tqdm

_SHOW_AFTER_S = 1.0


class _Bar(tqdm):  # type: ignore[misc]
    """A bar without the monitoring thread, which would run beside what is timed."""

    monitor_interval = 0


def progress_bar(description: str, total: int) -> Any:
    """Return a tqdm bar, shown in a terminal or a notebook only, after one second.

    A page or a log keeps every refresh of a bar as text, so nothing is written there.
    """
    watched = sys.stderr.isatty() or "ipykernel" in type(sys.stderr).__module__
    return _Bar(
        desc=description, total=total, disable=not watched, delay=_SHOW_AFTER_S, leave=False
    )
