"""What was found in releases: every finding can be measured, and what to do meanwhile is right."""

import numpy as np
import pytest

from ortmeter.observatory.findings import FINDINGS, INSTEAD
from ortmeter.observatory.reference import reference
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.sessions import optimized_model

CPU = resolve_provider("cpu")
NAMES = {(one.case, one.effect): one for one in FINDINGS}
INSTEADS = {key: one for key, one in NAMES.items() if one.instead}
CLOSE = 2**-18  # of the largest element: 1000 roundings of float32 that go both ways


def test_a_finding_is_told_once():
    assert len(NAMES) == len(FINDINGS)
    assert {one.effect for one in FINDINGS[:4]} == {"wrong"}


@pytest.mark.parametrize("key", NAMES, ids="-".join)
def test_a_finding_has_a_case_that_runs(key):
    finding = NAMES[key]
    spec = finding.workloads()[finding.case].prepared(CPU)
    assert spec.session().run(None, spec.feeds)
    assert finding.before != finding.release.removeprefix("onnxruntime ")
    assert finding.searched >= finding.established


@pytest.mark.parametrize("key", INSTEADS, ids="-".join)
def test_what_to_do_meanwhile_computes_the_same(key):
    finding = INSTEADS[key]
    case, other = (one.prepared(CPU) for one in finding.workloads().values())
    assert all(other.feeds[name].tobytes() == case.feeds[name].tobytes() for name in other.feeds)
    (expected,) = reference(case.model, case.feeds).outputs.values()
    (got,) = other.session().run(None, other.feeds)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=CLOSE * np.abs(expected).max())


def test_sums_of_large_integers_are_exact_meanwhile():
    *_, other = NAMES["ReduceSum-last-axis-i64-L2", "wrong"].workloads().values()
    spec = other.prepared(CPU)
    x = np.zeros((4, 64, 128), np.int64)
    x[0, 0, :2] = 2**53, 1
    (got,) = spec.session().run(None, {"X": x})
    assert got.ravel()[0] == 2**53 + 1


def test_settings_of_a_workload_win():
    finding = NAMES["ScatterND-add-rows-f32-L3", "wrong"]
    case, other = (one.prepared(CPU, 2) for one in finding.workloads().values())
    assert (case.settings["threads"], other.settings["threads"]) == (2, 1)
    assert [*finding.workloads()] == [finding.case, finding.case + INSTEAD]


def test_the_fusion_of_a_sum_and_a_normalization_can_be_left_out():
    workloads = NAMES["SkipLayerNormalization-of-two-nodes-f32-L2", "slower"].workloads()
    specs = [one.prepared(CPU) for one in workloads.values()]
    nodes = [
        {node.op_type for node in optimized_model(spec.model, **spec.settings).graph.node}
        for spec in specs
    ]
    assert nodes == [{"SkipLayerNormalization"}, {"Add", "LayerNormalization"}]


def test_the_smallest_integer_by_minus_one_is_right_meanwhile():
    *_, other = NAMES["Div-same-shape-i64-L3", "wrong"].workloads().values()
    spec = other.prepared(CPU)
    least = np.iinfo(np.int64).min
    feeds = {name: np.full_like(array, -1) for name, array in spec.feeds.items()}
    feeds["X"][0, 0, :4] = least, 7, -7, least + 1
    (got,) = spec.session().run(None, feeds)
    assert got[0, 0, :4].tolist() == [least, -7, 7, 2**63 - 1]  # modulo 2^64, as numpy
