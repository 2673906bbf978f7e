"""The loads of `ortmeter bench`: several callers, requests at a rate, runs after a pause."""

import json
from argparse import ArgumentParser

import numpy as np
import onnx
import pytest

from ortmeter.cli import load
from ortmeter.cli.report import Report
from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.candidates import model_variants
from ortmeter.workloads.load import Load, Point, Turn

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[64, 64] X) => (float[64, 64] Y) { A = MatMul(X, X)  Y = Tanh(A) }"""
NAMES = """<ir_version: 10, opset_import: ["": 21]>
g (string[2] X) => (string[2] Y) { Y = Identity(X) }"""
LEVELS = ["p50", "p90", "p95", "p99"]


def parse(*arguments):
    parser = ArgumentParser()
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--repeat")
    parser.add_argument("--processes")
    load.add_options(parser)
    return parser.parse_args(list(map(str, arguments)))


def fill(*arguments, **axes):
    report = Report("bench")
    model = axes.pop("model", onnx.parser.parse_model(TEXT))
    load.read_load(parse(*arguments)).fill(report, model_variants(model, provider="cpu", **axes))
    return json.loads(json.dumps(report.to_dict())), report


def levels(row):
    return [name.split(" ")[0] for name in row if name.startswith("p")]


def test_callers_have_their_latency_and_throughput():
    found, report = fill("--callers", "2,1", optimization=["none", "all"])
    (section,) = found["sections"]
    speeds, latencies = section["tables"]
    names = ["optimization=none", "optimization=all"]
    for table in (speeds, latencies):
        assert [(row["candidate"], row["callers"]) for row in table] == [
            (name, k) for name in names for k in (1, 2)
        ]
    assert levels(latencies[0]) == LEVELS
    *first, last = found["conclusion"]
    # One sentence for each candidate, or one for both.
    assert all("throughput, callers=2" in text for text in first)
    assert all(any(name in text for text in first) for name in names)
    assert last.startswith(("callers 2: throughput, ", "callers 2: undecided between throughput, "))
    assert "data:image/png" in report.to_html()


def test_one_number_of_callers_has_its_throughput():
    found, _ = fill("--callers", 1, "--budget", 0.2, "--sessions")
    (sentence,) = found["conclusion"]
    assert sentence.endswith(" requests/s with callers=1 (99% CI).")
    (row,) = found["sections"][0]["tables"][0]
    assert list(row) == ["callers", "requests/s", "low", "high"]
    assert row["requests/s"] > 0


def test_texts_are_served_too():
    found, _ = fill(
        "--callers",
        2,
        "--budget",
        0.1,
        model=onnx.parser.parse_model(NAMES),
        feeds={"X": np.array(["a", "b"], object)},
    )
    assert found["sections"][0]["tables"][0][0]["callers"] == 2


def test_a_rate_tells_its_queue():
    found, _ = fill("--rate", "5,10", "--budget", 0.6)
    (section,) = found["sections"]
    queue, latencies = section["tables"]
    assert [row["rate"] for row in queue] == [5, 10]
    assert {row["queue"] for row in queue} <= {"stable", "undecided", "overloaded"}
    assert [row["p99 (ms)"] for row in latencies] == ["-", "-"]
    (sentence,) = found["conclusion"]
    assert sentence.startswith(("the queue is stable up to ", "no queue is stable; "))


def test_pauses_are_compared_with_the_shortest():
    found, _ = fill("--gap", "0.002,0", "--budget", 0.1)
    ratios, latencies = found["sections"][0]["tables"]
    assert [row["gap"] for row in ratios] == [0, 0.002]
    assert ratios[0]["speedup over gap=0"] == 1
    assert ratios[1]["speedup over gap=0"] > 0
    assert min(row["CPU (ms)"] for row in ratios) > 0
    assert levels(latencies[0]) == LEVELS
    (sentence,) = found["conclusion"]
    assert "gap=0.002" in sentence


def test_one_pause_has_its_median():
    found, _ = fill("--gap", "0.001", "--budget", 0.1)
    ((row,), latencies) = found["sections"][0]["tables"]
    assert set(row) == {"gap", "CPU (ms)"}
    assert [row["gap"] for row in latencies] == [0.001]
    (sentence,) = found["conclusion"]
    assert sentence.startswith("median after a pause of 0.001 s: ")


def make_load(rate, service, count=4000):
    """Requests that never wait: latencies follow from the service times."""
    rng = np.random.default_rng(0)
    turns = []
    for _ in range(5):
        arrivals = np.arange(count) / rate
        ends = arrivals + service * rng.uniform(0.5, 1.5, count)
        turns.append(Turn(arrivals, arrivals, ends, rate))
    return Load(Point([int], rate), tuple(turns))


def test_the_largest_stable_rate_is_told():
    found = {rate: make_load(rate, 0.02) for rate in (10, 40, 60, 90)}
    sentence = load._rate_sentence(found)
    assert sentence.startswith("the queue is stable up to 40/s: p99 is 29.8 [")
    assert sentence.endswith("] ms (99% CI); overloaded at 60 and 90/s.")
    few = {1: make_load(1, 0.02, count=0)}
    assert load._rate_sentence(few) == "no queue is stable; too few independent requests at 1/s."


@pytest.mark.parametrize(
    "arguments",
    [
        ("--sessions",),
        ("--sessions", "--gap", "0,1"),
        ("--callers", "1,2", "--processes", 3),
    ],
)
def test_options_that_need_another_are_refused(arguments):
    with pytest.raises(InvalidArgumentError, match=r"needs --callers|--repeat and --processes are"):
        load.read_load(parse(*arguments))


def test_the_mode_is_asked_by_a_load():
    assert load.read_load(parse()) is None
    for given in (("--callers", 1), ("--rate", 9), ("--gap", 0), ("--rate", 5, "--sessions")):
        assert load.read_load(parse(*given))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--callers", "0"), "--callers: got '0', expected an integer from 1 to 256"),
        (("--callers", ","), "--callers: got ','"),
        (("--rate", "0"), "--rate: got '0', expected a number from 0.001"),
        (("--rate", "1e6", "--budget", "60"), "Accepted: up to 5000000 requests"),
        (("--gap", "-1"), "--gap: got '-1', expected a number from 0 to 3600"),
    ],
)
def test_wrong_numbers_are_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        fill(*arguments)


@pytest.mark.parametrize("option", ["--callers=1", "--rate=9", "--gap=0"])
def test_a_candidate_that_disturbs_the_next_is_refused(option):
    with pytest.raises(
        InvalidArgumentError, match="'spinning=on' spin.* one candidate, or several"
    ):
        fill(option, threads=2, spinning=["on", "during-run"])
