"""Tests of ortmeter.discrepancy.bounds.normalization."""

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator

from ortmeter.discrepancy.bounds import layer_norm_error_bound
from ortmeter.discrepancy.summation import simulated_sum
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError

SUMMATIONS = ("naive", "blocked", "pairwise", "kahan")
LAWS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "shifted": lambda rng, n: 30 + rng.standard_normal(n),
    "one huge": lambda rng, n: np.r_[100.0, rng.standard_normal(n - 1)],
    "pareto": lambda rng, n: rng.pareto(1, n),
}


def draw(law, n, dtype):
    rng = np.random.default_rng(0)
    values = LAWS[law](rng, n).astype(numpy_dtype(dtype))
    return values, *(rng.uniform(0.5, 2, n).astype(numpy_dtype(dtype)) for _ in range(2))


def exact(x, scale, bias, epsilon=1e-5):
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
    x, scale, bias = draw(law, n, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    assert bound.shape == x.shape
    expected = exact(x, scale, bias)
    with np.errstate(invalid="ignore"):  # the variance may be lost
        for summation in SUMMATIONS:
            got = formula(x, scale, bias, summation)
            inside = np.abs(got - expected) <= bound
            assert (inside | np.isinf(bound)).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("law", LAWS)
def test_torch(dtype, law):
    x, scale, bias = draw(law, 1000, dtype)
    tensors = [
        torch.tensor(a.astype(np.float32)).to(getattr(torch, dtype)) for a in (x, scale, bias)
    ]
    got = torch.nn.functional.layer_norm(tensors[0], (x.size,), *tensors[1:])
    bound = layer_norm_error_bound(x, dtype=dtype, scale=scale, bias=bias)
    assert (np.abs(got.double().numpy() - exact(x, scale, bias)) <= bound).all()


def test_onnx_reference():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> '
        "g (float[n] X, float[n] S, float[n] B) => (float[n] Y) "
        "{ Y = LayerNormalization<axis = -1>(X, S, B) }"
    )
    x, scale, bias = draw("shifted", 1000, "float32")
    (got,) = ReferenceEvaluator(model).run(None, {"X": x, "S": scale, "B": bias})
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    assert (np.abs(got - exact(x, scale, bias)) <= bound).all()


def test_one_wrong_element_is_seen():
    x, scale, bias = draw("normal", 64, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    got = two_passes(x, scale, bias, "naive").astype(float)
    got[7] += 2.5 * bound[7]
    wrong = np.abs(got - exact(x, scale, bias)) > bound
    assert np.flatnonzero(wrong).tolist() == [7]


@pytest.mark.parametrize("change", ["epsilon", "variance of n - 1", "float16 inside"])
def test_another_formula_is_seen(change):
    x, scale, bias = draw("normal", 1000, "float32")
    bound = layer_norm_error_bound(x, dtype="float32", scale=scale, bias=bias)
    if change == "float16 inside":
        got = two_passes(*(a.astype(np.float16) for a in (x, scale, bias)), "pairwise")
    elif change == "epsilon":
        got = exact(x, scale, bias, epsilon=1e-2)
    else:
        got = (x - x.mean()) / x.std(ddof=1) * scale + bias
    assert (np.abs(got - exact(x, scale, bias)) > bound).any()


def test_a_float16_accumulator():
    x, scale, bias = draw("normal", 100, "float16")
    expected = exact(x, scale, bias, epsilon=float(np.float16(1e-5)))
    options = {"dtype": "float16", "scale": scale, "bias": bias}
    error = np.abs(two_passes(x, scale, bias, "naive") - expected)
    assert (error <= layer_norm_error_bound(x, accumulate="float16", **options)).all()
    assert (error > layer_norm_error_bound(x, accumulate="float32", **options)).any()


def test_formula():
    """The first order that the documentation gives."""
    x, scale, bias = draw("normal", 500, "float32")
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
def test_refused_arguments(values, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        layer_norm_error_bound(values, dtype="float32", **options)
