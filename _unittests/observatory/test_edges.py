"""Edge values; stand-ins on NumPy, right or wrong in a way that is planted, are the candidates."""

import sys

import numpy as np
import pytest
from numpy_candidates import Processes, candidate

from ortmeter.observatory import edges
from ortmeter.observatory.case import Case, call
from ortmeter.observatory.edges import COLUMNS, measure_edges


def saturated(x):
    ends = np.iinfo(np.int64)
    return np.where(x >= 2.0**63, ends.max, np.clip(x, -(2.0**63), 2.0**62).astype(np.int64))


def leave():
    sys.exit(3)


SUM = call("ReduceSum", "T[8,64] X, i64[1] A = 1", "last axis", "i64")
MAXIMUM = call("Max", "T[8,64] X, T[8,64] Z")
SQRT = call("Sqrt", "T[8,64] X = positive")
WHERE = call("Where", "b8[8,64] B, T[8,64] X, T[8,64] Z")


@pytest.fixture
def measure(monkeypatch):
    """Measure a case with functions of NumPy, the oldest first, named a, b, c."""
    monkeypatch.setattr(edges, "Processes", Processes)

    def run(case: Case, *functions):
        found = measure_edges(list(map(candidate, "abc", functions)), {case.name: case})
        assert tuple(found.columns) == COLUMNS
        return {verdict: found[found["verdict"] == verdict] for verdict in ("wrong", "open")}

    return run


def test_a_sum_of_integers_in_double_is_wrong_since_the_first_that_does_it(measure):
    def double(X):
        return saturated(X.astype(np.float64).sum(1, keepdims=True))

    found = measure(SUM, lambda X: X.sum(1, keepdims=True), double, double)
    (row,) = found["wrong"].to_dict("records")
    assert (row["case"], row["what"]) == (SUM.name, "wrong integer")
    assert (row["since"], row["candidates"], row["reason"]) == ("b", "b, c", "")
    assert row["edge"].endswith("2^53 + 1")
    assert 1 <= abs(int(row["expected"]) - int(row["got"])) <= 2
    assert abs(int(row["expected"]) - 2**53) < 64 * 128


def test_a_lost_sign_of_zero_is_found_in_the_element_that_shows_it(measure):
    found = measure(WHERE, lambda B, X, Z: np.where(B, X, Z) + np.float32(0))
    (row,) = found["wrong"].to_dict("records")
    assert (row["what"], row["since"]) == ("sign of zero", "always")
    assert (row["expected"], row["got"]) == ("-0", "0")
    assert row["inputs"].startswith("B = True, X = -0, Z = ")


@pytest.mark.parametrize(
    ("case", "function"),
    [
        (SUM, lambda X: X.sum(1, keepdims=True)),
        (WHERE, np.where),
        # Some ulp are a rounding, and indices stay in their range.
        (SQRT, lambda X: np.sqrt(X) * np.float32(1 + 2**-20)),
        # What drawn values show too is no edge.
        (SQRT, lambda X: 2 * np.sqrt(X)),
        (
            call("Gather", "T[1024,8] X, i64[64] I = below 1024"),
            lambda X, rows: np.stack([X[i] for i in rows]) if rows.size else X[:0],
        ),
    ],
)
def test_what_is_right_is_no_finding(measure, case, function):
    assert measure(case, function)["wrong"].empty


@pytest.mark.parametrize(
    ("case", "function", "reason"),
    [
        (MAXIMUM, np.fmax, "ONNX does not order NaN"),
        (
            call("Neg", "T[8,64] X", type="i64"),
            lambda X: np.where(np.iinfo(X.dtype).min == X, 0, -X),
            "the references disagree",
        ),
        (
            call("Clip", "T[8,64] X, T[] A = 0"),
            lambda X: np.clip(X, 0, np.finfo(np.float32).max),
            "They default to",
        ),
        (
            call('Einsum<equation = "i,j->ij">', "T[8] X, T[64] Z"),
            lambda X, Z: np.outer(X, Z) + np.float32(0),
            "a sum may begin with 0.0",
        ),
        (
            call("MatMul", "T[8,16] X, T[16,8] Z = 0"),
            lambda X: np.zeros((len(X), 8), X.dtype),
            "products by zero may be left out",
        ),
        (SQRT, lambda X: np.sqrt(X) if X.size else 1 / 0, "every candidate refuses it"),
    ],
)
def test_what_onnx_leaves_open_is_no_finding(measure, case, function, reason):
    found = measure(case, function)
    assert found["wrong"].empty
    assert found["open"]["reason"].str.startswith(reason).any()


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (leave, "dies"),
        (lambda: 1 / 0, "fails"),
        (lambda: np.ones((1, 64), np.float32), "shape"),
    ],
)
def test_an_empty_input_is_to_be_answered_as_the_references_do(measure, wrong, what):
    found = measure(SQRT, np.sqrt, lambda X: np.sqrt(X) if X.size else wrong())["wrong"]
    assert found["what"].tolist() == [what]
    assert found["since"].tolist() == ["b"]
    assert found["edge"].item() == "first axis empty, last axis empty"


def test_missing_and_added_specials_are_told_apart(measure):
    found = measure(SQRT, lambda X: np.nan_to_num(np.sqrt(X), nan=1, posinf=np.nan))["wrong"]
    assert found["what"].tolist() == ["NaN"]
    assert {"infinity", "NaN"} <= {*found["edge"].item().split(", ")}
    found = measure(SQRT, lambda X: np.nan_to_num(np.sqrt(X), nan=np.nan))["wrong"]
    assert found["what"].tolist() == ["infinity"]


def test_a_nan_lost_by_what_depends_on_it_is_wrong(measure):
    case = call("MatMul", "T[8,16] X, T[16,8] Z")
    found = measure(case, lambda X, Z: np.tanh(np.nan_to_num(X)) @ np.tanh(np.nan_to_num(Z)))
    assert "NaN" in found["wrong"]["what"].tolist()


def test_one_reference_does_not_judge(measure):
    case = call("com.microsoft.QuickGelu", "T[8,64] X")
    found = measure(case, lambda X: X * 0)
    assert found["open"]["what"].tolist() == ["not judged"]
