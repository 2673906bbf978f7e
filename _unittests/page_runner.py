"""Run a page in fast mode, to test its functions on planted results."""

import functools
import runpy
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"


@functools.cache
def run_page(name):
    """Return the names that a page defines, for tests that change none of them."""
    (script,) = map(str, EXAMPLES.rglob(f"{name}.py"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_FAST", "1")
        patch.setenv("ORTMETER_PROVIDER", "cpu")
        patch.setenv("MPLBACKEND", "agg")
        patch.setattr(sys, "argv", [script])
        names = runpy.run_path(script)
    plt.close("all")
    return names
