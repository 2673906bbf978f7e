"""The conclusion of the page on layer normalization follows its tables."""

import dataclasses
import itertools
import subprocess
import sys
from types import SimpleNamespace

import fake_cuda
import numpy as np
import onnx
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from page_runner import EXAMPLES, run_page

from ortmeter.errors import ModelError
from ortmeter.evidence import Prediction


@pytest.fixture(scope="module")
def page():
    """Names of the page, after it ran."""
    return run_page("plot_layer_norm_discrepancies")


TF32 = "float32 (TF32 in ort)"
BOTH = "float32 (TF32)"
UNIT = 0.25
LOST = ["ort MatMul", "ort kernels", "session"]

#: Mean distance between two runs, in ulp; the largest one is four times it. The product is
#: responsible, and a session is closer to float64.
MEANS = {
    ("float64", "torch"): 0.5,
    ("float64", "ort kernels"): 0.5,
    ("float64", "session"): 0.25,
    ("torch", "ort LayerNorm"): 0.0625,
    ("torch", "ort MatMul"): 0.125,
    ("torch", "ort kernels"): 0.1875,
    ("torch", "session"): 0.5,
    ("session", "ort LayerNorm"): 0.4375,
    ("session", "ort MatMul"): 0.25,
    ("session", "ort kernels"): 0.375,
    ("ort kernels", "ort MatMul"): 0.75,
}


def planted(*more, means=None, changed=16, used=0.5, units=None):
    """What a machine could have measured in float32, float16 and other types.

    *means* are ulp by pair, or by type and pair; *units* are ulp by type.
    """
    means, outputs, distances = {**MEANS, **(means or {})}, [], []
    for name, weights in itertools.product(("float32", "float16", *more), ("positive", "centred")):
        place = {"type": name, "weights": weights, "unit": (units or {}).get(name, UNIT)}
        figures = {"min": 1.0, "max": 3.0, "mean": 2.0, "bound": 2.0, "bound used": used}
        outputs += [place | {"run": run} | figures for run in ("torch", "ort LayerNorm", *LOST)]
        for (one, other), usual in MEANS.items():
            mean = place["unit"] * means.get((name, one, other), means[one, other])
            row = place | {"expected": one, "got": other, "mean": mean, "largest": 4 * mean}
            counts = {"sum": 400 * mean, "n": 400, "> 0": int(changed * usual)}
            distances.append(row | counts)
    return {"outputs": pd.DataFrame(outputs), "distances": pd.DataFrame(distances)}


def without_products(data, name):
    """Remove what onnxruntime has no kernel for."""
    outputs, distances = data["outputs"], data["distances"]
    lost = distances[["expected", "got"]].isin(LOST).any(axis=1) & (distances["type"] == name)
    missing = outputs["run"].isin(LOST) & (outputs["type"] == name)
    return {"outputs": outputs[~missing], "distances": distances[~lost]}


def concluded(page, data):
    study = page["study"]
    record = dataclasses.replace(study.here, data={**study.here.data, **data}, fast=False)
    return study.concluded(record)


def list_values(claim):
    return (*claim.values.values(),)  # noqa: PD011 - a mapping


def test_what_is_planted_has_the_columns_of_the_page(page):
    data = planted()
    assert set(page["outputs"]) == set(data["outputs"])
    assert set(page["distances"]) - set(data["distances"]) == {
        *("relative", "> 0.0001", "> 0.001", "> 0.01", "> 0.1", "> 1")
    }
    assert MEANS.keys() <= {*page["distances"][["expected", "got"]].itertuples(index=False)}


LARGE = {(BOTH, "torch", "ort LayerNorm"): 64.0}


@pytest.mark.parametrize(
    ("data", "label", "words", "bars"),
    [
        (
            planted(),
            *(
                "within rounding",
                ("Take LayerNormalization from torch or ONNX", "up to 3% of them change."),
                [3, 3],
            ),
        ),
        (
            planted(changed=0),
            *(
                "within rounding",
                ("Take LayerNormalization from torch or ONNX Runtime: no bit", "changes."),
                [3, 3],
            ),
        ),
        (
            planted(used=1.5),
            *("beyond the bound", ("Keep one library: 8 of 8 swaps go beyond", "errors."), [3, 3]),
        ),
        (
            planted("bfloat16", TF32, BOTH, means=LARGE),
            "within rounding",
            ("Take LayerNormalization from torch or ONNX Runtime: outputs move by 256 ulp", "."),
            [3, 3, 3, 256],
        ),
    ],
)
def test_the_answer_follows_the_bound(page, data, label, words, bars):
    found = concluded(page, data).answer
    assert (found.label, [bar.value for bar in found.bars]) == (label, bars)
    assert str(found).startswith(words[0])
    assert str(found).endswith(words[1])
    assert len(str(found).split()) <= 35


NO_PRODUCT = {"means": {("torch", "ort MatMul"): 0.0}}
NO_SESSION = {"means": {("float64", "session"): 0.49, ("session", "ort kernels"): 0.1}}


@pytest.mark.parametrize(
    ("data", "verdicts", "counts"),
    [
        (planted(changed=160), ["right", "wrong", "right"], [(2, 2), (0.075, 0.75), (2, 2, 2)]),
        (planted(), ["right", "right", "right"], [(2, 2), (0.0075, 0.75), (2, 2, 2)]),
        (
            planted(means={("torch", "ort LayerNorm"): 0.6}),
            ["wrong", "wrong", "wrong"],
            [(0, 2), (0.0075, 2.4), (2, 0, 2)],
        ),
        (planted(TF32, BOTH, **NO_PRODUCT), ["wrong", "right", "right"], [(0, 4)]),
        (planted(**NO_SESSION), ["right", "right", "wrong"], [(2, 2), (0.0075, 0.75), (0, 0, 2)]),
        (without_products(planted("bfloat16"), "bfloat16"), ["right"] * 3, [(2, 2)]),
        (without_products(planted(), "float16"), ["right", "right", "undecided"], [(2, 2)]),
    ],
)
def test_the_three_predictions_are_judged(page, data, verdicts, counts):
    """Less than 5% of an error is no difference; TF32 in both libraries was not predicted."""
    claims = [c for c in concluded(page, data).claims if isinstance(c, Prediction)]
    assert [claim.verdict for claim in claims] == verdicts
    for claim, expected in zip(claims, counts, strict=False):
        assert list_values(claim) == pytest.approx(expected)


HIGHER, EXCHANGED = "higher for float16", "cannot be exchanged"
FARTHER = {("float16", "torch", "session"): 1.0}


@pytest.mark.parametrize(
    ("data", "topic", "values"),
    [
        (planted(units={"float32": 2.0**-15}), HIGHER, (2.0**-14, 0.5, 2, 2, "true", "false")),
        (planted(units={"float32": 1.0}), HIGHER, (2, 0.5, 2, 2, "false", "false")),
        (planted(means=FARTHER), HIGHER, (0.5, 1, 2, 4, "true", "true")),
        (planted(), EXCHANGED, ("true", "false", 8, 0, 8)),
        (planted(changed=0, used=1.5), EXCHANGED, ("false", "true", 0, 8, 8)),
    ],
)
def test_the_original_page_is_answered(page, data, topic, values):
    (claim,) = (c for c in concluded(page, data).claims if c.topic == topic)
    assert list_values(claim) == values


def test_the_tables_and_the_plot_have_the_numbers_that_were_measured(page):
    data = without_products(planted(means={("torch", "ort LayerNorm"): 0.125}), "float16")
    shown = SimpleNamespace(**data, legend="planted")
    errors, exchanges, changes = (page[name](shown) for name in ("errors", "exchanges", "changes"))
    assert errors.loc["float32", "positive"].tolist() == [2, 1, 8, 2, 0.5]
    assert errors.loc["float16", "centred"].isna().tolist() == [False, True, False, True, True]
    assert exchanges.loc["float32", "centred", "torch"].tolist() == [0.5, 0.125, 0.25, 50]
    assert exchanges.loc["float32", "centred", "ort"].tolist() == [3, 0.75, 3, 50]
    assert exchanges.loc["float16"].index.unique("inside").tolist() == ["torch"]
    worst = page["worst"](shown)
    assert worst.index.tolist() == [("float32", "torch"), ("float32", "ort"), ("float16", "torch")]
    assert worst.loc["float32", "ort"].tolist() == [3, 0.75, 3, 50]
    assert changes.loc["float32", "positive"].tolist() == [0.125, 0.125, 0.1875, 0.375, "neither"]
    # Where the product of onnxruntime is missing, no kernel is responsible.
    assert changes.loc["float16", "responsible"].isna().all()
    table = page["mixtures"](shown).loc[("ort LayerNorm", "planted")]
    assert table.loc["float32", "positive"].tolist() == [0.125, 0.4375]
    assert table.loc["float16", "positive"].isna().tolist() == [False, True]
    axes = page["swaps"](shown)
    rows = [label.get_text() for label in axes.get_yticklabels()]
    to_torch, to_session = (
        dict(zip(rows, (float(bar.get_width()) for bar in bars), strict=True))
        for bars in axes.containers
    )
    assert to_torch == {
        **{f"ort LayerNorm planted {kind}": 0.5 for kind in KINDS},
        **{f"ort MatMul planted {kind}": 0.5 for kind in KINDS[:2]},
    }
    assert [to_session[f"ort LayerNorm planted {kind}"] for kind in KINDS[:2]] == [1.75] * 2
    plt.close(axes.figure)


KINDS = ["float32 positive", "float32 centred", "float16 positive", "float16 centred"]


def test_cuda_and_the_cpu_are_in_one_table(page):
    """The CPU comes first, then CUDA; a record of one provider has its rows only."""
    here = planted(means={("torch", "session"): 2.0})
    there = planted()["distances"]
    both = SimpleNamespace(**here, cpu_distances=there, legend="2 x 3 x 4 on CUDA")
    found = page["libraries"](both)
    assert found.index.unique("provider").tolist() == ["CPU", "CUDA"]
    assert found.loc[("CPU", "float16", "centred"), "largest"] == 4 * 0.5 * UNIT
    assert found.loc[("CUDA", "float16", "centred"), "largest"] == 4 * 2.0 * UNIT
    assert page["mixtures"](both).index.unique("provider").tolist() == ["CPU", "CUDA"]
    alone = SimpleNamespace(**here, legend="2 x 3 x 4 on CPU")
    assert page["libraries"](alone).index.unique("provider").tolist() == ["CPU"]


@pytest.mark.slow
def test_the_page_has_both_providers_where_cuda_works(tmp_path):
    """The stand-in runs on the CPU what it says it runs on CUDA."""
    environment = fake_cuda.environment(tmp_path, tmp_path / "cuda.log")
    (script,) = EXAMPLES.rglob("plot_layer_norm_discrepancies.py")
    done = subprocess.run(
        [sys.executable, str(script), "--provider", "cuda"],
        env={**environment, "ORTMETER_FAST": "1", "MPLBACKEND": "agg"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.partition("Distance from torch")[2].partition("Exchange of")[0]
    cpu, cuda = rows.partition("CPU ")[2].split("\nCUDA ")
    for kind in ("float32", "float16"):
        assert kind in cpu
        assert kind in cuda
    assert "TF32" not in cpu
    assert "float32 (TF32 in ort)" in cuda


def test_the_reference_and_the_bound(page):
    """The oracle is numpy in float64."""
    model, x, expected = page["model"], page["feeds"]["X"].astype(np.float64), page["expected"]
    scale, bias, matrix, last = map(onnx.numpy_helper.to_array, model.graph.initializer)
    centred = x - x.mean(-1, keepdims=True)
    norm = centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + bias
    np.testing.assert_allclose(expected, norm @ matrix + last, rtol=1e-12)
    for kind in ("float32", "float16"):
        model = page["layer_norm_matmul"](x.shape[-1], dtype=kind)
        given = model, x.astype(kind), norm, expected
        loose, tight = (page["bound_errors"](*given, tf32=tf32) for tf32 in (True, False))
        assert (loose > tight).all() == (kind == "float32")
    bound = page["bound"]
    near, far = expected + 0.99 * bound, expected + 1.01 * bound
    assert page["measure_outputs"]("x", near, expected, bound)["bound used"] == pytest.approx(0.99)
    with pytest.raises(AssertionError, match="x is outside of its bound"):
        page["measure_outputs"]("x", far, expected, bound)


def test_every_run_has_the_kernels_that_it_names(page):
    for name, (_, setting, library) in page["RUNS"].items():
        if isinstance(setting, dict):
            evaluator = page["ortmeter"].Evaluator(page["model"], setting, sources=("torch",))
            evaluator.run(None, page["feeds"])
            found = dict(evaluator.assignment[["op_type", "source"]].itertuples(index=False))
            norm = "ort" if name.startswith(("ort LayerNorm", "ort kernels")) else "torch"
            product = "ort" if name.startswith(("ort MatMul", "ort kernels")) else "torch"
            assert found == {"LayerNormalization": norm, "MatMul": product, "Add": "torch"}
            assert product == library


def test_the_same_kernels_give_the_same_bits_on_a_cpu(page):
    again = page["distances"]["got"].str.endswith(", again")
    assert again.sum() == 10
    assert not page["distances"].loc[again, "> 0"].any()


def test_the_cases_of_cuda_pass_through_the_page(page, monkeypatch):
    """TF32 has no effect on a CPU: what is tested is who asks for it, and that tables accept it."""
    asked, names = {}, page["measure_case"].__globals__

    def asking(name, run):
        def ask(model, feeds, setting, *, tf32, where):
            asked[name] = tf32
            return run(model, feeds, setting, where=where)

        return ask

    runs = {name: (asking(name, run), *rest) for name, (run, *rest) in page["RUNS"].items()}
    monkeypatch.setitem(names, "RUNS", runs)
    monkeypatch.setitem(names, "TF32", {TF32: ("ort",)})
    measured = page["measure_case"](TF32, "positive")
    of_torch = {"torch", "ort LayerNorm", "torch, again"}
    assert asked == {name: name not in of_torch for name in page["RUNS"]}
    data = {
        name: pd.concat([page[name], frame], ignore_index=True)
        for name, frame in zip(("outputs", "distances"), measured, strict=True)
    }
    bars = concluded(page, data).answer.bars
    assert [bar.label for bar in bars] == ["float32", "float16", "bfloat16", "float32 with TF32"]


def test_a_kernel_that_must_be_there_stops_the_page(page, monkeypatch):
    def refuse(model, feeds, setting, *, tf32, where):
        raise ModelError("no kernel")

    runs = {**page["RUNS"], "session": (refuse, "all", "ort")}
    monkeypatch.setitem(page["measure_case"].__globals__, "RUNS", runs)
    outputs, _ = page["measure_case"]("bfloat16", "centred")
    assert "torch" in set(outputs["run"])
    assert "session" not in set(outputs["run"])
    with pytest.raises(AssertionError, match="session does not run float32"):
        page["measure_case"]("float32", "centred")
