"""Shared by the tests: small models, which process runs what, what a machine without CUDA skips."""

import functools

import matplotlib as mpl
import pytest

from ortmeter.errors import ProviderUnavailableError
from ortmeter.runtime.providers import resolve_provider, usable_providers

mpl.use("Agg")


def group_of(item):
    """Name what a test shares with others: an environment, a page, else its file."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    page = params.get("extras") or params.get("page")
    return str(getattr(page, "stem", page) or item.path.stem.replace("test_page_", "plot_"))


@functools.cache
def why_no_device():
    """Say why WebGPU cannot be tested here; without its package, no process looks for it."""
    try:
        resolve_provider("webgpu")
    except ProviderUnavailableError as error:
        return str(error)
    return ""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the marks
def pytest_collection_modifyitems(items):
    """Keep a file in one process, and a page: what is expensive is made once."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
    # The pages take longest: first, so that no process waits for the other at the end.
    items.sort(key=lambda item: not group_of(item).startswith("plot_"))
    for item in items:
        if item.get_closest_marker("device") and (reason := why_no_device()):
            item.add_marker(pytest.mark.skip(reason=reason))
    if "cuda" in usable_providers():
        return
    skip = pytest.mark.skip(reason="CUDA does not work on this machine")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
