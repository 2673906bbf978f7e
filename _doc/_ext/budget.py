"""Time budgets: the build tells which pages take too long to run, and never fails for it.

A machine that is busy is no reason to refuse a change. The times are those of the report that
sphinx-gallery writes for the pages that ran in this build.
"""

import os
from pathlib import Path
from xml.etree import ElementTree as ET

from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

#: Seconds that a page may take on two cores.
PAGE_S = 60
#: Seconds that all pages may take.
TOTAL_S = 8 * 60


def check_budgets(app: Sphinx, exception: Exception | None) -> None:
    """Tell what took too long."""
    conf = app.config.sphinx_gallery_conf
    # Fast mode has its own sizes, and without pages the report is that of another build.
    if exception is not None or os.environ.get("ORTMETER_FAST") or not conf["plot_gallery"]:
        return
    for message in over_budget(read_times(Path(conf["junit"]))):
        logger.info("%s", message)


def read_times(report: Path) -> dict[str, float]:
    """Read how long each page ran, in seconds, from the report of sphinx-gallery.

    Parameters
    ----------
    report : Path
        JUnit file of the build.

    Returns
    -------
    dict of str to float
        By path below the folder of the pages, for example ``performance/plot_x.py``.
    """
    root = ET.parse(report).getroot()  # noqa: S314 - written by this build
    cases = root.iter("testcase")
    return {case.attrib["file"].partition("/")[2]: float(case.attrib["time"]) for case in cases}


def over_budget(times: dict[str, float]) -> list[str]:
    """List what took longer than its budget.

    Parameters
    ----------
    times : dict of str to float
        See :func:`read_times`.

    Returns
    -------
    list of str
        One sentence per page, one more for all of them.
    """
    sentences = [_sentence(p, seconds, PAGE_S) for p, seconds in times.items() if seconds > PAGE_S]
    total = sum(times.values())
    everything = [_sentence(f"all {len(times)} pages", total, TOTAL_S)]
    return sentences + (everything if total > TOTAL_S else [])


def _sentence(what: str, seconds: float, budget: float) -> str:
    return f"{what} took {seconds:.1f} s, the budget is {budget} s"
