"""Tests of ortmeter.discrepancy.measure: figures against rational numbers and numpy."""

import dataclasses
import math
import tracemalloc
from fractions import Fraction

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortmeter.discrepancy import Tolerance, arrays, max_diff, measure
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError

SMALL_FLOATS = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"]


INTEGERS = ["int8", "uint8", "int32", "uint32", "int64", "uint64"]


def to_float(fraction):
    try:
        return float(fraction)
    except OverflowError:
        return math.inf


def oracle(expected, got, spacing):
    """Compute the figures with rational numbers, one element at a time."""
    pairs = [
        (Fraction(float(e)), Fraction(float(g)))
        for e, g in zip(expected, got, strict=True)
        if math.isfinite(e) and math.isfinite(g)
    ]
    errors = [abs(g - e) for e, g in pairs]
    rels = [
        math.inf if error and not e else error / abs(e) if error else 0
        for (e, _), error in zip(pairs, errors, strict=True)
    ]
    ulps = [
        error / spacing(max(abs(e), abs(g))) for (e, g), error in zip(pairs, errors, strict=True)
    ]
    largest = max((abs(e) for e, _ in pairs), default=Fraction(0))
    worst = max(errors, default=Fraction(0))
    return {
        "abs": to_float(worst),
        "rel": to_float(max(rels, default=0)),
        "ulp": to_float(max(ulps, default=0)),
        "ulp_at_max": to_float(worst / spacing(largest)),
        "largest": to_float(largest),
        "sum": to_float(sum(errors)),
        "n_finite": len(pairs),
    }


def assert_figures(diff, expected):
    for name, value in expected.items():
        assert getattr(diff, name) == pytest.approx(value, rel=1e-12, abs=0), name


def numpy_spacing(dtype):
    def spacing(x):
        x = np.asarray(float(x), dtype)
        if x == np.finfo(dtype).max:  # numpy answers infinity
            return Fraction(float(x)) - Fraction(float(np.nextafter(x, np.zeros_like(x))))
        return Fraction(float(np.spacing(x)))

    return spacing


def two_arrays(dtype):
    shape = st.integers(0, 12)
    elements = {"allow_nan": True, "allow_infinity": True, "allow_subnormal": True}
    return shape.flatmap(
        lambda n: st.tuples(
            *[
                hnp.arrays(dtype, n, elements=hnp.from_dtype(np.dtype(dtype), **elements))
                for _ in range(2)
            ]
        )
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@hypothesis.given(data=st.data())
@hypothesis.settings(
    deadline=None,
    max_examples=50,
    suppress_health_check=[
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.filter_too_much,
    ],
)
def test_floats_against_rational_numbers(dtype, data):
    expected, got = data.draw(two_arrays(dtype))
    diff = max_diff(expected, got)
    assert_figures(diff, oracle(expected, got, numpy_spacing(dtype)))
    nan = np.isnan(expected) | np.isnan(got)
    same = (expected == got) | (np.isnan(expected) & np.isnan(got))
    assert diff.n_nan == np.count_nonzero(nan & ~same)
    assert diff.n_inf == np.count_nonzero(~nan & ~same & (np.isinf(expected) | np.isinf(got)))
    assert not any(math.isnan(getattr(diff, name)) for name in ("abs", "rel", "ulp", "sum"))


def values_of(dtype):
    """List every finite number of a type of at most 16 bits, in order."""
    dtype = numpy_dtype(dtype)
    bits = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype)
    with np.errstate(invalid="ignore"):
        values = bits.astype(np.float64)
    return np.unique(values[np.isfinite(values)])


@pytest.mark.parametrize("name", [*SMALL_FLOATS, "float16"])
def test_ulp_of_every_number_of_a_small_type(name):
    """The spacing of a number is the gap between it and the next one."""
    positive = values_of(name)
    positive = positive[positive >= 0]
    step = len(positive) // 100 + 1
    neighbours = zip(positive[:-2:step], positive[1:-1:step], positive[2::step], strict=True)
    for below, number, above in neighbours:
        got = np.array(number).astype(numpy_dtype(name))
        assert max_diff(below, got).ulp == (number - below) / (above - number) in {0.5, 1}


def test_ulp_is_that_of_got():
    """The reference may be more precise, or beyond the range of the output."""
    assert max_diff(np.float64([1 + 2**-12]), np.float16([1])).ulp == 0.25
    assert max_diff(np.float16([1]), np.float64([1 + 2**-12])).ulp == 2.0**40
    assert max_diff(np.float64([2.0**20]), np.float16([0])).ulp == 2.0**10
    assert max_diff(np.float64([1e-300]), np.float16([0])).ulp == 1e-300 / 2.0**-24


@pytest.mark.parametrize("expected", [*INTEGERS, "bool"])
@pytest.mark.parametrize("got", [*INTEGERS, "bool"])
def test_integers_are_exact(expected, got):
    def draw(dtype):
        if dtype == "bool":
            return np.array([False, True, False, True, True])
        info = np.iinfo(dtype)
        return np.array([info.min, info.max, 0, info.max - 1, info.max // 2], dtype)

    e, g = draw(expected), draw(got)[::-1]
    diff = max_diff(e, g)
    errors = [abs(int(x) - int(y)) for x, y in zip(e, g, strict=True)]
    assert (diff.abs, diff.ulp, diff.ulp_at_max, diff.sum) == (*[max(errors)] * 3, sum(errors))
    assert type(diff.abs) is type(diff.sum) is type(diff.ulp) is type(diff.ulp_at_max) is int
    if max(errors):
        assert diff.argmax == (errors.index(max(errors)),)


def test_neighbours_that_float64_confuses():
    assert max_diff(np.int64(2**53), np.int64(2**53 + 1)).abs == 1
    many = np.full(9, 2**63, np.uint64)
    assert max_diff(many, np.zeros_like(many)).sum == 9 * 2**63


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="no extended precision here")
def test_large_integer_against_float():
    assert max_diff(np.int64([2**53 + 1]), np.float64([2.0**53])).abs == 1


def test_small_integers():
    diff = max_diff(np.array([-8, 7], ml_dtypes.int4), np.array([7, 7], ml_dtypes.int4))
    assert (diff.abs, diff.dtype_got) == (15, "i4")


def test_both_parts_of_complex_numbers_count():
    expected = np.array([1 + 2j, 3 - 4j], np.complex64)
    diff = max_diff(expected, expected + np.array([0, 3 + 4j], np.complex64))
    assert (diff.abs, diff.rel, diff.argmax) == (5, 1, (1,))
    assert max_diff(expected, expected.conj()).abs == 8
    assert max_diff(expected.real, expected).abs == 4
    assert max_diff(np.complex64([1j]), np.complex64([1j + 2**-23 * 1j])).ulp == 1
    assert max_diff(np.complex128([3e307j]), np.complex128([3e307j * (1 + 2**-52)])).ulp == 1


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_nan_match_part_by_part(dtype):
    """Two complex numbers that hold NaN match as their parts do, each an array of its own."""
    parts = [math.nan, math.inf, -math.inf, 1.0, 2.0]
    numbers = np.array([complex(x, y) for x in parts for y in parts], dtype)
    expected, got = (side.ravel() for side in np.meshgrid(numbers, numbers))
    holds_nan = np.isnan(expected) | np.isnan(got)
    same = [
        all(np.array_equal(p, q, equal_nan=True) for p, q in ((e.real, g.real), (e.imag, g.imag)))
        for e, g in zip(expected, got, strict=True)
    ]
    diff = max_diff(expected, got)
    assert diff.n_nan == np.count_nonzero(holds_nan & ~np.array(same))
    infinite = ~holds_nan & (np.isinf(expected) | np.isinf(got))
    assert diff.n_inf == np.count_nonzero(infinite & (expected != got))


def test_a_modulus_that_overflows_is_refused():
    largest = np.finfo(np.float64).max
    large, zero = np.array([1j, complex(largest, largest)]), np.zeros(2, complex)
    for pair in ((large, zero), (zero, large), (large, large)):
        with pytest.raises(InvalidArgumentError, match="overflows float64"):
            max_diff(*pair)


def test_differences_that_overflow_are_counted():
    expected = np.array([0.5, 1.6e308, 1.7e308, 1e308, 1.7e308, math.nan, math.inf])
    got = np.array([0.0, -1.6e308, -1.7e308, 1e308, -1.7e308, 1.0, math.inf])
    diff = max_diff(expected, got)
    assert (diff.argmax, diff.worst) == ((1,), (1.6e308, -1.6e308))
    assert {diff.abs, diff.sum, diff.rel, diff.ulp, diff.ulp_at_max} == {math.inf}
    assert (diff.n, diff.n_finite, diff.n_nan, diff.n_inf) == (7, 5, 1, 0)
    assert [diff.histogram[t] for t in (0, 0.1, 1, 100)] == [4, 4, 3, 3]


@pytest.mark.parametrize(
    "tolerance", [Tolerance(rtol=1), Tolerance(atol=1.75e308), Tolerance(ulp=2.0**54)], ids=str
)
def test_a_tolerance_judges_differences_that_overflow(tolerance):
    expected, got = np.array([1.7e308, 1.0, -1.6e308]), np.array([-1.7e308, 1.0, 1.6e308])
    diff = max_diff(expected, got, tolerance=tolerance)
    assert (diff.n_over, bool(tolerance.check(diff))) == (2, False)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_extremes_of_narrow_types_do_not_overflow(dtype):
    largest = ml_dtypes.finfo(dtype).max
    expected, got = np.array([largest]), np.array([-largest])
    n_bits = ml_dtypes.finfo(dtype).nmant
    assert max_diff(expected, got).abs == 2 * float(largest)
    assert max_diff(expected, got).ulp == 2.0 ** (n_bits + 2) - 2


def test_nan_and_infinities_are_counted_apart():
    nan, inf = math.nan, math.inf
    expected = np.array([nan, nan, 1.0, inf, inf, -inf, 1.0, 2.0])
    got = np.array([nan, 1.0, nan, inf, -inf, 3.0, inf, 2.5])
    diff = max_diff(expected, got)
    assert (diff.n_nan, diff.n_inf, diff.n_finite, diff.n_same_nan) == (2, 3, 1, 1)
    assert (diff.abs, diff.sum, diff.mean_abs, diff.argmax) == (0.5, 0.5, 0.5, (7,))
    signalling = np.array([0x7F800001], np.uint32).view(np.float32)
    assert max_diff(signalling, np.float32([1])).n_nan == 1


def without_sums(diff):
    return dataclasses.replace(diff, sum=0)


@pytest.mark.parametrize("view", [lambda a: a, lambda a: a.T, lambda a: a[::2, ::-1]])
@pytest.mark.parametrize("dtype", ["float32", ">f4", "int64", "bfloat16"])
def test_pieces_do_not_change_the_figures(monkeypatch, view, dtype):
    rng = np.random.default_rng(1)
    dtype = np.dtype(dtype) if dtype.startswith(">") else numpy_dtype(dtype)
    expected = view((rng.standard_normal((31, 17)) * 100).astype(dtype))
    got = view((rng.standard_normal((31, 17)) * 100).astype(dtype))
    if dtype.kind == "f":
        got[::5, 0], got[::5, 1] = math.nan, math.inf
    error = np.abs(expected.astype(np.float64) - got.astype(np.float64))
    whole = max_diff(expected, got)
    assert (whole.n_nan, whole.n_inf) == (np.isnan(error).sum(), np.isinf(error).sum())
    error[~np.isfinite(error)] = 0
    assert whole.abs == error.max()
    assert whole.argmax == np.unravel_index(error.argmax(), error.shape)
    monkeypatch.setattr(arrays, "_LENGTH", 7)
    monkeypatch.setattr(arrays, "_LENGTH_WITHOUT_BUFFERS", 7)
    pieces = max_diff(expected, got)
    assert pieces.sum == pytest.approx(whole.sum, rel=1e-12)
    assert without_sums(pieces) == without_sums(whole)
    monkeypatch.setattr(measure, "usable_cores", lambda: 1)
    assert max_diff(expected, got) == pieces  # sums included


@pytest.mark.parametrize(("step", "dtype"), [(2, "float32"), (1, "int64"), (2, "complex64")])
def test_temporary_memory_is_bounded(monkeypatch, step, dtype):
    expected = np.zeros((1 << 23) * step, dtype)[::step]
    got = np.ones((1 << 23) * step, dtype)[::step]
    monkeypatch.setattr(measure, "usable_cores", lambda: 2)
    tracemalloc.start()
    try:
        max_diff(expected, got)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20  # a copy of each side in float64 takes 128 MiB


@pytest.mark.parametrize("tolerance", [None, Tolerance(ulp=0), Tolerance(ulp=3)])
def test_one_ulp_more_is_found_in_a_later_piece(monkeypatch, tolerance):
    monkeypatch.setattr(arrays, "_LENGTH", 64)
    monkeypatch.setattr(measure, "usable_cores", lambda: 1)
    expected, got = np.ones((2, 192), np.float32)
    # 3 ulp of 1, then 4 ulp just below 2: nearly the same error, half of it relative to the value.
    got[5] += 3 * np.spacing(got[5])
    expected[150] = 2 - 8 * np.spacing(np.float32(1))
    got[150] = expected[150] + 4 * np.spacing(np.float32(1))
    diff = max_diff(expected, got, tolerance=tolerance)
    assert diff.ulp == 4
    assert diff.n_over == (None if tolerance is None else 2 - (tolerance.ulp == 3))


def test_sums_are_exact_to_the_last_rounding_between_pieces(monkeypatch):
    monkeypatch.setattr(arrays, "_LENGTH", 1)
    errors = np.array([1.0, 1e100, 1.0, 1e-20] * 10)
    assert max_diff(np.zeros(40), errors).sum == math.fsum(errors)


def test_the_first_of_equal_errors_is_told_whoever_finds_it(monkeypatch):
    monkeypatch.setattr(arrays, "_LENGTH", 1)
    monkeypatch.setattr(measure, "usable_cores", lambda: 3)
    got = np.zeros(40)
    got[5:8] = 1  # found by the third thread, the first one, the second one
    assert max_diff(np.zeros(40), got).argmax == (5,)


@pytest.mark.parametrize("size", [3, 999, 1001, 200_000])
def test_thresholds_are_strict_at_every_size(size):
    got = np.zeros(size)
    got[1], got[2] = 1, 10
    histogram = max_diff(np.zeros(size), got).histogram
    assert [histogram[t] for t in (0, 0.1, 1, 10, 100)] == [2, 2, 1, 0, 0]
