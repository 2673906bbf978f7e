"""Releases from the command line; the interpreter of the tests stands for their environments."""

import re

import numpy as np
import pandas as pd
import pytest
from claim_samples import compare_ratio
from commands import refused, report_of, save, tables_of

from ortmeter.cli import bench_releases
from ortmeter.cli.bench import read_request
from ortmeter.cli.execution import make_parser
from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import compare_releases
from ortmeter.runtime.providers import Provider
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement

MODEL = "(float[512] X) => (float[512] Y) { A = Sin(X) Y = Cos(A) }"
STAND_INS = {
    "old": Release("old"),
    "new": Release("new"),
    "broken": Release("broken", provider=Provider("cuda")),
}


@pytest.fixture
def model(monkeypatch, tmp_path):
    def parse(text, _provider):
        if text not in STAND_INS:
            raise InvalidArgumentError(f"release {text!r} is not known. Accepted: a version")
        return STAND_INS[text]

    monkeypatch.setattr(bench_releases.bisect, "parse_release", parse)
    monkeypatch.setattr(bench_releases, "_PROFILED_S", 0.01)
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "cache"))
    return save(tmp_path / "wave.onnx", MODEL)


def bench(capsys, model, *options):
    few = ["--processes", "3", "--repeat", "3", "--budget", "2"]
    report = report_of(capsys, "bench", model, *few, *options)
    return report, {title: tables[0] for title, tables in tables_of(report).items() if tables}


def test_releases_are_compared_with_what_changed(model, tmp_path, capsys):
    html = tmp_path / "report.html"
    report, tables = bench(capsys, model, "--runtime", "old,broken,new", "--html", html)
    measured = {row["release"]: row for row in tables["Latency"]}
    assert list(measured) == ["old", "new"]
    assert measured["old"]["speedup"] is None
    assert measured["new"]["speedup"] > 0
    changes = {row["release"]: row["largest change of outputs"] for row in tables["Releases"]}
    assert changes == {"old": None, "broken": None, "new": 0}  # one and the same library
    (operators,) = (rows for title, rows in tables.items() if title.startswith("Operators of "))
    assert {row["operator"] for row in operators} >= {"Sin", "Cos"}
    assert re.search(r"old|new", report["conclusion"][0])
    assert any(s.startswith("left out: broken: it has no CUDA") for s in report["conclusion"])
    assert "data:image/png;base64," in html.read_text(encoding="utf-8")


def test_latencies_stay_when_a_release_has_no_profile(model, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ModelError("new: Unable to serialize model as it contains compiled nodes")

    monkeypatch.setattr(bench_releases, "profile_releases", refuse)
    report, tables = bench(capsys, model, "--runtime", "old,new")
    assert "operators are not compared: new: Unable to serialize" in "\n".join(report["conclusion"])
    assert "Latency" in tables
    assert not any("Operators" in title for title in tables)


def test_a_release_runs_on_each_provider_that_is_named(model, capsys):
    """Stand-ins have no OpenVINO: each one says so, and runs on the CPU."""
    ways = ("--runtime", "old,new", "--provider", "openvino,cpu")
    report, tables = bench(capsys, model, *ways)
    assert [row["release"] for row in tables["Latency"]] == ["old cpu", "new cpu"]
    assert [row["provider"] for row in tables["Releases"]] == ["openvino", "cpu"] * 2
    left_out = [said for said in report["conclusion"] if said.startswith("left out: ")]
    assert [said.split(":")[1] for said in left_out] == [" old openvino", " new openvino"]
    assert all("it has no OpenVINOExecutionProvider" in said for said in left_out)
    assert report["session"].startswith("provider=openvino,cpu, ")


@pytest.mark.parametrize(
    ("asked", "names", "of_variants"),
    [
        ("auto", ["new"], "cpu"),
        ("cpu", ["new"], "cpu"),
        ("cpu,cuda:1", ["new cpu", "new cuda:1"], "cuda:1"),
    ],
)
def test_a_name_has_the_provider_where_there_are_several(asked, names, of_variants, model):
    given = ["bench", str(model), "--runtime", "new", "--provider", asked]
    request = read_request(make_parser("bench").parse_args(given))
    assert [one.name for one in request.mode.releases] == names
    (variant,) = request.variants().values()
    assert str(variant.settings["provider"]) == of_variants


@pytest.mark.slow
def test_variants_have_a_comparison_each(model, capsys):
    ways = ("--runtime", "old,new", "--optimization", "none,all")
    _, tables = bench(capsys, model, *ways)
    assert tables.keys() >= {f"Latency, optimization={level}" for level in ("none", "all")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("older", "release 'older' is not known. Accepted: a version"),
        ("broken", "no release runs this model. broken: it has no CUDAExecutionProvider"),
        (",", "--runtime: got ',', expected values"),
    ],
)
def test_what_cannot_be_compared_is_one_line(text, message, model, capsys):
    assert message in refused(capsys, "bench", model, "--runtime", text)


LATENCIES = {
    "faster": (2.0, (1.8, 2.2)),
    "slower": (0.5, (0.4, 0.6)),
    "undecided": (1.0, None),
}


def compared(noise=0.001, **seconds):
    rng = np.random.default_rng(0)
    return Comparison(
        Measurement(name, value * (1 + noise * rng.standard_normal((5, 12))))
        for name, value in seconds.items()
    )


@pytest.mark.parametrize(
    ("seconds", "starts", "ends"),
    [
        ({"a": 1.0, "b": 2.0}, ["b is 2.00 times slower than a"], ["5 processes)."]),
        # since one release, since two
        (
            {"a": 1.0, "b": 2.0, "c": 2.0},
            ["c is 2.00 times slower than a"],
            ["since b (2.00 times slower"],
        ),
        (
            {"a": 1.0, "b": 2.0, "c": 4.0},
            ["c is 4.00 times slower than a"],
            ["and c (2.00 times slower"],
        ),
        # there and back
        (
            {"a": 1.0, "b": 2.0, "c": 1.0},
            ["c and a are within 5%", "b is 2.00 times slower than a", "c is 2.00 times faster"],
            ["", "", ""],
        ),
        # small steps: none is worth a claim
        (
            {"a": 1.0, "b": 1.04, "c": 1.08},
            ["c is 1.08 times slower than a"],
            ["; the intervals do not decide which release changed it."],
        ),
    ],
)
def test_since_which_release(seconds, starts, ends):
    told = bench_releases._since(compare_releases(compared(**seconds)))
    assert len(told) == len(starts)
    for sentence, start, end in zip(told, starts, ends, strict=True):
        assert sentence.startswith(start)
        assert end in sentence
    assert compare_releases(compared(a=1.0)) is None


def test_the_largest_difference_may_be_between_two_in_the_middle():
    assert compare_releases(compared(a=1.0, b=3.0, c=1.5)).largest.subject == "b"
    found = compare_releases(compared(a=1.0, b=1.0, c=1.0))
    assert found.largest is found.overall  # nothing differs


def told_of_operators(latency, a, b, verdicts, ends=(0.4, 1.1)):
    """Write the sentence on the times (µs) of a profiled run and of Conv in a, then in b."""
    times = {"a (µs)": a, "b (µs)": b, "low": ends[0], "high": ends[1], "verdict": verdicts}
    table = pd.DataFrame(times, pd.Index(["a profiled run", "Conv"], name="operator"))
    return bench_releases._operators_sentence(table.rename_axis(columns="2 processes"), latency)


@pytest.mark.parametrize(
    ("latency", "run", "operator", "told"),
    [
        ("slower", "slower", "slower", "what changed most: Conv, 10 µs in a and 20 µs in b; a pro"),
        ("slower", "undecided", "undecided", "no operator is shown to be slower; a pro"),
        (
            "undecided",
            "undecided",
            "undecided",
            "no operator is shown to be slower or faster; a pro",
        ),
        ("slower", "slower", "faster", "no operator is shown to be slower; a pro"),
        (
            "undecided",
            "undecided",
            "slower",
            "what changed most in profiles, not in latencies: Conv",
        ),
        # what the latency does not confirm
        ("undecided", "slower", "slower", "the table of operators says nothing."),
        ("faster", "slower", "slower", "the table of operators says nothing."),
        ("faster", "undecided", "slower", "the table of operators says nothing."),
    ],
)
def test_operators_say_nothing_that_latencies_deny(latency, run, operator, told):
    claim = compare_ratio("b", "a", *LATENCIES[latency])
    assert claim.verdict == latency
    assert told in told_of_operators(claim, [30.0, 10.0], [40.0, 20.0], [run, operator])


@pytest.mark.parametrize(
    ("ran", "ends"),
    [((692.0, 1050.0), (0.5, 1.2)), ((692.0, 230.0), (2.5, 3.5))],  # opposed, then much more
)
def test_a_release_is_not_explained_by_a_profile_that_latencies_deny(ran, ends):
    times = ([each + 100, each] for each in ran)
    verdicts = ["undecided", "faster" if ran[1] < ran[0] else "slower"]
    latency = compare_ratio("b", "a", 1.06, (1.051, 1.069))
    told = told_of_operators(latency, *times, verdicts, ends)
    assert told.endswith("the table of operators says nothing.")
    assert "Conv" not in told


def test_operators_of_too_few_processes_ask_for_more():
    latency = compare_ratio("b", "a", *LATENCIES["undecided"])
    told = told_of_operators(latency, [3.0, 1.0], [4.0, 2.0], "undecided", (np.nan, np.nan))
    assert told.startswith("operators have no interval in 2 processes, which needs 3: ask for more")


def test_an_environment_that_cannot_be_made_measures_nothing(model, monkeypatch, capsys):
    def fail(release, _tell):
        raise OrtMeterError(f"{release.name}: no registry of packages answered")

    monkeypatch.setattr(bench_releases.bisect, "prepare", fail)
    told = refused(capsys, "bench", model, "--runtime", "old,new")
    assert "old: no registry of packages answered" in told
