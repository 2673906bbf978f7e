"""Tests of what diff says of an unoptimized session, a program of torch, and two graphs."""

import json
import warnings

import numpy as np
import onnx
import pytest

import ortmeter
from ortmeter.cli import main
from ortmeter.runtime.models import layer_norm_matmul

SIZES = ["--dim", "a=2", "--dim", "b=3"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    onnx.save(ortmeter.sample_cnn(size=16), folder / "cnn.onnx")
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
    assert first.startswith("ONNX Runtime on CPU against unoptimized, output output: ")
    if any(levels.values()):  # the layout depends on the vectors of the machine
        names = [row["optimizer"] for row in table(report, "Optimizers")]
        assert all(name in second for name in names)
        assert second.endswith("the outputs are the same as without optimization.")
    else:
        assert second == "no optimization changes the outputs."
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["norm.onnx", "--against-torch-program", "p.pt2"], "with --trust-program"),
        (["norm.onnx", "--trust-program"], "expected --against-torch-program"),
        (["norm.onnx", *SIZES, "--against", "unoptimised"], "float64, unoptimized, cpu, cuda"),
        (
            ["norm.onnx", *SIZES, "--against-torch-program", "norm.onnx", "--trust-program"],
            "Accepted: a file written by torch.export.save",
        ),
        (
            ["norm.onnx", "cnn.onnx", "--against-torch-program", "p.pt2", "--trust-program"],
            "one model, without --against",
        ),
        (
            ["norm.onnx", "--against", "torch", "--against-torch-program", "p.pt2"],
            "one model, without --against",
        ),
        (
            ["norm.onnx", *SIZES, "--against-torch-program", "absent.pt2", "--trust-program"],
            "'absent.pt2' is not a file",
        ),
    ],
)
def test_what_is_refused(models, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(models)
    code, report, told = run(capsys, *arguments)
    assert (code, report) == (2, {})
    assert message in told
    assert len(told.splitlines()) == 1


def test_a_program_of_torch(models, capsys, tmp_path):
    torch = pytest.importorskip("torch")

    class Scaled(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.relu(torch.exp(x) * 2) - 1

    program = torch.export.export(Scaled(), (torch.zeros(3),))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch about itself
        torch.export.save(program, tmp_path / "scaled.pt2")
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[3] x) => (float[3] y) {
        [two] two = Constant<value_float = 2.5>()  [one] one = Constant<value_float = 1.0>()
        [e] e = Exp(x)  [m] m = Mul(e, two)  [r] r = Relu(m)  [s] y = Sub(r, one) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "scaled.onnx")
    html = tmp_path / "report.html"
    given = [tmp_path / "scaled.onnx", "--against-torch-program", tmp_path / "scaled.pt2"]
    code, report, _ = run(capsys, *given, "--trust-program", "--atol", "1e-3", "--html", html)
    assert code == 1
    rows = table(report, "Steps of the program")
    assert rows[0]["step"] == "mul"
    assert rows[0]["nodes"] == "Mul (m)"
    assert rows[0]["own"] > 0.1
    assert all(row["own"] < 1e-6 for row in rows[1:])
    assert report["conclusion"][1].startswith("mul (aten.mul.Tensor) at test_alternatives.py:")
    assert "Steps of the program" in html.read_text(encoding="utf-8")
