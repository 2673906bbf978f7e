"""The claims of the pages are judged on their records as they were, and each can be wrong."""

import itertools
import json

import pytest
import verdicts
from matplotlib import pyplot as plt
from page_runner import define_page, is_quick, laid_out

from ortmeter.study.claims import ANSWER

# Claims that no planted sample turns wrong, and why.
SAFE: dict[str, dict[str, str]] = {}
# What an answer gains that is no ratio: fewer wrong results, less memory.
OTHER_GAINS = {
    "% less memory per further session",
    "% of means rejected",
    "% of runs wrong",
    "% of the memory freed",
    "% of the small differences changed verdict",
    "% rejected",
    "more decisions of 100 kept",
    "results right",
}
KEPT = json.loads(verdicts.FILE.read_text(encoding="utf-8"))


def test_every_page_by_claims_is_kept():
    assert list(KEPT) == verdicts.pages()


@pytest.mark.parametrize("page", verdicts.pages())
def test_the_records_judge_the_claims_as_before(page):
    kept = {
        name: {machine: told for machine, told in row.items() if machine != verdicts.WRONG_WHEN}
        for name, row in KEPT[page].items()
    }
    assert verdicts.verdicts(page) == kept, "see `make claims`, then look at each change"


@pytest.mark.parametrize("page", verdicts.pages())
def test_each_claim_can_be_wrong(page):
    wrong = {name: row.get(verdicts.WRONG_WHEN) for name, row in KEPT[page].items()}
    assert {name for name, planted in wrong.items() if not planted} == SAFE.get(page, {}).keys()
    for name, planted in wrong.items():
        assert not planted or name in verdicts.wrong_on(page, *planted)


@pytest.mark.parametrize("page", verdicts.pages())
def test_an_answer_holds_somewhere_fails_nowhere_and_is_a_gain(page):
    every = itertools.chain(*verdicts.sentences(page).values())
    answers = [sentence for sentence in every if sentence.section == ANSWER]
    for name in {sentence.name for sentence in answers}:
        found = {s.verdict for s in answers if s.name == name}
        assert "holds" in found
        assert "fails" not in found
    for sentence in answers:
        if sentence.verdict == "holds":
            least, unit = sentence.finding.effect[0], sentence.finding.unit
            assert least >= 1.05 if unit.startswith("times") else unit in OTHER_GAINS and least > 0


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if is_quick(page) else pytest.mark.slow)
        for page in verdicts.pages()
    ],
)
def test_every_view_shows_every_record(page):
    study = define_page(page)["study"]
    with laid_out():
        for _, record in verdicts.records(page).values():
            assert len(list(study.replay(record))) == len(study._views)
    plt.close("all")
