"""The conclusion of the page on layer normalization follows its tables."""

import numpy as np
import onnx
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.models import layer_norm_matmul


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_layer_norm_discrepancies")


CASES = [
    {"type": name, "weights": weights, "tf32": "off"}
    for name in ("float32", "float16")
    for weights in ("positive", "centred")
]
ON_CUDA = [*CASES, {"type": "float32", "weights": "positive", "tf32": "in onnxruntime"}]


def planted_errors(cases=CASES, **changes):
    rows = [
        case
        | {"candidate": candidate, "abs": 1.0, "ulp": 4.0, "mean": mean, "bound": 8.0}
        | {"share": 0.5, "unit": 0.25, "apart": 2.0}
        for case in cases
        for candidate, mean in (("torch", 0.5), ("onnxruntime", 0.25))
    ]
    return pd.DataFrame(rows).assign(**changes)


def planted_nodes(cases=CASES, **changes):
    """The product is responsible, the addition is the same in both libraries."""
    values = {"LayerNormalization": (2, 1.0), "MatMul": (1, 3.0), "Add": (3, 0.0)}
    rows = [
        case
        | {"op": op, "kernels": "torch, ort", "rank": rank, "local": 1.0, "only": only}
        | {"all but": 1.0, "largest": only, "error": 5.0, "differ": int(10 * only), "n": 100}
        for case in cases
        for op, (rank, only) in values.items()
    ]
    return pd.DataFrame(rows).assign(**changes)


MEANS = {
    "baseline against float64": 0.5,
    "candidate against float64": 0.5,
    "session, all against float64": 0.25,
    "session, none against float64": 0.25,
    "candidate against baseline": 0.125,
    "baseline, run twice": 0.0,
    "candidate, run twice": 0.0,
    "ort kernels against session, all": 0.375,
    "ort kernels against session, none": 0.375,
}


def planted_runs(cases=CASES, **changes):
    rows = [
        case | {"run": run, "mean": mean, "ulp": 4 * mean, "differ": int(80 * mean), "n": 100}
        for case in cases
        for run, mean in MEANS.items()
    ]
    return pd.DataFrame(rows).assign(**changes)


def at(table, **values):
    """Select rows."""
    chosen = np.ones(len(table), bool)
    for column, value in values.items():
        chosen &= table[column] == value
    return chosen


def test_the_tables_of_the_page_have_the_columns_planted_here(page):
    assert set(page["errors"].columns) == set(planted_errors().columns)
    assert set(page["nodes"].columns) == set(planted_nodes().columns)
    assert set(page["runs"].columns) == set(planted_runs().columns)
    assert set(page["runs"]["run"]) == set(MEANS)
    assert set(page["nodes"]["op"]) == set(planted_nodes()["op"])


def test_everything_is_said_in_one_list(page):
    tables = planted_errors(), planted_nodes(), planted_runs()
    sentences = page["conclude"](*tables, on_cuda=False)
    assert sentences[0].startswith("all 8 results are within their bound; the closest uses 50%")
    assert all(sentence.endswith(".") for sentence in sentences)
    assert sum("CUDA" in sentence for sentence in sentences) == 1
    assert not any("CUDA" in s for s in page["conclude"](*tables, on_cuda=True))


def test_a_result_beyond_its_bound_is_said(page):
    errors = planted_errors()
    errors.loc[at(errors, candidate="torch", type="float16", weights="centred"), "share"] = 1.5
    assert page["judge_bounds"](errors) == (
        "1 of 8 results exceed their bound, the worst is torch, float16, centred."
    )


def test_the_page_itself_refuses_a_result_beyond_its_bound(page):
    expected, bound = np.array([4.0, 2.0]), np.array([1.0, 1.0])
    row = page["measure_error"](np.float32([4.5, 2]), expected, bound, "x")
    assert (row["abs"], row["share"], row["unit"]) == (0.5, 0.5, 2.0**-21)
    assert row["ulp"] == 2 * row["mean"] == 0.5 * row["bound"] == 2.0**20
    with pytest.raises(AssertionError, match="x is outside of its bound"):
        page["measure_error"](np.float32([4.5, 0.9]), expected, bound, "x")


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("weights", ["positive", "centred"])
def test_the_reference_and_its_bound(page, name, weights):
    """The oracle is torch in float64."""
    torch = pytest.importorskip("torch")
    model = layer_norm_matmul(32, weights=weights, dtype=name)
    x = page["wide"][:, :4, :32].astype(page["numpy_dtype"](name))
    expected, bound = page["reference"](model, x)
    assert (bound(tf32=False) > 0).all()
    assert (bound(tf32=True) > bound(tf32=False)).all() == (name == "float32")
    arrays = [x, *map(onnx.numpy_helper.to_array, model.graph.initializer)]
    wide, scale, bias, matrix, last = (torch.tensor(a.astype(np.float64)) for a in arrays)
    truth = torch.nn.functional.layer_norm(wide, (32,), scale, bias, 1e-5) @ matrix + last
    np.testing.assert_allclose(expected, truth.numpy(), rtol=1e-12, atol=1e-12)


def test_closest(page):
    sentences = list(page["judge_closest"](planted_errors()))
    assert sentences[0] == (
        "float32, positive: onnxruntime is closer to float64; mean errors: onnxruntime 0.25 ulp "
        "(at most 4), torch 0.5 ulp (at most 4)."
    )
    assert "neither library is closer" in next(page["judge_closest"](planted_errors(mean=0.5)))
    errors = planted_errors()
    alone = errors[errors["candidate"] == "torch"]
    assert (
        next(page["judge_closest"](alone)) == "float32, positive: torch alone has all the kernels."
    )


def test_nodes(page):
    sentences = list(page["judge_nodes"](planted_nodes()))
    assert len(sentences) == 4
    assert sentences[0] == (
        "float32, positive: MatMul is responsible, its swap alone changes 30% of the outputs by "
        "3 ulp at most; LayerNormalization 10% of the outputs by 1 ulp at most."
    )
    nodes = planted_nodes()
    nodes["rank"] = nodes["rank"].map({1: 2, 2: 1, 3: 3})
    first = next(page["judge_nodes"](nodes))
    assert first.startswith("float32, positive: LayerNormalization is responsible")
    none = next(page["judge_nodes"](planted_nodes(only=0.0)))
    assert none == "float32, positive: no swap of a kernel changes the outputs."


def test_controls(page):
    twice, *sessions, larger = page["judge_controls"](planted_runs())
    assert twice == "the same kernels give the same bits twice in 8 of 8 controls."
    assert len(sessions) == 4
    assert sessions[0] == (
        "float32, positive: a session differs from the kernels of onnxruntime run one by one in "
        "30% of the outputs; these kernels differ from those of torch in 10%."
    )
    assert "in 4 of 4 cases (float32, positive; float32, centred; float16, positive" in larger
    runs = planted_runs()
    runs.loc[at(runs, run="ort kernels against session, all"), "mean"] = 0.0
    runs.loc[at(runs, run="baseline, run twice", type="float16"), "differ"] = 3
    twice, *sessions = page["judge_controls"](runs)
    assert "twice in 6 of 8 controls" in twice
    assert len(sessions) == 4


def test_a_case_without_session_has_no_control(page):
    runs = planted_runs()
    lost = at(runs, type="float16") & runs["run"].str.contains("session")
    sentences = list(page["judge_controls"](runs[~lost]))
    assert not any("float16" in sentence for sentence in sentences)


def test_predictions(page):
    first, short = page["judge_predictions"](planted_nodes(), planted_runs())
    assert first == "prediction, float32: MatMul is responsible in 2 of 2 cases."
    assert short == (
        "prediction, 16 bits, 2 cases: the kernels of the two libraries are at most 2 ulp apart in "
        "2, and differ in 10% of the outputs at most; a session is closer to float64 than its "
        "kernels run one by one in 2."
    )
    nodes, runs = planted_nodes(ON_CUDA), planted_runs(ON_CUDA)
    nodes.loc[at(nodes, op="MatMul", tf32="off"), "only"] = 0.0
    runs.loc[at(runs, run="candidate against baseline", weights="centred"), "ulp"] = 3.0
    runs.loc[at(runs, run="session, all against float64"), "mean"] = 0.49
    first, rounded, short = page["judge_predictions"](nodes, runs)
    assert first.endswith("MatMul is responsible in 0 of 2 cases.")
    assert rounded == (
        "prediction, TF32 in onnxruntime only: MatMul is responsible in 1 of 1 cases."
    )
    assert "at most 2 ulp apart in 1, and" in short
    assert short.endswith("one by one in 0.")


def test_claims(page):
    errors = planted_errors(ON_CUDA)
    errors.loc[at(errors, type="float32", tf32="off"), "unit"] = 2.0**-15
    errors.loc[at(errors, type="float32", tf32="off"), "apart"] = 8.0
    higher, significant, exchange = page["judge_claims"](
        errors, planted_nodes(ON_CUDA), on_cuda=True
    )
    assert higher == (
        '"higher for float16": torch and onnxruntime are 0.5 (2 ulp) apart in float16 and 0.00024 '
        "(8 ulp) in float32: not higher in ulp."
    )
    assert significant == (
        '"significant on CUDA": in float32, they are 0.00024 (8 ulp) apart without TF32, 0.5 (2 '
        "ulp) with TF32 in onnxruntime only, the default of both."
    )
    assert exchange == (
        '"cannot be exchanged": with the LayerNormalization of the other library, the outputs are '
        "still within the bound in 5 of 5 cases, and bit for bit the same in 0; the largest change "
        "is 1 ulp (float32, positive)."
    )
    errors.loc[at(errors, type="float16"), "apart"] = 9.0
    first, second, *_ = page["judge_claims"](errors, planted_nodes(ON_CUDA), on_cuda=False)
    assert "was not checked in this build, on CPU" in first
    assert second.endswith(": higher in ulp.")


def test_an_exchange_beyond_the_bound_is_said(page):
    nodes = planted_nodes()
    norms = at(nodes, op="LayerNormalization")
    nodes.loc[norms & at(nodes, type="float16"), "error"] = 9.0
    nodes.loc[norms & at(nodes, type="float32"), "differ"] = 0
    sentence = page["judge_exchange"](planted_errors(), nodes)
    assert "within the bound in 2 of 4 cases, and bit for bit the same in 2;" in sentence


def test_tolerance(page):
    single, half = page["judge_tolerance"](planted_errors())
    assert single == (
        "float32: a tolerance of 16 ulp of the largest output always holds, atol = 1.9e-06 "
        "max|Z|; here torch and onnxruntime are 2 ulp apart at most."
    )
    assert half.startswith("float16: a tolerance of 16 ulp")
    errors = planted_errors()
    alone = next(page["judge_tolerance"](errors[errors["candidate"] == "torch"]))
    assert alone.endswith("one library only was measured.")


def test_every_mixture_of_the_page_runs_on_the_kernels_it_names(page):
    """Both directions: with one kernel of onnxruntime, with one kernel of torch."""
    kernels = {tuple(swap.items()) for _, swap in page["SWAPS"].values()}
    assert kernels == {
        (),
        (("LayerNormalization", "ort"),),
        (("MatMul", "ort"),),
        (("LayerNormalization", "torch"),),
        (("MatMul", "torch"),),
    }
    assert list(page["swaps"].index) == list(page["SWAPS"])
    assert page["swaps"].loc["torch", "differ from torch"] == 0
