"""What the site shows of the output of a command, and of blocks of code."""

import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from _ext.commands import find_points
from _ext.executed import run_code
from sphinx.errors import ExtensionError

from ortmeter.cli.execution import COMMANDS, make_parser

DOC = Path(__file__).parent.parent / "_doc"


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


@pytest.mark.parametrize("page", ["own_model", "commands", "several_machines"])
def test_a_page_names_only_options_that_exist(page):
    text = (DOC / f"{page}.rst").read_text(encoding="utf-8")
    parsers = {name: make_parser(name) for name in COMMANDS}
    known = {option for one in parsers.values() for option in _options(one)}
    of_dask = {"--host", "--no-dashboard", "--no-nanny", "--nthreads"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) <= known | of_dask


def test_the_reference_has_every_command():
    text = (DOC / "commands.rst").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. ortmeter-command:: (\w+) --help$", text, re.MULTILINE)
    assert sorted(shown) == sorted(COMMANDS)


def _options(parser):
    for action in parser._actions:
        yield from action.option_strings
        if action.dest == "command":
            for child in action.choices.values():
                yield from _options(child)


def test_a_missing_heading_stops_the_build():
    with pytest.raises(ExtensionError, match="nothing is printed below 'Other'"):
        find_points(PRINTED, "Other")


BLOCK = re.compile(
    r"^\.\. code-block:: python\n   :class: executed\n\n((?:   .*\n|\n)+)", re.MULTILINE
)


@pytest.fixture(scope="module")
def helper():
    """Blocks of the page on the helper, what each one prints, and the names that they define."""
    text = (DOC / "helper.rst").read_text(encoding="utf-8")
    blocks, names = [textwrap.dedent(block).strip() for block in BLOCK.findall(text)], {}
    shorter = [block.replace("budget_s=4", "budget_s=0.5") for block in blocks]
    assert shorter != blocks
    return blocks, [run_code(block, names) for block in shorter], names


def test_the_page_on_the_helper_is_short(helper):
    lengths = [len(block.splitlines()) for block in helper[0]]
    assert len(lengths) == 6
    assert max(lengths) <= 10
    assert sum(lengths) <= 80


def test_the_page_on_the_helper_prints_what_it_promises(helper):
    _, (nothing, timed, distance, merged, result, arguments), names = helper
    assert arguments == "size=64, threads=1"
    assert nothing == ""
    assert result == "(64, 64)"
    ops = {line.split("(")[0].strip(): line for line in merged.splitlines()[1:]}
    assert "baseline only" in ops["Erf"]
    assert "candidate only" in ops["Gelu"]
    assert "both" in ops["MatMul"]
    x, w = (torch.from_numpy(names["feeds"][name]).double() for name in "XW")
    expected = torch.nn.functional.gelu(x @ w).numpy()
    worst = np.abs(expected - names["got"]).max()
    assert float(distance.split()[2]) == pytest.approx(worst, rel=1e-2)
    assert re.search(r"^optimization=all is .* than optimization=none \[.*\]|undecided", timed)


def test_a_block_that_fails_stops_the_build():
    with pytest.raises(ExtensionError, match="ZeroDivisionError: .*raised by\n1 / 0"):
        run_code("1 / 0", {})
