"""Tests of ortmeter.discrepancy.result."""

import json
import math

import numpy as np
import pytest

from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff, string_diff
from ortmeter.errors import InvalidArgumentError

SAVED = [
    max_diff(np.array([[0.0, 1.0]]), np.array([[1.0, 1.0]])),  # rel is infinite
    max_diff(np.int64([2**62 + 1]), np.int64([1])),
    max_diff(np.array([1 + 2j, complex(1, math.inf)]), np.array([1 - 2j, 1])),
    max_diff(np.array(["inf", "(1+2j)"]), np.array(["inf", "nan"])),
    max_diff({"a": [1, None]}, {"a": [np.float16(2), 1], "b": 1}, on_mismatch="report"),
    max_diff([], [], tolerance=Tolerance(atol=0.5)),
    max_diff({"a": [1.0, 2.0]}, {"a": [1.0, math.inf]}, tolerance=Tolerance(ulp=3)),
    max_diff(np.array(["nan", "b"]), np.array(["inf", "b"]), tolerance=Tolerance()),
    max_diff(np.finfo(np.float64).max, -np.finfo(np.float64).max),
]


@pytest.mark.parametrize("diff", SAVED, ids=str)
def test_what_is_saved_is_read_again(diff):
    row = json.loads(json.dumps(diff.to_dict(), allow_nan=False))
    assert row == diff.to_dict()
    read = Discrepancy.from_dict(row)
    assert read == diff
    assert [type(v) for v in vars(read).values()] == [type(v) for v in vars(diff).values()]
    assert string_diff(row) == string_diff(diff) == str(diff)


def test_dictionary():
    row = SAVED[0].to_dict()
    assert (row["abs"], row["rel"], row["argmax"], row["shape"]) == (1, "inf", [0, 0], [1, 2])
    assert (row["n"], row["mean_abs"], row["same_dtype"]) == (2, 0.5, True)


def test_a_missing_figure_is_refused():
    row = SAVED[0].to_dict()
    del row["ulp"]
    with pytest.raises(InvalidArgumentError, match="^ulp missing from"):
        Discrepancy.from_dict(row)


def test_what_was_saved_before_tolerances_were_is_read():
    row = {k: v for k, v in SAVED[1].to_dict().items() if k not in {"tolerance", "n_over", "over"}}
    assert Discrepancy.from_dict(row | {"rtol_floor": 0.0}) == SAVED[1]


def test_one_line():
    diff = max_diff(np.array([[1.0, math.nan, math.inf]]), np.array([[1.5, 1.0, 1.0]]))
    assert str(diff) == (
        "abs 0.5, rel 0.5, 2.25e+15 ulp, 2.25e+15 ulp at the largest value, n=3, 1 above 0.1, "
        "at (0, 0), 1 finite, mismatches: 1 NaN, 1 inf"
    )
    assert str(max_diff(2**62 + 1, 2**62 - 1)).startswith("abs 2, rel 4.34e-19, 2 ulp,")
    assert str(max_diff(1.0, 1.0)) == "abs 0, rel 0, 0 ulp, 0 ulp at the largest value, n=1"


def test_one_line_about_a_structure():
    diff = max_diff({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]})
    assert string_diff(diff).endswith("n=2, 1 above 0.1, at ['a'][1]")
    assert str(SAVED[4]).endswith(
        "dtype of ['a'][0]: expected i64, got f16, structure of ['a'][1]: expected None, got int, "
        "structure of ['b']: expected nothing, got int"
    )


def test_table():
    html = max_diff({"<a>": 1.0}, {"<a>": 1.5})._repr_html_()
    assert "<tr><th>abs</th><td>0.5</td></tr>" in html
    assert "<tr><th>path</th><td>[&#x27;&lt;a&gt;&#x27;]</td></tr>" in html
    assert "<td>p50: 0.5, p90: 0.5, p99: 0.5</td>" in html
    assert html.count("<tr>") == len(SAVED[0].to_dict())
