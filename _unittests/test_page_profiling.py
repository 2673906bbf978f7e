"""The page on what onnxruntime optimizes, after it ran in fast mode."""

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.reference
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.timing import Measurement


@pytest.fixture(scope="module")
def page():
    """Names of the page."""
    return run_page("plot_profiling")


def planted(*medians):
    """Samples of the three levels, of known medians."""
    spread = 1 + 0.01 * np.linspace(-1, 1, 81)
    levels = ("as written", "fused", "blocked")
    return {
        name: Measurement(name, [m * np.random.default_rng(i).permutation(spread)])
        for i, (name, m) in enumerate(zip(levels, medians, strict=True))
    }


@pytest.mark.parametrize(
    ("medians", "total", "layout", "fate"),
    [
        ((4.0, 4.0, 2.0), "2.00 times faster", "faster", "right"),
        ((2.0, 2.0, 4.0), "2.00 times slower", "slower", "wrong"),
        ((1.0, 1.0, 1.0), "ratio 1.00", "no difference", "not decided here"),
        ((4.0, 1.0, 2.0), "2.00 times faster", "slower", "right"),
    ],
)
def test_the_conclusion_on_latency_follows_the_samples(page, medians, total, layout, fate):
    found, fusions, blocks, prediction = page["conclude_latency"](planted(*medians))
    assert prediction == f"the prediction that the rewritten network is faster is {fate}."
    assert total in found
    assert "as written" in found
    assert layout in blocks
    assert ("is 4.00 times faster than as written" in fusions) == (medians[0] == 4 * medians[1])


def nodes(*rows):
    return pd.DataFrame(rows, columns=["name", "op", "median", "least"])


WRITTEN = nodes(("a", "Conv", 900.0, 400.0), ("b", "PRelu", 100.0, 50.0))


@pytest.mark.parametrize(
    ("blocked", "verdict", "expected"),
    [
        (500.0, "agree", "take 400 µs less than as written: they pay for"),
        (850.0, "agree", "take 50 µs less than as written: they do not pay for"),
        (950.0, "agree", "take 50 µs more than as written: they do not pay for"),
        (500.0, "opposed", "the profiles do not tell whether they pay for"),
        (950.0, "undecided", "the profiles do not tell whether they pay for"),
    ],
)
def test_the_conclusion_on_the_layout_is_a_balance(page, blocked, verdict, expected):
    rewritten = nodes(
        ("r0", "ReorderInput", 60.0, 1.0),
        ("a_nchwc", "Conv", blocked, 400.0),
        ("r1", "ReorderOutput", 40.0, 1.0),
        ("b", "PRelu", 100.0, 50.0),
    )
    sentence = page["conclude_layout"](WRITTEN, rewritten, verdict)
    assert sentence.startswith("in the profile, 2 reorders take 100 µs per run; the other kernels")
    assert f"{expected} the reorders." in sentence


@pytest.mark.parametrize("verdict", ["agree", "opposed"])
def test_without_reorder_there_is_no_balance(page, verdict):
    assert page["conclude_layout"](WRITTEN, WRITTEN, verdict) == "no image was reordered."


def test_the_two_profiles_were_taken_in_turn(page):
    before, after = page["profiles"].values()
    assert before.latencies is after.latencies
    sentences = [str(sentence) for sentence in page["conclusion"](page["here"]).sentences]
    assert {f"{claim}." for claim in page["check"].claims} <= set(sentences)


def test_the_node_with_the_most_to_win_is_told(page):
    rewritten = nodes(
        ("big", "Conv", 1000.0, 950.0), ("lost", "PRelu", 300.0, 7.0), ("?", "If", 2e3, np.nan)
    )
    sentence = page["conclude_nodes"](rewritten)
    assert "is lost (PRelu): 300 µs for a work that takes 7.0 µs at the peaks" in sentence


def kernels(domain, channels):
    return pd.DataFrame(
        {"op": "Conv", "domain": domain, "output_shapes": [((1, c, 4, 4),) for c in channels]}
    )


@pytest.mark.parametrize(
    ("events", "flags", "expected"),
    [
        (kernels("com.microsoft.nchwc", [64, 16]), ("avx2", "avx512f"), "16 channels.*(avx512f)"),
        (kernels("com.microsoft.nchwc", [64, 8]), ("avx", "avx2"), "8 channels.*(avx2)"),
        (kernels("com.microsoft.nchwc", [64, 4]), (), "4 channels, for the vectors of this CPU."),
        (kernels("ai.onnx", [1, 64]), ("avx2",), "no convolution works on blocks"),
    ],
)
def test_the_size_of_a_block_is_told(page, events, flags, expected):
    sentence = page["conclude_machine"](page["find_block"](events), flags)
    head, _, tail = expected.partition(".*")
    assert head in sentence
    assert tail in sentence


def test_the_times_of_what_was_fused_are_added(page):
    written = pd.DataFrame({"name": ["down", "sum", "norm"], "median": [5.0, 2.0, 1.0]})
    rewritten = pd.DataFrame(
        {"name": ["c2", "r", "norm"], "origin": [("down", "sum"), (), ("norm",)]}
    )
    traced = page["trace_origins"](written, rewritten)
    np.testing.assert_array_equal(traced["written"], [7.0, np.nan, 1.0])
    assert traced["origin"].tolist() == ["down, sum", "", "norm"]


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
