"""The conclusions of the page on the decomposition of an einsum, from planted samples."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import run_page

import ortmeter
from ortmeter.study.study import _namespace
from ortmeter.timing import Comparison, Comparisons, Measurement

ENOUGH, TOO_FEW = (6, 8), (1, 8)  # processes and rounds
FUSED = "order fast, FusedMatMul"
ROLES = {
    "decomposed": "order fast",
    "as written": "order written",
    "best order": "order fast",
    "worst order": "order slow",
}


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_einsum_decomposition")


def planted(medians, shape=ENOUGH):
    """Samples whose medians are known, by name of candidate."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, median * np.exp(0.01 * rng.standard_normal(shape)))
        for name, median in medians.items()
    )


def group(fast=1.0, *, written=1.5, slow=6.0, shape=ENOUGH, **others):
    orders = {"order fast": fast, "order written": written, "order slow": slow}
    return planted({"Einsum": 2.0, **orders, **others}, shape)


def kept(page, *groups, chosen=(), other=None, best=(10, 60, 0), worst=(100, 160, 0)):
    """A record with a group for 1 thread and so on; times of transpositions, of all; products."""
    names = chosen or ["order fast"] * len(groups)
    threads = pd.Index(range(1, len(groups) + 1), name="threads")
    columns, index = ["copies", "all", "FusedMatMul"], ["best order", "as written", "worst order"]
    data = {
        "measured": Comparisons(dict(zip(threads, groups, strict=True)), "threads"),
        "compared": Comparisons({14: other or group()}, "size"),
        "split": pd.DataFrame([best, (20, 80, 0), worst], index=index, columns=columns),
        "roles": ROLES,
        "chosen": pd.DataFrame({"chosen": names}, index=threads),
        "legend": "planted",
    }
    return dataclasses.replace(page["study"].here, data=data, fast=False)


def conclude(page, *groups, **planted_data):
    return page["study"].concluded(kept(page, *groups, **planted_data))


def verdicts(found):
    """Verdicts of the claims by topic; of the predictions without one, in their order."""
    topics = {}
    for claim in (*found.answer.claims, *found.claims):
        topics.setdefault(claim.topic, []).append(claim.verdict)
    return topics


@pytest.mark.parametrize(
    ("medians", "shape", "lead", "label"),
    [
        ((1.0, 0.5), ENOUGH, "Replace Einsum by what a search finds", "faster"),
        ((1.0, 2.0), ENOUGH, "Replace Einsum by what a search finds", "faster in part"),
        ((1.0, 4.0), ENOUGH, "Replace Einsum by what a search finds", "faster in part"),
        ((2.0, 4.0), ENOUGH, "Keep Einsum: ", "not faster"),
        ((2.0, 2.0), ENOUGH, "Keep Einsum: ", "not faster"),
        ((1.0, 0.5), TOO_FEW, "Not shown here: ", "undecided"),
    ],
)
def test_the_answer_follows_the_samples(page, medians, shape, lead, label):
    answer = conclude(page, *(group(median, shape=shape) for median in medians)).answer
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 35
    assert answer.label == label
    assert ("No gain shown at threads 2." in str(answer)) == (label == "faster in part")
    assert bool(answer.setting) == lead.startswith("Replace")
    assert [claim.where for claim in answer.claims] == [{"threads": 1}, {"threads": 2}]
    ratios = [claim.ratio for claim in answer.claims]
    assert ratios == pytest.approx([2 / median for median in medians], rel=0.02)


def test_a_wide_interval_leads_nothing(page):
    shares = {"order fast": np.array([[0.03], [0.04], [0.05]])}  # of three processes
    medians = {"Einsum": 2.0, "order fast": 1.0, "order written": 1.5, "order slow": 1.5}
    answer = conclude(
        page,
        Comparison(
            Measurement(name, median * shares.get(name, 1.0) * np.ones((3, 8)))
            for name, median in medians.items()
        ),
    ).answer
    (claim,) = answer.claims
    assert claim.verdict == "faster"
    assert claim.high > 2 * claim.low
    assert str(answer) == "Not shown here: measure yours with optimize_einsum."
    assert (answer.label, answer.setting) == ("undecided", "")


def test_the_bars_and_the_worst_order_are_beside_einsum(page):
    answer = conclude(page, group()).answer
    assert [bar.label for bar in answer.bars] == [
        "Einsum",
        "decomposed",
        "as written",
        "worst order",
    ]
    assert [bar.value for bar in answer.bars] == pytest.approx([1, 2, 4 / 3, 1 / 3], rel=0.02)
    assert str(answer).endswith(" The worst order of the letters is slower than Einsum.")
    # The profile of a device has no times; orders that are alike are not told apart.
    launched = (np.nan, np.nan, 0)
    record = kept(page, group(), best=launched, worst=launched)
    assert "nan" not in str(page["study"].concluded(record))
    plt.close(page["causes"](_namespace(record)).figure)
    assert "worst" not in str(conclude(page, group(1.0, written=1.0, slow=1.0)).answer)


def test_what_2021_claimed_is_found_by_its_topic(page):
    found = verdicts(conclude(page, group(1.0, written=4.0), group(2.0, written=1.0)))
    assert found["decomposed after search"] == ["faster", "negligible"]
    assert found["decomposed as written"] == ["slower", "faster"]
    assert found["fused speed"] == ["wrong", "undecided"]
    # The graph that the search chose is compared; decompose_einsum where it chose Einsum.
    both = (group(4.0), group(4.0, **{FUSED: 1.0}))
    found = conclude(page, *both, chosen=["Einsum", FUSED])
    assert [claim.verdict for claim in found.answer.claims] == ["slower", "faster"]
    assert verdicts(found)["decomposed after search"] == ["slower", "faster", "fact"]
    assert "With threads 1, the search chose Einsum" in str(found)


@pytest.mark.parametrize(
    ("medians", "chosen", "count", "verdict"),
    [
        ((1.0, 0.95), "order fast", 0, "wrong"),  # faster, and without a fused product
        ((1.0, 0.95), "order fast", 1, "undecided"),  # ONNX Runtime fused the product itself
        ((1.9, 0.8), FUSED, 0, "right"),
        ((1.0, 0.9), FUSED, 0, "wrong"),  # a gain, the smaller part of the speed
        ((1.4, 1.0), FUSED, 0, "undecided"),  # half and half
        ((3.0, 2.0), FUSED, 0, "undecided"),  # no speed to explain
        ((1.0, 0.95), "Einsum", 0, "undecided"),
    ],
)
def test_a_fused_product_is_judged_by_number_of_threads(page, medians, chosen, count, verdict):
    groups = group(), group(medians[0], **{FUSED: medians[1]})
    found = conclude(page, *groups, chosen=["order fast", chosen], best=(10, 60, count))
    (first, second) = (c for c in found.claims if c.topic == "fused speed")
    assert [first.where, second.where] == [{"threads": 1}, {"threads": 2}]
    assert (first.verdict, second.verdict) == ("undecided" if count else "wrong", verdict)


def test_transpose_and_matmul_are_not_credited_with_a_fused_product(page):
    # The graph that is chosen with two threads is 2.2 times faster, its order alone is not.
    plain, fused = group(), group(2.0, **{FUSED: 0.9})
    found = conclude(page, plain, fused, chosen=["order fast", FUSED])
    assert str(found.answer).startswith(
        "Replace Einsum by what a search finds for your shapes: here 2.0"
    )
    assert "FusedMatMul" in found.answer.warning
    (alone,) = (c for c in found.claims if getattr(c, "subject", "").startswith("Transpose and"))
    assert (alone.verdict, alone.where) == ("negligible", {"threads": 2})
    assert not conclude(page, plain, group()).answer.warning


def test_permuted_letters_and_the_call_of_einsum_are_compared(page):
    others = {"numpy, optimize=True": 3.0, "einsum(equation, x, z)": 1.5}
    found = verdicts(conclude(page, group(**others, **{"Einsum, letters permuted": 2.0})))
    assert (found["permuted letters"], found["one call"]) == (["negligible"], ["faster"])
    # A record from before these candidates has no such claim.
    assert not {"permuted letters", "one call"} & verdicts(conclude(page, group())).keys()


@pytest.mark.parametrize(
    ("worst", "slow", "verdict"),
    [
        ((100, 160, 0), 6.0, "right"),
        ((20, 200, 0), 6.0, "wrong"),
        ((100, 160, 0), 1.0, "undecided"),
        ((np.nan, np.nan, 0), 6.0, "undecided"),
    ],
)
def test_the_cause_follows_the_profiles(page, worst, slow, verdict):
    found = conclude(page, group(written=1.0, slow=slow), worst=worst)
    assert verdicts(found)[""][0] == verdict


@pytest.mark.parametrize(
    ("other", "shape", "verdict"),
    [
        ({"order fast": 1.0, "order slow": 2.0}, ENOUGH, "right"),
        ({"order fast": 1.02, "order slow": 1.0, "order new": 3.0}, ENOUGH, "right"),  # as fast
        ({"order fast": 2.0, "order slow": 1.0}, ENOUGH, "wrong"),
        ({"order fast": 2.0, "order slow": 1.0}, TOO_FEW, "undecided"),
    ],
)
def test_the_winner_of_a_size_is_judged_at_the_other(page, other, shape, verdict):
    assert verdicts(conclude(page, group(), other=planted(other, shape)))[""][1] == verdict


def test_the_tables_and_the_plot_have_the_same_numbers(page):
    record = kept(page, group(), group(0.5), chosen=["order fast", "order slow"])
    data = _namespace(record)
    shown = page["latencies"](data)
    assert shown.index[0] == "fast (decomposed, best order)"
    assert shown["median (ms)"].tolist() == sorted(shown["median (ms)"])
    claim = data.measured[2].speedup("Einsum", "order fast")
    assert shown.iloc[0]["threads 2"] == claim.interval
    axes = page["speedups"](data)
    drawn = {bars.lines[0].get_ydata()[1] for bars in axes.containers}
    assert claim.ratio in drawn
    assert len(axes.containers) == 3
    plt.close(axes.figure)


def test_the_page_measures_what_it_shows(page):
    listed = page["nodes"].groupby(level=0).size().to_dict()
    profiles = page["profiles"]
    assert listed == {role: len(ran.model.graph.node) for role, ran in profiles.items()}
    # Every candidate is built again in a fresh process.
    options = {"processes": 2, "repeat": 1, "warmup": 1, "precision": None, "budget_s": 60}
    found = ortmeter.measure(page["groups"][1], **options)
    assert list(found) == list(page["measured"][1])
    for way in page["WAYS"].values():
        got = page["build_call"](page["EQUATION"], page["args"].size, way)()
        assert (np.abs(got - page["expected"]) <= page["bound"]).all()
    renamed = page["EQUATION"].translate(page["LETTERS"])
    assert (renamed, len(set(renamed))) == ("thns,tbns->tnbh", len(set(page["EQUATION"])))
    names = {}
    exec(conclude(page, group()).answer.setting, names)  # noqa: S102 - what a reader copies
    operands = ortmeter.random_feeds(names["model"])
    (got,) = ortmeter.make_session(names["model"]).run(None, operands)
    expected = np.einsum(page["EQUATION"], *operands.values())
    np.testing.assert_allclose(got, expected, atol=1e-5 * abs(expected).max())
