"""Search of a release from the command line: what it says, its exit codes; nothing is installed."""

import math

import numpy as np
import pytest
from commands import refused, report_of, save

from ortmeter.cli import bench_releases, bisect
from ortmeter.cli.bisect import Bisection, Onset, ask_speed, slowdown
from ortmeter.cli.report import Report
from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.evidence import Estimate
from ortmeter.releases.environments import Release
from ortmeter.releases.latency import ReleaseResults
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement

NAMES = ["1.20.1", "1.22.0", "1.24.4", "1.26.0", "1.27.0", "1.31.1", "1.32.0"]
RELEASES = [Release(name) for name in NAMES]


@pytest.fixture(autouse=True)
def registry(monkeypatch, tmp_path):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(bisect, "list_releases", lambda *_: RELEASES)


def since(name, said="x is slow", why=None):
    """Ask what began with a release; one that *why* names has no answer, but this."""

    def is_bad(release):
        if why and release.name in why:
            raise why[release.name]
        return NAMES.index(release.name) >= NAMES.index(name)

    return Onset(said, is_bad, lambda good, bad: f"{bad.name} beside {good.name}")


def test_each_question_has_an_answer_first():
    report = Report("r")
    report.conclude("what the ends say.")
    questions = [since("1.27.0"), since("1.22.0", "y is wrong")]
    assert bisect.fill("ortmeter bench", report, RELEASES, questions) == 0
    assert report.sentences == [
        "x is slow since 1.27.0: 1.27.0 beside 1.26.0 (5 environments of 7 releases).",
        "y is wrong since 1.22.0: 1.22.0 beside 1.20.1 (5 environments of 7 releases).",
        "what the ends say.",
    ]


def test_a_release_without_answer_leaves_the_others_theirs():
    report = Report("r")
    why = {"1.24.4": OrtMeterError("noise")}
    questions = [since("1.22.0", why=why), since("1.32.0", "y is slow")]
    assert bisect.fill("ortmeter bench", report, RELEASES, questions) == 2
    left = "or an earlier release after 1.20.1: noise (4 environments of 7 releases)."
    assert report.sentences == [
        f"x is slow since 1.26.0, {left}",
        "y is slow since 1.32.0: 1.32.0 beside 1.31.1 (4 environments of 7 releases).",
    ]


def test_an_interruption_keeps_what_is_known():
    report = Report("r")
    questions = [since("1.27.0"), since("1.27.0", "y is slow", {"1.31.1": KeyboardInterrupt()})]
    with pytest.raises(KeyboardInterrupt):
        bisect.fill("ortmeter bench", report, RELEASES, questions)
    assert report.sentences[0].startswith("x is slow since 1.27.0: ")
    assert report.sentences[1] == (
        "y is slow since 1.32.0, or an earlier release after 1.26.0: interrupted "
        "(4 environments of 7 releases)."
    )


def test_ends_that_do_not_differ_have_nothing_to_search():
    report = Report("r")
    assert bisect.fill("ortmeter bench", report, RELEASES, []) == 2
    (told,) = report.sentences
    assert told.startswith("nothing to search: 1.32.0 is not shown to be slower than 1.20.1, nor ")


def test_slow_is_nearer_to_the_last_release(monkeypatch):
    asked = []

    def decide(first, release, variant, factor, budget_s):
        asked.append((first.name, release.name, variant, factor, budget_s))
        return Estimate(9.0, 8.0, 10.0)

    monkeypatch.setattr(bisect, "decide_slowdown", decide)
    monkeypatch.setattr(bisect, "slowdown", lambda *_, **__: Estimate(12.34, 11.0, 13.6))
    question = bisect.ask_speed("PRelu", "variant", RELEASES[0], 9.0, 20.0)
    assert question.is_bad(RELEASES[2])
    assert asked == [("1.20.1", "1.24.4", "variant", 3.0, 20.0)]
    told = question.effect(RELEASES[3], RELEASES[4])
    assert told == "12.3 [11, 13.6] times slower than in 1.26.0"


@pytest.fixture
def model(tmp_path):
    return save(tmp_path / "wave.onnx", "(float[8] X) => (float[8] Y) { Y = Sin(X) }")


@pytest.mark.parametrize("command", ["bench", "operators"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runtime", "1.20.1..1.32.0"], "--runtime 1.20.1..1.32.0. Accepted: a range, 1.20.1.."),
        (["--runtime", "1.20.1,1.32.0", "--bisect"], "--runtime 1.20.1,1.32.0. Accepted: a range"),
        (["--runtime", "1.20...1.32.0", "--bisect"], "--runtime 1.20...1.32.0. Accepted: a range"),
        (["--bisect"], "Accepted: a range, 1.20.1..1.32.0, with --bisect"),
    ],
)
def test_a_range_and_a_search_go_together(command, options, message, model, capsys):
    given = [model] if command == "bench" else ["--fusions", "--filter", "gemmtransposefusion"]
    assert message in refused(capsys, command, *given, *options)


def test_bench_compares_the_ends_then_searches(model, monkeypatch, capsys):
    """The same library stands for all: outputs are the same, latencies are planted."""
    claims = bench_releases.compare_releases

    def slower(comparison):
        found = claims(comparison)
        ratio = Estimate(0.25, 0.2, 0.3)
        overall = type(found.overall)(found.overall.subject, found.overall.baseline, ratio)
        return type(found)(overall, found.steps)

    monkeypatch.setattr(bench_releases, "compare_releases", slower)
    monkeypatch.setattr(bisect, "_is_slow", lambda *asked: asked[-1].name >= "1.27")
    monkeypatch.setattr(bisect, "slowdown", lambda *_, **__: Estimate(4.0, 3.0, 5.0))
    monkeypatch.setattr(bench_releases, "_PROFILED_S", 0.01)
    few = ["--processes", "1", "--repeat", "2", "--budget", "1"]
    asked = ["--runtime", "1.20.1..1.32.0", "--bisect", *few]
    told = report_of(capsys, "bench", model, *asked)["conclusion"]
    assert told[0] == (
        "wave.onnx is slow since 1.27.0: 4 [3, 5] times slower than in 1.26.0 (5 environments of 7 "
        "releases)."
    )
    assert told[1].startswith("1.32.0 is 4.00 times slower than 1.20.1 [3.33, 5.00]")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        (np.float32([1, 1000]), np.float32([1.5, 1000]), ""),
        (np.float32([1, 1000]), np.float32([3, 1000]), "Y against 1.20.1, 1 of 2 elements beyond"),
        (np.float32([1, np.inf]), np.float32([1, np.inf]), ""),
        (np.float32([1, np.inf]), np.float32([1, 1]), "Y against 1.20.1, 1 mismatched inf"),
        (np.int64([2**53 + 1]), np.int64([2**53]), "got 9007199254740992"),
        (np.int64([2**53 + 1]), np.int64([2**53 + 1]), ""),
        (np.array([True]), np.array([False]), "Y against 1.20.1, 1 of 1 elements"),
        (np.float32([1]), np.float32([1, 1]), "Y against 1.20.1, shape: expected (1,), got (2,)"),
        (np.float32([]), np.float32([]), ""),
    ],
)
def test_outputs_that_differ(before, after, change, monkeypatch):
    pair = RELEASES[0], RELEASES[1]
    outputs = {pair[0]: {"Y": before}, pair[1]: {"Y": after}}
    monkeypatch.setattr(bench_releases, "run_once", lambda release, _: outputs[release])
    told = bench_releases._change(pair[0], None, pair[1])
    assert change in told
    assert bool(told) == bool(change)


GOOD, OTHER = Release("good"), Release("other")


def named(count):
    return [Release(f"{number}") for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 19, 64])
def test_the_first_bad_release_is_found_in_few_tries(count):
    releases = named(count)
    for first in range(1, count):
        found = Bisection(releases)
        found.search(lambda release, first=first: releases.index(release) >= first)
        assert found.ends == (releases[first - 1], releases[first])
        assert len(found.tried) <= math.ceil(math.log2(count - 1))
        assert all(bad == (releases.index(r) >= first) for r, bad in found.tried.items())


@pytest.fixture
def planted(monkeypatch):
    """Replace the measurements by draws around a ratio; return how many processes were asked."""
    asked = []

    def plant(ratio, noise, seed=0):
        rng = np.random.default_rng(seed)

        def measure_releases(releases, variants, *, processes, **_):
            asked.append(processes)
            found = [
                Measurement(r.name, t * np.exp(noise * rng.standard_normal((processes, 12))))
                for r, t in zip(releases, (1e-3, ratio * 1e-3), strict=True)
            ]
            return ReleaseResults({"": Comparison(found)}, {}, {}, {})

        monkeypatch.setattr(bisect, "measure_releases", measure_releases)
        return asked

    return plant


def is_slow(factor):
    """Ask whether *OTHER* is slow, where the last release is slower by the square of a factor."""
    return ask_speed("x", None, GOOD, factor**2).is_bad(OTHER)


def test_a_slowdown_is_that_of_the_second_release(planted):
    planted(12.0, 0.01)
    times = slowdown(GOOD, OTHER, None, processes=10)
    assert times.low < 12 < times.high < 12.5
    assert times.confidence == 0.99


@pytest.mark.parametrize(
    ("ratio", "noise", "answer", "processes"),
    [
        (12.0, 0.05, True, [5]),
        (1.0, 0.05, False, [5]),
        # the first five do not tell
        (5.2, 0.3, True, [5, 10]),
        (2.2, 0.3, False, [5, 10]),
    ],
)
def test_more_processes_decide_what_is_close(ratio, noise, answer, processes, planted):
    asked = planted(ratio, noise)
    assert is_slow(3.4) is answer
    assert asked == processes


def test_what_stays_undecided_says_so(planted):
    asked = planted(3.4, 0.5)
    told = (
        r"undecided compared with good: slowdown 3\.\d+ \[.*\] \(99.96% CI\) in 20 processes, whe"
    )
    with pytest.raises(OrtMeterError, match=told):
        is_slow(3.4)
    assert asked == [5, 10, 20]


def test_noise_rarely_gives_a_wrong_answer(planted):
    """A ratio of exactly the factor: any answer is wrong; 1/800 of them is allowed to each try."""
    answers = []
    for seed in range(300):
        planted(1.5, 0.3, seed)
        try:
            answers.append(is_slow(1.5))
        except OrtMeterError:
            continue
    assert len(answers) <= 4


def test_a_release_that_does_not_run_the_model_has_no_answer(monkeypatch):
    found = ReleaseResults({}, {}, {("", "other"): "other: no kernel"}, {})
    monkeypatch.setattr(bisect, "measure_releases", lambda *_, **__: found)
    with pytest.raises(ModelError, match="other: no kernel"):
        slowdown(GOOD, OTHER, None)
