"""The page on what ONNX Runtime optimizes: its counts, what it sums, its tables, its bound."""

from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import compare

from ortmeter.runtime.sessions import optimized_model


@pytest.mark.slow
def test_the_levels_are_counted_on_their_graphs(ran):
    """The oracle counts operators: 14 were written, a Sigmoid and an Add can join."""
    levels = pd.DataFrame(ran["counts"]).T
    assert levels.loc["as written"].tolist() == [14, 14, 0, 0, 0, 0]
    assert levels["removed"].tolist() == [0, 1, 2]  # the Add joins in blocks only
    for name, level in ran["LEVELS"].items():
        optimized = optimized_model(ran["model"], provider="cpu", optimization=level)
        ops = [node.op_type for node in optimized.graph.node]
        found = levels.loc[name]
        assert found["nodes"] == len(ops)
        assert found["added"] == sum(op.startswith("Reorder") for op in ops)
        assert found["removed"] == 2 - ops.count("Sigmoid") - ops.count("Add")
        assert found["fused"] == ops.count("FusedConv")
        assert found[["unchanged", "fused", "blocked", "added"]].sum() == found["nodes"]


def side(*rows):
    return pd.DataFrame(rows, columns=["name", "op", "domain", "median", "origin"])


BEFORE = side(
    ("down", "Conv", "ai.onnx", 5000.0, ("down",)),
    ("sum", "Add", "ai.onnx", 2000.0, ("sum",)),
    ("norm", "BatchNormalization", "ai.onnx", 1000.0, ("norm",)),
)
AFTER = side(
    ("c2_nchwc", "Conv", "com.microsoft.nchwc", 3000.0, ("down", "sum")),
    ("r", "ReorderOutput", "com.microsoft.nchwc", 250.0, ()),
    ("norm", "BatchNormalization", "ai.onnx", 1000.0, ("norm",)),
)


def test_a_fused_node_stands_beside_the_sum_of_those_it_was_made_of(page, monkeypatch):
    monkeypatch.setitem(page, "written", dict(zip(BEFORE["name"], BEFORE["op"], strict=True)))
    matched = page["match_nodes"](BEFORE, AFTER)
    np.testing.assert_array_equal(matched["median_baseline"], [7000.0, np.nan, 1000.0])
    found = page["sum_changes"](matched)
    assert found.index.tolist() == ["blocked", "added", "unchanged", "all"]
    assert found["nodes before"].tolist() == [2, 0, 1, 3]
    assert found["nodes after"].tolist() == [1, 1, 1, 3]
    np.testing.assert_allclose(found["as written (ms)"], [7, 0, 1, 8])
    np.testing.assert_allclose(found["blocked (ms)"], [3, 0.25, 1, 4.25])
    np.testing.assert_allclose(found["saved (ms)"], [4, -0.25, 0, 3.75])
    with pytest.raises(AssertionError, match="is not found"):
        page["match_nodes"](BEFORE, AFTER[:2])


@pytest.mark.slow
def test_the_changes_of_the_network_add_up_to_both_profiles(ran):
    """Only a Sigmoid and an Add join a convolution, as the prediction says."""
    total = ran["study"].data.changes.set_index("change").loc["all"]
    for name, profile in ran["profiles"].items():
        assert total[f"{name} (ms)"] == pytest.approx(profile.by_node()["median"].sum() / 1000)
    made_of = [names for names in ran["after"].by_node()["origin"] if len(names) > 1]
    assert sorted(made_of) == [("down", "sum"), ("gate", "gate_act")]


@pytest.mark.parametrize("on_host", [True, False])
def test_operators_stand_beside_the_same_work_at_the_peaks(page, on_host):
    """The oracle is written out: 10 operations or bytes per nanosecond. A device has no times."""
    rows = [
        ("a", "Conv", 500.0, 2e6, 1e4),
        ("b", "Conv", 300.0, 1e6, 1e4),
        ("r", "R", 60.0, 0, 4e5),
    ]
    columns = ["name", "op", "median", "flop", "bytes"]
    kernels = tuple(compare({"one": 1.0, "two": 1.0}).values()) if on_host else ()
    data = SimpleNamespace(
        nodes=pd.DataFrame(rows, columns=columns),
        peaks={"gflop_per_s": 10, "gb_per_s": 10},
        check=(kernels, ()),
    )
    found = page["headroom"](data)
    assert found["at the peaks (ms)"].to_dict() == pytest.approx({"Conv": 0.3, "R": 0.04})
    took = {"Conv": 0.8, "R": 0.06} if on_host else dict.fromkeys(("Conv", "R"), np.nan)
    assert found["blocked (ms)"].to_dict() == pytest.approx(took, nan_ok=True)


@pytest.mark.slow
def test_the_bound_refuses_another_network(ran):
    """A bias that is lost, or a weight that changes by a tenth, is outside of the bound."""
    for name, factor in (("shortcut_b", 0.0), ("down_w", 1.1), ("stem_w", 1.1)):
        changed = onnx.ModelProto()
        changed.CopyFrom(ran["model"])
        (tensor,) = (t for t in changed.graph.initializer if t.name == name)
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
        (got,) = ReferenceEvaluator(changed).run(None, ran["feeds"])
        assert np.abs(got - ran["exact"]["output"]).max() > ran["bound"], name
