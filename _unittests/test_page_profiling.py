"""The page on what onnxruntime optimizes, after it ran in fast mode."""

import msgspec
import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.evidence import fact
from ortmeter.runtime.sessions import optimized_model
from ortmeter.timing import Comparison, Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_profiling")


COUNTS = {
    "nodes": 19,
    "unchanged": 7,
    "fused": 0,
    "blocked": 5,
    "added": 7,
    "removed": 2,
    "written": 14,
    "convolutions": 5,
    "block": 8,
}
LEVELS = ("as written", "fused", "blocked", "blocked on noise")
CHANGES = pd.DataFrame(
    {
        "change": ["blocked", "added", "unchanged", "all"],
        "nodes before": [7, 0, 7, 14],
        "nodes after": [5, 7, 7, 19],
        "as written (ms)": [3.0, 0.0, 1.0, 4.0],
        "blocked (ms)": [1.1, 0.2, 0.7, 2.0],
    }
)


def planted(*medians, processes=5, rounds=12, names=LEVELS):
    """Samples of known medians; a process is 1% faster or slower than another."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, m * np.exp(0.005 * rng.standard_normal((processes, rounds))))
        for name, m in zip(names, medians, strict=True)
    )


@pytest.mark.parametrize(
    ("medians", "total", "fusion"),
    [
        ((4.0, 4.0, 2.0, 2.0), "makes this network 2.0", "changes its speed by less than 5%: 1.0"),
        ((2.0, 2.0, 4.0, 4.0), "makes this network 2.0", "changes its speed by less than 5%: 1.0"),
        ((8.0, 2.0, 1.0, 1.0), "makes this network 8.0", "makes this network 4.0"),
        ((4.0, 8.0, 4.0, 4.0), "changes its speed by less than 5%: 1.0", "makes this network 2.0"),
    ],
)
def test_the_answer_follows_the_samples(page, medians, total, fusion):
    found = page["answer"](planted(*medians), COUNTS)
    first, rest, effect = str(found).split(". ", 2)
    assert first == (
        "The convolutions: all 5 work on blocks of 8 channels, and 2 nodes are fused into them"
    )
    assert rest == "The other 7 nodes do not change"
    assert effect.startswith(f"Rewriting {total}")
    assert f"; fusion alone {fusion}" in effect
    assert ("slower" in effect.partition(";")[0]) == (medians[2] > medians[0])
    assert len(str(found).split()) <= 45


def test_the_bars_and_the_verdict_are_those_of_the_samples(page):
    found = page["answer"](planted(4.0, 4.0, 2.0, 2.0), COUNTS)
    assert found.label == "faster"
    assert [bar.label for bar in found.bars] == ["as written", "fused", "blocked"]
    assert [bar.value for bar in found.bars] == pytest.approx([1, 1, 2], rel=0.02)
    assert found.bars[2].low < 2 < found.bars[2].high
    assert [(claim.subject, claim.baseline) for claim in found.claims] == [
        ("blocked", "as written"),
        ("fused", "as written"),
    ]


@pytest.mark.parametrize(
    ("counts", "start", "rest"),
    [
        (
            {"blocked": 4, "added": 0, "unchanged": 8},
            "The convolutions: 4 of 5 work on blocks of 8 channels, and 2 nodes are fused into",
            "The other 8 nodes do not change.",
        ),
        (
            {"removed": 0, "unchanged": 9},
            "The convolutions: all 5 work on blocks of 8 channels. The other",
            "The other 9 nodes do not change.",
        ),
        (
            {"blocked": 0, "removed": 1, "fused": 1, "added": 0, "unchanged": 12},
            "Little in this small network: 1 of 14 nodes fused into others",
            ", 12 unchanged.",
        ),
        (
            {"blocked": 0, "removed": 0, "added": 0, "unchanged": 14},
            "Nothing in this network",
            ": its 14 nodes run as written.",
        ),
    ],
)
def test_the_answer_says_what_was_optimized(page, counts, start, rest):
    text = str(page["answer"](SAMPLES, COUNTS | counts))
    assert text.startswith(start)
    assert f"{rest} Rewriting makes this network 2.0" in text


def test_noise_leaves_the_steps_undecided(page):
    rng = np.random.default_rng(1)
    noisy = Comparison(Measurement(n, np.exp(rng.standard_normal((5, 12)))) for n in LEVELS)
    text = str(page["answer"](noisy, COUNTS))
    assert text.count("has an undecided effect on its speed: ") == 2


@pytest.mark.parametrize(
    ("medians", "verdicts"),
    [
        ((4.0, 4.0, 2.0, 2.0), ["right", "right", "right"]),
        ((2.0, 2.0, 4.0, 4.0), ["wrong", "right", "wrong"]),
        ((4.0, 1.0, 2.0, 2.0), ["right", "wrong", "wrong"]),
        ((1.0, 1.0, 1.0, 1.0), ["undecided", "right", "undecided"]),
    ],
)
def test_the_predictions_are_judged(page, medians, verdicts):
    found = list(page["judge_predictions"](planted(*medians)))
    assert [claim.verdict for claim in found] == verdicts
    total = planted(*medians).speedup("as written", "blocked")
    assert str(found[0]).endswith(
        f"the rewritten network is faster (blocked over as written: {total.interval})"
    )
    assert "[" in total.interval


def nodes(*rows):
    return pd.DataFrame(rows, columns=["name", "op", "median", "flop", "bytes"])


REWRITTEN = nodes(
    ("r0", "ReorderInput", 60.0, 0.0, 1e4),
    ("a_nchwc", "Conv", 500.0, 1e6, 1e4),
    ("r1", "ReorderOutput", 40.0, 0.0, 1e4),
    ("b", "PRelu", 400.0, 1e3, 1e4),
)
SAMPLES = planted(4.0, 4.0, 2.0, 3.0)
FEW = planted(4.0, 4.0, 2.0, 3.0, processes=1, rounds=5)


def both(medians, rounds):
    return tuple(
        planted(*medians, processes=1, rounds=rounds, names=("as written", "blocked")).values()
    )


def data(measured, kernels, latencies, rounds=100):
    """What the page keeps, for planted medians of as written and blocked, in both checks."""
    return {
        "measured": measured,
        "nodes": REWRITTEN,
        "counts": COUNTS,
        "changes": CHANGES,
        "peaks": {"gflop_per_s": 100, "gb_per_s": 10},
        "check": (both(kernels, rounds), both(latencies, rounds)),
        "flags": ["avx2"],
        "trust": [
            msgspec.to_builtins(fact("{share:.1%} of a run is outside of any kernel", share=0.02))
        ],
    }


def test_the_claims_when_profiles_and_latencies_agree(page):
    _, claims = page["conclude"](data(SAMPLES, (4.0, 2.0), (4.0, 2.0)))
    said = [str(claim) for claim in claims]
    assert len(said) <= 5
    assert [claim.verdict for claim in claims[:3]] == ["right"] * 3
    assert said[3].startswith("the blocked network on a smooth image is 1.50 times faster than on")
    assert said[4].startswith("most headroom: a_nchwc (Conv), 0.5 ms against 0.01 ms at")


def test_nothing_is_said_of_nodes_when_profiles_and_latencies_are_opposed(page):
    answer, claims = page["conclude"](data(SAMPLES, (2.0, 4.0), (4.0, 2.0)))
    assert "nothing can be concluded about nodes" in str(claims[-1])
    said = " ".join(map(str, (answer, *claims)))
    assert "headroom" not in said


def test_nothing_is_said_of_nodes_from_the_launches_of_their_kernels(page):
    planted = data(SAMPLES, (4.0, 2.0), (4.0, 2.0))
    answer, claims = page["conclude"](planted | {"check": ((), planted["check"][1])})
    said = " ".join(map(str, (answer, *claims)))
    assert "nothing can be concluded about nodes" in said
    assert "headroom" not in said


def test_too_few_samples_decide_nothing(page):
    answer, claims = page["conclude"](data(FEW, (4.0, 2.0), (4.0, 2.0), rounds=5))
    assert "There are too few samples to tell what this changes." in str(answer)
    assert "times faster" not in str(answer)
    assert {claim.verdict for claim in claims} == {"undecided", "fact"}


def test_what_limits_the_profile_and_the_saved_model_is_told(page):
    assert [*map(str, page["limits"](data(SAMPLES, (4.0, 2.0), (4.0, 2.0))))] == [
        "a block holds 8 channels, for the vectors of this CPU (avx2)",
        "2.0% of a run is outside of any kernel",
    ]


def test_no_word_of_a_claim_has_a_measured_number(page):
    """Two machines that find the same, with other numbers, make the same claims."""
    one, other = (
        page["conclude"](data(planted(*m), (4.0, 2.0), (4.0, 2.0)))[1]
        for m in ((4.0, 4.0, 2.0, 3.0), (4.4, 4.4, 2.0, 3.3))
    )
    assert [claim.words for claim in one] == [claim.words for claim in other]
    assert list(map(str, one)) != list(map(str, other))


def test_the_two_profiles_were_taken_in_turn(page):
    before, after = page["profiles"].values()
    assert before.latencies is after.latencies


def test_the_levels_are_counted_on_their_graphs(page):
    """The oracle counts operators: 14 were written, 5 of them convolutions."""
    assert page["levels"].loc["as written"].tolist() == [14, 14, 0, 0, 0, 0]
    for name, level in page["LEVELS"].items():
        optimized = optimized_model(page["model"], provider="cpu", optimization=level)
        ops = [node.op_type for node in optimized.graph.node]
        found = page["levels"].loc[name]
        assert found["nodes"] == len(ops)
        assert found["added"] == sum(op.startswith("Reorder") for op in ops)
        assert found["removed"] == 2 - ops.count("Sigmoid") - ops.count("Add")
        assert found["fused"] == ops.count("FusedConv")
        others = found[["unchanged", "fused", "blocked", "added"]].sum()
        assert others == found["nodes"]


def test_what_runs_as_written_is_what_matches(page):
    """Of the graph that ran: the same name and operator, in a domain that is not that of blocks."""
    written = {node.name: node.op_type for node in page["before"].model.graph.node}
    ran = page["after"].model.graph.node
    same = {n.name for n in ran if written.get(n.name) == n.op_type and n.domain in {"", "ai.onnx"}}
    matched = page["matched"]
    assert set(matched["name"][matched["change"] == "unchanged"]) == same


def kernels(domain, channels):
    return pd.DataFrame(
        {"op": "Conv", "domain": domain, "output_shapes": [((1, c, 4, 4),) for c in channels]}
    )


@pytest.mark.parametrize(
    ("events", "flags", "expected"),
    [
        (kernels("com.microsoft.nchwc", [64, 16]), ("avx2", "avx512f"), "16 channels.*(avx512f)"),
        (kernels("com.microsoft.nchwc", [64, 8]), ("avx", "avx2"), "8 channels.*(avx2)"),
        (kernels("com.microsoft.nchwc", [64, 4]), (), "4 channels, for the vectors of this CPU"),
        (kernels("ai.onnx", [1, 64]), ("avx2",), "no convolution works on blocks"),
    ],
)
def test_the_size_of_a_block_is_told(page, events, flags, expected):
    claim = page["describe_block"](page["find_block"](events), flags)
    head, _, tail = expected.partition(".*")
    assert head in str(claim)
    assert tail in str(claim)


def side(*rows):
    names = ["name", "op", "domain", "median", "origin"]
    return pd.DataFrame(rows, columns=names)


WRITTEN = side(
    ("down", "Conv", "ai.onnx", 5000.0, ("down",)),
    ("sum", "Add", "ai.onnx", 2000.0, ("sum",)),
    ("norm", "BatchNormalization", "ai.onnx", 1000.0, ("norm",)),
    ("lost", "Identity", "ai.onnx", 500.0, ("lost",)),
)
RAN = side(
    ("c2_nchwc", "Conv", "com.microsoft.nchwc", 3000.0, ("down", "sum")),
    ("r", "ReorderOutput", "com.microsoft.nchwc", 250.0, ()),
    ("norm", "BatchNormalization", "ai.onnx", 1000.0, ("norm",)),
)


def test_a_convolution_is_one_row_with_the_sum_of_what_it_was_made_of(page):
    matched = page["match_nodes"](WRITTEN, RAN)
    np.testing.assert_array_equal(matched["written"], [7000.0, np.nan, 1000.0, 500.0])
    np.testing.assert_array_equal(matched["rewritten"], [3000.0, 250.0, 1000.0, np.nan])
    assert matched["change"].tolist() == ["blocked", "added", "unchanged", "gone"]


def test_changes_add_up_to_both_profiles(page):
    found = page["sum_changes"](page["match_nodes"](WRITTEN, RAN))
    assert found.index.tolist() == ["blocked", "added", "unchanged", "gone", "all"]
    assert found["nodes before"].tolist() == [2, 0, 1, 1, 4]
    assert found["nodes after"].tolist() == [1, 1, 1, 0, 3]
    np.testing.assert_allclose(found["as written (ms)"], [7, 0, 1, 0.5, 8.5])
    np.testing.assert_allclose(found["blocked (ms)"], [3, 0.25, 1, 0, 4.25])
    np.testing.assert_allclose(found["saved (ms)"], [4, -0.25, 0, 0.5, 4.25])
    for name, ran in zip(
        ("as written (ms)", "blocked (ms)"), page["profiles"].values(), strict=True
    ):
        total = ran.by_node()["median"].sum() / 1000
        assert page["changes"].loc["all", name] == pytest.approx(total)


def test_each_convolution_is_one_row_of_the_table_of_nodes(page):
    made_of = page["origins"]["made of"].tolist()
    written = {node.name for node in page["model"].graph.node}
    assert sorted(name for names in made_of if names for name in names.split(", ")) == sorted(
        written
    )


def test_sides_have_signs_providers_and_counts(page):
    found = page["by_kernel"]
    assert set(found["side"]) == {"=", "+", "-"}
    assert set(found["provider"]) == {"CPU"}
    assert found["before"].sum() == 14
    assert found["after"].sum() == len(page["after"].model.graph.node)
    counted = found.groupby("side")[["before", "after"]].sum()
    assert counted.loc["+", "before"] == counted.loc["-", "after"] == 0
    assert (
        counted.loc["=", "before"]
        == counted.loc["=", "after"]
        == page["levels"].loc["blocked", "unchanged"]
    )
    (prelu,) = found.index[found["kernel"].str.startswith("PRelu")]
    assert found.loc[prelu, ["before", "after"]].tolist() == [2, 2]


def test_the_raw_events_are_in_the_workbook(page):
    for name, ran in page["profiles"].items():
        raw = page["tables"][f"events-{name.replace(' ', '-')}"]
        runs = sorted(set(raw["iteration"]))
        assert runs == sorted(set(ran.events["iteration"]))[:6]
        assert (raw["name"] == "model_run").sum() == len(runs)
        kernels = raw[raw["category"] == "Node"]
        nodes = len(ran.model.graph.node)
        assert len(kernels) == nodes * len(runs)
        assert kernels["signature"].notna().all()


def test_the_figure_of_operators_has_durations_and_occurrences_of_both_networks(page):
    axes = page["operators"].axes
    assert [ax.get_title(loc="left") for ax in axes] == ["as written", "", "blocked", ""]
    for ax, ran in zip(axes[1::2], page["profiles"].values(), strict=True):
        assert sum(bar.get_width() for bar in ax.patches) == len(ran.model.graph.node)
    for ax, ran in zip(axes[::2], page["profiles"].values(), strict=True):
        widths = sum(bar.get_width() for bar in ax.patches)
        assert widths == pytest.approx(ran.by_operator()["median"].sum() / 1000)


def test_the_time_at_the_peaks_is_not_called_the_least(page):
    assert "at the peaks (ms)" in page["origins"]
    assert not any("least" in column for column in page["origins"])


def test_only_two_small_nodes_join_a_convolution(page):
    """What the prediction says: a Sigmoid and an Add."""
    written = {node.name: node.op_type for node in page["model"].graph.node}
    joined = {
        written[name]
        for names in page["nodes"]["blocked"]["origin"]
        for name in names
        if len(names) > 1 and written[name] != "Conv"
    }
    assert joined == {"Sigmoid", "Add"}
    assert page["levels"]["removed"].max() == 2


def test_the_tolerance_refuses_another_network(page):
    """A bias that is lost, or a weight that changes by a tenth, is outside of the bound."""
    model, x = page["model"], page["feeds"]["input"]
    for name, factor in (("shortcut_b", 0.0), ("down_w", 1.1), ("stem_w", 1.1)):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        (tensor,) = (t for t in changed.graph.initializer if t.name == name)
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
        (got,) = onnx.reference.ReferenceEvaluator(changed).run(None, {"input": x})
        assert (np.abs(got - page["exact"]["output"]) / page["bound"]).max() > 1, name


def test_the_network_that_runs_is_what_the_page_says(page):
    rewritten = page["nodes"]["blocked"]
    fused = [names for names in rewritten["origin"] if len(names) > 1]
    assert ("gate", "gate_act") in fused
    assert ("down", "sum") in fused
    assert rewritten["flop"].notna().all()
