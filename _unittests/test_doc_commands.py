"""What the site shows of the output of a command."""

import sys
from pathlib import Path

import pytest
from sphinx.errors import ExtensionError

sys.path.insert(0, str(Path(__file__).parent.parent / "_doc"))
from _ext.commands import find_points

PRINTED = """\
A machine

Conclusion of nothing
---------------------
- no

Conclusion
----------
- one is
  longer.
- two.
"""


def test_points_are_on_one_line():
    assert find_points(PRINTED, "Conclusion") == ["- one is longer.", "- two."]


def test_a_missing_heading_stops_the_build():
    with pytest.raises(ExtensionError, match="nothing is printed below 'Other'"):
        find_points(PRINTED, "Other")
