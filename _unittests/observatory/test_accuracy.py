import sys

import numpy as np
import pandas as pd
import pytest
from numpy_candidates import Processes, candidate

from ortmeter.observatory import accuracy
from ortmeter.observatory.accuracy import (
    accuracy_changes,
    comparable_errors,
    measure_errors,
    out_of_bound,
    told_error,
)
from ortmeter.observatory.case import Case
from ortmeter.observatory.judge import COLUMNS
from ortmeter.runtime.providers import Provider


def sqrt(size: int, kind: str = "f32") -> Case:
    return Case("Sqrt", "Y = Sqrt(X)", f"T[{size}] X = positive", f"of {size}", kind)


def prepared(cases):
    return {name: case.prepared(Provider("cpu")) for name, case in cases.items()}


def moved_sqrt(count):
    """Stand for a release whose last element is off; it dies of some cases, and refuses others."""

    def function(X):
        if len(X) == 3:
            sys.exit(3)
        if len(X) == 5:
            raise ValueError("no such operator")
        y = np.sqrt(X.astype(np.float64)).astype(X.dtype)
        for _ in range(count):
            y[-1:] = np.nextafter(y[-1:], X.dtype.type(np.inf))
        return y

    return candidate(f"moved {count}", function)


def test_an_output_moved_by_some_ulp_is_told_so(monkeypatch):
    monkeypatch.setattr(accuracy, "Processes", Processes)
    cases = {"sixteen": sqrt(16), "halves": sqrt(8, "f16")}
    absent = {"dies": sqrt(3), "refused": sqrt(5)}
    found = measure_errors([moved_sqrt(0), moved_sqrt(40)], prepared(absent | cases))
    assert tuple(found.columns) == COLUMNS
    assert {*found.index.get_level_values("case")} == {*cases}
    for case in cases:
        rounded, moved = (found.loc[case, f"moved {k}"] for k in (0, 40))
        assert rounded["ulp"] <= 0.5
        assert 39.4 <= moved["ulp"] <= 40.6
        assert rounded["bound"] <= 1
        assert 39 <= moved["bound"] <= 81
        share = 1 / len(cases[case].feeds()["X"])
        assert (rounded["differing"], moved["differing"]) == (0, share)
        assert rounded["bits"] != moved["bits"]
    assert out_of_bound(found).index.tolist() == [(case, "moved 40") for case in cases]


def table(ulp, largest, reference="float64", mismatched=0):
    index = pd.MultiIndex.from_product([["case"], ["a", "b", "c"]], names=["case", "candidate"])
    columns = {"ulp": ulp, "largest": largest, "reference": reference, "mismatched": mismatched}
    return pd.DataFrame(columns, index)


def test_what_has_no_error_to_compare():
    """A reference of the same type; NaN, whose errors are those of what is left, 0 for nothing."""
    errors = [1.0, 800.0, 1.0]
    assert accuracy_changes(table(errors, errors, "same type")).empty
    assert len(accuracy_changes(table(errors, errors, "float32"))) == 2
    found = comparable_errors(table([40.0, 0.0, 80.0], [1.0, 0.0, 2.0], mismatched=[0, 128, 0]))
    assert found["error"].tolist() == [1.0, pytest.approx(np.nan, nan_ok=True), 2.0]
    assert set(found["unit"]) == {"largest"}


@pytest.mark.parametrize(
    ("ulp", "largest", "expected"),
    [
        ([0.8, 3.2, 3.3], [0.7, 0.7, 0.7], [("b", "ulp", 4.0)]),
        ([3.0, 0.4, 0.3], [1.0, 0.4, 0.3], [("b", "ulp", 0.5 / 3)]),
        ([0.2, 0.5, 0.0], [0.2, 0.5, 0.0], []),  # both are correct roundings
        ([84e3, 84e3, 4e3], [4.0, 4.0, 1.5], [("c", "largest", 1.5 / 4)]),
        ([1e5, 9e5, 9e5], [1.0, 1.0, 1.1], []),  # one element near zero
        ([np.nan] * 3, [np.nan] * 3, []),
        ([1.0, np.nan, 4.0], [1.0, np.nan, 4.0], [("c", "ulp", 4.0)]),
    ],
)
def test_accuracy_changes(ulp, largest, expected):
    found = accuracy_changes(table(ulp, largest))
    got = [(index[1], row["unit"], row["error_ratio"]) for index, row in found.iterrows()]
    assert got == [(name, unit, pytest.approx(ratio)) for name, unit, ratio in expected]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"mismatched": 1}, "1 value does not match (a)"),
        ({"mismatched": 3}, "3 values do not match (a)"),
        ({"bound": 7.0}, "an error of 7 times its bound (a)"),
        ({"bound": np.inf}, "50.0% of the values differ, where no rounding explains it (a)"),
    ],
)
def test_what_no_rounding_explains_is_told(row, told):
    assert told_error({"mismatched": 0, "differing": 0.5, "judges": "a", **row}) == told
