"""Tests of ortmeter.discrepancy.verdict."""

import itertools
import json
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortmeter.discrepancy import Discrepancy, Tolerance, assert_close, max_diff
from ortmeter.errors import InvalidArgumentError

# abs 0.25, rel 0.5, ulp 2**22, ulp at the largest value 2**19
DIFF = max_diff(np.float32([0.5, 4.0]), np.float32([0.75, 4.0]))


@pytest.mark.parametrize(
    ("limit", "value"), [("atol", 0.25), ("rtol", 0.5), ("ulp", 2.0**22), ("ulp_at_max", 2.0**19)]
)
def test_each_limit(limit, value):
    assert Tolerance(**{limit: value}).check(DIFF)
    verdict = Tolerance(**{limit: value * 0.999}).check(DIFF)
    assert not verdict
    assert f" {value:.6g} > " in str(verdict)


def test_one_limit_is_enough():
    assert Tolerance(atol=0.25, rtol=0).check(DIFF)
    assert Tolerance(atol=0, ulp=2**22).check(DIFF)
    verdict = Tolerance(atol=0, rtol=0.25).check(DIFF)
    assert str(verdict) == "not close: abs 0.25 > 0 and rel 0.5 > 0.25"


def test_equality_by_default():
    assert Tolerance().check(max_diff([1.0, 2.0], [1.0, 2.0]))
    assert not Tolerance().check(DIFF)


@pytest.mark.parametrize(
    ("expected", "got", "message"),
    [
        ([1.0, math.nan], [1.0, 1.0], "1 mismatched NaN"),
        ([1.0, math.inf], [1.0, -math.inf], "1 mismatched inf"),
        ([1.0], [1.0, 2.0], "structure: expected 1 items, got 2 items"),
        ({"a": np.zeros(2)}, {"a": np.zeros(3)}, r"shape of ['a']: expected (2,), got (3,)"),
    ],
)
def test_what_no_tolerance_accepts(expected, got, message):
    widest = Tolerance(atol=math.inf, rtol=math.inf, ulp=math.inf)
    verdict = widest.check(max_diff(expected, got, on_mismatch="report"))
    assert (verdict.passed, verdict.failures) == (False, (message,))
    with pytest.raises(AssertionError, match="^not close: "):
        assert_close(expected, got, widest)


def test_types_that_differ_are_accepted():
    assert Tolerance().check(max_diff(np.float32([1]), np.float16([1])))


def test_a_saved_discrepancy_is_judged_again():
    saved = Discrepancy.from_dict(json.loads(json.dumps(DIFF.to_dict())))
    for limit, value in itertools.product(("atol", "rtol", "ulp"), (0.1, 0.3, 1, 1e9)):
        tolerance = Tolerance(**{limit: value})
        assert tolerance.check(saved) == tolerance.check(DIFF)
    row = json.loads(json.dumps(Tolerance(atol=0.1).check(saved).to_dict()))
    assert row["passed"] is False
    assert row["failures"] == ["abs 0.25 > 0.1"]
    assert row["tolerance"]["atol"] == 0.1


@pytest.mark.parametrize("limit", [-1, math.nan])
@pytest.mark.parametrize("name", ["atol", "rtol", "ulp", "ulp_at_max"])
def test_limits_that_are_refused(name, limit):
    with pytest.raises(InvalidArgumentError, match=f"{name}={limit!r}. Accepted"):
        Tolerance(**{name: limit})


def passes(expected, got, tolerance):
    try:
        assert_close(expected, got, tolerance)
    except AssertionError:
        return False
    return True


@hypothesis.given(
    arrays=hnp.arrays(np.float64, (2, 4), elements=st.floats(-10, 10)),
    atol=st.sampled_from([0.0, 1e-3, 1.0]),
    rtol=st.sampled_from([0.0, 1e-3, 0.5]),
)
@hypothesis.settings(deadline=None)
def test_atol_takes_over_near_zero(arrays, atol, rtol):
    """Element by element, as numpy.allclose does with a sum in place of the larger one."""
    expected, got = arrays
    error = np.abs(got - expected)
    limit = np.maximum(atol, rtol * np.abs(expected))
    hypothesis.assume(np.all(np.abs(error - limit) > 1e-9 * limit) or not limit.any())
    close = passes(expected, got, Tolerance(atol=atol, rtol=rtol))
    assert close == np.all(error <= limit)
    if close:
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=atol)


def test_the_worst_elements_are_shown_side_by_side():
    expected = {"a": np.arange(6.0).reshape(2, 3), "b": ["x", 1]}
    got = {"a": np.array([[0, 1, 2.5], [math.nan, 4, 5]]), "b": ["y", 1]}
    with pytest.raises(AssertionError) as info:
        assert_close(expected, got, Tolerance(atol=0.1))
    lines = str(info.value).splitlines()
    assert lines[0] == "not close: 1 mismatched NaN; abs 1 > 0.1"
    assert lines[1].startswith("abs 1, rel 1,")
    assert [line.split() for line in lines[2:]] == [
        ["where", "expected", "got", "error"],
        ["['a'](1,", "0)", "3.0", "nan", "inf"],
        ["['b'][0]", "'x'", "'y'", "1"],
        ["['a'](0,", "2)", "2.0", "2.5", "0.5"],
    ]
    with pytest.raises(AssertionError) as info:
        assert_close(expected, got, Tolerance(atol=0.1), n_worst=1)
    assert len(str(info.value).splitlines()) == 4


def test_the_worst_elements_are_found_in_every_piece():
    got = np.zeros((2, 200_000), np.float32)
    got[1, 199_999], got[0, 7], got[1, 3] = 3, 2, -4
    with pytest.raises(AssertionError) as info:
        assert_close(np.zeros_like(got), got, n_worst=2)
    assert [line.split()[:2] for line in str(info.value).splitlines()[3:]] == [
        ["(1,", "3)"],
        ["(1,", "199999)"],
    ]


def test_what_is_close_is_returned():
    assert assert_close(1.0, 1.5, Tolerance(atol=1)).abs == 0.5
    assert assert_close(math.nan, math.nan).n_nan == 0
    with pytest.raises(AssertionError, match="mismatched NaN"):
        assert_close(math.nan, math.nan, equal_nan=False)
