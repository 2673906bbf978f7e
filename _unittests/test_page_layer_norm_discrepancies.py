"""The conclusion of the page on layer normalization follows its tables."""

import re

import numpy as np
import onnx
import pandas as pd
import pytest
from page_runner import run_page

from ortmeter.runtime.models import layer_norm_matmul


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


def planted_exchanges(cases=CASES, **changes):
    """A kernel in each direction; it moves 25 outputs of 100 by 3 ulp at most."""
    rows = [
        case
        | {"candidate": candidate, "ulp": 4.0, "mean": 0.5, "share": 0.5}
        | {"change": 3.0, "differ": 25, "n": 100}
        for case in cases
        for candidate in ("torch", "onnxruntime")
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
    assert set(page["exchanges"].columns) == set(planted_exchanges().columns)
    assert set(page["exchanges"]["candidate"]) == {"torch", "onnxruntime"}
    assert set(page["nodes"].columns) == set(planted_nodes().columns)
    assert set(page["runs"].columns) == set(planted_runs().columns)
    assert set(page["runs"]["run"]) == set(MEANS)
    assert set(page["nodes"]["op"]) == set(planted_nodes()["op"])


def planted_tables(cases=CASES):
    planted = planted_errors, planted_exchanges, planted_nodes, planted_runs
    return [table(cases) for table in planted]


def test_the_conclusion_is_short_and_its_numbers_are_values(page):
    for cases in (CASES, ON_CUDA):
        claims = page["conclude"](*planted_tables(cases))
        assert len(claims) <= 11
        assert not any(str(claim).endswith(".") for claim in claims)
        for claim in claims:
            words = re.sub(r"{.*?}|b?float\d+|TF32|float64", "", claim.subject)
            assert not re.search(r"\d", words), words


def test_the_topics_answer_the_original_page(page):
    claims = page["conclude"](*planted_tables())
    topics = [claim.topic for claim in claims if claim.topic]
    assert topics == ["higher for float16", "cannot be exchanged"]
    on_cuda = page["conclude"](*planted_tables(ON_CUDA))
    assert sum(claim.topic == "higher for float16" for claim in on_cuda) == 2


def test_the_answer_is_yes_within_the_bound(page):
    exchanges = planted_exchanges()
    exchanges.loc[at(exchanges, type="float16"), "change"] = 1.0
    exchanges.loc[at(exchanges, weights="positive", candidate="torch"), "change"] = 0.5
    exchanges.loc[at(exchanges, weights="centred", candidate="torch"), "differ"] = 50
    assert str(page["answer"](exchanges)) == (
        "Yes, within rounding: all 8 exchanges between torch and onnxruntime stay within the error "
        "bound and move the outputs, in ulp of the largest one, by at most 3 in float32, 1 in "
        "float16; bit for bit, never: 25% to 50% of the outputs change."
    )


def test_the_answer_is_no_beyond_the_bound(page):
    exchanges = planted_exchanges()
    exchanges.loc[at(exchanges, type="float16", candidate="torch"), "share"] = 1.5
    text = str(page["answer"](exchanges))
    assert text.startswith("No: 2 of 8 exchanges between torch and onnxruntime leave the error")


def test_the_answer_says_where_bits_are_kept(page):
    assert str(page["answer"](planted_exchanges(differ=0))).endswith("; they keep every bit.")
    exchanges = planted_exchanges()
    exchanges.loc[at(exchanges, type="float32"), "differ"] = 0
    exchanges.loc[at(exchanges, type="float16", candidate="torch"), "differ"] = 75
    assert str(page["answer"](exchanges)).endswith(
        "; 4 of them keep every bit, others change up to 75% of the outputs."
    )


def test_bounds(page):
    errors = planted_errors()
    assert str(page["judge_bounds"](errors)) == (
        "none of 8 results leaves the error bound; the closest uses 50% of it (torch, float32, "
        "positive)"
    )
    errors.loc[at(errors, candidate="torch", type="float16", weights="centred"), "share"] = 1.5
    assert str(page["judge_bounds"](errors)) == (
        "1 of 8 results leave the error bound; the closest uses 150% of it (torch, float16, "
        "centred)"
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


def test_an_exchange_is_counted_by_what_it_moves(page):
    before, after = np.float32([4, 2, 8, 1]), np.float32([4, 2.5, 8, 0])
    found = {"ulp": 1.0, "mean": 0.5, "share": 0.25, "unit": 0.5, "bound": 9.0}
    assert page["measure_change"](before, after, found) == {
        "ulp": 1.0,
        "mean": 0.5,
        "share": 0.25,
        "change": 2.0,
        "differ": 2,
        "n": 4,
    }


def test_closest(page):
    (claim,) = page["judge_closest"](planted_errors())
    assert str(claim) == (
        "smaller mean error against float64: onnxruntime in float32 (by 50% to 50%), onnxruntime "
        "in float16 (by 50% to 50%)"
    )
    errors = planted_errors(ON_CUDA)
    errors.loc[at(errors, type="float16", weights="centred", candidate="torch"), "mean"] = 0.125
    errors.loc[at(errors, type="float32", candidate="torch"), "mean"] = 0.125
    rounded = at(errors, tf32="in onnxruntime", candidate="torch")
    errors.loc[rounded, "mean"] = 0.245  # 2 % is no difference
    (claim,) = page["judge_closest"](errors)
    assert str(claim) == (
        "smaller mean error against float64: torch in float32 (by 50% to 50%), neither in float16, "
        "neither in float32 with TF32 in onnxruntime"
    )


def test_one_library_alone_is_closest_to_nothing(page):
    errors = planted_errors()
    assert not list(page["judge_closest"](errors[errors["candidate"] == "torch"]))


def test_the_kernels_that_are_missing(page):
    errors, nodes = planted_errors(), planted_nodes()
    assert not list(page["name_missing"](errors, nodes))
    errors = errors[~(at(errors, type="float16") & at(errors, candidate="onnxruntime"))]
    missing = at(nodes, type="float16") & ~at(nodes, op="LayerNormalization")
    nodes.loc[missing, "kernels"] = "torch, torch"
    (claim,) = page["name_missing"](errors, nodes)
    assert str(claim) == (
        "float16: torch alone ran the whole model, onnxruntime has no kernel for MatMul and Add"
    )


def test_the_product_is_responsible(page):
    (claim,) = page["judge_product"](planted_nodes())
    assert str(claim) == (
        "Right: MatMul was predicted to change the outputs the most in float32; it does in 2 of 2 "
        "cases"
    )
    nodes = planted_nodes(ON_CUDA)
    nodes.loc[at(nodes, op="MatMul", tf32="off", weights="centred"), "only"] = 0.0
    off, rounded = page["judge_product"](nodes)
    assert (off.verdict, rounded.verdict) == ("wrong", "right")
    assert str(off).endswith("in float32; it does in 1 of 2 cases")
    assert str(rounded).endswith("in float32 with TF32 in onnxruntime; it does in 1 of 1 cases")
    nodes["rank"] = nodes["rank"].map({1: 2, 2: 1, 3: 3})
    assert {claim.verdict for claim in page["judge_product"](nodes)} == {"wrong"}


def test_tf32_in_both_libraries_was_not_predicted(page):
    nodes = planted_nodes([{"type": "float32", "weights": "positive", "tf32": "on"}])
    assert not list(page["judge_product"](nodes))


def test_the_session(page):
    near, closer, larger = page["judge_session"](planted_runs())
    assert str(near) == (
        "Right: float16: the kernels of the two libraries were predicted to differ by 2 ulp at "
        "most; they differ by 0.5, in 10.00% of the outputs at most"
    )
    assert str(closer) == (
        "Right: float16: a session was predicted to be closer to float64 than its kernels run one "
        "by one; it holds in 2 of 2 cases"
    )
    assert str(larger).endswith("than swapping every kernel; it holds in 2 of 2 cases")
    runs = planted_runs()
    runs.loc[at(runs, run="candidate against baseline", weights="centred"), "ulp"] = 3.0
    runs.loc[at(runs, run="session, all against float64"), "mean"] = 0.49
    runs.loc[at(runs, run="ort kernels against session, all", weights="positive"), "mean"] = 0
    judged = list(page["judge_session"](runs))
    assert [claim.verdict for claim in judged] == ["wrong", "wrong", "wrong"]
    near, closer, larger = map(str, judged)
    assert "they differ by 3, in" in near
    assert closer.endswith("it holds in 0 of 2 cases")
    assert larger.endswith("it holds in 1 of 2 cases")


def test_a_type_without_session_is_not_judged(page):
    runs = planted_runs()
    lost = at(runs, type="float16") & runs["run"].str.contains("session")
    assert not list(page["judge_session"](runs[~lost]))


def test_repeats(page):
    runs = planted_runs()
    text = "the same kernels give the same bits twice in {} of 8 controls"
    assert str(page["judge_repeats"](runs)) == text.format(8)
    runs.loc[at(runs, run="baseline, run twice", type="float16"), "differ"] = 3
    assert str(page["judge_repeats"](runs)) == text.format(6)


def test_higher_for_float16(page):
    errors = planted_errors(ON_CUDA)
    errors.loc[at(errors, type="float32", tf32="off"), "unit"] = 2.0**-15
    errors.loc[at(errors, type="float32", tf32="off"), "apart"] = 8.0
    higher, significant = page["judge_original"](errors)
    assert str(higher) == (
        'original, "higher for float16": true in absolute distance between torch and onnxruntime '
        "(0.5 against 0.00024 in float32), false in ulp (2 against 8)"
    )
    assert str(significant) == (
        'original, "significant on CUDA": in float32, torch and onnxruntime are 0.00024 apart (8 '
        "ulp) without TF32, 0.5 (2 ulp) with TF32 in onnxruntime only, the default of both"
    )
    errors.loc[at(errors, type="float16"), "apart"] = 9.0
    errors.loc[at(errors, type="float32"), "unit"] = 1.0
    errors.loc[at(errors, type="float32"), "apart"] = 8.0
    higher = next(page["judge_original"](errors))
    assert "false in absolute distance" in str(higher)
    assert "true in ulp (9 against 8)" in str(higher)
    single = errors[errors["type"] == "float32"]
    assert len([*page["judge_original"](single)]) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "true bit for bit (8 of 8 exchanges change some outputs), false within the error"),
        ({"differ": 0}, "false bit for bit (0 of 8 exchanges change some outputs), false within"),
        ({"share": 1.5}, "true within the error bound (8 leave it)"),
    ],
)
def test_cannot_be_exchanged(page, changes, said):
    claim = page["judge_exchange"](planted_exchanges(**changes))
    assert said in str(claim)
    assert claim.topic == "cannot be exchanged"


def test_the_tolerance_is_twice_the_bound(page):
    errors = planted_errors()
    single, half = page["tabulate_tolerances"](errors)
    assert single["tolerance (ulp)"] == half["tolerance (ulp)"] == 16
    assert single["atol / max|Z|"] == 2 * 16 * 2.0**-24
    assert half["atol / max|Z|"] == 2 * 16 * 2.0**-11
    assert half["distance (ulp)"] == 2
    alone = next(page["tabulate_tolerances"](errors[errors["candidate"] == "torch"]))
    assert np.isnan(alone["distance (ulp)"])


def test_every_exchange_runs_on_the_kernels_it_names(page):
    model, feeds = page["make_case"]("positive", "float32")
    for library, (source, kernels) in page["EXCHANGES"].items():
        evaluator = page["Evaluator"](model, kernels, sources=(source,))
        evaluator.run(None, feeds)
        found = dict(evaluator.assignment[["op_type", "source"]].itertuples(index=False))
        own, other = ("torch", "ort") if library == "torch" else ("ort", "torch")
        assert found == {"LayerNormalization": other, "MatMul": own, "Add": own}
