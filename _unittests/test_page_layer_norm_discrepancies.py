"""The setting, the runs and the tables of the page on layer normalization."""

import itertools
from types import SimpleNamespace

import numpy as np
import onnx
import pandas as pd
import pytest
from page_runner import run_setting

TF32 = "float32 (TF32 in ort)"
UNIT = 0.25
LOST = ["ort MatMul", "ort kernels", "session"]

#: Mean distance between two runs, in ulp; the largest one is four times it.
MEANS = {
    ("float64", "torch"): 0.5,
    ("float64", "ort kernels"): 0.5,
    ("float64", "session"): 0.25,
    ("torch", "ort LayerNorm"): 0.0625,
    ("torch", "ort MatMul"): 0.125,
    ("torch", "ort kernels"): 0.1875,
    ("torch", "session"): 0.5,
    ("ort kernels", "ort MatMul"): 0.75,
}


def planted(means):
    """What a machine could have measured in float32 and float16; *means* are ulp by pair."""
    outputs, distances = [], []
    for name, weights in itertools.product(("float32", "float16"), ("positive", "centred")):
        place = {"type": name, "weights": weights, "unit": UNIT}
        runs = ("torch", "ort LayerNorm", *LOST)
        outputs += [place | {"run": run, "bound": 2.0, "bound used": 0.5} for run in runs]
        for (one, other), mean in (MEANS | means).items():
            sizes = {"mean": UNIT * mean, "largest": 4 * UNIT * mean, "n": 400}
            row = place | {"expected": one, "got": other} | sizes
            distances.append(row | {"> 0": int(16 * MEANS[one, other])})
    return {"outputs": pd.DataFrame(outputs), "distances": pd.DataFrame(distances)}


def without_products(data, name):
    """Remove what onnxruntime has no kernel for."""
    outputs, distances = data["outputs"], data["distances"]
    lost = distances[["expected", "got"]].isin(LOST).any(axis=1) & (distances["type"] == name)
    missing = outputs["run"].isin(LOST) & (outputs["type"] == name)
    return {"outputs": outputs[~missing], "distances": distances[~lost]}


@pytest.mark.slow
def test_what_is_planted_has_the_columns_of_the_page(ran):
    data = planted({})
    assert set(ran["outputs"]) == set(data["outputs"])
    assert set(ran["distances"]) == set(data["distances"])
    assert MEANS.keys() <= {*ran["distances"][["expected", "got"]].itertuples(index=False)}


def test_the_tables_and_the_plot_have_the_numbers_that_were_measured(page):
    data = without_products(planted({("torch", "ort LayerNorm"): 0.125}), "float16")
    shown = SimpleNamespace(**data, legend="planted")
    errors, exchanges = page["errors"](shown), page["exchanges"](shown)
    assert errors.loc["float32", "positive"].tolist() == [2, 1, 8, 2, 0.5]
    assert errors.loc["float16", "centred"].isna().tolist() == [False, True, False, True, True]
    assert exchanges.loc["float32", "centred"].tolist() == [0.5, 0.25, 3, 3]
    assert exchanges.loc["float16", "centred"].isna().tolist() == [False, False, True, True]
    axes = page["responsible"](shown)
    assert [label.get_text() for label in axes.get_yticklabels()] == KINDS
    norm, product = ([bar.get_width() for bar in bars] for bars in axes.containers)
    assert norm == [0.125] * 4
    assert product[:2] == [0.125] * 2
    assert np.isnan(product[2:]).all()  # ONNX Runtime has no kernel


KINDS = ["float32 positive", "float32 centred", "float16 positive", "float16 centred"]


@pytest.mark.slow
def test_the_reference_and_the_bound(ran):
    """The oracle is numpy in float64."""
    model, x, expected = ran["model"], ran["feeds"]["X"].astype(np.float64), ran["expected"]
    scale, bias, matrix, last = map(onnx.numpy_helper.to_array, model.graph.initializer)
    centred = x - x.mean(-1, keepdims=True)
    norm = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(expected, norm @ matrix + last, rtol=1e-12)
    for kind in ("float32", "float16"):
        model = ran["layer_norm_matmul"](x.shape[-1], dtype=kind)
        given = model, x.astype(kind), norm, expected
        loose, tight = (ran["bound_errors"](*given, tf32=tf32) for tf32 in (True, False))
        assert (loose > tight).all() == (kind == "float32")
    bound = ran["bound_errors"](ran["model"], ran["feeds"]["X"], norm, expected)
    near, far = expected + 0.99 * bound, expected + 1.01 * bound
    assert ran["measure_outputs"]("x", near, expected, bound)["bound used"] == pytest.approx(0.99)
    with pytest.raises(AssertionError, match="x is outside of its bound"):
        ran["measure_outputs"]("x", far, expected, bound)


@pytest.mark.slow
def test_every_run_has_the_kernels_that_it_names(ran):
    for name, replaced in ran["KERNELS"].items():
        evaluator = ran["Evaluator"](ran["model"], replaced, sources=("torch",))
        evaluator.run(None, ran["feeds"])
        found = dict(evaluator.assignment[["op_type", "source"]].itertuples(index=False))
        norm = "ort" if name in {"ort LayerNorm", "ort kernels"} else "torch"
        product = "ort" if name in {"ort MatMul", "ort kernels"} else "torch"
        assert found == {"LayerNormalization": norm, "MatMul": product, "Add": "torch"}


@pytest.mark.slow
def test_the_cases_of_cuda_pass_through_the_page(ran, monkeypatch):
    """TF32 has no effect on a CPU: what is tested is who asks for it, and that tables accept it."""
    asked, names = [], ran["measure_case"].__globals__

    def asking(run):
        def ask(*given, tf32):
            asked.append(tf32)
            return run(*given)

        return ask

    for name in ("run_kernels", "run_whole"):
        monkeypatch.setitem(names, name, asking(ran[name]))
    monkeypatch.setitem(names, "TF32", {TF32: ("ort",)})
    measured = ran["measure_case"](TF32, "positive")
    assert dict(zip(ran["RUNS"], asked, strict=True)) == {
        "torch": False,
        "ort LayerNorm": False,
        "ort MatMul": True,
        "ort kernels": True,
        "session": True,
    }
    outputs, distances = (
        pd.concat([ran[name], frame], ignore_index=True)
        for name, frame in zip(("outputs", "distances"), measured, strict=True)
    )
    data = SimpleNamespace(outputs=outputs, distances=distances, features=64)
    found = ran["claims"](data)
    assert found["tf32"].verdict == "wrong"  # on a CPU, it changes nothing
    assert len(found["product"].outcomes) == 3  # float32 twice, and this case


def test_the_setting_accepts_roundings_of_the_largest_output():
    assert_same = run_setting("compare_backends", onnx.ModelProto())["assert_same"]
    expected = np.array([1e-3, -300.0, 5.0], np.float32)  # an ulp of 300 is 2**-15
    assert_same(expected, expected + np.array([3.9, 0, -3.9]) * 2.0**-15, 16)
    assert_same(expected.astype(np.float64), expected + 3.9 * 2.0**-15, 16)
    for wrong in (expected + np.array([4.1, 0, 0]) * 2.0**-15, expected * np.float32(1.001)):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            assert_same(expected, wrong, 16)
