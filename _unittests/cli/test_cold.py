"""Tests of ortmeter.cli.cold: what `ortmeter bench --cold` writes."""

import json
from argparse import ArgumentParser, Namespace

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import onnxruntime
import pytest

from ortmeter.cli import cold
from ortmeter.cli.conversion import Conversion
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.timing import Comparison, Comparisons, Measurement
from ortmeter.timing.candidates import model_variants
from ortmeter.workloads.startup import PHASES, ColdStart

WAYS = ["no optimization", "saved optimized", "ORT format"]
WAYS += ["external", "external unpacked", "external prepacked"]
HEADER = '<ir_version: 11, opset_import: ["": 23]>'
TEXT = f"{HEADER} g (float[4] X) => (float[4] Y) {{ A = Identity(X)  Y = Abs(A) }}"
NONE = Conversion([], [], None, False, None)


def asked(*given, repeat=None, processes=1, budget=None):
    parser = ArgumentParser()
    cold.add_options(parser)
    options = vars(parser.parse_args(given))
    return Namespace(**options, repeat=repeat, processes=processes, budget=budget)


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


def planted(speeds):
    """Make starts of candidates that are so many times faster than the first, in 3 processes."""
    rng = np.random.default_rng(0)
    times = {
        phase: Comparison(
            Measurement(name, (1 + 0.1 * rng.standard_normal((3, 1))) / speed)
            for name, speed in speeds.items()
        )
        for phase in PHASES
    }
    memory = {name: dict.fromkeys(PHASES, (1.0, 1.0)) for name in speeds}
    return ColdStart(Comparisons(times, "phase"), memory)


def test_other_starts_are_compared_and_their_files_go(monkeypatch):
    monkeypatch.setattr(cold, "cold_start", lambda found, **_: planted(dict.fromkeys(found, 1.0)))
    report, variants = Report("bench"), model_variants({"m": TEXT}, provider="cpu")
    with cold.other_starts(report, variants, NONE) as candidates:
        assert list(candidates) == ["m", *WAYS]
        file = candidates["saved optimized"].model
        assert file.exists()
        cold.read_cold(asked("--cold")).fill(report, candidates)
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
    speeds = {"m": 1.0, "much": 18.0, "some": 2.0, "same": 1.0, "less": 0.5, "a": 1.0, "b": 1.0}
    found = planted(speeds)
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


def test_other_ways_to_start_are_added_to_each_candidate():
    several = model_variants({"m": TEXT}, provider="cpu", threads=[1, 2])
    with cold.other_starts(Report("bench"), several, NONE) as found:
        ways = [f"threads={threads}, {way}" for threads in (1, 2) for way in WAYS]
        assert list(found) == ["threads=1", "threads=2", *ways]


@pytest.mark.parametrize(
    ("levels", "ways"),
    [(["all"], [""]), (["all", "none"], ["-optimization-all", "-optimization-none"])],
)
def test_what_is_saved_is_kept_with_its_weights(tmp_path, levels, ways):
    b = np.arange(128 * 64, dtype=np.float32).reshape(128, 64)
    ends = "(float[2, 128] X) => (float[2, 64] Y)"
    model = onnx.parser.parse_model(f"{HEADER} g {ends} {{ A = Identity(X)  Y = MatMul(A, B) }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(b, "B"))
    variants = model_variants({"m": model}, provider="cpu", optimization=levels)
    report, kept = Report("bench"), NONE._replace(file=tmp_path / "k.onnx")
    with cold.other_starts(report, variants, kept):
        pass
    kinds = ["external.data", "external.onnx", "prepacked.data", "prepacked.onnx"]
    made = {f"k{way}-{kind}" for way in ways for kind in kinds}
    made |= {f"k{ways[0]}-optimized.{end}" for end in ("onnx", "ort")}
    assert {file.name for file in tmp_path.iterdir()} == made
    told = " ".join(report.sentences)
    assert all(str(tmp_path / name) in told for name in made)
    x = np.random.default_rng(0).standard_normal((2, 128)).astype(np.float32)
    for file in (file for file in tmp_path.iterdir() if file.suffix != ".data"):
        (y,) = onnxruntime.InferenceSession(file).run(None, {"X": x})
        np.testing.assert_allclose(y, x.astype(np.float64) @ b, rtol=1e-3, atol=1)
    refused = pytest.raises(InvalidArgumentError, match="exists: choose another name")
    with refused, cold.other_starts(Report("bench"), variants, kept):
        pass


@pytest.mark.parametrize("level", ["basic", "extended"])
def test_a_model_that_runs_anywhere_has_no_caveat(level):
    report = Report("bench")
    variants = model_variants({"m": TEXT}, provider="cpu", optimization=level)
    with cold.other_starts(report, variants, NONE):
        pass
    assert not report.sentences
