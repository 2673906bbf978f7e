"""Every page computes the same for a record as for itself."""

import pytest
from page_runner import EXAMPLES, run_page

import ortmeter
from ortmeter.pages import load

PAGES = sorted(EXAMPLES.rglob("plot_*.py"))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_draws_the_same_sentences_from_its_record(path, tmp_path):
    names = run_page(path.stem)
    here = names["here"]
    assert here.page == path.stem
    there = load(here.save(names["conclusion"](here), tmp_path))
    assert str(names["conclusion"](there)) == str(names["conclusion"](here))
    assert str(names["conclusion"](here)) in str(ortmeter.replay(names["report"], [there]))
