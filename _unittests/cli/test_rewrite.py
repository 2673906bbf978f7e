"""Tests of ortmeter.cli.conversion: what `ortmeter bench --rewrite` times."""

import re
import sys

import numpy as np
import onnx
import pytest
from commands import convert

from ortmeter.cli import conversion
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime import rewriting

MODEL = """<ir_version: 10, opset_import: ["": 21]>
g (float[4] X) => (float[4] Y) { Z = Identity(X)  Y = Abs(Z) }"""
FEEDS = {"X": np.float32([1, -2, 3, -100])}
OTHER = {
    "near": "<float c = {1e-5}> { Z = Abs(X)  Y = Add(Z, c) }",  # 1e-7 of 100
    "far": "<float c = {1}> { Z = Abs(X)  Y = Add(Z, c) }",  # 0.01
    "NaN": "{ Z = Log(X)  Y = Exp(Z) }",
    "longer": "{ Z = Abs(X)  Y = Concat<axis = 0>(Z, Z) }",
    "refused": "{ Y = Unknown(X) }",
}


def parsed(text, name):
    size = 8 if name == "longer" else 4
    header = '<ir_version: 10, opset_import: ["": 21]>'
    return onnx.parser.parse_model(f"{header} g (float[4] X) => (float[{size}] Y) {text}")


@pytest.fixture
def others(monkeypatch):
    known = {name: lambda _, t=text, n=name: parsed(t, n) for name, text in OTHER.items()}
    monkeypatch.setattr(rewriting, "REWRITERS", {**rewriting.REWRITERS, **known})
    monkeypatch.setattr(conversion, "REWRITERS", rewriting.REWRITERS)


def add(*given, models=None, feeds=FEEDS):
    return convert(given, models or {"m": MODEL}, feeds)


def rows(report):
    (table,) = report.to_dict()["sections"][0]["tables"]
    return {row["candidate"]: row for row in table}


def test_nothing_changes_unless_it_is_asked_for():
    found, report, variants = add()
    assert found is variants
    assert not report.sections


def test_what_computes_the_same_is_timed_in_the_order_asked():
    found, report, variants = add("--rewrite", "none, onnx_ir,onnxscript")
    assert list(found) == ["none", "onnx_ir", "onnxscript"]
    assert [row["nodes"] for row in rows(report).values()] == [2, 1, 1]
    assert {row["timed"] for row in rows(report).values()} == {"yes"}
    assert found["onnx_ir"].feeds is variants["m"].feeds


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("far", "no"),
        ("NaN", "no; beyond any tolerance: Y (.*NaN"),
        ("longer", "no; beyond any tolerance: Y (.*shape"),
        ("refused", "no: .*Unknown"),
    ],
)
def test_what_differs_or_fails_is_told_and_not_timed(others, name, why):
    found, report, _ = add("--rewrite", f"none,near,{name}")
    assert list(found) == ["none", "near"]
    told = rows(report)[name]["timed"]
    assert told.startswith(why.partition(" (")[0].partition(".*")[0])
    assert why.rpartition(".*")[2].lower() in told.lower()
    column = "largest error / largest value"
    assert rows(report)["near"][column] == pytest.approx(1e-7, rel=0.5)
    assert rows(report)[name][column] == {"far": 0.01}.get(name)  # inf is null


def test_without_any_candidate_left_there_is_an_error(others):
    with pytest.raises(ModelError, match="--rewrite far: no"):
        add("--rewrite", "far")


def test_what_float64_is_as_far_from_is_timed(monkeypatch):
    """The original is the one that rounds: to 1/128, beside 100000."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y)
    <float big = {100000}> { A = Add(X, big)  Y = Sub(A, big) }"""
    known = {"exact": lambda _: parsed("{ Y = Identity(X) }", "exact")}
    for module in (rewriting, conversion):
        monkeypatch.setattr(module, "REWRITERS", known)
    feeds = {"X": np.float32([0.503, 0.2514, 0.1259, 1])}
    found, report, _ = add("--rewrite", "exact", models={"m": text}, feeds=feeds)
    assert list(found) == ["exact"]
    assert 1e-3 < rows(report)["exact"]["largest error / largest value"] < 1 / 128
    assert report.sentences[0].endswith("but the original is as far from float64.")


def test_what_cannot_be_done_is_refused(monkeypatch):
    with pytest.raises(InvalidArgumentError, match="got 'simplify'. Accepted: none, onnxsim"):
        add("--rewrite", "none,simplify")
    with pytest.raises(InvalidArgumentError, match="--rewrite: got 'none,', expected values"):
        add("--rewrite", "none,")
    monkeypatch.setitem(sys.modules, "onnxsim", None)
    missing = r'onnxsim .* "ortmeter\[rewrite\]"'
    with pytest.raises(ModelError, match=missing):
        add("--rewrite", "onnxsim")
    found, report, _ = add("--rewrite", "onnxsim,onnx_ir")
    assert list(found) == ["onnx_ir"]
    assert re.search(f"onnxsim is not timed: {missing}", report.sentences[-1])
