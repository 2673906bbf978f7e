"""The inputs, the decisions, the intervals, the table and the setting of the page on 8 bits."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from fakes import needs_vnni
from page_runner import compare, parse, run_setting
from scipy.stats import binomtest

import ortmeter
from ortmeter.study import to_frame
from ortmeter.timing import Comparisons

STATIC, PRODUCTS = "QDQ U8S8", "products"
SPEEDS = {"float32": 1.0, "float16": 0.5, STATIC: 4.0, PRODUCTS: 2.0}
COUNTS = {"recognizer": 18, "voice": 375}
KEPT = {(STATIC, "recognizer"): 0, (STATIC, "voice"): 186, (PRODUCTS, "recognizer"): 7}


@pytest.fixture(scope="module")
def data():
    """Times whose ratios are known, and decisions of two networks; all are kept by default."""
    times = compare({way: 1e-3 / speed for way, speed in SPEEDS.items()})
    facts = {
        (name, way): {
            "same (%)": 100 * KEPT.get((way, name), count) / count,
            "decisions": count,
            "size (MiB)": 4.0 / SPEEDS[way],
        }
        for name, count in COUNTS.items()
        for way in SPEEDS
    }
    results = Comparisons(dict.fromkeys(COUNTS, times), "model")
    facts = to_frame(facts, "model", "conversion")
    return SimpleNamespace(results=results, facts=facts, legend="planted", provider="cpu")


def test_the_table_has_speed_decisions_and_size(page, data):
    table = page["decide"](data)
    assert table.index.to_list() == [
        (name, shown) for name in COUNTS for shown in ("float16", "static", "static, products only")
    ]
    assert table["size"].to_list() == [200, 25, 50] * 2
    ratios = [float(text.split()[0]) for text in table["speedup"]]
    assert ratios == pytest.approx([0.5, 4, 2] * 2, rel=0.01)
    assert table.loc[("voice", "static"), "decisions kept"] == "49.6 [43, 56.2]"
    assert table.loc[("recognizer", "float16"), "decisions kept"] == "100 [73.1, 100]"


def test_shares_have_the_interval_of_wilson(page, data):
    for way in (STATIC, PRODUCTS, "float16"):
        for name, share in page["kept"](data, way).items():
            kept, count = KEPT.get((way, name), COUNTS[name]), COUNTS[name]
            expected = binomtest(kept, count).proportion_ci(0.99, method="wilson")
            assert share.value == pytest.approx(100 * kept / count)
            assert share.interval == pytest.approx([100 * end for end in expected], abs=0.01)


def test_a_conversion_keeps_more_where_the_other_one_loses_decisions(page, data):
    more, fewer = (page["keeps_more"](data, *p) for p in ((PRODUCTS, STATIC), (STATIC, PRODUCTS)))
    assert more.outcomes == (True, True)
    assert more.effect == pytest.approx((100 * 7 / 18, 50.4))
    assert "recognizer 38.9 [16.4, 67.4] against 0 [0, 26.9]" in more.evidence
    assert fewer.outcomes == (False,)  # the voice loses none with products
    assert page["keeps_more"](data, STATIC, STATIC).outcomes == (None, None)
    assert page["keeps_more"](data, STATIC, "float16").outcomes == ()


def test_decisions_are_those_of_the_task(page):
    same = page["same"]
    score = np.zeros((1, 1, 96, 320), np.float32)
    score[0, 0, 5:30, 20:120] = score[0, 0, 60:80, 10:200] = 0.9
    other = score.copy()
    other[0, 0, 60:80, 150:] = 0.0
    assert list(same("detector", score, score)) == [True, True]
    assert list(same("detector", score, other)) == [True, False]
    letters = np.eye(4, dtype=np.float32)
    one, two = (letters[None, [*ids]] for ids in ([1, 1, 0, 2], [1, 0, 2, 2]))
    assert same("recognizer", one, two) == [True]
    assert same("recognizer", one, letters[None, [1, 0, 1, 2]]) == [False]
    assert list(same("voice", np.float32([0.4, 0.6]), np.float32([0.1, 0.4]))) == [True, False]


def test_models_are_calibrated_on_other_inputs(page, monkeypatch):
    monkeypatch.setitem(page, "rng", np.random.default_rng(0))
    _, _, samples, others = page["make"]("encoder")
    assert (len(samples), len(others)) == (3, 1)
    drawn = [x["x0"] for x in (*samples, *others)]
    assert all(np.abs(drawn[-1] - x).max() > 1 for x in drawn[:-1])


MODEL = """(float[1, 3, 8, 8] X) => (float[1, 5] Y) <float[5] B = {5, 4, 3, 2, 1}> {
C = Conv<pads = [1, 1, 1, 1]> (X, F)  R = Relu(C)  P = GlobalAveragePool(R)  Q = Flatten(P)
M = MatMul(Q, W)  A = Add(M, B)  Y = Softmax(A) }"""


@needs_vnni
def test_the_setting_converts_products_and_tells_which_inputs_keep_their_class(
    tmp_path, monkeypatch
):
    rng = np.random.default_rng(0)
    model = parse(MODEL, F=(4, 3, 3, 3), W=(4, 5))
    drawn = [{"X": rng.standard_normal((1, 3, 8, 8), np.float32)} for _ in range(132)]
    quantize = run_setting("quantize_products", model)["quantize"]
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    told = quantize(drawn[:32], drawn[32:])
    scores = [
        np.concatenate(
            [ortmeter.make_session(file, provider="cpu").run(None, x)[0] for x in drawn[32:]]
        )
        for file in ("model.onnx", "8.onnx")
    ]
    assert 0 < np.abs(scores[0] - scores[1]).max() < 0.1
    assert told == list(scores[0].argmax(axis=1) == scores[1].argmax(axis=1))
    converted = onnx.load("8.onnx").graph
    assert {"Conv", "MatMul", "Softmax", "DequantizeLinear"} <= {n.op_type for n in converted.node}
    rounded = {name for n in converted.node for name in n.input if n.op_type == "QuantizeLinear"}
    assert not rounded & {"A", "Q", "Y"} - {"Q"}  # neither Softmax nor Add reads 8 bits
    scales = [t for t in converted.initializer if t.name.startswith("F") and "scale" in t.name]
    assert [list(t.dims) for t in scales] == [[4]]  # one per channel
