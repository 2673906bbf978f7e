"""The conclusions of the page *One big Gemm or two smaller?*, from planted samples."""

import dataclasses

import numpy as np
import pytest
from page_runner import run_page

from ortmeter.pages import replay
from ortmeter.timing import Comparison, Comparisons, Measurement


@pytest.fixture(scope="module")
def gemm_page():
    """Names of the Gemm page, after it ran."""
    return run_page("plot_op_gemm2_cuda")


def planted(**medians):
    """Samples whose medians are known, by name of candidate."""
    names = {
        "two": "two Gemms",
        "concat": "Concat then Gemm",
        "one": "one Gemm (constant)",
        "two_constant": "two Gemms (constant)",
        "copied": "two Gemms (session.run)",
    }
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(names[key], m * np.exp(0.01 * rng.standard_normal((10, 12))))
        for key, m in medians.items()
    )


FASTER = planted(two=2.0, concat=1.0, one=1.0, two_constant=3.0, copied=2.0)
SLOWER = planted(two=1.0, concat=2.0, one=3.0, two_constant=1.5, copied=2.0)
EQUAL = planted(two=1.0, concat=1.0, one=1.0, two_constant=1.0, copied=1.0)


def test_the_answer_follows_the_samples(gemm_page):
    answer, claims = gemm_page["conclude"](Comparisons({1: FASTER, 2: SLOWER, 3: EQUAL}, "size"))
    text = str(answer)
    assert text.startswith(
        "With constant weights, one Gemm (constant) is faster than two Gemms (constant) at size 1 "
    )
    assert "is slower than two Gemms (constant) at size 2" in text
    assert "within 5% at size 3" in text
    changing = [claim for claim in claims if claim.topic == "weights that change"]
    assert [claim.verdict for claim in changing][:2] == ["faster", "slower"]
    assert changing[0].ratio == pytest.approx(2, rel=0.05)
    ranks = [str(claim) for claim in claims if "ranking" in claim.values]
    assert ranks[1].startswith("size 2: two Gemms has the lowest median; slower: Concat then Gemm")


@pytest.mark.parametrize(
    ("groups", "verdict"),
    [({1: FASTER, 2: SLOWER}, "wrong"), ({1: FASTER, 3: EQUAL}, "right")],
)
def test_the_prediction_is_judged(gemm_page, groups, verdict):
    _, claims = gemm_page["conclude"](Comparisons(groups, "size"))
    (prediction,) = [claim for claim in claims if "predicted" in claim.subject]
    assert prediction.verdict == verdict


def test_too_few_samples_decide_nothing(gemm_page):
    few = Comparison(Measurement(m.name, m.seconds[:1, :5]) for m in FASTER.values())
    answer, claims = gemm_page["conclude"](Comparisons({1: few}, "size"))
    assert "too few samples for an interval" in str(answer)
    assert not any(claim.is_difference for claim in claims)
    (prediction,) = [claim for claim in claims if "predicted" in claim.subject]
    assert prediction.verdict == "undecided"


def test_another_machine_gets_the_answer_of_its_own_samples(gemm_page):
    here = gemm_page["here"]
    there = dataclasses.replace(
        here,
        data={**here.data, "results": Comparisons({2: SLOWER}, "size")},
        environment=dataclasses.replace(here.environment, cpu="A Planted CPU"),
    )
    text = " ".join(str(replay(gemm_page["report"], [there])).split())
    assert text.startswith("A Planted CPU, ")
    assert "one Gemm (constant) is slower than two Gemms (constant) at size 2 (0.5" in text
    assert "Wrong: predicted that joined weights are never slower" in text
    assert "Measured on A Planted CPU" in text
