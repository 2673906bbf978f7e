"""The conclusion of the page on layer normalization follows its tables."""

import re
import runpy

import numpy as np
import onnx
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import EXAMPLES, run_page

from ortmeter.errors import ModelError
from ortmeter.runtime.models import layer_norm_matmul


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_layer_norm_discrepancies")


CASES = [
    {"type": name, "weights": weights}
    for name in ("float32", "float16")
    for weights in ("positive", "centred")
]
TF32 = "float32 (TF32 in ort)"
ON_CUDA = [*CASES, {"type": TF32, "weights": "positive"}]
UNIT = 0.25

#: Mean distance between two runs, in ulp. The product is responsible.
MEANS = {
    **dict.fromkeys(
        [("float64", name) for name in ("torch", "ort LayerNorm", "ort MatMul", "ort kernels")], 0.5
    ),
    ("float64", "session"): 0.25,
    ("torch", "ort LayerNorm"): 0.0625,
    ("torch", "ort MatMul"): 0.125,
    ("torch", "ort kernels"): 0.1875,
    ("torch", "session"): 0.5,
    ("session", "ort LayerNorm"): 0.375,
    ("session", "ort MatMul"): 0.375,
    ("session", "ort kernels"): 0.375,
    ("ort kernels", "ort MatMul"): 0.0625,
    ("session", "session, not optimized"): 0.0,
    ("torch", "torch, again"): 0.0,
    ("ort kernels", "ort kernels, again"): 0.0,
}


def planted_distances(cases=CASES):
    """The largest distance is four times the mean; one output of 100 differs by 1/16 ulp of it."""
    rows = [
        case
        | {"unit": UNIT, "expected": expected, "got": got}
        | {"largest": 4 * mean * UNIT, "mean": mean * UNIT, "sum": 400 * mean * UNIT, "n": 400}
        | {"> 0": int(16 * mean), "> 0.0001": int(16 * mean), "> 0.001": 0, "> 0.01": 0}
        | {"> 0.1": 0, "> 1": 0}
        for case in cases
        for (expected, got), mean in MEANS.items()
    ]
    return pd.DataFrame(rows)


def planted_outputs(cases=CASES):
    rows = [
        case
        | {"unit": UNIT, "run": run, "min": 1.0, "max": 3.0, "mean": 2.0}
        | {"bound": 8 * UNIT, "bound used": 0.5}
        for case in cases
        for run in (*(got for expected, got in MEANS if expected == "float64"), "torch, again")
    ]
    return pd.DataFrame(rows)


def at(table, **values):
    """Select rows."""
    chosen = np.ones(len(table), bool)
    for column, value in values.items():
        chosen &= table[column] == value
    return chosen


def set_mean(distances, pair, ulps, **where):
    """Plant a mean distance in ulp, and a largest one four times larger."""
    chosen = at(distances, expected=pair[0], got=pair[1], **where)
    distances.loc[chosen, "mean"] = ulps * UNIT
    distances.loc[chosen, "largest"] = 4 * ulps * UNIT


def drop_runs(table, column, names, **where):
    """Remove what a library has no kernel for."""
    lost = at(table, **where) & table[column].isin(names)
    if "expected" in table:
        lost |= at(table, **where) & table["expected"].isin(names)
    return table[~lost]


ORT_PRODUCT = ["ort MatMul", "ort kernels", "session", "session, not optimized"]
ORT_PRODUCT += ["ort kernels, again"]


def test_the_tables_of_the_page_have_the_columns_planted_here(page):
    assert list(page["outputs"].columns) == list(planted_outputs().columns)
    distances = page["distances"]
    assert list(distances.columns) == list(planted_distances().columns)
    assert {*zip(distances["expected"], distances["got"], strict=True)} == MEANS.keys()


def test_the_conclusion_has_five_claims_whose_numbers_are_values(page):
    for cases in (CASES, ON_CUDA):
        answer, claims = page["conclude"](planted_outputs(cases), planted_distances(cases))
        assert len(claims) <= 5
        assert not any(str(claim).endswith(".") for claim in claims)
        for claim in (*claims, answer):
            text = getattr(claim, "subject", "") or claim.text
            words = re.sub(r"{.*?}|b?float\d+|TF32|float64", "", text)
            assert not re.search(r"\d", words), words


def test_every_prediction_is_judged(page):
    _, claims = page["conclude"](planted_outputs(), planted_distances())
    assert [claim.verdict for claim in claims] == ["right", "right", "right", "fact", "fact"]


def test_the_topics_answer_the_original_page(page):
    for cases in (CASES, ON_CUDA):
        _, claims = page["conclude"](planted_outputs(cases), planted_distances(cases))
        topics = [claim.topic for claim in claims if claim.topic]
        assert topics == ["higher for float16", "cannot be exchanged"]


def test_the_answer_is_yes_within_the_bound(page):
    outputs, distances = planted_outputs(), planted_distances()
    set_mean(distances, ("ort kernels", "ort MatMul"), 0.75, type="float32", weights="centred")
    both = at(distances, expected="torch", got="ort LayerNorm", weights="centred")
    distances.loc[both, "> 0"] = 100
    answer, _ = page["conclude"](outputs, distances)
    assert str(answer) == (
        "Yes, up to rounding: with the LayerNormalization of the other library, outputs move by at "
        "most 3 units in the last place in float32, 0.25 in float16. All 8 exchanges stay within "
        "the bound of rounding errors. Not bit for bit: up to 25% of the outputs change."
    )
    assert (answer.label, len(str(answer).split()) <= 50) == ("within rounding", True)
    assert [(bar.label, bar.value) for bar in answer.bars] == [
        ("float32", 3.0),
        ("float16", 0.25),
    ]


def test_the_answer_is_no_beyond_the_bound(page):
    outputs = planted_outputs()
    outputs.loc[at(outputs, type="float16", run="ort LayerNorm"), "bound used"] = 1.5
    answer, _ = page["conclude"](outputs, planted_distances())
    assert str(answer).startswith("No: with the LayerNormalization of the other library")
    assert ". 2 of 8 exchanges go beyond the bound" in str(answer)
    assert answer.label == "beyond the bound"


def test_the_answer_says_that_bits_are_kept(page):
    answer, _ = page["conclude"](planted_outputs(), planted_distances().assign(**{"> 0": 0}))
    assert str(answer).endswith("within the bound of rounding errors. No bit changes.")


def test_the_answer_gathers_the_uses_of_tf32(page):
    cases = [{"type": name, "weights": "positive"} for name in ("bfloat16", TF32, "float32 (TF32)")]
    outputs, distances = (f([*CASES, *cases]) for f in (planted_outputs, planted_distances))
    set_mean(distances, ("torch", "ort LayerNorm"), 64.0, type="float32 (TF32)")
    answer = page["answer"](page["list_exchanges"](outputs, distances))
    assert [(bar.label, bar.value) for bar in answer.bars] == [
        *(("float32", 0.25), ("float16", 0.25), ("bfloat16", 0.25), ("float32 with TF32", 256.0)),
    ]
    assert "0.25 in bfloat16, 256 in float32 with TF32. All 14 exchanges" in str(answer)
    assert len(str(answer).split()) <= 60


def test_the_page_itself_refuses_a_result_beyond_its_bound(page):
    expected, bound = np.array([4.0, 2.0]), np.array([1.0, 1.0])
    assert page["measure_outputs"](np.float32([4.5, 2]), expected, bound, "x") == {
        "min": 2.0,
        "max": 4.5,
        "mean": 3.25,
        "bound": 1.0,
        "bound used": 0.5,
    }
    with pytest.raises(AssertionError, match="x is outside of its bound"):
        page["measure_outputs"](np.float32([4.5, 0.9]), expected, bound, "x")


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


def test_a_distance_counts_what_is_above_each_threshold(page):
    expected = np.float64([4, 2, 8, 1, 3])
    got = expected + np.float64([0, 0.5, -2, 2**-10, 0])
    assert page["measure_distance"](expected, got) == {
        "largest": 2.0,
        "mean": (2.5 + 2**-10) / 5,
        "sum": 2.5 + 2**-10,
        "n": 5,
        "> 0": 3,
        "> 0.0001": 3,
        "> 0.001": 2,
        "> 0.01": 2,
        "> 0.1": 2,
        "> 1": 1,
    }


def test_errors_are_in_ulp_and_a_distance_is_absolute_too(page):
    outputs, distances = planted_outputs(), planted_distances()
    distances = drop_runs(distances, "got", ORT_PRODUCT, type="float16")
    table = page["tabulate_errors"](outputs, distances)
    assert table.index.tolist() == [tuple(case.values()) for case in CASES]
    assert table.iloc[0].tolist() == [2.0, 1.0, 8.0, 2.0, 0.5]
    assert table.loc["float16", "session (ulp)"].isna().all()
    assert (table.loc["float16", "bound (ulp)"] == 8).all()


def test_two_results_within_their_bound_are_within_twice_the_bound(page):
    table = page["tabulate_errors"](page["outputs"], page["distances"])
    apart = table["gap (ulp)"].dropna()
    assert len(apart) >= 4
    assert (apart <= 2 * table["bound (ulp)"][apart.index]).all()


def test_exchanges_have_both_directions(page):
    outputs, distances = planted_outputs(), planted_distances()
    set_mean(distances, ("ort kernels", "ort MatMul"), 0.5)
    outputs.loc[at(outputs, run="ort LayerNorm"), "bound used"] = 0.25
    exchanges = page["list_exchanges"](outputs, distances)
    torch, ort = (exchanges.loc[name, "float32", "centred"] for name in ("torch", "ort"))
    assert torch.tolist() == [0.25, 0.0625, 0.25, 25.0]
    assert ort.tolist() == [2.0, 0.5, 0.25, 50.0]
    lost = (drop_runs(outputs, "run", ORT_PRODUCT, type="float16"),)
    lost += (drop_runs(distances, "got", ORT_PRODUCT, type="float16"),)
    kept = page["list_exchanges"](*lost)
    assert set(kept.loc["ort"].index.unique("type")) == {"float32"}
    assert set(kept.loc["torch"].index.unique("type")) == {"float32", "float16"}


def test_a_kernel_is_responsible_only_beside_another_that_was_swapped(page):
    """Where the product of onnxruntime is missing, no kernel is responsible."""
    distances = drop_runs(planted_distances(), "got", ORT_PRODUCT, type="float16")
    changes = page["tabulate_changes"](distances)
    assert changes.loc["float32", "responsible"].tolist() == ["MatMul", "MatMul"]
    assert changes.loc["float16", "responsible"].isna().all()
    assert changes.iloc[0].tolist() == [0.0625, 0.125, 0.1875, 0.375, "MatMul"]
    if ("bfloat16", "ort MatMul") in page["refused"]:
        assert page["changes"].loc["bfloat16", "responsible"].isna().all()


@pytest.mark.parametrize(
    ("norm", "product", "name"),
    [(2.0, 1.0, "LayerNorm"), (1.0, 2.0, "MatMul"), (0.0, 0.0, "neither"), (1.0, np.nan, None)],
)
def test_responsible(page, norm, product, name):
    assert page["name_responsible"]({"LayerNorm": norm, "MatMul": product}) == name


def test_the_product_is_responsible(page):
    claim = page["judge_product"](page["tabulate_changes"](planted_distances()))
    assert str(claim) == (
        "Right: in float32, MatMul is responsible: it changes more than LayerNormalization (2 of 2 "
        "cases)"
    )
    distances = planted_distances(ON_CUDA)
    set_mean(distances, ("torch", "ort MatMul"), 0.0, type="float32", weights="centred")
    claim = page["judge_product"](page["tabulate_changes"](distances))
    assert claim.verdict == "wrong"
    assert "(2 of 3 cases)" in str(claim)


def test_tf32_in_both_libraries_was_not_predicted(page):
    distances = planted_distances([*CASES, {"type": "float32 (TF32)", "weights": "positive"}])
    set_mean(distances, ("torch", "ort MatMul"), 0.0, type="float32 (TF32)")
    assert "(2 of 2 cases)" in str(page["judge_product"](page["tabulate_changes"](distances)))


def test_swaps_in_16_bits(page):
    distances = planted_distances()
    short = distances[distances["type"] == "float16"]
    assert str(page["judge_kernels"](short)) == (
        "Right: in float16, a swap changes 0.75% of the outputs at most, by 0.75 ulp at most"
    )
    many = short.assign(**{"> 0": 20})
    assert page["judge_kernels"](many).verdict == "wrong"
    set_mean(short, ("torch", "ort MatMul"), 0.75, weights="centred")
    assert str(page["judge_kernels"](short)).startswith("Wrong")
    alone = drop_runs(short, "got", ORT_PRODUCT, type="float16")
    assert "by 0.25 ulp at most" in str(page["judge_kernels"](alone))


def test_the_session(page):
    distances = planted_distances()
    short = distances[distances["type"] == "float16"]
    assert str(page["judge_session"](short)) == (
        "Right: in float16, a session is closer to float64 (2 of 2 cases), and changes more than "
        "any swap (2 of 2)"
    )
    set_mean(short, ("float64", "session"), 0.49)  # 2% is no difference
    set_mean(short, ("session", "ort kernels"), 0.1, weights="positive")
    text = str(page["judge_session"](short))
    assert text.startswith("Wrong: ")
    assert "(0 of 2 cases)" in text
    assert text.endswith("any swap (1 of 2)")


def test_a_type_without_session_is_not_judged(page):
    distances = planted_distances([*CASES, {"type": "bfloat16", "weights": "positive"}])
    short = distances[distances["type"] != "float32"]
    lost = drop_runs(short, "got", ORT_PRODUCT, type="bfloat16")
    assert "(2 of 2 cases)" in str(page["judge_session"](lost))
    nothing = drop_runs(lost, "got", ORT_PRODUCT, type="float16")
    assert page["judge_session"](nothing).verdict == "undecided"


def test_higher_for_float16_has_two_answers(page):
    distances = planted_distances(ON_CUDA)
    single = at(distances, type="float32")
    distances.loc[single, ["unit", "largest"]] = [2.0**-15, 8 * 2.0**-15]
    text = str(page["judge_original"](distances))
    assert text == (
        'Original, "higher for float16": true for the largest difference between torch and a '
        "session (0.5 against 0.00024 in float32), false in ulp (2 against 8); in float32 with "
        "TF32 in onnxruntime only, 0.5 (2 ulp)"
    )
    distances.loc[single, ["unit", "largest"]] = [1.0, 1.5]
    text = str(page["judge_original"](distances[distances["type"] != TF32]))
    assert "false for the largest difference" in text
    assert text.endswith("true in ulp (2 against 1.5)")


@pytest.mark.parametrize(
    ("differ", "used", "said"),
    [
        (9, 0.5, "true bit for bit (8 of 8 exchanges change some outputs), false up to rounding"),
        (0, 0.5, "false bit for bit (0 of 8 exchanges change some outputs), false up to rounding"),
        (9, 1.5, "true up to rounding (8 go beyond the bound)"),
    ],
)
def test_cannot_be_exchanged(page, differ, used, said):
    outputs = planted_outputs().assign(**{"bound used": used})
    exchanges = page["list_exchanges"](outputs, planted_distances().assign(**{"> 0": differ}))
    claim = page["judge_exchange"](exchanges)
    assert said in str(claim)
    assert claim.topic == "cannot be exchanged"


def test_the_plot_has_two_bars_per_swap(page):
    distances = drop_runs(planted_distances(), "got", ORT_PRODUCT, type="float16")
    shown = page["gather_distances"](distances)
    assert list(shown.columns) == ["to torch", "to onnxruntime"]
    assert shown.loc["ort MatMul", "float32", "positive"].tolist() == [0.125, 0.375]
    assert shown.loc["ort LayerNorm", "float16", "positive"].tolist()[0] == 0.0625
    assert len(shown) == 6  # two swaps in float32, one in float16, two sets of weights
    ax = page["plot_distances"](distances, "here")
    assert len(ax.patches) == 12
    assert (ax.get_xscale(), ax.get_xlim()[0]) == ("log", 0.0625 / 2)  # the shortest bar is seen
    plt.close(ax.figure)
    ax = page["plot_distances"](distances.assign(mean=0.0), "equal outputs")
    assert ax.get_xscale() == "linear"
    plt.close(ax.figure)


def test_the_details_count_both_swaps_of_every_type(page):
    counts = page["count_differences"](planted_distances())
    assert set(counts.index.unique("got")) == {
        *("ort LayerNorm", "ort MatMul", "ort kernels", "session")
    }
    row = counts.loc["session", "float16", "positive"]
    assert (row["sum"], row["n"], row["> 0"], row["> 0.001"]) == (50.0, 400, 8, 0)
    assert row["changed (%)"] == 2
    means = page["tabulate_means"](planted_distances())
    assert means.loc["torch / session"].tolist() == [0.5] * 4
    assert means.loc["torch / torch, again"].tolist() == [0.0] * 4


def test_the_details_have_html(page):
    """A page shows the text of what has none."""
    html = page["fold"]("details", *page["details"])._repr_html_()
    assert html.count("<table") == 3
    assert "torch / session" in html


def test_the_cases_of_cuda_pass_through_the_page(tmp_path, monkeypatch):
    """TF32 has no effect on a CPU: what is tested is that tables, claims and record accept it."""
    (source,) = EXAMPLES.rglob("plot_layer_norm_discrepancies.py")
    text = source.read_text(encoding="utf-8")
    script = tmp_path / source.name
    script.write_text(text.replace('on_cuda = provider.name == "cuda"', "on_cuda = True"))
    monkeypatch.setenv("ORTMETER_FAST", "1")
    monkeypatch.setenv("ORTMETER_PROVIDER", "cpu")
    monkeypatch.setenv("ORTMETER_RESULTS", str(tmp_path))
    monkeypatch.setattr("sys.argv", [str(script)])
    names = runpy.run_path(str(script))
    plt.close("all")
    assert len(names["CASES"]) == 10
    assert "float32 with TF32" in str(names["conclusion"](names["here"]).answer)


def test_the_same_kernels_give_the_same_bits_on_a_cpu(page):
    again = page["distances"]["got"].str.endswith(", again")
    assert again.sum() == 5
    assert not page["distances"].loc[again, "> 0"].any()


def test_every_run_has_the_kernels_it_names(page):
    model, feeds = page["make_case"]({"type": "float32", "weights": "positive"})
    for name, kernels in page["KERNELS"].items():
        evaluator = page["Evaluator"](model, kernels, sources=("torch",))
        evaluator.run(None, feeds)
        found = dict(evaluator.assignment[["op_type", "source"]].itertuples(index=False))
        both = name == "ort kernels"
        assert found == {
            "LayerNormalization": "ort" if both or name == "ort LayerNorm" else "torch",
            "MatMul": "ort" if both or name == "ort MatMul" else "torch",
            "Add": "torch",
        }


@pytest.mark.parametrize("source", ["torch", "ort"])
@pytest.mark.parametrize("name", ["float32", "float16"])
def test_an_addition_is_rounded_once_in_both_libraries(page, source, name):
    rng = np.random.default_rng(0)
    a, b = ((rng.random(4096) * 2.0 ** rng.integers(-9, 9, 4096)).astype(name) for _ in range(2))
    kind = {"float32": "float", "float16": "float16"}[name]
    text = (
        f'<ir_version: 10, opset_import: ["": 21]> '
        f"g ({kind}[n] a, {kind}[n] b) => ({kind}[n] c) {{ c = Add(a, b) }}"
    )
    (got,) = page["Evaluator"](text, sources=(source,)).run(None, {"a": a, "b": b})
    np.testing.assert_array_equal(got, (a.astype(np.float64) + b.astype(np.float64)).astype(name))


def test_a_case_runs_the_slow_product_three_times_at_most(page, monkeypatch):
    """Some CPU multiply in 16 bits slowly with torch: its products are what the page takes."""
    products = []

    def run(name):
        def record(model, feeds, *, tf32):
            if name in ORT_PRODUCT:
                raise ModelError("no kernel")
            products.append((name, tf32))
            return feeds["X"]

        return record

    names = page["run_case"].__globals__
    monkeypatch.setitem(names, "RUNS", {name: run(name) for name in page["RUNS"]})
    monkeypatch.setitem(names, "refused", set())
    for weights, most in (("positive", 3), ("centred", 2)):
        products.clear()
        case = {"type": "bfloat16", "weights": weights}
        found = [name for name, _, _ in page["run_case"](case, None, {"X": np.zeros(2)})]
        assert len(products) == len(found) == most
    assert {name for _, name in names["refused"]} == set(ORT_PRODUCT)


def test_a_product_uses_tf32_where_its_library_does(page, monkeypatch):
    names, used = page["run_case"].__globals__, {}

    def run(name):
        return lambda model, feeds, *, tf32: used.setdefault(name, tf32)

    monkeypatch.setitem(names, "RUNS", {name: run(name) for name in page["RUNS"]})
    monkeypatch.setitem(names, "TF32", {TF32: {"torch": False, "ort": True}})
    list(page["run_case"]({"type": TF32, "weights": "positive"}, None, None))
    of_torch = {"torch", "ort LayerNorm", "torch, again"}
    assert used == {name: name not in of_torch for name in page["RUNS"]}
