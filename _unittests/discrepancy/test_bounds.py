"""Tests of ortmeter.discrepancy.bounds: products, sums and means, layer normalizations."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from ortmeter.discrepancy.bounds import (
    layer_norm_error_bound,
    matmul_error_bound,
    mean_error_bound,
    sum_error_bound,
)
from ortmeter.discrepancy.summation import SUMMATIONS, orders, simulated_sum
from ortmeter.dtypes import float_info, numpy_dtype, unit_roundoff
from ortmeter.errors import InvalidArgumentError

PRODUCTS = [(1, 1, 1), (2, 3, 4), (7, 64, 5), (3, 1000, 2), (16, 257, 16), (2, 0, 3)]


def operands(shape, dtype, seed=0):
    """Draw numbers of very different magnitudes and of both signs."""
    m, k, n = shape
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((m, k)) * 2.0 ** rng.integers(-4, 5, (m, k))
    b = rng.standard_normal((k, n)) * 2.0 ** rng.integers(-4, 5, (k, n))
    return a.astype(numpy_dtype(dtype)), b.astype(numpy_dtype(dtype))


def exact_error(got, a, b):
    """Compute |got - a @ b| in extended precision, exact enough for operands of 32 bits or less."""
    product = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return np.abs(got.astype(np.longdouble) - product)


def sequential(a, b, dtype):
    """Multiply with every operation rounded to a type, term after term: the worst order."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total = (total + (a[:, k, None] * b[k]).astype(dtype)).astype(dtype)
    return total


def truncate(x, bits):
    """Drop the last bits of float32 numbers."""
    return (np.float32(x).view(np.uint32) >> bits << bits).view(np.float32)


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
@pytest.mark.parametrize("seed", range(2))
def test_float32_products(shape, seed):
    a, b = operands(shape, "float32", seed)
    bound = matmul_error_bound(a, b, dtype="float32")
    assert bound.dtype == np.float64
    for got in (a @ b, sequential(a, b, np.float32)):
        assert (exact_error(got, a, b) <= bound).all()


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_narrow_types_with_a_float32_accumulator(shape, dtype):
    a, b = operands(shape, dtype)
    total = sequential(a.astype(np.float32), b.astype(np.float32), np.float32)
    got = total.astype(numpy_dtype(dtype))
    assert (exact_error(got, a, b) <= matmul_error_bound(a, b, dtype=dtype)).all()


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_float16_accumulator(shape):
    a, b = operands(shape, "float16")
    error = exact_error(sequential(a, b, np.float16), a, b)
    assert (error <= matmul_error_bound(a, b, dtype="f16", accumulate="f16")).all()
    if shape[1] > 200:  # a narrower accumulator than the one announced is seen
        assert (error > matmul_error_bound(a, b, dtype="f16", accumulate="f32")).any()


@pytest.mark.parametrize("k", [1, 10, 100])
def test_float64_against_rational_numbers(k):
    a, b = operands((3, k, 2), "float64")
    bound = matmul_error_bound(a, b, dtype="float64", accumulate="float64")
    for i, j in np.ndindex(bound.shape):
        exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True))
        assert abs(Fraction((a @ b)[i, j]) - exact) <= bound[i, j]


def test_truncated_accumulator_of_tensor_cores():
    """Positive terms make every truncation go the same way."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.5, 1, (4, 500)).astype(np.float16).astype(np.float32)
    b = rng.uniform(0.5, 1, (500, 4)).astype(np.float16).astype(np.float32)
    total = np.zeros((4, 4), np.float32)
    for k in range(500):
        exact = total.astype(np.float64) + a[:, k, None].astype(np.float64) * b[k]
        rounded = exact.astype(np.float32)
        total = np.where(rounded > exact, np.nextafter(rounded, np.float32(0)), rounded)
    a, b = a.astype(np.float16), b.astype(np.float16)
    assert (exact_error(total, a, b) <= matmul_error_bound(a, b, dtype="float32")).all()


@pytest.mark.parametrize("k", [1, 16, 500])
def test_tf32(k):
    """Operands cut to 10 bits are seen, and accepted only when TF32 is announced."""
    rng = np.random.default_rng(0)
    a = rng.uniform(1, 2, (8, k)).astype(np.float32)
    b = rng.uniform(1, 2, (k, 8)).astype(np.float32)
    error = exact_error(truncate(a, 13) @ truncate(b, 13), a, b)
    assert (error <= matmul_error_bound(a, b, dtype="float32", tf32=True)).all()
    assert (error > matmul_error_bound(a, b, dtype="float32")).mean() > 0.9


def test_tf32_does_not_concern_other_types():
    for dtype in ("float16", "float64"):
        a, b = operands((3, 4, 5), dtype)
        options = {"dtype": dtype, "accumulate": "float64"}
        with_tf32 = matmul_error_bound(a, b, tf32=True, **options)
        np.testing.assert_array_equal(with_tf32, matmul_error_bound(a, b, **options))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_wrong_element_of_a_product_is_seen(dtype):
    a, b = operands((8, 64, 8), dtype)
    got = a.astype(np.float32) @ b.astype(np.float32)
    bound = matmul_error_bound(a, b, dtype=dtype)
    got[2, 3] += 2.5 * bound[2, 3]
    wrong = exact_error(got.astype(numpy_dtype(dtype)), a, b) > bound
    np.testing.assert_array_equal(np.argwhere(wrong), [[2, 3]])


def test_a_missing_term_of_a_product_is_seen():
    a, b = operands((8, 64, 8), "float32")
    assert (exact_error(a[:, 1:] @ b[1:], a, b) > matmul_error_bound(a, b, dtype="f32")).all()


def test_formula_of_products():
    """The bound is its first order, up to terms of the second order."""
    a, b = operands((4, 32, 4), "float32")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    magnitude, result = np.abs(wide_a) @ np.abs(wide_b), np.abs(wide_a @ wide_b)
    u = 2.0**-24
    plain = 32 * u * magnitude + u * result
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32"), plain, rtol=1e-4)
    tf32 = (2 * 2.0**-10 + 2 * 32 * u) * magnitude + u * result
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32", tf32=True), tf32, rtol=2e-3)


def test_formula_for_tensor_cores():
    """Truncation doubles the roundoff of the accumulator, and takes over when K is large."""
    a, b = operands((4, 4096, 4), "float16")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    u = 2.0**-24
    plain = 2 * 4096 * u * (np.abs(wide_a) @ np.abs(wide_b)) + u * np.abs(wide_a @ wide_b)
    np.testing.assert_allclose(matmul_error_bound(a, b, dtype="f32"), plain, rtol=1e-3)


def test_no_digit_is_promised_when_the_accumulator_is_too_narrow():
    a = np.ones((1, 4096), np.float16)
    bound = matmul_error_bound(a, a.T, dtype="float32", accumulate="float16")
    assert 4096 < bound[0, 0] < np.inf
    assert sequential(a, a.T, np.float16)[0, 0] == 2048  # half of the sum is lost
    longest = np.ones((1, 100_000), numpy_dtype("bfloat16"))
    assert 1e5 < matmul_error_bound(longest, longest.T, dtype="bf16", accumulate="bf16") < np.inf


def test_underflow_is_covered():
    a = np.full((1, 3), 2.0**-20, np.float16)
    got = (a.astype(np.float32) @ a.T.astype(np.float32)).astype(np.float16)
    assert got == 0
    assert exact_error(got, a, a.T) <= matmul_error_bound(a, a.T, dtype="float16")


def test_underflow_of_the_accumulator_is_covered():
    a = np.full((1, 64), 2.0**-13, np.float16)  # every product is a quarter of the least number
    got = sequential(a, a.T, np.float16)
    assert got == 0
    bound = matmul_error_bound(a, a.T, dtype="float16", accumulate="float16")
    assert exact_error(got, a, a.T) <= bound


def test_shapes_and_libraries():
    a, b = torch.ones(5, 1, 2, 3, dtype=torch.bfloat16), torch.ones(4, 3, 6, dtype=torch.bfloat16)
    assert matmul_error_bound(a, b, dtype=torch.float32).shape == (5, 4, 2, 6)
    ones = np.ones(3, np.float32)
    assert matmul_error_bound(ones, ones, dtype="float32").shape == ()


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), {}, "accumulate='float64' or more precise"),
        (np.ones((2, 3), "f4"), np.ones((3, 2), "f2"), {}, "one type is expected"),
        (np.ones((2, 3), "i4"), np.ones((3, 2), "i4"), {}, "is not a real floating-point type"),
        (np.ones((2, 3), "f4"), np.ones((3, 2), "f4"), {"accumulate": "bf16"}, "float32"),
        (
            np.ones((2, 3), "f4"),
            np.ones((3, 2), "f4"),
            {"dtype": "int8"},
            "is not a real floating-point type",
        ),
        (np.ones((2, 3), "f4"), np.ones((2, 3), "f4"), {}, "cannot be multiplied"),
        (np.ones((2, 2, 3), "f4"), np.ones((3, 3, 2), "f4"), {}, "cannot be multiplied"),
        (np.float32(1), np.float32(1), {}, "cannot be multiplied"),
        (np.float32([np.inf]), np.float32([1]), {}, "finite"),
        (np.array([np.nan], ml_dtypes.bfloat16), np.ones(1, ml_dtypes.bfloat16), {}, "finite"),
    ],
)
def test_refused_products(a, b, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        matmul_error_bound(a, b, **{"dtype": "float32"} | options)


def test_the_roundoff_of_the_result_counts():
    a, b = operands((2, 2, 2), "float32")
    difference = matmul_error_bound(a, b, dtype="f16") - matmul_error_bound(a, b, dtype="f32")
    expected = unit_roundoff("f16") * np.abs(a.astype(np.float64) @ b.astype(np.float64))
    np.testing.assert_allclose(difference, expected, rtol=1e-2)


SIZES = [1, 3, 257, 3000]
DTYPES = ["float32", "float16", "bfloat16", "float64"]


def draw_terms(n, dtype, law, seed=0):
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
    values = draw_terms(n, dtype, law)
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
    values = draw_terms(3000, "float16", "positive" if summation == "naive" else "signs")
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
@settings(deadline=None, max_examples=30)
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
    numbers = [m * 2.0**e for m in (4, 5, 6, 7) for e in range(-3, 3)]
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
    values = draw_terms(3000, "float32", "signs")
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
def test_means(n, dtype):
    kind = numpy_dtype(dtype)
    values = draw_terms(n, dtype, "signs")
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


def test_a_missing_term_of_a_sum_is_seen():
    values = draw_terms(100, "float32", "positive")
    assert errors(values[1:].sum(), values)[0] > sum_error_bound(values, dtype="float32")
    missing = abs(values[1:].mean() - values.astype(float).mean())
    assert missing > mean_error_bound(values, dtype="float32")


def test_formulas_of_sums():
    values = draw_terms(1000, "float32", "signs")
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


def test_shapes_of_sums():
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
def test_refused_sums(bound, values, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        bound(values, **{"dtype": "float16"} | options)


def test_there_is_no_mean_of_nothing():
    with pytest.raises(InvalidArgumentError, match="n >= 1"):
        mean_error_bound(np.ones(0, np.float32), dtype="float32")


LAWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "shifted": lambda rng, n: 30 + rng.standard_normal(n),
    "one huge": lambda rng, n: np.r_[100.0, rng.standard_normal(n - 1)],
    "pareto": lambda rng, n: rng.pareto(1, n),
}


def draw_row(law, n, dtype):
    rng = np.random.default_rng(0)
    values = LAWS[law](rng, n).astype(numpy_dtype(dtype))
    return values, *(rng.uniform(0.5, 2, n).astype(numpy_dtype(dtype)) for _ in range(2))


def normalized(x, scale, bias, epsilon=1e-5):
    x, scale, bias = (a.astype(np.longdouble) for a in (x, scale, bias))
    d = x - x.mean()
    return d / np.sqrt((d * d).mean() + np.longdouble(epsilon)) * scale + bias


def mean(x, summation):
    return simulated_sum(x, summation) / x.dtype.type(x.size)


def two_passes(x, scale, bias, summation):
    d = x - mean(x, summation)
    sigma = np.sqrt(mean(d * d, summation) + x.dtype.type(1e-5))
    return d / sigma * scale + bias


def one_pass(x, scale, bias, summation):
    """Mean of the squares minus the square of the mean, then x r - mean r."""
    center = mean(x, summation)
    variance = mean(x * x, summation) - center * center
    r = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(1e-5))
    return (x * r - center * r) * scale + bias


def welford(x, scale, bias, summation):
    center = total = x.dtype.type(0)
    for k, value in enumerate(x, 1):
        before = value - center
        center += before / x.dtype.type(k)
        total += before * (value - center)
    sigma = np.sqrt(total / x.dtype.type(x.size) + x.dtype.type(1e-5))
    return (x - center) / sigma * scale + bias


@pytest.mark.parametrize("n", [1, 2, 10, 257, 2000])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("formula", [two_passes, one_pass, welford])
def test_no_algorithm_is_beyond_the_bound(n, law, formula):
    x, scale, bias = draw_row(law, n, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    assert bound.shape == x.shape
    expected = normalized(x, scale, bias)
    with np.errstate(invalid="ignore"):  # the variance may be lost
        for summation in SUMMATIONS[:-1]:
            got = formula(x, scale, bias, summation)
            inside = np.abs(got - expected) <= bound
            assert (inside | np.isinf(bound)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("law", LAWS)
def test_normalizations_of_torch(dtype, law):
    x, scale, bias = draw_row(law, 1000, dtype)
    tensors = [
        torch.tensor(a.astype(np.float32)).to(getattr(torch, dtype)) for a in (x, scale, bias)
    ]
    got = torch.nn.functional.layer_norm(tensors[0], (x.size,), *tensors[1:])
    bound = layer_norm_error_bound(x, dtype=dtype, scale=scale, bias=bias)
    assert (np.abs(got.double().numpy() - normalized(x, scale, bias)) <= bound).all()


def test_normalization_of_the_reference():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> '
        "g (float[n] X, float[n] S, float[n] B) => (float[n] Y) "
        "{ Y = LayerNormalization<axis = -1>(X, S, B) }"
    )
    x, scale, bias = draw_row("shifted", 1000, "float32")
    (got,) = ReferenceEvaluator(model).run(None, {"X": x, "S": scale, "B": bias})
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    assert (np.abs(got - normalized(x, scale, bias)) <= bound).all()


def test_one_wrong_element_of_a_normalization_is_seen():
    x, scale, bias = draw_row("normal", 64, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    got = two_passes(x, scale, bias, "naive").astype(float)
    got[7] += 2.5 * bound[7]
    wrong = np.abs(got - normalized(x, scale, bias)) > bound
    assert np.flatnonzero(wrong).tolist() == [7]


@pytest.mark.parametrize("change", ["epsilon", "variance of n - 1", "float16 inside"])
def test_another_formula_is_seen(change):
    x, scale, bias = draw_row("normal", 1000, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    if change == "float16 inside":
        got = two_passes(*(a.astype(np.float16) for a in (x, scale, bias)), "pairwise")
    elif change == "epsilon":
        got = normalized(x, scale, bias, epsilon=1e-2)
    else:
        got = (x - x.mean()) / x.std(ddof=1) * scale + bias
    assert (np.abs(got - normalized(x, scale, bias)) > bound).any()


def test_a_float16_accumulator():
    x, scale, bias = draw_row("normal", 100, "float16")
    expected = normalized(x, scale, bias, epsilon=float(np.float16(1e-5)))
    options = {"dtype": "float16", "scale": scale, "bias": bias}
    error = np.abs(two_passes(x, scale, bias, "naive") - expected)
    assert (error <= layer_norm_error_bound(x, accumulate="float16", **options)).all()
    assert (error > layer_norm_error_bound(x, accumulate="float32", **options)).any()


def test_formula_of_normalizations():
    """The first order that the documentation gives."""
    x, scale, bias = draw_row("normal", 500, "float32")
    wide = x.astype(float)
    u, n = 2.0**-24, x.size
    mu, sigma2 = wide.mean(), wide.var() + 1e-5
    of_mean = (n - 1) * u * np.abs(wide).mean() + 3 * u * abs(mu)
    of_variance = (n + 7) * u * ((wide**2).mean() + mu**2) + 2 * abs(mu) * of_mean
    spread = of_mean + of_variance / (2 * sigma2) * np.abs(wide - mu)
    spread += 8 * u * (np.abs(wide) + abs(mu))
    expected = scale / np.sqrt(sigma2) * spread + 8 * u * np.abs(bias)
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    np.testing.assert_allclose(bound, expected, rtol=1e-3)


def test_a_variance_that_is_lost():
    constant = np.full((2, 8), 1000, np.float32)
    constant[1] = np.arange(8)
    bound = layer_norm_error_bound(constant, dtype="float32", epsilon=1e-12)
    assert np.isinf(bound[0]).all()
    assert np.isfinite(bound[1]).all()
    zeros = layer_norm_error_bound(np.zeros(4, np.float32), dtype="float32", epsilon=0)
    assert np.isinf(zeros).all()


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (np.ones(3), {}, "accumulate='float64' or more precise"),
        (np.ones(3, "f4"), {"epsilon": -1.0}, "epsilon=-1.0. Accepted: zero or more"),
        (np.ones(3, "f4"), {"scale": np.inf}, "finite"),
        (np.float32([np.inf, 1]), {}, "finite"),
        (np.ones((3, 0), "f4"), {}, "n >= 1"),
        (np.ones(3, "i4"), {}, "is not a real floating-point type"),
    ],
)
def test_refused_normalizations(values, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        layer_norm_error_bound(values, dtype="float32", **options)
