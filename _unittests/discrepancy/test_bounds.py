"""Tests of ortmeter.discrepancy.bounds: products and layer normalizations."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from ortmeter.discrepancy.bounds import layer_norm_error_bound, matmul_error_bound
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError


def rational(array):
    return np.frompyfunc(Fraction, 1, 1)(np.asarray(array, np.float64))


def distance(got, exact):
    """Compute |got - exact| with rational numbers."""
    return np.asarray(np.abs(rational(got) - exact), np.float64)


def operands(shape, dtype, law="signs"):
    """Draw numbers of very different magnitudes and of both signs, or of one sign."""
    m, k, n = shape
    rng = np.random.default_rng(0)
    for size in ((m, k), (k, n)):
        wide = rng.standard_normal(size) * 2.0 ** rng.integers(-4, 5, size)
        yield (rng.uniform(0.5, 1, size) if law == "positive" else wide).astype(numpy_dtype(dtype))


def in_order(a, b, dtype):
    """Multiply with every operation rounded to a type, term after term: the worst order."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for k in range(a.shape[1]):
        total = (total + (a[:, k, None] * b[k]).astype(dtype)).astype(dtype)
    return total


def with_float32(a, b):
    return in_order(a.astype(np.float32), b.astype(np.float32), np.float32)


def tensor_cores(a, b):
    """Truncate every partial sum to float32, as tensor cores do."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        exact = total.astype(np.float64) + a[:, k, None].astype(np.float64) * b[k]
        rounded = exact.astype(np.float32)
        toward_zero = np.nextafter(rounded, np.float32(0))
        total = np.where(np.abs(rounded) > np.abs(exact), toward_zero, rounded)
    return total


def with_tf32(a, b):
    """Cut operands to 10 bits."""
    a, b = ((np.float32(x).view(np.uint32) >> 13 << 13).view(np.float32) for x in (a, b))
    return a @ b


# Type of the operands and of the result, how they are multiplied, what is announced.
KERNELS = {
    "float32": ("f32", np.matmul, {}),
    "float32 in order": ("f32", with_float32, {}),
    "float16": ("f16", with_float32, {}),
    "bfloat16": ("bf16", with_float32, {}),
    "float64": ("f64", np.matmul, {}),
    "tensor cores": ("f16", tensor_cores, {}),
    "TF32": ("f32", with_tf32, {"tf32": True}),
}
PRODUCTS = [(1, 1, 1), (2, 3, 4), (7, 64, 5), (3, 1000, 2)]


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
@pytest.mark.parametrize("law", ["signs", "positive"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_no_product_is_beyond_the_bound(kernel, law, shape):
    dtype, multiply, announced = KERNELS[kernel]
    a, b = operands(shape, dtype, law)
    got, exact = multiply(a, b).astype(a.dtype), rational(a) @ rational(b)
    bound = matmul_error_bound(a, b, dtype=dtype, **announced)
    assert (bound.dtype, bound.shape) == (np.float64, got.shape)
    assert (distance(got, exact) <= bound).all()
    # One wrong element is seen, and no other one.
    wrong = np.array(got, np.float64)
    wrong[0, -1] += 2.5 * bound[0, -1]
    beyond = distance(wrong, exact) > bound
    assert beyond[0, -1]
    assert beyond.sum() == 1


def float16_inside(a, b):
    return in_order(a, b, np.float16)


@pytest.mark.parametrize(("dtype", "multiply"), [("f16", float16_inside), ("f32", with_tf32)])
def test_a_kernel_announced_as_a_better_one_is_seen(dtype, multiply):
    a, b = operands((8, 500, 8), dtype, "positive")
    error = distance(multiply(a, b), rational(a) @ rational(b))
    assert (error > matmul_error_bound(a, b, dtype=dtype)).mean() > 0.8


def test_a_missing_term_of_a_product_is_seen():
    a, b = operands((8, 64, 8), "float32")
    error = distance(a[:, 1:] @ b[1:], rational(a) @ rational(b))
    assert (error > matmul_error_bound(a, b, dtype="f32")).all()


@pytest.mark.parametrize(
    ("dtype", "depth", "options", "factor", "roundoff"),
    [
        ("f32", 32, {}, 32 * 2.0**-24, 2.0**-24),
        ("f32", 32, {"tf32": True}, 2 * 2.0**-10 + 2 * 32 * 2.0**-24, 2.0**-24),
        ("f16", 4096, {"dtype": "f32"}, 2 * 4096 * 2.0**-24, 2.0**-24),  # truncated sums
        ("f16", 4096, {"dtype": "f32", "tf32": True}, 2 * 4096 * 2.0**-24, 2.0**-24),
        ("f32", 2, {"dtype": "f16"}, 2 * 2.0**-24, 2.0**-11),
        ("f64", 32, {"tf32": True}, 32 * 2.0**-53, 2.0**-53),
    ],
)
def test_formula_of_products(dtype, depth, options, factor, roundoff):
    """The bound is its first order, up to terms of the second order."""
    a, b = operands((4, depth, 4), dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    expected = factor * (np.abs(wide_a) @ np.abs(wide_b)) + roundoff * np.abs(wide_a @ wide_b)
    bound = matmul_error_bound(a, b, **{"dtype": dtype} | options)
    np.testing.assert_allclose(bound, expected, rtol=2e-3)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float16", 2.0**-20), ("float32", 2.0**-76)],  # of the result, of the accumulator
)
def test_underflow_is_covered(dtype, value):
    a = np.full((1, 3), value, dtype)
    got = with_float32(a, a.T).astype(dtype)
    assert got == 0
    assert 3 * value**2 <= matmul_error_bound(a, a.T, dtype=dtype)


def test_shapes_and_libraries():
    a, b = torch.ones(5, 1, 2, 3, dtype=torch.bfloat16), torch.ones(4, 3, 6, dtype=torch.bfloat16)
    assert matmul_error_bound(a, b, dtype=torch.float32).shape == (5, 4, 2, 6)
    ones = np.ones(3, np.float32)
    assert matmul_error_bound(ones, ones, dtype="float32").shape == ()
    nothing = matmul_error_bound(np.ones((2, 0), "f4"), np.ones((0, 3), "f4"), dtype="float32")
    assert (nothing.shape, nothing.max() < 1e-40) == ((2, 3), True)


F32 = np.ones((2, 3), "f4")


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (F32, np.ones((3, 2), "f2"), {}, "one type is expected"),
        (F32.astype("i4"), F32.T.astype("i4"), {}, "is not a real floating-point type"),
        (F32, F32.T, {"dtype": "int8"}, "is not a real floating-point type"),
        (F32, F32, {}, "cannot be multiplied"),
        (np.float32(1), np.float32(1), {}, "cannot be multiplied"),
        (np.array([np.nan], ml_dtypes.bfloat16), np.ones(1, ml_dtypes.bfloat16), {}, "finite"),
    ],
)
def test_refused_products(a, b, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        matmul_error_bound(a, b, **{"dtype": "float32"} | options)


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


def naive(x):
    return np.add.accumulate(x)[-1]


def pairwise(x):
    while x.size > 1:
        half = x.size // 2
        x = np.r_[x[:half] + x[half : 2 * half], x[2 * half :]]
    return x[0]


def mean(x, summation):
    return summation(x) / x.dtype.type(x.size)


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


def of_torch(x, scale, bias, _):
    tensors = (
        torch.tensor(a.astype(np.float32)).to(getattr(torch, str(a.dtype)))
        for a in (x, scale, bias)
    )
    row, *parameters = tensors
    return torch.nn.functional.layer_norm(row, row.shape, *parameters).double().numpy()


@pytest.mark.parametrize("n", [1, 10, 2000])
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("formula", [two_passes, one_pass, welford, of_torch])
def test_no_algorithm_is_beyond_the_bound(n, law, formula):
    x, scale, bias = draw_row(law, n, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    assert bound.shape == x.shape
    expected = normalized(x, scale, bias)
    with np.errstate(invalid="ignore"):  # the variance may be lost
        for summation in (naive, pairwise):
            got = formula(x, scale, bias, summation)
            assert ((np.abs(got - expected) <= bound) | np.isinf(bound)).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("law", LAWS)
def test_narrow_normalizations_of_torch(dtype, law):
    x, scale, bias = draw_row(law, 1000, dtype)
    bound = layer_norm_error_bound(x, dtype=dtype, scale=scale, bias=bias)
    error = np.abs(of_torch(x, scale, bias, None) - normalized(x, scale, bias))
    assert (error <= bound).all()


@pytest.mark.parametrize(
    "change", ["epsilon", "variance of n - 1", "float16 inside", "one element"]
)
def test_another_formula_is_seen(change):
    x, scale, bias = draw_row("normal", 1000, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    got = {
        "float16 inside": two_passes(*(np.float16(a) for a in (x, scale, bias)), pairwise),
        "epsilon": normalized(x, scale, bias, epsilon=1e-2),
        "variance of n - 1": (x - x.mean()) / x.std(ddof=1) * scale + bias,
        "one element": normalized(x, scale, bias) + np.where(np.arange(1000) == 7, 2 * bound, 0),
    }[change]
    beyond = np.abs(got - normalized(x, scale, bias)) > bound
    assert beyond.any()
    assert change != "one element" or np.flatnonzero(beyond).tolist() == [7]


@pytest.mark.parametrize("epsilon", [1e-5, 2.0])
def test_formula_of_normalizations(epsilon):
    """The first order that the documentation gives."""
    x, scale, bias = draw_row("normal", 500, "float32")
    wide = x.astype(float)
    u, n = 2.0**-24, x.size
    mu, sigma2 = wide.mean(), wide.var() + epsilon
    of_mean = (n - 1) * u * np.abs(wide).mean() + 3 * u * abs(mu)
    of_variance = (n + 7) * u * ((wide**2).mean() + mu**2) + 2 * abs(mu) * of_mean + 2 * u * epsilon
    spread = of_mean + of_variance / (2 * sigma2) * np.abs(wide - mu)
    spread += 8 * u * (np.abs(wide) + abs(mu))
    expected = scale / np.sqrt(sigma2) * spread + 8 * u * np.abs(bias)
    options = {"epsilon": epsilon, "scale": scale, "bias": bias}
    bound = layer_norm_error_bound(x, dtype="float32", **options)
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
        (np.ones(3, "i4"), {}, "is not a real floating-point type"),
        (np.ones(3, "f4"), {"dtype": "int8"}, "is not a real floating-point type"),
        (np.float32([1, np.nan]), {}, "finite"),
        (np.float32(1), {}, r"1.0 has no axis to sum. Accepted: shape \(..., n\)"),
        (np.ones(3, "f4"), {"scale": np.inf}, "finite"),
    ],
)
def test_refused_values(values, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        layer_norm_error_bound(values, **{"dtype": "float16"} | options)
