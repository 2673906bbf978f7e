"""Run a page in fast mode, to test its functions on planted results."""

import runpy
import sys
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

EXAMPLES = Path(__file__).parent.parent / "_doc" / "examples"


def run_page(path):
    """Return the names that a page defines, given its path below the examples."""
    script = str(EXAMPLES / path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ORTMETER_FAST", "1")
        patch.setenv("ORTMETER_PROVIDER", "cpu")
        patch.setenv("MPLBACKEND", "agg")
        patch.setattr(sys, "argv", [script])
        names = runpy.run_path(script)
    plt.close("all")
    return names
