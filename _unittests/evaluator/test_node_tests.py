"""The node tests of ONNX, for each source and for all of them, and on special values."""

from contextlib import suppress
from warnings import catch_warnings

import numpy as np
import onnx.parser
import pytest
from node_tests import difference, load_cases, run_case

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator import KNOWN_ERRORS, Evaluator
from ortmeter.evaluator.judges import evaluated
from ortmeter.observatory.catalogue import catalogue
from ortmeter.observatory.edge_cases import SMALL, edge_cases, edge_feeds, reshaped
from ortmeter.observatory.edges import _differs, _way

# Cases that each choice of sources passes at least; 1874 compare no random draw in onnx 1.23.2.
ALL = ("torch", "ort", "reference")
AT_LEAST = {
    ("torch",): 1363,
    ("ort",): 1500,
    ("reference",): 1867,
    ALL: 1872,
}


def outcomes(sources, kernels=None, cases=None):
    def evaluate(model, feeds):
        return Evaluator(model, kernels, sources).run(None, feeds)

    return {case.name: run_case(case, evaluate) for case in cases or load_cases()}


def assert_right(found):
    assert {name: o.reason for name, o in found.items() if o.status == "wrong"} == {}
    return sum(outcome.status == "pass" for outcome in found.values())


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param(sources, marks=getattr(pytest.mark, "slow" if "torch" in sources else "long"))
        for sources in AT_LEAST
    ],
    ids=" ".join,
)
def test_what_runs_is_right_and_enough_runs(sources):
    assert assert_right(outcomes(sources)) >= AT_LEAST[sources]


@pytest.mark.parametrize("sources", AT_LEAST, ids=" ".join)
def test_what_runs_is_right_in_one_case_of_ten(sources):
    assert assert_right(outcomes(sources, cases=load_cases()[::10])) >= 130


def test_most_cases_compare_no_draw():
    assert len(load_cases()) > 1860
    names = " ".join(case.name for case in load_cases())
    assert "bernoulli" not in names
    assert "test_training_dropout_zero_ratio" in names


# Those that only older opsets show, or no case of ONNX, are tested with their source.
SHOWN = [
    error
    for error in KNOWN_ERRORS
    if error.op_type
    not in {"Softmax", "LogSoftmax", "Hardmax", "LpNormalization", "GRU", "LSTM", "RNN"}
    and not error.sets
]


@pytest.mark.parametrize("error", SHOWN, ids=lambda error: f"{error.source} {error.op_type}")
def test_known_errors_are_true(error):
    """The table says what the source does: without it, cases would fail."""
    cases = [case for case in load_cases() if error.op_type in _all_operators(case.model.graph)]
    found = outcomes((error.source, "torch", "reference"), {error.op_type: error.source}, cases)
    assert any(outcome.status != "pass" for outcome in found.values())


def test_a_norm_is_of_magnitudes():
    """No case of ONNX has negative numbers: onnx.reference divides 3 and -1 by their sum."""
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 22]> g (float[1,2] X) => (float[1,2] Y) '
        "{ Y = LpNormalization<axis = 1, p = 1>(X) }"
    )
    x = {"X": np.float32([[3, -1]])}
    swapped = {"LpNormalization": "reference"}
    assert Evaluator(model, swapped, ("reference",)).run(None, x)[0].tolist() == [[1.5, -0.5]]
    assert Evaluator(model, sources=("reference", "torch")).run(None, x)[0].tolist() == [
        [0.75, -0.25]
    ]


def _all_operators(graph):
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            yield from _all_operators(attribute.g)


ARRAY = np.float32([1, 2])


@pytest.mark.parametrize(
    ("expected", "got", "reason"),
    [
        (ARRAY, ARRAY * (1 + 5e-4), ""),
        (np.float32([np.nan, np.inf]), np.float32([np.nan, np.inf]), ""),
        # what must be seen
        (ARRAY, ARRAY * (1 + 5e-3), "2 values of 2, 1.00"),
        (ARRAY, ARRAY.astype(np.float64), "float64(2,) instead of float32(2,)"),
        (np.float32([np.nan]), np.float32([0]), "1 values of 1"),
        ([ARRAY, ARRAY], [ARRAY], "list instead of list, or its length"),
    ],
)
def test_the_comparison_can_fail(expected, got, reason):
    found = difference(expected, got)
    assert bool(found) == bool(reason)
    assert reason in found


# Where a kernel may differ from both others: operator and difference, with the reason.
ODD = {
    ("CumProd", "infinity"): "float64 inside",
    ("Det", "NaN"): "infinities are subtracted",
    ("DynamicQuantizeLinear", "wrong integer"): "NaN to integers is not specified",
    ("Einsum", "NaN"): "the sum of terms that overflow depends on their order",
    ("Einsum", "infinity"): "the sum of terms that overflow depends on their order",
    ("Gelu", "NaN"): "torch multiplies an infinity by 0",
    ("Gelu", "infinity"): "torch doubles the largest number",
    ("MatMulInteger", "NaN"): "NaN to integers is not specified",
    ("HardSwish", "infinity"): "torch multiplies the largest number by 6",
    ("InstanceNormalization", "NaN"): "the mean of the largest numbers does not overflow",
    ("MaxPool", "NaN"): "NaN wins: others depend on the position",
    ("MeanVarianceNormalization", "NaN"): "the mean of the largest numbers does not overflow",
    ("QuantizeLinear", "wrong integer"): "NaN to integers is not specified",
    ("ReduceMean", "wrong integer"): "others round sums of int64 to float64",
}


@pytest.mark.slow
def test_no_kernel_is_alone_on_edge_values():
    """Ours differs nowhere from two others that agree: onnx.reference and ONNX Runtime."""
    alone, ran = {}, set()
    for case in edge_cases(catalogue()).values():
        small, edges = reshaped(case, SMALL[0]), []
        with suppress(InvalidArgumentError):  # the case does not take these sizes
            edges += edge_feeds(small)
        for label, feeds in edges:
            if label == "smallest / -1":  # which ends the process
                continue
            with suppress(Exception), catch_warnings(action="ignore"):
                first, *others = (evaluated(small.model(), feeds, (one,)) for one in ALL)
                if not first.shares_code(others[1]):
                    ran.add((case.name, label))
                    for name, got in first.outputs.items():
                        for way in odd_ways(got, *(one.outputs[name] for one in others)):
                            alone[case.op, way] = f"{case.name}, {label}"
    assert len(ran) > 2000
    assert {key: where for key, where in alone.items() if key not in ODD} == {}


def odd_ways(got, ort, reference):
    if {ort.shape, reference.shape} != {got.shape} or {ort.dtype, reference.dtype} != {got.dtype}:
        return {"kind"} if (ort.shape, ort.dtype) == (reference.shape, reference.dtype) else set()
    odd = _differs(got, ort) & _differs(got, reference) & ~_differs(ort, reference)
    ways = {_way(got[place], ort[place]) for place in map(tuple, np.argwhere(odd))}
    return ways - {"sign of zero"}
