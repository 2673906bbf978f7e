"""The page on what is broken: what it says of planted times, errors and edge values."""

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import pandas as pd
import pytest
from golden import plain_claim
from matplotlib import pyplot as plt
from page_runner import define_page, run_page

from ortmeter.observatory.findings import FINDINGS, INSTEAD
from ortmeter.observatory.matrix import ROWS

PAGE = "plot_broken"
ORDER = ["1.0", "1.1", "1.2"]
CONTROL = "1.2, again"
PRELU, WHERE = "PRelu-per-channel-f32-L2", "Where-scalar-f32-L2"
SUM, MATMUL = "ReduceSum-last-axis-i64-L2", "MatMul-weights-of-int8-f32-L2"
RACE = "ScatterND-add-rows-f32-L3"
SKIP, NONZERO = "SkipLayerNormalization-of-two-nodes-f32-L2", "NonZero-f32-L2"
LARGEST = 3.5  # ulp


def plant(times, far=None, edges=(), noise=0.01):
    """What a record has: medians (µs) by release, errors that are large, edge values."""
    index = pd.MultiIndex.from_product([[1], range(2), range(6), list(times)], names=ROWS)
    known = np.array([[*times[case], times[case][-1]] for *_, case in index], float)
    drawn = known * np.exp(np.random.default_rng(0).normal(0, noise, known.shape))
    errors = [
        {"case": case, "candidate": one, "largest": (far or {}).get((case, one), LARGEST)}
        for case, one in itertools.product(times, ORDER)
    ]
    columns = ["case", "candidates", "got", "expected", "verdict", "what", "inputs"]
    what = {"wrong": "sign of zero", "open": "not judged"}
    rows = [[case, ", ".join(where), "0", "-0", v, what[v], "-0"] for case, where, v in edges]
    return {
        "times": pd.DataFrame(drawn, index=index, columns=[*ORDER, CONTROL]),
        "errors": pd.DataFrame(errors),
        "edges": pd.DataFrame(rows, columns=columns),
        "absent": pd.DataFrame(columns=["case", "release", "reason"]),
        "order": ORDER,
        "releases": ORDER,
        "legend": "CPU",
    }


HELD = plant(
    {
        PRELU: (10, 80, 80),
        PRELU + INSTEAD: (20, 20, 20),
        NONZERO: (10, 10, 20),
        MATMUL: (10, 10, 10),
        MATMUL + INSTEAD: (10, 10, 30),
        WHERE: (10, 10, 10),
        SKIP: (10, 10, 10),
    },
    {(MATMUL, one): 1e5 for one in ORDER[1:]},
    [(WHERE, ORDER, "wrong"), (SUM, ORDER, "open")],
)


def conclude(data):
    study = run_page(PAGE)["study"]
    return study.concluded(dataclasses.replace(study.here, data=data, fast=False))


def view(name, data):
    return define_page(PAGE)[name](SimpleNamespace(**data))


def meanwhile(name, data):
    return view(name, data)["meanwhile"].fillna("-").tolist()


def test_what_holds_is_told_wrong_results_first():
    found = conclude(HELD)
    assert str(found.answer) == (
        "On 1.2, check MatMul and Where: wrong results. "
        "PRelu is up to 8 times slower: write Max(X, 0) + S * Min(X, 0). "
        "In all, 2 cases are slower."
    )
    assert found.answer.warning == "MatMul, weights of int8, float32: 0.6% off, or more, since 1.1."
    assert found.answer.label == "4 hold"
    assert [bar.value for bar in found.answer.bars] == pytest.approx([8, 2], rel=0.05)
    assert found.answer.command == "ortmeter operators --values edge --filter Where"
    assert "session.qdq_matmulnbits_accuracy_level" in found.answer.setting
    assert "SkipLayerNormFusion" not in found.answer.setting
    costs, ways = found.claims
    assert (costs.verdict, ways.verdict) == ("right", "wrong")
    assert plain_claim(costs)["numbers"] == pytest.approx([4, 2], rel=0.05)
    assert plain_claim(ways)["numbers"] == [1, 2]  # nothing is measured instead of Where


def test_a_wrong_result_has_a_release_where_it_begins():
    table = view("wrong", HELD)
    assert table.iloc[:, :2].to_numpy().tolist() == [
        ["0.6% off, or more", "1.1"],
        ["0, not -0, on -0", "1.0 or before"],
    ]
    way, none = table["meanwhile, times slower"].fillna("-")
    assert (way[:19], none) == ("accuracy level 1: 3", "-")
    mended = plant({MATMUL: (10,) * 3}, {(MATMUL, "1.1"): 1e5}, [(WHERE, ORDER[:2], "wrong")])
    assert view("wrong", mended).empty


def test_other_infinities_are_told_without_a_share():
    data = plant({MATMUL: (9,) * 3}, {(MATMUL, one): np.inf for one in ORDER[1:]})
    assert view("find_wrong", data).loc[MATMUL, ["result", "since"]].tolist() == [
        "other NaN or infinities",
        "1.1",
    ]


def test_what_is_wrong_by_chance_is_not_right_where_it_is_not_seen():
    far = {(RACE, one): 1e6 for one in ("1.1", "1.2")}
    table = view("wrong", plant({RACE: (9,) * 3, RACE + INSTEAD: (9,) * 3}, far))
    ((since, way),) = table.iloc[:, 1:].to_numpy().tolist()
    assert (since, way[:12]) == ("1.1 or before", "one thread: ")


def test_changes_are_drawn_where_some_are_shown():
    figure = view("changes", HELD)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == ["PRelu, per channel, float32", "NonZero, float32"]
    plt.close(figure)
    assert view("changes", plant({PRELU: (10,) * 3}))["verdict"].ne("slower").all()


def test_a_loss_has_a_release_where_it_begins_and_what_is_faster():
    table = view("slow", HELD)
    assert table.index.tolist() == ["PRelu, per channel, float32", "NonZero, float32"]
    assert table["since"].tolist() == ["1.1", "1.2"]
    before, after = map(float, table["µs"].iloc[0].split(", "))
    assert (before, after) == pytest.approx((10, 80), rel=0.05)
    assert meanwhile("slow", HELD) == ["Max(X, 0) + S * Min(X, 0)", "-"]
    assert table["then (µs)"].iloc[0] == pytest.approx(20, rel=0.05)


@pytest.mark.parametrize("instead", [(80, 80, 80), (20, 20, 120), (np.nan, 20, np.nan)])
def test_what_does_not_help_is_not_advised(instead):
    data = plant({PRELU: (10, 10, 80), PRELU + INSTEAD: instead})
    assert meanwhile("slow", data) == ["-"]
    assert view("slow", data)["then (µs)"].isna().all()
    skip = plant({SKIP: (10, 10, 50), SKIP + INSTEAD: (10, 10, 50)})
    assert not conclude(skip).answer.setting


def test_what_is_wrong_too_is_not_advised():
    far = {(name, "1.2"): 1e5 for name in (MATMUL, MATMUL + INSTEAD)}
    data = plant({SKIP: (9,) * 3, MATMUL: (9,) * 3, MATMUL + INSTEAD: (9,) * 3}, far)
    assert meanwhile("find_wrong", data) == ["-"]
    data["errors"].loc[data["errors"]["case"] == MATMUL + INSTEAD, "largest"] = np.nan  # not known
    assert meanwhile("find_wrong", data) == ["-"]
    assert not conclude(data).answer.setting


def test_what_nothing_judges_is_not_advised():
    times, far = {SKIP: (9,) * 3, SUM: (9,) * 3, SUM + INSTEAD: (9,) * 3}, {(SUM, "1.2"): 1e5}
    assert meanwhile("find_wrong", plant(times, far)) == ["MatMul by ones"]
    assert meanwhile("find_wrong", plant(times, far, [(SUM + INSTEAD, [], "open")])) == ["-"]


def test_a_mended_loss_is_not_shown():
    data = plant({PRELU: (10, 80, 10), NONZERO: (10, 10, 10)})
    rows = view("not_shown", data)
    assert rows.loc["PRelu, per channel, float32", "here"] == "not in the last release here"
    assert rows.loc["MatMul, square, int64", "here"] == "not measured"
    found = conclude(data)
    assert found.answer.label == "undecided"
    assert str(found.answer).startswith("Nothing is shown here: ")
    assert not found.answer.warning
    assert {claim.verdict for claim in found.claims} == {"undecided"}


def test_what_upstream_knows_stands_beside_what_holds():
    rows = view("known", HELD)
    assert rows.index[0].startswith("MatMul, weights of int8, float32: 0.6% off")
    prelu = rows.loc[rows.index.str.startswith("PRelu")].iloc[0]
    assert prelu["issue"] == "nothing found"
    assert rows["issue"].iloc[0].startswith("#27614, #27769: ")
    assert (rows["searched"] == "2026-11-26").all()
    options = view("reports", HELD)["options"]
    assert options.iloc[-2] == f"--repro {PRELU} --runtime 1.26.0,1.2 --report"


def test_a_finding_with_other_inputs_has_no_report_of_the_catalogue():
    changed = next(one for one in FINDINGS if one.change)
    assert define_page(PAGE)["write_command"](changed, "1.2").startswith("none")


def test_too_much_noise_decides_nothing():
    data = plant({PRELU: (10, 20, 20), PRELU + INSTEAD: (10, 10, 10)}, noise=1.5)
    assert conclude(data).answer.label == "undecided"


def test_a_costly_way_round_is_told():
    data = plant({PRELU: (10, 10, 90), PRELU + INSTEAD: (60, 60, 60)})
    costs, _ = conclude(data).claims
    assert costs.verdict == "wrong"


def test_the_setting_runs_as_it_is_printed(tmp_path, monkeypatch):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] X, float[2,4] Z, float[4] S) '
        "=> (float[2,4] Y) { A = Add(X, Z) Y = LayerNormalization(A, S) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    data = plant({SKIP: (10, 10, 50), SKIP + INSTEAD: (10, 10, 10)})
    names = {}
    exec(conclude(data).answer.setting, names)  # noqa: S102 - computed by the page
    config = "optimization.disable_specified_optimizers"
    assert names["options"].get_session_config_entry(config) == "SkipLayerNormFusion"
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (got,) = names["session"].run(None, {"X": x, "Z": x, "S": np.ones(4, np.float32)})
    np.testing.assert_allclose(got.mean(axis=1), 0, atol=1e-6)
