"""The node tests of ONNX, for each source and for all of them, and on special values."""

import subprocess
import sys

import numpy as np
import onnx.parser
import pytest
import special_values
import torch
from node_tests import difference, load_cases, run_case

from ortmeter.evaluator import KNOWN_ERRORS, Evaluator

# Cases that each choice of sources passes at least; 1874 compare no random draw in onnx 1.23.2.
AT_LEAST = {
    ("torch",): 1369,
    ("ort",): 1500,
    ("reference",): 1867,
    ("torch", "ort", "reference"): 1872,
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
    ("BatchNormalization", "NaN"): "the mean of the largest numbers does not overflow",
    ("BatchNormalization", "infinity"): "the mean of the largest numbers does not overflow",
    ("CumProd", "NaN"): "float64 inside",
    ("DynamicQuantizeLinear", "value"): "NaN to integers is not specified",
    ("GridSample", "NaN"): "a neighbour of weight 0 is not read",
    ("GridSample", "infinity"): "the mean of the largest numbers is rounded beyond them",
    ("GridSample", "value"): "the mean of denormals, rounded one by one",
    ("MaxPool", "NaN"): "NaN wins: others depend on the position",
    ("MaxPool", "value"): "the position of NaN",
    ("ReduceMean", "value"): "others round sums of int64 to float64",
    ("RNN", "NaN"): "the sum of terms that overflow depends on their order",
}


def alone(rows):
    """Rows in which our kernel differs from two others that agree."""
    ours = (row for row in rows if row.odd == special_values.OURS and row.how != "sign of zero")
    return [row for row in ours if (row.op, row.how) not in ODD]


def test_no_kernel_is_alone_in_a_sweep_of_one_node_each():
    ops = ("Clip", "Div", "Erf", "LayerNormalization", "LpNormalization", "MaxPool", "Mod", "Pow")
    ops, found, threads = (*ops, "ReduceL2", "Sign", "Softmax"), [], torch.get_num_threads()
    special_values.sweep(special_values.trials(ops, ["f32"], 1), found.append, 0)
    torch.set_num_threads(threads)
    assert {told[2] for told in found if isinstance(told, tuple)} == {*ops}
    assert alone(row for told in found if isinstance(told, list) for row in told) == []


@pytest.mark.slow
def test_no_kernel_is_alone_in_a_sweep_of_two_nodes_each():
    """In a process of its own, whose children ONNX Runtime may end."""
    command = [sys.executable, special_values.__file__, "--most", "2", "--types", "f32,f16,i64"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert alone(special_values.Row(*row.split(" | ", 6)) for row in printed.splitlines()) == []
