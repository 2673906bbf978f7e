"""Shared by the tests: small models, and what a machine without CUDA skips."""

import matplotlib as mpl
import pytest

from ortmeter.runtime.providers import usable_providers

mpl.use("Agg")


def pytest_collection_modifyitems(items):
    if "cuda" in usable_providers():
        return
    skip = pytest.mark.skip(reason="CUDA does not work on this machine")
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(skip)
