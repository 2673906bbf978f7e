"""The page on the decomposition of an einsum, after it ran in fast mode."""

import numpy as np
import pandas as pd
import pytest
from page_runner import run_page

import ortmeter
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.claims import compare_ratio

ENOUGH, TOO_FEW = (6, 8), (1, 8)  # processes and rounds


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_einsum_decomposition")


def planted(medians, shape=ENOUGH):
    """Samples whose medians are known, by name of candidate."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, median * np.exp(0.01 * rng.standard_normal(shape)))
        for name, median in medians.items()
    )


def latencies(page, *, einsum=2.0, written=2.0, searched=2.0, shape=ENOUGH):
    names = (page["EINSUM"], page["WRITTEN"], page["SEARCHED"])
    return planted(dict(zip(names, (einsum, written, searched), strict=True)), shape)


def split(page, best=(10, 50, 0, 3, 0), worst=(100, 60, 0, 4, 0)):
    columns = ["copies", "product", "others", "kernels", "FusedMatMul"]
    return pd.DataFrame([best, worst], index=[page["BEST"], page["WORST"]], columns=columns)


def search_table(*same):
    rows = {t: {"search (s)": 1.5, "same as written": s} for t, s in enumerate(same, 1)}
    return pd.DataFrame.from_dict(rows, orient="index")


def conclude(page, *groups, graphs=None, same=True):
    """Conclude from one group for each number of threads."""
    measured = Comparisons(dict(enumerate(groups, 1)), "threads")
    found = planted({"a": 1.0, page["EINSUM"]: 2.0, "b": 4.0}) if graphs is None else graphs
    compared = found if isinstance(found, Comparisons) else Comparisons({20: found}, "size")
    extremes = {page["BEST"]: "a", page["WORST"]: "b"}
    table = search_table(*[same] * len(groups))
    return page["conclude"](measured, compared, split(page), extremes, table)


@pytest.mark.parametrize(
    ("searched", "shape", "start"),
    [
        ((1.0, 0.5), ENOUGH, "Yes: once its order is searched for, it is"),
        (
            (1.0, 2.0),
            ENOUGH,
            "Not always: once its order is searched for, it is faster than Einsum",
        ),
        ((2.0, 3.0), ENOUGH, "No: even once its order is searched for, it is not faster"),
        ((1.0, 0.5), TOO_FEW, "Undecided: there are too few samples"),
    ],
)
def test_the_answer_follows_the_samples(page, searched, shape, start):
    groups = [latencies(page, searched=median, shape=shape) for median in searched]
    answer, _ = conclude(page, *groups)
    text = str(answer)
    assert text.startswith(start)
    assert text.endswith("copies take 90 µs more, the other nodes 10 µs more.")
    assert [claim.where for claim in answer.claims] == [{"threads": 1}, {"threads": 2}]
    if searched == (1.0, 2.0):
        assert "with threads=1 only. Why: " in text


def test_the_answer_covers_the_intervals(page):
    answer, _ = conclude(page, latencies(page, searched=1.0), latencies(page, searched=0.5))
    low = min(claim.low for claim in answer.claims)
    high = max(claim.high for claim in answer.claims)
    assert 1.9 < low < 2
    assert 4 < high < 4.2
    assert f"it is {low:.2f} to {high:.2f} times faster than Einsum. Why: " in str(answer)


def test_what_2021_claimed_is_found_by_its_topic(page):
    as_in_2021 = latencies(page, written=4.0, searched=1.0)
    otherwise = latencies(page, written=1.0, searched=2.0)
    _, claims = conclude(page, as_in_2021, otherwise)
    verdicts = {}
    for claim in claims:
        verdicts.setdefault(claim.topic, []).append(claim.verdict)
    assert verdicts["decomposed after search"][0] == "faster"
    assert verdicts["decomposed after search"][1] not in {"faster", "slower"}
    assert verdicts["decomposed as written"] == ["slower", "faster"]
    assert verdicts["fused product"] == ["wrong"]


def test_too_few_samples_decide_nothing(page):
    graphs = planted({"a": 1.0, page["EINSUM"]: 2.0, "b": 4.0}, TOO_FEW)
    graphs = Comparisons({20: graphs, 14: graphs}, "size")
    few = latencies(page, written=4.0, searched=1.0, shape=TOO_FEW)
    _, claims = conclude(page, few, graphs=graphs, same=False)
    assert len(claims) == 7
    assert {claim.verdict for claim in claims} == {"undecided"}


def test_a_search_that_returns_the_graph_as_written_gained_nothing(page):
    measured = Comparisons({1: latencies(page), 2: latencies(page, searched=1.0)}, "threads")
    nothing, gained = page["conclude_search"](measured, search_table(True, False))
    assert str(nothing) == (
        "threads 1: the search (1.50 s) returned the graph as written: it gained nothing"
    )
    assert (gained.subject, gained.verdict) == (page["SEARCHED"], "faster")


def test_the_price_of_a_search_is_in_calls(page):
    wins = latencies(page, written=3e-3, searched=1e-3)
    calls = page["count_calls"](2.0, wins)
    assert float(calls.removesuffix(" calls").replace(",", "")) == pytest.approx(1000, rel=0.02)
    assert page["count_calls"](2.0, latencies(page, written=1e-3, searched=3e-3)) == "-"
    few = latencies(page, written=3e-3, searched=1e-3, shape=TOO_FEW)
    assert page["count_calls"](2.0, few) == "-"


def test_what_is_shorter_in_the_worst_order_is_told_as_less(page):
    shorter = split(page, worst=(100, 20, 0, 4, 0))
    words = "copies take 90 µs more, the other nodes 30 µs less"
    assert words in str(page["judge_cause"](shorter, SURE))
    assert str(page["answer"](Comparisons({1: latencies(page)}, "threads"), shorter)).endswith(
        f"{words}."
    )


SURE = compare_ratio("a", "b", 4.0, (3.9, 4.1))
UNSURE = compare_ratio("a", "b", 4.0, None)


@pytest.mark.parametrize(
    ("worst", "gap", "verdict"),
    [
        ((100, 60, 0, 4, 0), SURE, "right"),
        ((20, 140, 0, 4, 0), SURE, "wrong"),
        ((100, 60, 0, 4, 0), UNSURE, "undecided"),
    ],
)
def test_the_cause_follows_the_profiles(page, worst, gap, verdict):
    claim = page["judge_cause"](split(page, worst=worst), gap)
    assert claim.verdict == verdict
    assert f"copies take {worst[0] - 10} µs more" in str(claim)


def test_the_times_of_launches_tell_no_cause(page):
    launched = split(page, *[(np.nan, np.nan, np.nan, 3, 0)] * 2)
    claim = page["judge_cause"](launched, SURE)
    assert claim.verdict == "undecided"
    answer = str(page["answer"](Comparisons({1: latencies(page)}, "threads"), launched))
    assert answer.endswith("profiles on a device have launches.")
    assert "nan" not in f"{claim}{answer}"


@pytest.mark.parametrize(
    ("fused", "gap", "verdict"),
    [((0, 0), SURE, "wrong"), ((1, 0), SURE, "undecided"), ((0, 0), UNSURE, "undecided")],
)
def test_a_fused_product_is_no_cause_where_there_is_none(page, fused, gap, verdict):
    best, worst = ((10, 50, 0, 3, n) for n in fused)
    claim = page["judge_fusion"](split(page, best, worst), gap)
    assert claim.verdict == verdict
    assert f"; {fused[0]} FusedMatMul in the best order, {fused[1]} in the worst" in str(claim)


@pytest.mark.parametrize(
    ("einsum", "shape", "verdict"),
    [
        (1.5, ENOUGH, "right"),
        (3.0, ENOUGH, "wrong"),
        (0.5, ENOUGH, "wrong"),
        (1.5, TOO_FEW, "undecided"),
    ],
)
def test_the_place_of_einsum_follows_the_samples(page, einsum, shape, verdict):
    group = planted({"a": 1.0, "b": 2.0, page["EINSUM"]: einsum}, shape)
    claim = page["judge_place"](group)
    assert claim.verdict == verdict
    assert "; its latency over that of a: " in str(claim)
    assert "; that of b over its: " in str(claim)


@pytest.mark.parametrize(
    ("other", "shape", "verdict"),
    [
        ({"a": 1.0, "b": 2.0}, ENOUGH, "right"),
        ({"a": 1.02, "b": 1.02, "d": 3.0}, ENOUGH, "right"),  # as fast as the fastest
        ({"a": 2.0, "b": 1.0}, ENOUGH, "wrong"),
        ({"a": 2.0, "b": 1.0}, TOO_FEW, "undecided"),
    ],
)
def test_the_winner_of_a_size_is_judged_at_the_other(page, other, shape, verdict):
    groups = {20: planted({"a": 1.0, "b": 2.0, "c": 3.0}, shape), 14: planted(other, shape)}
    (claim,) = page["judge_sizes"](Comparisons(groups, "size"))
    assert claim.verdict == verdict
    assert "the best at size 20 is a; at size 14, " in str(claim)
    assert list(page["judge_sizes"](Comparisons({20: groups[20]}, "size"))) == []


def test_split_transpositions_are_compared_where_there_are_some(page):
    fast = "b" + page["SPLIT"]
    plain = {"a": 1.0, page["EINSUM"]: 2.0, "b": 4.0}
    graphs = Comparisons({20: planted({**plain, fast: 1.5}), 14: planted(plain)}, "size")
    _, claims = conclude(page, latencies(page), graphs=graphs)
    (found,) = [claim for claim in claims if claim.subject == fast]
    assert (found.baseline, found.verdict, found.where) == ("b", "faster", {"size": 20})


def test_every_candidate_is_built_again_in_a_fresh_process(page):
    found = ortmeter.measure(
        page["groups"][1], processes=2, repeat=1, warmup=1, precision=None, budget_s=60
    )
    assert {measured.seconds.shape for measured in found.values()} == {(2, 1)}
    assert list(found) == list(page["measured"][1])


def test_numpy_computes_the_equation(page):
    got = page["build_numpy"](page["EQUATION"], page["args"].size, optimize=True)()
    bound = page["bound"]
    assert (np.abs(got - page["expected"]) <= bound).all()


def test_every_candidate_is_checked_against_the_bound(page):
    wrong = page["expected"] + 10 * page["bound"]
    with pytest.raises(AssertionError, match="planted is outside of its bound"):
        page["check"]("planted", wrong)
    assert page["check"]("planted", page["expected"])["absolute error"] == 0
