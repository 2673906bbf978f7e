"""The page on the decomposition of an einsum, after it ran in fast mode."""

import itertools
import re
import sys

import numpy as np
import pandas as pd
import pytest
from claim_samples import compare_ratio
from page_runner import run_page

import ortmeter
from ortmeter.evidence import Speedup
from ortmeter.study.writer import Answer
from ortmeter.timing import Comparison, Comparisons, Measurement

ENOUGH, TOO_FEW = (6, 8), (1, 8)  # processes and rounds
ROLES = {
    "decomposed": "order fast",
    "as written": "order written",
    "best order": "order fast",
    "worst order": "order slow",
}


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


def group(fast=1.0, *, einsum=2.0, written=1.5, slow=6.0, shape=ENOUGH, **others):
    orders = {"order fast": fast, "order written": written, "order slow": slow}
    return planted({"Einsum": einsum, **orders, **others}, shape)


def by_threads(*groups):
    return Comparisons(dict(enumerate(groups, 1)), "threads")


def sums(best=(10, 60, 0), worst=(100, 160, 0), written=(20, 80, 0)):
    """Time of the transpositions and of all the nodes, in µs, with the number of FusedMatMul."""
    columns = ["copies", "all", "FusedMatMul"]
    index = ["best order", "as written", "worst order"]
    return pd.DataFrame([best, written, worst], index=index, columns=columns)


def searched(measured, *names):
    """What the search chose for each number of threads, the fast order by default."""
    return pd.DataFrame({"chosen": names or ["order fast"] * len(measured)})


def answer(page, measured, split=None, chosen=None):
    found = searched(measured) if chosen is None else chosen
    return page["answer"](measured, sums() if split is None else split, ROLES, found)


def conclude(page, measured, compared=None, chosen="order fast"):
    found = compared or Comparisons({14: group()}, "size")
    names = searched(measured, *[chosen] * len(measured))
    return page["conclude"](measured, found, sums(), ROLES, names)


@pytest.mark.parametrize(
    ("fast", "shape", "start", "verdict"),
    [
        ((1.0, 0.5), ENOUGH, "Yes: ", "faster"),
        ((1.0, 2.0), ENOUGH, "Only with 1 thread: ", "faster in part"),
        ((2.0, 3.0), ENOUGH, "No: ", "not faster"),
        ((1.0, 0.5), TOO_FEW, "Undecided: ", "undecided"),
    ],
)
def test_the_answer_follows_the_samples(page, fast, shape, start, verdict):
    measured = by_threads(*(group(median, shape=shape) for median in fast))
    found = answer(page, measured)
    assert str(found).startswith(f"{start}decomposed into Transpose and MatMul, after a search, bs")
    assert found.label == verdict
    assert [claim.where for claim in found.claims] == [{"threads": 1}, {"threads": 2}]
    assert len(str(found).split()) <= 60


def test_what_is_undecided_with_more_threads_takes_nothing_back(page):
    measured = by_threads(group(), group(shape=TOO_FEW))
    found = str(answer(page, measured))
    assert found.startswith("Yes with 1 thread: ")
    assert "]; hard to tell from Einsum with 2 threads. " in found
    assert found.count("with 1 thread") == 1


def test_the_answer_starts_with_the_threads_that_win(page):
    found = str(answer(page, by_threads(group(2.0), group(1.0))))
    assert found.startswith("Only with 2 threads: decomposed into Transpose and MatMul, ")
    assert re.search(
        r"is 2\.\d\d times faster than Einsum \[[^]]+\]; within 5% of .+ 1 thread\.", found
    )


def test_the_answer_tells_each_interval_and_what_the_order_costs(page):
    measured = by_threads(group(1.0), group(0.5))
    found = answer(page, measured)
    one, two = found.claims
    worst = measured[1].speedup("order slow", "Einsum", confidence=page["LEVEL"])
    assert str(found) == (
        "Yes: decomposed into Transpose and MatMul, after a search, bsnh,btnh->bnts is "
        f"{one.ratio:.2f} times faster than Einsum [{one.low:.2f}, {one.high:.2f}] with 1 thread; "
        f"{two.ratio:.2f} times faster than Einsum [{two.low:.2f}, {two.high:.2f}] with 2 threads. "
        "The worst order of the letters is "
        f"{worst.ratio:.2f} times slower than Einsum {worst.brackets}: "
        "transpositions take 62% of its time, 17% in the best order."
    )
    assert [bar.label for bar in found.bars] == [
        "Einsum",
        "decomposed",
        "as written",
        "worst order",
    ]
    assert [bar.value for bar in found.bars] == pytest.approx([1, 2, 4 / 3, 1 / 3], rel=0.02)


def test_the_answer_is_that_of_the_graph_which_the_search_chose(page):
    """With two threads, only a fused product wins: the answer agrees with the claim of 2021."""
    fused = group(2.0, **{"order fast, FusedMatMul": 1.0})
    measured = by_threads(group(1.0, **{"order fast, FusedMatMul": 1.0}), fused)
    chosen = searched(measured, "order fast", "order fast, FusedMatMul")
    assert str(answer(page, measured, chosen=chosen)).startswith("Yes: decomposed")
    _, claims = page["conclude"](
        measured, Comparisons({14: group()}, "size"), sums(), ROLES, chosen
    )
    after = [claim for claim in claims if claim.topic == "decomposed after search"]
    assert [claim.verdict for claim in after] == ["faster", "faster"]
    (product,) = [claim for claim in claims if claim.topic == "fused product"]
    assert product.verdict == "wrong"
    assert "within 5% with 1 thread, 2.0" in str(product)


def test_orders_that_cannot_be_told_apart_are_not_told_apart(page):
    alike = group(1.0, written=1.0, slow=1.0)
    assert "order" not in str(answer(page, by_threads(alike)))


def test_two_numbers_of_threads_that_say_the_same_are_told_once(page):
    few = group(shape=TOO_FEW)
    assert "is hard to tell from Einsum with 1 and 2 threads." in str(
        answer(page, by_threads(few, few))
    )


def test_what_2021_claimed_is_found_by_its_topic(page):
    as_in_2021, otherwise = group(1.0, written=4.0), group(2.0, written=1.0)
    _, claims = conclude(page, by_threads(as_in_2021, otherwise))
    verdicts = {}
    for claim in claims:
        verdicts.setdefault(claim.topic, []).append(claim.verdict)
    assert verdicts["decomposed after search"][0] == "faster"
    assert verdicts["decomposed after search"][1] not in {"faster", "slower"}
    assert verdicts["decomposed as written"] == ["slower", "faster"]
    assert verdicts["fused product"] == ["wrong"]
    assert {c.subject for c in claims if isinstance(c, Speedup)} == {
        "decomposed as written",
        "decomposed after a search",
    }


def test_a_search_that_chooses_einsum_is_not_compared_with_it(page):
    _, claims = conclude(page, by_threads(group()), chosen="Einsum")
    (found,) = [claim for claim in claims if claim.topic == "decomposed after search"]
    assert str(found) == "the search chose Einsum itself"


def test_a_search_that_chooses_einsum_for_one_number_of_threads_is_told_in_one_claim(page):
    measured = by_threads(group(), group())
    other = next(name for name in measured[2] if name != "Einsum")
    (claim,) = page["compare_roles"](measured, "decomposed after a search", ["Einsum", other])
    assert claim.topic == "decomposed after search"
    assert claim.where == {"threads": 2}
    assert claim.subject == "decomposed after a search (Einsum itself at threads 1)"


def test_too_few_samples_decide_nothing_in_five_sentences(page):
    few = group(shape=TOO_FEW)
    _, claims = conclude(page, by_threads(few, few), Comparisons({14: few}, "size"))
    assert {claim.verdict for claim in claims} == {"undecided"}
    here = page["here"].conclude(Answer("Undecided."), claims, "")
    assert len(here.sentences) == 1 + 5


def test_a_search_that_returns_the_same_graph_gained_nothing(page):
    name = page["ROLES"]["decomposed"]
    # However their medians compare.
    found = page["tell_gain"](planted({name: 1.0, "another": 0.5}), name, 1.5)
    assert found == "nothing, the same graph"


def test_the_price_of_a_search_is_in_calls(page):
    name = page["ROLES"]["decomposed"]
    times = planted({name: 3e-3, "another": 1e-3})
    gain, _, calls = page["tell_gain"](times, "another", 2.0).partition(", pays after ")
    assert gain == times.speedup(name, "another").interval
    assert float(calls.removesuffix(" calls").replace(",", "")) == pytest.approx(1000, rel=0.02)


@pytest.mark.parametrize(
    ("median", "shape", "verdict"),
    [(3e-3, ENOUGH, "equivalent"), (9e-3, ENOUGH, "slower"), (1e-3, TOO_FEW, "undecided")],
)
def test_a_search_that_gains_nothing_for_sure_does_not_pay(page, median, shape, verdict):
    name = page["ROLES"]["decomposed"]
    found = page["tell_gain"](planted({name: 3e-3, "another": median}, shape), "another", 2.0)
    assert found.startswith(f"{verdict}: ")
    assert "calls" not in found


SURE = compare_ratio("a", "b", 4.0, (3.9, 4.1))
UNSURE = compare_ratio("a", "b", 4.0, None)


@pytest.mark.parametrize(
    ("worst", "gap", "verdict", "others"),
    [
        ((100, 160, 0), SURE, "right", 60),
        ((100, 120, 0), SURE, "right", 20),
        ((20, 200, 0), SURE, "wrong", 180),
        ((100, 160, 0), UNSURE, "undecided", 60),
    ],
)
def test_the_cause_follows_the_profiles(page, worst, gap, verdict, others):
    claim = page["judge_cause"](sums(worst=worst), gap)
    assert claim.verdict == verdict
    assert str(claim).endswith(
        f"the transpositions decide: 10 µs (best order) to {worst[0]} µs (worst), "
        f"other nodes 50 to {others} µs"
    )


def test_the_times_of_launches_tell_no_cause(page):
    launched = sums(*[(np.nan, np.nan, 0)] * 3)
    claim = page["judge_cause"](launched, SURE)
    assert claim.verdict == "undecided"
    text = str(answer(page, by_threads(group()), launched))
    assert "The worst order of the letters is" in text
    assert "transpositions" not in text
    assert "nan" not in f"{claim}{text}"


def test_nodes_without_a_time_have_no_sum(page):
    columns = {"operator": ["Transpose", "FusedMatMul"], "median (µs)": [np.nan, np.nan]}
    found = page["sum_nodes"](pd.DataFrame(columns, index=["best order"] * 2))
    assert np.isnan(found.loc["best order", ["copies", "all"]].astype(float)).all()
    assert found.loc["best order", "FusedMatMul"] == 1


def test_nodes_are_summed_by_order(page):
    columns = {"operator": ["Transpose", "MatMul", "Transpose"], "median (µs)": [3.0, 5.0, 7.0]}
    found = page["sum_nodes"](pd.DataFrame(columns, index=["a", "a", "b"]))
    assert found.loc["a"].tolist() == [3, 8, 0]
    assert found.loc["b"].tolist() == [7, 7, 0]


@pytest.mark.parametrize(
    ("fused", "gap", "variant", "verdict"),
    [
        ((0, 0), SURE, None, "wrong"),
        ((0, 0), SURE, 1.0, "wrong"),
        ((0, 0), SURE, 0.98, "wrong"),  # a gain, too small to explain the speed
        ((0, 0), SURE, 2.0, "wrong"),
        ((0, 0), SURE, 0.5, "undecided"),  # a fused product is faster
        ((1, 0), SURE, None, "undecided"),
        ((0, 0), UNSURE, None, "undecided"),
    ],
)
def test_a_fused_product_is_no_cause_where_it_gains_nothing(page, fused, gap, variant, verdict):
    best, worst = ((10, 60, n) for n in fused)
    others = {} if variant is None else {"order fast, FusedMatMul": variant}
    claim = page["judge_fusion"](by_threads(group(**others)), sums(best, worst), ROLES, gap)
    assert claim.verdict == verdict
    text, _, told = str(claim).partition("; adding one: ")
    assert text.endswith(f": the best order has {fused[0]}, the worst {fused[1]}")
    effects = {None: "", **dict.fromkeys((1.0, 0.98), "within 5% with 1 thread")}
    if variant in effects:
        assert told == effects[variant]
    else:
        times = max(variant, 1 / variant)
        assert told.endswith("] with 1 thread")
        assert told.partition(" [")[0].endswith("faster" if variant < 1 else "slower")
        assert float(told.partition(" ")[0]) == pytest.approx(times, rel=0.02)


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
    first = planted({"a": 1.0, "b": 2.0, "c": 3.0}, shape)
    claim = page["judge_sizes"](first, Comparisons({14: planted(other, shape)}, "size"))
    assert claim.verdict == verdict
    assert re.search(r"the fastest graph \(a\) wins at size 14 too: .+ over b$", str(claim))


def test_each_graph_has_one_time_for_each_size_and_number_of_threads(page):
    measured, compared = page["measured"], page["compared"]
    shown = page["make_table"](measured, compared, page["ROLES"])
    assert shown.index.is_unique
    assert len(shown) == len(measured[1])
    assert list(shown) == ["median (ms)", "1 thread", "2 threads", "size 4"][: shown.shape[1]]
    for name, found in measured[1].items():
        row = page["name_graph"](name, page["ROLES"])
        assert shown.loc[row, "median (ms)"] == 1e3 * found.median
    roles = page["ROLES"]
    assert {"bntsh (decomposed)", "bnsth (as written)"} <= set(shown.index)
    assert roles == {"decomposed": "order bntsh", "as written": "order bnsth"}


def test_the_table_has_the_speedup_of_each_case_and_its_interval(page):
    measured = Comparisons({1: group(), 4: planted({"Einsum": 4.0, "order fast": 1.0})}, "threads")
    shown = page["make_table"](measured, Comparisons({14: group(4.0)}, "size"), ROLES)
    claim = measured[4].speedup("Einsum", "order fast")
    fast = "fast (decomposed)"
    assert shown.loc[fast, "4 threads"] == f"{claim.ratio:.2f} {claim.brackets}"
    assert shown.loc[fast, "size 14"].startswith("0.50 [")
    assert pd.isna(shown.loc["slow", "4 threads"])
    assert shown.index[0] == fast


@pytest.mark.parametrize(
    ("order", "copies"),
    [
        ((), ""),  # a product
        ((0, 2, 1, 3), "rows"),
        ((2, 0, 1, 3), "rows"),
        ((0, 1, 3, 2), "tiles"),
        ((0, 2, 3, 1), "tiles"),
        ((2, 3, 0, 1), "tiles"),
        ((2, 0, 3, 1), "elements"),
        ((1, 0, 3, 2), "elements"),
    ],
)
def test_what_a_transposition_copies_follows_its_axes(page, order, copies):
    class Step:
        where = order

    assert page["tell_copies"](Step) == copies


def test_every_node_of_the_profiles_is_listed(page):
    nodes, profiles = page["nodes"], page["profiles"]
    listed = nodes.groupby(level=0).size().to_dict()
    assert listed == {label: len(ran.model.graph.node) for label, ran in profiles.items()}
    moved = nodes[nodes["operator"] == "Transpose"]
    assert set(moved["copies"]) <= {"rows", "tiles", "elements"}


def test_every_order_is_in_the_table_of_the_equations(page):
    shown = page["table"](page["equations"])._repr_html_()
    equations = page["equations"].reset_index()
    assert all(f"<th>{order}</th>" in shown for order in equations["order"])
    assert set(equations["order"]) == set(map("".join, itertools.permutations("bhnst")))
    assert equations.groupby("graph").size().tolist() == [30] * 4
    # The equation that the original page found the best in 2021, and its order.
    (best,) = equations[equations["equation"] == "hsnt,hbnt->hnbs"].to_dict("records")
    assert (best["order"], best["nodes"]) == ("tbnsh", 3)
    for row in equations.itertuples():
        renamed = dict(zip("".join(sorted(row.order)), row.order, strict=True))
        assert "".join(renamed.get(x, x) for x in row.equation) == page["EQUATION"]


def test_the_steps_are_written_as_equations(page):
    prime = "\N{PRIME}"
    written = [page["write_step"](step) for step in page["decomposed"].steps]
    assert [line.replace(prime, "'") for line in written] == [
        "Z'_{bnth} = Z_{btnh}",
        "X'_{bnhs} = X_{bsnh}",
        "Y_{bnts} = \N{N-ARY SUMMATION}_{h} Z'_{bnth} X'_{bnhs}",
    ]
    html = page["Formula"](written[2])._repr_html_()
    sum_over_h = "<mrow><mo>\N{N-ARY SUMMATION}</mo></mrow><mrow><mi>h</mi></mrow>"
    assert f"<mo>=</mo> <msub>{sum_over_h}</msub> <msub>" in html
    assert "<mrow><mi>Z</mi><mo>\N{PRIME}</mo></mrow><mrow><mi>b</mi><mi>n</mi><mi>t</mi>" in html
    assert re.findall("<(msub|mo>=)", html) == ["msub", "mo>=", "msub", "msub", "msub"]
    letters = re.sub("<.+?>", "", html).replace(" ", "")
    assert letters == re.sub("[_{} ]", "", written[2])


def test_the_chosen_graph_is_shown_as_equations(page, monkeypatch):
    formula = page["Formula"]("Y_{b} = X_{bh} Z_{h}")
    monkeypatch.setitem(sys.modules, "sphinx_gallery", sys)  # the gallery, that displays results
    assert page["show"](formula) is formula
    assert formula._repr_html_().startswith("<p><math><msub>")


def test_the_three_implementations_print_the_same_numbers(page):
    (numpy, first), *others = page["results"]
    assert numpy == "numpy"
    assert [name for name, _ in others] == ["Einsum", "decomposed"]
    for _, result in others:
        np.testing.assert_allclose(result, first, rtol=1e-5)


def test_the_events_of_the_raw_profile_are_those_of_the_graph(page):
    kernels = page["raw"]["args_op_name"].dropna()
    runs = (page["raw"]["name"] == "model_run").sum()
    assert runs == page["args"].runs
    assert kernels.value_counts().to_dict() == {"Transpose": 3 * runs, "MatMul": runs}


def test_every_candidate_is_built_again_in_a_fresh_process(page):
    found = ortmeter.measure(
        page["make_group"](1), processes=2, repeat=1, warmup=1, precision=None, budget_s=60
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
