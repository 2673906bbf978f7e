"""Tests of ortmeter.discrepancy.result, and of assert_close."""

import math
import re

import numpy as np
import pytest

from ortmeter.discrepancy import Tolerance, assert_close, max_diff
from ortmeter.errors import InvalidArgumentError


def test_one_line():
    diff = max_diff(np.array([[1.0, math.nan, math.inf]]), np.array([[1.5, 1.0, 1.0]]))
    assert str(diff) == (
        "largest error 0.5 (2.25e+15 ulp) at (0, 0); 3 of 3 values differ; 1 mismatched NaN; "
        "1 mismatched inf; first mismatch (0, 1): expected nan, got 1.0"
    )
    assert str(max_diff(2**62 + 1, 2**62 - 1)) == "largest error 2; 1 of 1 value differs"
    assert str(max_diff(1.0, 1.0)) == "no difference in 1 value"
    assert str(max_diff(1.0, math.nan)) == (
        "1 of 1 value differs; 1 mismatched NaN; expected 1.0, got nan"
    )
    same = max_diff([math.nan, math.nan, -math.inf, 1.0], [math.nan, math.nan, -math.inf, 1.0])
    assert str(same) == (
        "no difference in 4 values; 2 of 4 values are NaN on both sides; "
        "1 of 4 values is the same infinity on both sides"
    )
    assert str(max_diff([], [])) == "no difference in 0 values"
    shapes = max_diff(np.ones(2), np.ones(3), on_mismatch="report")
    assert str(shapes) == "shape: expected (2,), got (3,)"


def test_one_line_about_a_structure():
    diff = max_diff({"a": [1.0, 2.0]}, {"a": [1.0, 2.5]})
    assert str(diff) == "largest error 0.5 (1.13e+15 ulp) at ['a'][1]; 1 of 2 values differ"
    expected, got = {"a": [1, None]}, {"a": [np.float16(2), 1], "b": 1}
    assert str(max_diff(expected, got, on_mismatch="report")).endswith(
        "dtype of ['a'][0]: expected i64, got f16; structure of ['a'][1]: expected None, got int; "
        "structure of ['b']: expected nothing, got int"
    )


@pytest.mark.parametrize(
    ("expected", "got", "told"),
    [
        ([1.0, 4.0], [1.0, 4.0 + 2**-50], "it is 1 ulp from that"),
        (
            [1.0, 4.0],
            [1.0, math.inf],
            "by 1 mismatched inf: it is inf where that is 4; elsewhere it",
        ),
        (
            [1.4142e30],
            [math.inf],
            "it differs from that by 1 mismatched inf: it is inf where that ",
        ),
        ([math.nan, 1.0], [2.0, math.nan], "by 2 mismatched NaN: it is 2 where that is nan"),
        ([1.0], [1.0, 2.0], "it differs from that by shape: expected (1,), got (2,)"),
    ],
)
def test_how_far_apart_two_sides_are(expected, got, told):
    diff = max_diff(np.array(expected), np.array(got), on_mismatch="report")
    assert told in diff.apart("it", "that")
    assert ("ulp" in diff.apart("it", "that")) == (diff.n_finite > 0)


@pytest.mark.parametrize("got", [math.nan, math.inf, 1.0])
def test_there_is_no_error_where_nothing_is_finite(got):
    diff = max_diff(np.array([math.nan] * 3), np.full(3, got))
    rows = dict(re.findall(r"<th>(.*)</th>\s*<td>(.*)</td>", diff._repr_html_()))
    assert [rows[name] for name in ("abs", "rel", "ulp", "ulp_at_max", "sum")] == ["nan"] * 5
    assert math.isnan(diff.measured("mean_abs"))
    assert diff.ranked("abs") == (0 if math.isnan(got) else math.inf)


def test_table():
    diff = max_diff({"<a>": 1.0}, {"<a>": 1.5})
    html = diff._repr_html_()
    rows = dict(re.findall(r"<th>(.*)</th>\s*<td>(.*)</td>", html))
    assert (rows["abs"], rows["path"]) == ("0.5", "['&lt;a&gt;']")
    assert html.count("<tr>") == len(vars(diff))


# abs 0.25, rel 0.5, ulp 2**22
PAIR = np.float32([0.5, 4.0]), np.float32([0.75, 4.0])


def check(**limits):
    tolerance = Tolerance(**limits)
    return tolerance.check(max_diff(*PAIR, tolerance=tolerance))


@pytest.mark.parametrize(("limit", "value"), [("atol", 0.25), ("rtol", 0.5), ("ulp", 2.0**22)])
def test_each_limit(limit, value):
    assert check(**{limit: value})
    verdict = check(**{limit: value * 0.999})
    assert not verdict
    assert str(verdict).startswith(f"not close: 1 of 2 elements beyond {limit}=")


def test_every_limit_must_hold():
    assert check(atol=0.25, rtol=0)  # one limit, the sum of two terms
    assert not check(atol=0, ulp=2**22)
    assert not check(atol=0.25, ulp=2**22 - 1)
    assert check(atol=0.25, ulp=2**22)


def test_equality_by_default():
    assert assert_close(np.ones(2), np.ones(2, np.float32)).abs == 0
    assert not check()


@pytest.mark.parametrize("measured", [None, Tolerance(atol=1)])
def test_a_tolerance_judges_what_was_measured_with_it(measured):
    with pytest.raises(InvalidArgumentError, match=f"measured with {measured or 'no tolerance'}"):
        Tolerance(atol=0.5).check(max_diff(*PAIR, tolerance=measured))


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
    widest = Tolerance(atol=1e300, rtol=1e300, ulp=1e300)
    verdict = widest.check(max_diff(expected, got, tolerance=widest, on_mismatch="report"))
    assert (verdict.passed, verdict.failures) == (False, (message,))
    with pytest.raises(AssertionError, match="^not close: "):
        assert_close(expected, got, widest)


@pytest.mark.parametrize("limit", [-1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["atol", "rtol", "ulp"])
def test_limits_that_are_refused(name, limit):
    with pytest.raises(InvalidArgumentError, match=f"{name}={limit!r}. Accepted"):
        Tolerance(**{name: limit})


TYPES = ["float16", "float32", "float64", "int8", "uint16", "int32", "bool", "complex64"]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-7, 1000.0, 6e4, math.nan, math.inf, -math.inf])


def random_array(rng, dtype, size):
    """Draw tiny, usual and large numbers, some of them special."""
    values = rng.standard_normal(size) * 10.0 ** rng.integers(-8, 5, size)
    values = np.where(rng.random(size) < 0.3, rng.choice(SPECIAL, size), values)
    if np.dtype(dtype).kind in "iub":
        values = np.nan_to_num(values).clip(0, 100)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def two_random_arrays(rng):
    size = int(rng.integers(0, 6))
    expected = random_array(rng, rng.choice(TYPES), size)
    got_type = rng.choice(TYPES)
    noise = 1 + rng.choice([0, 1e-4, -1e-3, 0.02], size)
    with np.errstate(all="ignore"):
        near = np.nan_to_num(np.real(expected).astype(float)).clip(-100, 100) * noise
        is_integer = np.dtype(got_type).kind in "iub"
        near = (near.clip(0) if is_integer else np.real(expected) * noise).astype(got_type)
    return expected, np.where(rng.random(size) < 0.8, near, random_array(rng, got_type, size))


def test_the_rule_is_that_of_numpy():
    """600 draws: the same answer as numpy.allclose, the same elements as numpy.isclose."""
    rng = np.random.default_rng(0)
    answers = []
    for _ in range(600):
        expected, got = two_random_arrays(rng)
        atol, rtol = rng.choice([0, 1e-8, 1e-3, 0.02, 1], 2).tolist()
        kind = np.complex128 if expected.dtype.kind == "c" or got.dtype.kind == "c" else np.float64
        pair = got.astype(kind), expected.astype(kind)
        close = np.isclose(*pair, atol=atol, rtol=rtol, equal_nan=True)
        tolerance = Tolerance(atol=atol, rtol=rtol)
        diff = max_diff(expected, got, tolerance=tolerance)
        case = f"{expected!r} {got!r} {tolerance}"
        assert diff.n_over == np.count_nonzero(~close), case
        assert diff.over is None if close.all() else not close[diff.over.index], case
        assert tolerance.check(diff).passed == close.all(), case
        answers.append(close.all())
    assert 120 < sum(answers) < 520


def test_a_limit_in_ulp_holds_for_each_element():
    expected = np.float32([1, 1000, 0, np.nan, 3])
    got = np.float32([1 + 2**-22, 1000.0005, 1e-40, 2, 3])
    ulp = np.abs(got - expected, dtype=np.float64) / np.spacing(np.maximum(expected, got))
    for limit in (0, 2, 8, 1e5):
        diff = max_diff(expected, got, tolerance=Tolerance(ulp=limit))
        assert diff.n_over == np.count_nonzero(~(ulp <= limit)), limit
    assert max_diff(np.int64([5, 9]), np.int64([7, 9]), tolerance=Tolerance(ulp=1)).n_over == 1


def test_the_worst_violation_of_several_arrays():
    expected = {"a": np.array([1e6, 1.0, 5.0]), "b": [np.zeros(3), np.ones((2, 2))]}
    got = {"a": np.array([1.05e6, 1.5, 5.0]), "b": [np.zeros(3), np.array([[1, 1], [4.0, 1]])]}
    diff = max_diff(expected, got, tolerance=Tolerance(rtol=0.1))
    assert (diff.n_over, str(diff.over)) == (2, "['b'][1](1, 0): expected 1.0, got 4.0")
    assert (diff.path, diff.argmax) == ("['a']", (0,))  # the largest error is accepted
    got["a"][2] = math.nan
    diff = max_diff(expected, got, tolerance=Tolerance(rtol=0.1))
    assert (diff.n_over, str(diff.over)) == (3, "['a'](2,): expected 5.0, got nan")
    assert Tolerance(rtol=0.1).check(diff).failures == (
        "1 mismatched NaN",
        "2 of 10 elements beyond rtol=0.1, the worst ['a'](2,): expected 5.0, got nan",
    )


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_violations_are_found_in_every_piece(dtype):
    expected = np.ones(300_000, dtype)
    got = expected.copy()
    got[[5, 131_071, 131_072, 299_999]] = [3, 3, 9, 3]
    diff = max_diff(expected, got, tolerance=Tolerance(atol=0.5, rtol=0.5))
    assert (diff.n_over, diff.over.index) == (4, (131_072,))
    first = max_diff(expected, got, tolerance=Tolerance())
    assert (first.n_over, first.over.index) == (4, (5,))


def test_what_is_not_finite_is_told_once():
    """An infinity or NaN that does not match is no element beyond the tolerance as well."""
    tolerance = Tolerance(atol=0.1)
    got = [1.0, math.inf, math.nan, 5.0]
    diff = max_diff([1.0, 2.0, 3.0, 4.0], got, tolerance=tolerance)
    told = str(tolerance.check(diff))
    assert "1 mismatched NaN; 1 mismatched inf; 1 of 4 elements beyond atol=0.1" in told


def test_a_failure_shows_the_worst_element_of_both():
    expected = {"a": np.arange(6.0).reshape(2, 3), "b": ["x", 1]}
    got = {"a": np.array([[0, 1, 2.5], [math.nan, 4, 5]]), "b": ["y", 1]}
    with pytest.raises(AssertionError) as info:
        assert_close(expected, got, Tolerance(atol=0.1))
    lines = str(info.value).splitlines()
    assert lines[0] == (
        "not close: 1 mismatched NaN; 2 of 8 elements beyond atol=0.1, "
        "the worst ['a'](1, 0): expected 3.0, got nan"
    )
    assert lines[1].startswith("largest error 1 at ")
    assert len(lines) == 2


def test_what_is_close_is_returned():
    assert assert_close(1.0, 1.5, Tolerance(atol=1)).abs == 0.5
    assert assert_close(math.nan, math.nan).n_nan == 0
