"""Tests of what diff says of an unoptimized session, and of two graphs."""

import numpy as np
import onnx
import pytest
from commands import refused, report_of

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


def diff(capsys, *arguments):
    return report_of(capsys, "diff", *arguments, "--provider", "cpu")


def table(report, start):
    (found,) = [s for s in report["sections"] if s["title"].startswith(start)]
    return found["tables"][0]


def test_the_optimization_that_is_responsible(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    report = diff(capsys, models / "cnn.onnx", "--against", "unoptimized", "--html", html)
    levels = {row["level"]: row["absolute"] for row in table(report, "Levels")}
    assert list(levels) == ["basic", "extended", "layout", "all"]
    first, second, *_ = report["conclusion"]
    assert second.startswith("ONNX Runtime on CPU against unoptimized, output output: ")
    if any(levels.values()):  # the layout depends on the vectors of the machine
        assert " the outputs: without " in first
        assert first.endswith("the outputs are the same as without optimization.")
    else:
        assert first == "no optimization changes the outputs."
    assert "Levels" in html.read_text(encoding="utf-8")


def test_a_tolerance_gives_the_exit_code(models, capsys):
    report = diff(capsys, models / "cnn.onnx", "--against", "unoptimized", "--atol", "1e-2")
    assert "no optimization changes the outputs." in report["conclusion"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["unoptimized", "--optimization", "none"], "Accepted: basic, extended, layout, all"),
        (["unoptimised"], "float64, unoptimized, cpu, cuda"),
    ],
)
def test_what_no_comparison_is_made_with_is_refused(models, capsys, monkeypatch, options, message):
    monkeypatch.chdir(models)
    assert message in refused(capsys, "diff", "norm.onnx", *SIZES, "--against", *options)


def test_where_two_graphs_part(models, capsys, tmp_path):
    html = tmp_path / "report.html"
    report = diff(capsys, models / "norm.onnx", models / "moved.onnx", *SIZES, "--html", html)
    rows = table(report, "Where the graphs part")
    first = next(row for row in rows if row["relative"])
    assert (first["node of norm.onnx"], first["node of moved.onnx"]) == ("matmul", "<b>matmul</b>")
    (told,) = [text for text in report["conclusion"] if "results aligned" in text]
    assert "they part at matmul / <b>matmul</b> (MatMul)" in told
    page = html.read_text(encoding="utf-8")
    assert "&lt;b&gt;matmul&lt;/b&gt;" in page
    assert "<b>matmul" not in page


def test_the_same_graph_does_not_part(models, capsys):
    report = diff(capsys, models / "norm.onnx", models / "norm.onnx", *SIZES)
    assert "3 results aligned of 3 and 3: none differs." in report["conclusion"]
