"""Every page computes the same for a record as for itself."""

import dataclasses

import pytest
from page_runner import EXAMPLES, is_quick, laid_out, run_page

from ortmeter.pictures import Picture, freeze
from ortmeter.study.records import load

# Their own tests run them too.
SLOW = {"broken", "custom_backend_101", "custom_backend_llama_102", "einsum_decomposition"}
SLOW |= {"layer_norm_discrepancies", "memory", "profiling", "python_cost"}


def marks(page):
    if is_quick(page.stem):
        return []
    return pytest.mark.slow if page.stem.removeprefix("plot_") in SLOW else pytest.mark.long


PAGES = [pytest.param(page, marks=marks(page)) for page in sorted(EXAMPLES.rglob("plot_*.py"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_same_from_its_record(page, tmp_path):
    study = run_page(page.stem)["study"]
    here = dataclasses.replace(study.here, fast=False)  # a fast run is never kept
    assert here.page == page.stem
    there = load(here.save(study.judged(here), tmp_path))
    assert study.judged(there).claims == study.judged(here).claims == there.claims
    with laid_out():
        views = (map(freeze, study.replay(record)) for record in (here, there))
        for one, other in zip(*views, strict=True):
            assert isinstance(one, Picture) or str(one) == str(other)
