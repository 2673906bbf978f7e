"""What is shared between the tests is made once: their files stay in one process."""

import pytest
from conftest import group_of

RAN = []
GROUPS = {
    "a/timing/test_loop.py::test_x[plot-1]": "a/timing/test_loop.py",
    "a/test_page_memory.py::test_x": "plot_memory",
    "a/test_page_records.py::test_x[plot_memory]": "plot_memory",
    "a/test_browser.py::test_x[auto_examples/any/plot_memory.html-390]": "plot_memory",
    "a/test_built_site.py::test_x[plot_memory-pages,torch]": "pages,torch",
}


@pytest.mark.parametrize("rank", range(8))
def test_a_file_stays_in_one_process(rank):
    RAN.append(rank)
    assert list(range(RAN[0], rank + 1)) == RAN


def test_what_a_test_shares_with_others():
    assert {nodeid: group_of(nodeid) for nodeid in GROUPS} == GROUPS
