"""The page on what onnxruntime optimizes: what it concludes from planted samples, what it sums."""

import ast
import dataclasses
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import fake_cuda
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
from onnx.reference import ReferenceEvaluator
from page_runner import EXAMPLES, run_page

import ortmeter
from ortmeter.profiling import read_profile
from ortmeter.runtime.sessions import make_session, optimized_model
from ortmeter.timing import Comparison, Measurement

LEVELS = ("as written", "fused", "blocked", "blocked on noise")


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran in fast mode."""
    return run_page("plot_profiling")


def planted(*medians, processes=5, rounds=12, names=LEVELS):
    """Samples of known medians; a process is 1% faster or slower than another."""
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, m * np.exp(0.005 * rng.standard_normal((processes, rounds))))
        for name, m in zip(names, medians, strict=True)
    )


def pair(medians):
    """As written and blocked, in one process, as a profile has them."""
    found = planted(*medians, processes=1, rounds=100, names=("as written", "blocked"))
    return tuple(found.values())


def concluded(page, **data):
    """What the page concludes from its own data, but for these."""
    study = page["study"]
    record = dataclasses.replace(study.here, data={**study.here.data, **data}, fast=False)
    return study.concluded(record)


BESIDE = {"blocked": "as written", "fused": "blocked"}  # what the answer compares a level with
Level = onnxruntime.GraphOptimizationLevel


@pytest.mark.parametrize(
    ("medians", "lead", "subject", "level"),
    [
        ((4.0, 4.0, 2.0, 2.0), "Keep the default: 2.0", "blocked", "ENABLE_ALL"),
        ((4.0, 4.0, 4.0, 4.0), "Keep the default: as fast", "blocked", "ENABLE_ALL"),
        ((4.0, 1.0, 2.0, 2.0), "Stop at fusion: 2.0", "fused", "ENABLE_EXTENDED"),
        ((2.0, 2.0, 4.0, 4.0), "Stop at fusion: 2.0", "fused", "ENABLE_EXTENDED"),
        ((2.0, 4.0, 4.0, 4.0), "Optimize nothing: the default is 2.0", "blocked", "DISABLE_ALL"),
        # Fusion and the layout of images lose both.
        ((2.0, 3.0, 4.0, 4.0), "Optimize nothing: the default is 2.0", "blocked", "DISABLE_ALL"),
    ],
)
def test_the_answer_advises_a_level(page, medians, lead, subject, level):
    answer = concluded(page, measured=planted(*medians)).answer
    assert str(answer).startswith(lead)
    assert len(str(answer).split()) <= 35
    ratios = {name: medians[0] / n for name, n in zip(LEVELS[:3], medians, strict=False)}
    assert {bar.label: bar.value for bar in answer.bars} == pytest.approx(ratios, rel=0.02)
    told = re.search(r"fusion alone: ([\d.]+) \[", str(answer))[1]
    assert float(told) == pytest.approx(ratios["fused"], rel=0.01)
    pairs = [(claim.subject, claim.baseline) for claim in answer.claims]
    assert pairs == [(subject, BESIDE[subject]), ("fused", "as written")]
    copied = {}
    exec(answer.setting.partition("session = ")[0], copied)  # noqa: S102 - what a reader copies
    assert copied["options"].graph_optimization_level == getattr(Level, f"ORT_{level}")


def test_what_is_undecided_is_no_advice(page):
    answer = concluded(page, measured=planted(4.0, 4.0, 2.0, 2.0, processes=2)).answer
    assert str(answer).startswith(
        "Not shown here, measure yours with the command below: undecided."
    )
    assert len(str(answer).split()) <= 35
    assert (answer.label, answer.setting) == ("undecided", "")


@pytest.mark.parametrize(
    ("kernels", "last"),
    [
        (pair((4.0, 2.0)), "most headroom: a (Conv), 0.5 ms against 0.1 ms at the peak of"),
        (pair((2.0, 4.0)), "the kernels and the latency disagree: nothing can be concluded"),
        ((), "the profile times the launch of each kernel, not its work"),
    ],
)
def test_nodes_are_named_when_the_profile_tells(page, kernels, last):
    rows = [("r", "ReorderInput", 60.0, 0.0, 1e4), ("a", "Conv", 500.0, 1e6, 1e4)]
    columns = ["name", "op", "median", "flop", "bytes"]
    found = concluded(
        page,
        measured=planted(4.0, 4.0, 2.0, 3.0),
        nodes=pd.DataFrame(rows, columns=columns),
        peaks={"gflop_per_s": 10, "gb_per_s": 10},
        check=(kernels, pair((4.0, 2.0))),
    )
    image, note = found.claims[-2:]
    assert image.ratio == pytest.approx(1.5, rel=0.02)
    assert str(note).startswith(last)


def test_the_levels_are_counted_on_their_graphs(page):
    """The oracle counts operators: 14 were written, a Sigmoid and an Add can join."""
    assert page["levels"].loc["cpu", "as written"].tolist() == [14, 14, 0, 0, 0, 0]
    for name, level in page["LEVELS"].items():
        optimized = optimized_model(page["model"], provider="cpu", optimization=level)
        ops = [node.op_type for node in optimized.graph.node]
        found = page["levels"].loc["cpu", name]
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


def test_a_fused_node_stands_beside_the_sum_of_those_it_was_made_of(page):
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


def test_the_changes_of_the_network_add_up_to_both_profiles(page):
    """Only a Sigmoid and an Add join a convolution, as the prediction says."""
    total = page["study"].data.changes.set_index("change").loc["all"]
    for name, ran in page["profiles"].items():
        assert total[f"{name} (ms)"] == pytest.approx(ran.by_node()["median"].sum() / 1000)
    made_of = [names for names in page["after"].by_node()["origin"] if len(names) > 1]
    assert sorted(made_of) == [("down", "sum"), ("gate", "gate_act")]


def test_the_operators_are_counted_on_both_graphs(page):
    """The oracle counts the types of nodes; two were fused, seven reorders were added."""
    found = pd.DataFrame(page["ops"]).fillna(0)
    assert found["as written"].to_dict() == {
        **Counter(node.op_type for node in page["model"].graph.node),
        "ReorderInput": 0,
        "ReorderOutput": 0,
    }
    assert found["as written"].sum() == 14
    assert found["blocked"].sum() == len(page["after"].by_node())


TIMES = {"total_baseline": "durbase", "total_candidate": "duropti"}


def test_the_peer_reads_the_times_of_the_file_and_leaves_it(page, tmp_path):
    """The oracle is the JSON; the file is that of a session which runs no more."""
    session = make_session(page["model"], provider="cpu", profile=tmp_path / "run")
    for _ in range(3):
        session.run(None, page["feeds"])
    file = session.end_profiling()
    events = json.loads(Path(file).read_text(encoding="utf-8"))
    expected = sum(event["dur"] for event in events if event["name"].endswith("_kernel_time"))
    frame = page["read_by_peer"](file)
    assert frame["dur"][frame["cat"] == "Node"].sum() == expected
    assert read_profile(file, warmup=0).events["duration"].sum() == expected
    # The page compares operators: one microsecond more is seen.
    ours, theirs = page["ours"], page["theirs"].copy()
    theirs.loc[0, "durbase"] = theirs.loc[0, "durbase"] + 1
    sums = [
        table.groupby(op, observed=True)[[*columns]].sum().to_numpy(int).tolist()
        for table, op, columns in [
            (ours, "op", TIMES.keys()),
            (page["theirs"], "args_op_name", TIMES.values()),
            (theirs, "args_op_name", TIMES.values()),
        ]
    ]
    assert sorted(sums[0]) == sorted(sums[1]) != sorted(sums[2])


def test_the_merge_in_the_workbook_has_types_and_shapes_as_columns(page):
    merged = ortmeter.merge_profiles(page["before"], page["after"])
    assert {"op", "input_types", "input_shapes", "output_types", "output_shapes"} <= set(merged)
    (row,) = merged[merged["name_baseline"] == "sum"].itertuples()
    side = page["args"].size // 2
    assert (row.input_types, row.input_shapes) == (("f32",) * 2, ((1, 64, side, side),) * 2)


FIGURES = """
import runpy, sys
from matplotlib import pyplot as plt
sys.argv = [sys.argv[1]]
runpy.run_path(sys.argv[0], run_name="__main__")
axes = [ax for number in plt.get_fignums() for ax in plt.figure(number).axes]
print("figures:", [ax.get_title(loc="left") for ax in axes])
"""


@pytest.mark.slow
@pytest.mark.parametrize("provider", ["cpu", "cuda"])
def test_a_gpu_build_has_the_profile_of_cuda_after_that_of_the_cpu(tmp_path, provider):
    """The stand-in runs on the CPU what it says it runs on CUDA."""
    (script,) = EXAMPLES.rglob("plot_profiling.py")
    asked = {"ORTMETER_FAST": "1", "MPLBACKEND": "agg", "ORTMETER_PROVIDER": provider}
    done = subprocess.run(
        [sys.executable, "-c", FIGURES, str(script)],
        env={**fake_cuda.environment(tmp_path, tmp_path / "cuda.log"), **asked},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    titles = ast.literal_eval(done.stdout.rpartition("figures: ")[2])
    profiles = [title for title in titles if title.startswith("Time per node")]
    expected = ["Time per node, CPU", "Time per node, CUDA"]
    assert profiles == expected[: 2 if provider == "cuda" else 1]
    assert ("\ncuda as written " in done.stdout) is (provider == "cuda")


def test_the_bound_refuses_another_network(page):
    """A bias that is lost, or a weight that changes by a tenth, is outside of the bound."""
    for name, factor in (("shortcut_b", 0.0), ("down_w", 1.1), ("stem_w", 1.1)):
        changed = onnx.ModelProto()
        changed.CopyFrom(page["model"])
        (tensor,) = (t for t in changed.graph.initializer if t.name == name)
        values = onnx.numpy_helper.to_array(tensor) * np.float32(factor)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
        (got,) = ReferenceEvaluator(changed).run(None, page["feeds"])
        assert np.abs(got - page["exact"]["output"]).max() > page["bound"], name
