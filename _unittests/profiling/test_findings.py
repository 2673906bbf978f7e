import dataclasses

import numpy as np
import onnx
import pytest

from ortmeter.evidence import plural
from ortmeter.profiling import Advice, profile
from ortmeter.profiling.findings import Facts, count
from ortmeter.timing import Comparison, Measurement

TEXT = """<ir_version: 10, opset_import: ["": 21]>
g (float[4] X) => (float[4] Y) { [first] A = Exp (X)  [second] B = Exp (A)  [third] Y = Sin (B) }"""


@pytest.fixture(scope="module")
def facts():
    feeds = {"X": np.zeros(4, np.float32)}
    return Facts(profile(TEXT, feeds, provider="cpu", repeat=3, overhead=False), feeds)


def test_a_finding_in_words():
    found = Advice("casts", ("a",), "2 Cast", "float32", 0.123)
    assert str(found) == "casts (at most 12% of kernel time): 2 Cast. Try: float32"
    assert (plural(1, "tensor"), plural(2, "tensor")) == ("1 tensor", "2 tensors")
    assert "(" not in str(dataclasses.replace(found, share=None))
    assert dataclasses.replace(found, share=None).bound == "unknown"
    assert dataclasses.replace(found, of="a run").bound == "at most 12% of a run"


def test_nodes_are_chosen_by_name_or_operator_the_longest_first(facts):
    assert count(facts.nodes) == "2 Exp, 1 Sin"
    assert set(facts.ops(["Exp", "Cos"])["name"]) == {"first", "second"}
    assert set(facts.named(["third", "other"])["name"]) == {"third"}
    assert facts.nodes["median"].is_monotonic_decreasing
    assert facts.written.keys() == {"first", "second", "third"}


def test_the_share_is_the_sum_of_those_of_the_nodes(facts):
    found = facts.finding("topic", facts.nodes, "seen", "this")
    assert found.share == pytest.approx(1)
    assert set(found.nodes) == {"first", "second", "third"}
    assert found.of == "kernel time"


def test_a_run_is_unprofiled_when_it_is_known(facts):
    runs = facts.profile.by_iteration()
    assert facts.run_us == runs["duration"][runs["steady"]].median()
    taken = Comparison([Measurement("the model", [[2e-3] * 3])])
    known = dataclasses.replace(facts.profile, latencies=taken)
    assert dataclasses.replace(facts, profile=known).run_us == pytest.approx(2000)


def test_a_profile_without_graphs_has_no_nodes_to_read(facts):
    bare = dataclasses.replace(facts.profile, model=None, original=None)
    assert list(dataclasses.replace(facts, profile=bare).ran) == []
    assert dataclasses.replace(facts, profile=bare).written == {}
    assert isinstance(facts.ran[0], onnx.NodeProto)
