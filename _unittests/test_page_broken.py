"""The page on what is broken: tables of planted times, errors and edge values; its setting."""

import itertools
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pandas as pd
import pytest
from page_runner import define_page, parse, run_setting

from ortmeter.observatory.findings import INSTEAD
from ortmeter.observatory.matrix import ROWS

ORDER = ["1.0", "1.1", "1.2"]
CONTROL = "1.2, again"
PRELU, WHERE = "PRelu-per-channel-f32-L2", "Where-scalar-f32-L2"
SUM, MATMUL = "ReduceSum-last-axis-i64-L2", "MatMul-weights-of-int8-f32-L2"
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


def view(name, data):
    return define_page("plot_broken")[name](SimpleNamespace(**data))


def workarounds(name, data):
    return view(name, data)["workaround"].fillna("-").tolist()


def test_a_wrong_result_has_a_release_where_it_begins():
    table = view("wrong", HELD)
    assert table[["result", "since"]].to_numpy().tolist() == [
        ["0.6% off, or more", "1.1"],
        ["0, not -0, on -0", "1.0 or before"],
    ]
    assert workarounds("wrong", HELD) == ["accuracy level 1", "-"]
    gain = table["workaround, times faster"].iloc[0]
    assert float(gain.split()[0]) == pytest.approx(1 / 3, rel=0.05)
    assert table["issue"].iloc[0].startswith("#27614, #27769 merged")
    mended = plant({MATMUL: (10,) * 3}, {(MATMUL, "1.1"): 1e5}, [(WHERE, ORDER[:2], "wrong")])
    assert view("wrong", mended).empty


def test_what_is_wrong_or_not_judged_is_no_workaround():
    far = {(name, "1.2"): 1e5 for name in (MATMUL, MATMUL + INSTEAD)}
    data = plant({MATMUL: (9,) * 3, MATMUL + INSTEAD: (9,) * 3}, far)
    assert workarounds("find_wrong", data) == ["-"]
    data["errors"].loc[data["errors"]["case"] == MATMUL + INSTEAD, "largest"] = np.nan  # not known
    assert workarounds("find_wrong", data) == ["-"]
    times, far = {SUM: (9,) * 3, SUM + INSTEAD: (9,) * 3}, {(SUM, "1.2"): 1e5}
    assert workarounds("find_wrong", plant(times, far)) == ["MatMul by ones"]
    assert workarounds("find_wrong", plant(times, far, [(SUM + INSTEAD, [], "open")])) == ["-"]


def test_cases_that_became_slower_are_drawn():
    figure = view("changes", HELD)
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == ["PRelu, per channel, float32", "NonZero, float32"]
    assert view("changes", plant({PRELU: (10,) * 3}))["verdict"].ne("slower").all()


def test_a_loss_has_a_release_where_it_begins_and_a_workaround():
    table = view("slow", HELD)
    assert table.index.tolist() == ["PRelu, per channel, float32", "NonZero, float32"]
    assert table["since"].tolist() == ["1.1", "1.2"]
    assert table["median (µs)"].tolist() == pytest.approx([80, 20], rel=0.05)
    losses = table["times slower"].str.split().str[0].astype(float)
    assert losses.tolist() == pytest.approx([8, 2], rel=0.05)
    assert workarounds("slow", HELD) == ["Max(X, 0) + S * Min(X, 0)", "-"]
    gain = float(table["workaround, times faster"].iloc[0].split()[0])
    assert gain == pytest.approx(4, rel=0.05)


def plant_fusions(*rows):
    columns = ["case", "told", "candidates", "disable"]
    return {**HELD, "fusions": pd.DataFrame(rows, columns=columns)}


def test_optimizers_that_change_a_result():
    names = define_page("plot_broken")["FUSED"]
    rows = [names[1], "Y[0] is 1, expected 2", "1.1, 1.2", "A"], [names[3], "dies", "1.0", ""]
    table = view("fusions", plant_fusions(*rows))
    assert table.index.tolist() == names
    assert table["result"].tolist() == ["right", "Y[0] is 1, expected 2", "right", "dies"]
    assert table["wrong in"].tolist() == ["", "1.1, 1.2", "", "1.0"]
    assert table["right without"].tolist() == ["", "A", "", ""]
    found = view("find_optimizers", plant_fusions(*rows))
    assert (found.outcomes, found.evidence) == ((True,), "1 of 1")  # the other was fixed
    found = view("find_optimizers", plant_fusions(*rows, [names[0], "1", "1.2", ""]))
    assert found.outcomes == (True, False)


def test_a_record_before_the_fusions_were_measured_is_shown():
    table = view("fusions", HELD)
    assert table["result"].tolist() == ["not measured"] * len(table)
    assert view("find_optimizers", HELD).outcomes == ()


def test_the_setting_keeps_the_nodes_apart(monkeypatch):
    model = parse(
        "(float[2,4] X, float[2,4] Z, float[4] S) => (float[2,4] Y) "
        "{ A = Add(X, Z) Y = LayerNormalization(A, S) }"
    )
    given = {}

    class Session(onnxruntime.InferenceSession):
        def __init__(self, path, **options):
            given.update(options)
            super().__init__(path, **options)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    session = run_setting("keep_norms_apart", model)["session"]
    assert given == {"disabled_optimizers": ["SkipLayerNormFusion"]}
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    (got,) = session.run(None, {"X": x, "Z": x, "S": np.ones(4, np.float32)})
    np.testing.assert_allclose(got.mean(axis=1), 0, atol=1e-6)
