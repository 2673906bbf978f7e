"""Tests of ortmeter.discrepancy.bounds.reduction."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ortmeter.discrepancy.bounds import mean_error_bound, sum_error_bound
from ortmeter.discrepancy.summation import SUMMATIONS, orders, simulated_sum
from ortmeter.dtypes import float_info, numpy_dtype, unit_roundoff
from ortmeter.errors import InvalidArgumentError

SIZES = [1, 2, 3, 10, 257, 1000, 3000]
DTYPES = ["float32", "float16", "bfloat16", "float64"]


def draw(n, dtype, law, seed=0):
    rng = np.random.default_rng(seed)
    values = {
        "signs": rng.standard_normal(n) * 2.0 ** rng.integers(-4, 5, n),
        "positive": rng.uniform(0.5, 1, n),
        "one small": np.r_[1, np.full(n - 1, 0.75 * unit_roundoff(dtype))],
    }[law]
    return values.astype(numpy_dtype(dtype))


def errors(got, values):
    """Compute |got - exact| with rational numbers."""
    exact = sum((Fraction(float(v)) for v in values.reshape(-1)), Fraction(0))
    return np.array([float(abs(Fraction(float(g)) - exact)) for g in np.atleast_1d(got)])


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("law", ["signs", "positive", "one small"])
@pytest.mark.parametrize("summation", SUMMATIONS)
def test_no_order_is_beyond_the_bound(n, dtype, law, summation):
    values = draw(n, dtype, law)
    rows = values[orders(values, 6, np.random.default_rng(0))]
    error = errors(simulated_sum(rows, summation), values)
    accumulate = "float64" if summation == "exact" else dtype
    bound = sum_error_bound(values, dtype=dtype, accumulate=accumulate, summation=summation)
    assert (error <= bound).all()
    if summation != "exact":
        assert bound <= sum_error_bound(values, dtype=dtype, accumulate=dtype) or n < 20


@pytest.mark.parametrize(
    ("summation", "announced"),
    [
        ("naive", "blocked"),
        ("naive", "pairwise"),
        ("naive", "kahan"),
        ("blocked", "exact"),
        ("pairwise", "exact"),
        ("kahan", "exact"),
    ],
)
def test_a_summation_announced_as_a_better_one_is_seen(summation, announced):
    values = draw(3000, "float16", "positive" if summation == "naive" else "signs")
    rows = values[orders(values, 30, np.random.default_rng(0))]
    error = errors(simulated_sum(rows, summation), values).max()
    accumulate = "float64" if announced == "exact" else "float16"
    bounds = {"dtype": "float16", "summation": announced}
    assert error > sum_error_bound(values, accumulate=accumulate, **bounds)


@pytest.mark.parametrize("n", [2, 3, 100])
def test_the_bound_of_any_order_is_nearly_reached(n):
    """Every addition loses half an ulp of the total when the terms are below it."""
    values = np.r_[1, np.full(n - 1, 2.0**-24)].astype(np.float32)
    error = errors(simulated_sum(values, "naive"), values)[0]
    bound = float(sum_error_bound(values, dtype="float32"))
    assert 0.99 * bound <= error <= bound


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_kahan_within_its_bound_for_chosen_terms(dtype, data):
    """Terms of any sign and exponent, so that the correction is not always exact."""
    limit = 12 if dtype == "float16" else 60
    term = st.builds(
        lambda bits, exponent: bits * 2.0**exponent,
        st.integers(-(2**8) + 1, 2**8 - 1),
        st.integers(-limit, limit // 4),
    )
    values = np.array(data.draw(st.lists(term, min_size=1, max_size=40)), numpy_dtype(dtype))
    error = errors(simulated_sum(values, "kahan"), values)[0]
    bound = sum_error_bound(values, dtype=dtype, accumulate=dtype, summation="kahan")
    assert error <= bound


def test_kahan_of_every_triple():
    """Three terms of a type of three bits, every mantissa and many exponents."""
    dtype = numpy_dtype("float8_e5m2")
    u = unit_roundoff(dtype)
    numbers = [m * 2.0**e for m in (4, 5, 6, 7) for e in range(-4, 3)]
    numbers = np.array([*numbers, *(-x for x in numbers)])
    triples = np.array(list(itertools.product(numbers, repeat=3))).astype(dtype)
    got = simulated_sum(triples, "kahan").astype(float)
    wide = triples.astype(float)
    bound = sum_error_bound(triples, dtype=dtype, accumulate=dtype, summation="kahan")
    assert (np.abs(got - wide.sum(1)) <= bound).all()
    assert (np.abs(got - wide.sum(1)) > 2 * u * np.abs(wide).sum(1)).mean() < 0.01


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_torch_and_numpy_are_within_the_bound(dtype, threads):
    values = draw(3000, "float32", "signs")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    tensor = torch.tensor(values).to(getattr(torch, dtype))
    got = [float(tensor.sum()), float(tensor.mean())]
    torch.set_num_threads(before)
    values = tensor.float().numpy().astype(numpy_dtype(dtype))
    assert errors(got[0], values)[0] <= sum_error_bound(values, dtype=dtype)
    mean = Fraction(sum(map(Fraction, values.astype(float))), len(values))
    assert abs(Fraction(got[1]) - mean) <= mean_error_bound(values, dtype=dtype)
    if dtype == "float32":
        assert errors(values.sum(), values)[0] <= sum_error_bound(values, dtype=dtype)


@pytest.mark.parametrize("n", [1, 3, 1000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mean(n, dtype):
    kind = numpy_dtype(dtype)
    values = draw(n, dtype, "signs")
    rows = values[orders(values, 6, np.random.default_rng(0))]
    exact = sum(map(Fraction, values.astype(float))) / n
    size = kind.type(n)
    for summation in SUMMATIONS[:-1]:
        sums = simulated_sum(rows, summation)
        bound = mean_error_bound(values, dtype=dtype, accumulate=dtype, summation=summation)
        for got in (sums / size, sums * (kind.type(1) / size)):
            assert all(abs(Fraction(float(g)) - exact) <= bound for g in got)
        wrong = float(exact) + 1.1 * float(bound)
        assert abs(wrong - float(exact)) > bound


def test_a_missing_term_is_seen():
    values = draw(100, "float32", "positive")
    assert errors(values[1:].sum(), values)[0] > sum_error_bound(values, dtype="float32")
    missing = abs(values[1:].mean() - values.astype(float).mean())
    assert missing > mean_error_bound(values, dtype="float32")


def test_formulas():
    values = draw(1000, "float32", "signs")
    magnitude, total = np.abs(values.astype(float)).sum(), abs(values.astype(float).sum())
    u = 2.0**-24
    for summation, expected in {
        "any": 999 * u * magnitude,
        "naive": 999 * u * magnitude,
        "blocked": (3 + 8) * u * magnitude,
        "pairwise": 10 * u * magnitude,
        "kahan": 3 * u * magnitude,
        "exact": u * total,
    }.items():
        bound = sum_error_bound(values, dtype="float32", summation=summation)
        np.testing.assert_allclose(bound, expected, rtol=1e-4)
    np.testing.assert_allclose(
        sum_error_bound(values, dtype="float32", summation="blocked", block=10),
        (99 + 4) * u * magnitude,
        rtol=1e-4,
    )
    narrow = sum_error_bound(values, dtype="float16", summation="pairwise")
    np.testing.assert_allclose(narrow, 10 * u * magnitude + 2.0**-11 * total, rtol=1e-3)


def test_the_bound_of_kahan_tells_when_nothing_is_guaranteed():
    options = {"dtype": "bf16", "accumulate": "bf16", "summation": "kahan"}
    ones = np.ones((2, 70_000), ml_dtypes.bfloat16)
    ones[1] = 0
    assert sum_error_bound(ones, **options).tolist() == [np.inf, 0]
    assert sum_error_bound(ones[:, :1000], **options)[0] < 30
    tiny = np.ones(10, numpy_dtype("float4_e2m1fn"))
    options |= {"dtype": tiny.dtype, "accumulate": tiny.dtype}
    assert sum_error_bound(tiny, **options) == np.inf


def test_shapes():
    values = np.ones((4, 3, 8), np.float32)
    assert sum_error_bound(values, dtype="f32").shape == (4, 3)
    assert mean_error_bound(values, dtype="f32").shape == (4, 3)
    assert sum_error_bound(values[..., :0], dtype="f32").max() == 0


def test_a_mean_that_underflows():
    smallest = float_info("float16").smallest_subnormal
    values = np.full(3, smallest, np.float16)
    values[1:] = 0
    bound = mean_error_bound(values, dtype="float16", accumulate="float16")
    assert abs(float(values.sum() / np.float16(3)) - float(smallest) / 3) <= bound


@pytest.mark.parametrize("bound", [sum_error_bound, mean_error_bound])
@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.ones(3), {}, "accumulate='float64' or more precise"),
        (np.ones(3, "i4"), {}, "is not a real floating-point type"),
        (np.ones(3, "f4"), {"dtype": "int8"}, "is not a real floating-point type"),
        (np.float32([1, np.nan]), {}, "finite"),
        (np.float32(1), {}, "n >= "),
        (np.ones(3, "f4"), {"summation": "sorted"}, "'any', 'naive', 'blocked'"),
        (np.ones(3, "f4"), {"block": 0}, "a block of 1 or more"),
    ],
)
def test_refused_arguments(bound, values, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        bound(values, **{"dtype": "float16"} | options)


def test_there_is_no_mean_of_nothing():
    with pytest.raises(InvalidArgumentError, match="n >= 1"):
        mean_error_bound(np.ones(0, np.float32), dtype="float32")
