"""The page on the decomposition of an einsum, after it ran in fast mode."""

import numpy as np
import pandas as pd
import pytest
from page_runner import run_page
from scipy.stats import kendalltau, spearmanr

from ortmeter.timing import Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_einsum_decomposition")


def planted(**medians):
    """Samples whose medians are known, by name of candidate."""
    rng = np.random.default_rng(0)
    return {
        name: Measurement(name, median * np.exp(0.01 * rng.standard_normal((1, 80))))
        for name, median in medians.items()
    }


def latencies(page, *, einsum, written, searched):
    names = {page["EINSUM"]: einsum, page["WRITTEN"]: written, page["SEARCHED"]: searched}
    return planted(**names)


def test_a_claim_is_found_again_where_the_samples_say_so(page):
    as_in_2021 = latencies(page, einsum=2.0, written=4.0, searched=1.0)
    otherwise = latencies(page, einsum=2.0, written=1.0, searched=2.0)
    searched, written = page["conclude_claims"]({1: as_in_2021, 2: otherwise})
    assert "faster than Einsum: found again with threads=1;" in searched
    assert "no difference can be claimed between searched and Einsum at threads 2" in searched
    assert "slower than Einsum: found again with threads=1;" in written
    assert "decomposed as written is faster than Einsum at threads 2 (2.0" in written
    both = page["conclude_claims"]({1: otherwise})
    assert all("not found again" in sentence for sentence in both)


def test_what_more_threads_bring(page):
    few = latencies(page, einsum=2.0, written=2.0, searched=1.0)
    many = latencies(page, einsum=2.0, written=1.0, searched=1.0)
    (sentence,) = page["conclude_threads"]({1: few, 4: many})
    assert sentence.startswith("from 1 to 4 threads")
    assert "1.00 for Einsum" in sentence
    assert "2.00 for decomposed as written" in sentence
    assert page["conclude_threads"]({1: few}) == ["only one number of threads was measured."]


def test_correlations_are_those_of_scipy(page):
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, 12))
    second += 3 * first
    sets = [{str(i): Measurement(str(i), [[np.exp(v)]]) for i, v in enumerate(x)}
            for x in (first, second)]  # fmt: skip
    spearman, kendall, chance = page["correlate"](*sets)
    assert spearman == pytest.approx(spearmanr(first, second).statistic)
    assert kendall == pytest.approx(kendalltau(first, second).statistic)
    assert chance < 0.05


def test_an_order_comes_back_or_is_noise(page):
    times = {str(i): float(i) for i in range(1, 11)}
    shuffled = dict(
        zip(times, np.random.default_rng(1).permutation(list(times.values())), strict=True)
    )
    describe = page["describe_order"]
    again = describe("candidates", planted(**times), planted(**times))
    assert "10 candidates: the slowest takes" in again
    assert "the order comes back (Spearman 1.00, Kendall 1.00)" in again
    assert "may be noise" in describe("candidates", planted(**times), planted(**shuffled))


def test_the_number_of_graphs_is_counted(page):
    same = planted(**{"a": 1.0, "b": 2.0, page["EINSUM"]: 1.5})
    sentences = page["conclude_order"](["x", "y"], {1: same, 2: same}, {1: same, 2: same}, same)
    assert sentences[0] == "the 120 orders of the letters give 2 graphs."
    assert "1 of the 2 decompositions are faster than Einsum" in sentences[1]
    assert len(sentences) == 5


@pytest.mark.parametrize(
    ("einsum", "fate"), [(1.5, "not contradicted"), (3.0, "wrong"), (0.5, "wrong")]
)
def test_the_place_of_einsum_follows_the_samples(page, einsum, fate):
    samples = planted(**{"a": 1.0, "b": 2.0, page["EINSUM"]: einsum})
    assert page["conclude_place"](samples).endswith(f"the worst of them is {fate}.")


def split(page, best, worst):
    columns = ["copies", "product", "others", "kernels", "FusedMatMul"]
    return pd.DataFrame([best, worst], index=[page["BEST"], page["WORST"]], columns=columns)


def test_the_cause_follows_the_profiles(page):
    copies, fusion = page["conclude_cause"](split(page, (10, 50, 0, 3, 0), (100, 60, 0, 4, 0)))
    assert "loses 100 µs to the best one, 90% in copies" in copies
    assert "transpositions decide is not contradicted" in copies
    assert "explains the speed: wrong here" in fusion
    copies, fusion = page["conclude_cause"](split(page, (10, 50, 0, 3, 1), (20, 140, 0, 4, 0)))
    assert "10% in copies: the prediction that transpositions decide is wrong" in copies
    assert "possible here" in fusion
    assert "best order has 1 of 3; worst order has 0 of 4" in fusion


def test_split_transpositions_are_compared_when_there_are_some(page):
    worst = "order nbsth"
    (sentence,) = page["conclude_split"](planted(**{worst: 4.0, worst + page["SPLIT"]: 1.0}), worst)
    assert "order nbsth, split transposes is 4.0" in sentence
    assert page["conclude_split"](planted(**{worst: 4.0}), worst) == []


def test_the_price_of_a_search_is_in_calls(page):
    wins = latencies(page, einsum=3e-3, written=1.0, searched=1e-3)
    loses = latencies(page, einsum=1e-3, written=1.0, searched=2e-3)
    search = {"best": "order bntsh", "candidates": 3, "seconds": 2.0}
    won, lost = page["conclude_price"]({1: search, 2: search}, {1: wins, 2: loses})
    assert "chose order bntsh among 3 candidates in 2.00 s: it pays after" in won
    calls = float(won.split("after ")[1].split()[0].replace(",", ""))
    assert calls == pytest.approx(1000, rel=0.02)
    assert lost.endswith("it does not pay.")


def test_every_candidate_is_checked_against_the_bound(page):
    wrong = page["expected"] + 10 * page["bound"]
    with pytest.raises(AssertionError, match="planted is outside of its bound"):
        page["check"]("planted", wrong)
    assert page["check"]("planted", page["expected"])["absolute error"] == 0
