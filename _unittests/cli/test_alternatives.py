"""Tests of what diff says of an unoptimized session, and of two graphs."""

import json

import numpy as np
import onnx
import pytest

from ortmeter.cli import main
from ortmeter.runtime.models import layer_norm_matmul, sample_cnn

SIZES = ["--dim", "a=2", "--dim", "b=3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    onnx.save(sample_cnn(size=16), folder / "cnn.onnx")
    norm = layer_norm_matmul(16)
    onnx.save(norm, folder / "norm.onnx")
    weights = {tensor.name: tensor for tensor in norm.graph.initializer}
    moved = onnx.numpy_helper.to_array(weights["matmul_w"]) * np.float32(1.5)
    weights["matmul_w"].CopyFrom(onnx.numpy_helper.from_array(moved, "matmul_w"))
    for node in norm.graph.node:
        node.name = f"<b>{node.name}</b>"
    onnx.save(norm, folder / "moved.onnx")
    return folder


def run(capsys, *arguments):
    code = main(["diff", *map(str, arguments), "--provider", "cpu", "--json"])
    told = capsys.readouterr()
    return code, json.loads(told.out) if told.out else {}, told.err


def table(report, start):
    (found,) = [s for s in report["sections"] if s["title"].startswith(start)]
    return found["tables"][0]


def test_the_optimization_that_is_responsible(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    given = [models / "cnn.onnx", "--against", "unoptimized", "--html", html]
    code, report, _ = run(capsys, *given)
    assert code == 0
    levels = {row["level"]: row["absolute"] for row in table(report, "Levels")}
    assert list(levels) == ["basic", "extended", "layout", "all"]
    first, second, *_ = report["conclusion"]
    assert second.startswith("ONNX Runtime on CPU against unoptimized, output output: ")
    if any(levels.values()):  # the layout depends on the vectors of the machine
        names = [row["optimizer"] for row in table(report, "Optimizers")]
        assert all(name in first for name in names)
        assert first.endswith("the outputs are the same as without optimization.")
    else:
        assert first == "no optimization changes the outputs."
    assert "Levels" in html.read_text(encoding="utf-8")


def test_a_tolerance_gives_the_exit_code(models, capsys):
    given = [models / "cnn.onnx", "--against", "unoptimized", "--atol", "1e-2"]
    code, report, _ = run(capsys, *given)
    assert code == 0
    assert "no optimization changes the outputs." in report["conclusion"]


def test_the_unoptimized_level_is_refused_against_itself(models, capsys):
    given = [models / "norm.onnx", *SIZES, "--against", "unoptimized", "--optimization", "none"]
    code, report, told = run(capsys, *given)
    assert (code, report) == (2, {})
    assert "Accepted: basic, extended, layout, all" in told


def test_where_two_graphs_part(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    pair = [models / "norm.onnx", models / "moved.onnx", *SIZES, "--html", html]
    code, report, _ = run(capsys, *pair)
    assert code == 0
    rows = table(report, "Where the graphs part")
    first = next(row for row in rows if row["relative"])
    assert (first["node of norm.onnx"], first["node of moved.onnx"]) == ("matmul", "<b>matmul</b>")
    (told,) = [text for text in report["conclusion"] if "results aligned" in text]
    assert "they part at matmul / <b>matmul</b> (MatMul)" in told
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;matmul&lt;/b&gt;" in page
    assert "<b>matmul" not in page


def test_the_same_graph_does_not_part(models, capsys):
    _, report, _ = run(capsys, models / "norm.onnx", models / "norm.onnx", *SIZES)
    assert "3 results aligned of 3 and 3: none differs." in report["conclusion"]


def test_an_unknown_reference_is_refused(models, capsys, monkeypatch):
    monkeypatch.chdir(models)
    code, report, told = run(capsys, "norm.onnx", *SIZES, "--against", "unoptimised")
    assert (code, report) == (2, {})
    assert "float64, unoptimized, cpu, cuda" in told
    assert len(told.splitlines()) == 1
