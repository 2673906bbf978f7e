"""Every page computes the same for a record as for itself."""

import dataclasses

import pytest
from page_runner import EXAMPLES, laid_out, run_page

from ortmeter.study.records import load, replay

PAGES = [
    pytest.param(page, marks=pytest.mark.slow if page.parent.name == "backend" else [])
    for page in sorted(EXAMPLES.rglob("plot_*.py"))
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_draws_the_same_sentences_from_its_record(page, tmp_path):
    names = run_page(page.stem)
    if study := names.get("study"):
        names = {"here": study.here, "conclusion": study.concluded, "report": study.replay}
        if study.by_claims:
            return  # its claims are judged on its records, see test_verdicts
    here = dataclasses.replace(names["here"], fast=False)  # a fast run is never kept
    assert here.page == page.stem
    concluded = names["conclusion"](here)
    there = load(here.save(concluded, tmp_path))
    assert str(names["conclusion"](there)) == str(concluded)
    with laid_out():
        assert str(concluded) in str(replay(names["report"], [there]))
