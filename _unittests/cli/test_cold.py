"""Tests of ortmeter.cli.cold: what `ortmeter bench --cold` writes."""

import json
from argparse import ArgumentParser, Namespace

import numpy as np
import onnxruntime
import pytest
from commands import parse

from ortmeter.cli import cold
from ortmeter.cli.conversion import Conversion
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.candidates import model_variants
from ortmeter.workloads.startup import PHASES, ColdStart

WAYS = ["no optimization", "saved optimized", "ORT format"]
WAYS += ["external", "external unpacked", "external prepacked"]
TEXT = """<ir_version: 11, opset_import: ["": 23]>
g (float[4] X) => (float[4] Y) { A = Identity(X)  Y = Abs(A) }"""


def asked(*given, repeat=None, processes=1, budget=None):
    parser = ArgumentParser()
    cold.add_options(parser)
    options = vars(parser.parse_args(given))
    return Namespace(**options, repeat=repeat, processes=processes, budget=budget)


def starts(variants, report=None, *, shorten=True):
    kept = Conversion([], [], None, False, None)
    return cold.other_starts(report or Report("bench"), variants, kept, shorten=shorten)


def test_the_mode_is_off_unless_it_is_asked_for():
    assert cold.read_cold(asked()) is None
    assert cold.read_cold(asked("--shorten")) is None
    assert cold.read_cold(asked("--cold")) == (1, 60.0)
    with pytest.raises(InvalidArgumentError, match="--repeat is for interleaved runs"):
        cold.read_cold(asked("--cold", repeat=5))


def test_one_candidate_has_its_phases_and_no_verdict():
    report = Report("bench")
    starts = cold.read_cold(asked("--cold"))
    starts.fill(report, model_variants({"a<b>": TEXT}, provider="cpu"))
    told = json.loads(json.dumps(report.to_dict()))
    (section,) = told["sections"]
    assert [row["phase"] for row in section["tables"][0]][:3] == ["import", "session", "first run"]
    assert told["conclusion"][0].startswith("a<b>: the first result takes ")
    assert "[" not in told["conclusion"][0]  # one process gives no interval
    assert "page cache" in told["conclusion"][-1]
    assert "a&lt;b&gt;" in report.to_html()
    assert max(map(len, report.to_text().splitlines())) <= 100


def test_other_starts_are_compared_and_their_files_go():
    report, variants = Report("bench"), model_variants({"m": TEXT}, provider="cpu")
    with starts(variants, report) as candidates:
        assert list(candidates) == ["m", *WAYS]
        file = candidates["saved optimized"].model
        assert file.exists()
        some = ("m", "saved optimized", "ORT format")
        cold.read_cold(asked("--cold")).fill(report, {name: candidates[name] for name in some})
    assert not file.exists()
    assert [section.title for section in report.sections] == [
        "Cold start",
        "Speedup over the first",
    ]
    *verdicts, cache, specific = report.sentences
    judged = [text.partition(":")[0] for text in verdicts]
    assert judged == ["first result", "session", "first run", "steady run"]
    assert "page cache" in cache
    assert "level all is for CPUs like this one" in specific


def test_the_conclusion_says_what_the_table_says(monkeypatch):
    """Seven candidates in three processes: an interval for every pair would say nothing."""
    rng = np.random.default_rng(0)
    speeds = {"m": 1.0, "much": 18.0, "some": 2.0, "same": 1.0, "less": 0.5, "a": 1.0, "b": 1.0}
    times = {
        phase: Comparison(
            Measurement(name, (1 + 0.1 * rng.standard_normal((3, 1))) / speed)
            for name, speed in speeds.items()
        )
        for phase in PHASES
    }
    memory = {name: dict.fromkeys(PHASES, (1.0, 1.0)) for name in speeds}
    found = ColdStart(Comparisons(times, "phase"), memory)
    monkeypatch.setattr(cold, "cold_start", lambda *_, **__: found)
    report = Report("bench")
    cold.read_cold(asked("--cold", "--shorten")).fill(report, {})
    (rows,) = report.to_dict()["sections"][1]["tables"]
    result = report.sentences[0]
    assert result.startswith("first result: faster than m: much (")
    for row in (row for row in rows if row["phase"] == "first result"):
        told = next(part for part in result.split("; ") if f"{row['candidate']} (" in part)
        assert row["verdict"] in told
        if row["verdict"] == "faster":
            assert f"{row['candidate']} ({row['speedup']:.2f} times [{row['low']:.3g}, " in told


@pytest.mark.parametrize(
    ("way", "levels", "made"),
    [
        ("--save-optimized", ["all"], ["k-optimized.onnx"]),
        ("--save-optimized", ["none", "all"], ["k-optimization-all-optimized.onnx"]),
        (
            "--shorten",
            ["all"],
            [
                "k-external.data",
                "k-external.onnx",
                "k-optimized.onnx",
                "k-optimized.ort",
                "k-prepacked.data",
                "k-prepacked.onnx",
            ],
        ),
    ],
)
def test_what_is_saved_is_kept_with_its_weights(tmp_path, way, levels, made):
    b = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    text = "(float[2, 128] X) => (float[2, 64] Y) { A = Identity(X)  Y = MatMul(A, B) }"
    model = parse(text, B=b)
    variants = model_variants({"m": model}, provider="cpu", optimization=levels)
    report = Report("bench")
    kept, shorten = Conversion([], [], tmp_path / "k.onnx", False, None), way == "--shorten"
    with cold.other_starts(report, variants, kept, shorten=shorten):
        pass
    assert sorted(file.name for file in tmp_path.iterdir()) == made
    assert all(str(tmp_path / name) in report.sentences[0] for name in made)
    x = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float32)
    for name in made:
        if not name.endswith(".data"):
            (y,) = onnxruntime.InferenceSession(tmp_path / name).run(None, {"X": x})
            np.testing.assert_allclose(y, x.astype(np.float64) @ b, rtol=1e-3, atol=1)
    with (
        pytest.raises(InvalidArgumentError, match="exists: choose another name"),
        cold.other_starts(Report("bench"), variants, kept, shorten=shorten),
    ):
        pass


def test_each_optimized_candidate_has_a_saved_one():
    variants = model_variants({"m": TEXT}, provider="cpu", optimization=["none", "basic", "all"])
    with starts(variants, shorten=False) as found:
        added = [name for name in found if name not in variants]
    assert added == [f"optimization={level}, saved optimized" for level in ("basic", "all")]
    variants = model_variants({"m": TEXT}, provider="cpu", optimization="none")
    refused = pytest.raises(InvalidArgumentError, match="nothing to save. Accepted: optimization")
    with refused, starts(variants, shorten=False):
        pass


@pytest.mark.parametrize("level", ["basic", "extended"])
def test_a_model_that_runs_anywhere_has_no_caveat(level):
    report = Report("bench")
    variants = model_variants({"m": TEXT}, provider="cpu", optimization=level)
    with starts(variants, report, shorten=False):
        pass
    assert not report.sentences


def test_the_memory_of_each_candidate_is_in_a_table():
    table = cold.memory_table(model_variants({"m": TEXT}, provider="cpu"))
    assert table.columns == ("candidate", "peak growth (MiB)")
    assert [name for name, _ in table.rows] == ["m"]
