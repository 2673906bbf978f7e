"""Shared by the tests: small models, which process runs what, what a machine without CUDA skips."""

import matplotlib as mpl
import pytest

from ortmeter.runtime.providers import usable_providers

mpl.use("Agg")


def group_of(item):
    """Name what a test shares with others: an environment, a page, else its file."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    page = params.get("extras") or params.get("page")
    return str(getattr(page, "stem", page) or item.path.stem.replace("test_page_", "plot_"))


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keep a file in one process, and a page: what is expensive is made once."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    # The pages take longest: first, so that no process waits for the other at the end.
    items.sort(key=lambda item: not group_of(item).startswith("plot_"))
    if "cuda" in usable_providers():
        return
    skip = pytest.mark.skip(reason="CUDA does not work on this machine")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
