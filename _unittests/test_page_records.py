"""Every page computes the same for a record as for itself."""

import dataclasses

import pytest
from page_runner import EXAMPLES, laid_out, run_page

from ortmeter.study.records import load, replay

# Pages that their own tests run too, and the reduction; the site runs all of them.
QUICK = """broken einsum_decomposition kmeans_profiling layer_norm_discrepancies
memory op_gemm2_cuda parallelized_reduction profiling python_cost sweep"""


def marks(page):
    if "custom_backend" in page.stem:
        return pytest.mark.slow
    return [] if page.stem.removeprefix("plot_") in QUICK.split() else pytest.mark.long


PAGES = [pytest.param(page, marks=marks(page)) for page in sorted(EXAMPLES.rglob("plot_*.py"))]


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
