"""What ``ortmeter profile`` advises, and how it stands beside ``ortmeter bench``."""

import pytest
from commands import report_of, save, tables_of

from ortmeter.cli import profile as command
from ortmeter.profiling import Advice

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[256, 256] X) => (float[256, 256] Y, float[256, 256] T) {
  [turn] T = Transpose <perm = [1, 0]> (X)  [end] Y = Exp (T) }"""


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "turned.onnx", TEXT)


def report(capsys, *arguments):
    found = report_of(capsys, "profile", *arguments, "--repeat", "5")
    return " ".join(found["conclusion"]), tables_of(found)


def test_what_to_try_is_concluded_and_listed(model, capsys):
    said, tables = report(capsys, model)
    row = next(row for row in tables["Nodes of the advice"][0] if row["finding"] == "layout")
    assert row["nodes"] == "turn"
    assert row["saves"].startswith("at most ")
    assert f"layout ({row['saves']}): 1 Transpose move data and compute nothing. Try: " in said


def test_nothing_to_advise_is_said(model, capsys, monkeypatch):
    monkeypatch.setattr(command, "advise", lambda *_, **__: ())
    said, tables = report(capsys, model)
    assert "no advice: 10 checks found nothing." in said
    assert "Nodes of the advice" not in tables


def test_findings_are_said_and_their_nodes_listed(model, capsys, monkeypatch):
    nodes = tuple(f"n{i}" for i in range(5))
    found = tuple(Advice(f"topic {i}", nodes, "seen", "this", 0.5 - i / 10) for i in range(5))
    monkeypatch.setattr(command, "advise", lambda *_, **__: found)
    said, tables = report(capsys, model)
    (rows,) = tables["Nodes of the advice"]
    assert len(rows) == 5
    assert rows[0]["nodes"] == "n0, n1, n2 and 2 more"
    assert "topic 4 (at most 10% of kernel time): seen. Try: this." in said


def test_the_answer_comes_first_and_the_tables_agree_with_it(model, capsys):
    said, tables = report(capsys, model)
    longest, other = tables["Time by operator"][0]
    assert said.startswith(f"longest operators: {longest['op']} ")
    assert longest["median (µs)"] >= other["median (µs)"]
    both = longest["median (µs)"] + other["median (µs)"]
    assert longest["share (%)"] == pytest.approx(100 * longest["median (µs)"] / both, abs=0.05)


@pytest.mark.parametrize(("limit", "said"), [(1e9, True), (0, False)])
def test_a_profiler_that_takes_most_of_the_run_is_said(model, capsys, monkeypatch, limit, said):
    monkeypatch.setattr(command, "_PROFILER_MOST", limit)
    told, _ = report(capsys, model)
    assert ("the profiler itself takes most of a profiled run" in told) == said


def test_operators_of_two_domains_have_two_names(tmp_path, capsys):
    text = """<ir_version: 8, opset_import: ["": 20, "com.microsoft": 1]>
    g (float[8] X) => (float[8] Y) { A = Gelu (X)  Y = com.microsoft.Gelu (A) }"""
    file = save(tmp_path / "gelu.onnx", text)
    _, tables = report(capsys, file, "--optimization", "none")
    rows = tables["Time by operator"][0]
    assert {row["op"] for row in rows} == {"Gelu", "Gelu (com.microsoft)"}


@pytest.mark.parametrize("options", [[], ["--baseline", "unoptimized"]])
def test_which_latency_is_that_of_bench(model, capsys, options):
    said, tables = report(capsys, model, *options)
    assert "bench measures the unprofiled latency, here " in said
    rows = tables["Latency without the profiler"][0]
    assert [row["candidate"] for row in rows] == [*["the baseline"][: len(options)], "the model"]
    assert all(row["q1 (ms)"] <= row["median (ms)"] <= row["q3 (ms)"] for row in rows)


@pytest.mark.slow
def test_a_report_of_two_thousand_nodes_is_small(tmp_path, capsys):
    chain = "\n".join(
        f"[layer_{i}] X{i + 1} = {'Exp' if i % 2 else 'Sin'} (X{i})" for i in range(1999)
    )
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[8] X0) => (float[8] Y) {{ {chain} [last] Y = Tanh (X1999) }}"""
    file, html = save(tmp_path / "long.onnx", text), tmp_path / "report.html"
    options = ["--baseline", "unoptimized", "--top", "2000", "--html", html]
    said, tables = report(capsys, file, *options)
    assert len(tables["The 2000 slowest nodes"][0]) == 2000
    assert html.stat().st_size < 2 << 20
    assert "short kernels (at most" in said
