"""The oracle follows the standard deviation of rounding errors by hand, operation by operation."""

import math

import numpy as np
import pytest
import torch

from ortmeter.backend import float64_reference

U = 2.0**-24
ROWS, TERMS = 16, 64


def numbers(*shape):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.forward = function


def deviation_of(function, *inputs):
    """Standard deviations, known within ten percent or so."""
    return float64_reference(Function(function), *inputs, draws=400, deviations=1.0)[1]


def magnitude(x, y):
    return np.abs(x.double().numpy()) @ np.abs(y.double().numpy())


@pytest.mark.parametrize(
    ("function", "roundings"),
    [
        (torch.exp, np.exp),
        (lambda x: x * 3, lambda x: np.abs(3 * x)),
        (lambda x: x - 7, lambda x: np.abs(x - 7)),
        (lambda x: x.sum(-1), lambda x: math.sqrt(TERMS) * np.abs(x).sum(-1)),
        (lambda x: x.mean(-1), lambda x: math.sqrt(TERMS) * np.abs(x).mean(-1)),
        (lambda x: torch.relu(x) + 0, lambda x: math.sqrt(2) * np.maximum(x, 0)),
    ],
    ids=["exp", "product", "difference", "sum", "mean", "two operations"],
)
def test_each_operation_adds_its_rounding_errors(function, roundings):
    x = numbers(ROWS, TERMS)
    found = deviation_of(function, x)
    np.testing.assert_allclose(found, U * roundings(x.double().numpy()), rtol=0.2, atol=1e-12)


@pytest.mark.parametrize("product", [torch.matmul, lambda x, y: x @ y, torch.mm])
def test_a_product_adds_as_many_errors_as_terms(product):
    x, y = numbers(ROWS, TERMS), numbers(TERMS, 8)
    expected = math.sqrt(TERMS + 1) * U * magnitude(x, y)
    np.testing.assert_allclose(deviation_of(product, x, y), expected, rtol=0.2)


def test_an_error_follows_its_result_to_the_output():
    x, y, z = numbers(ROWS, TERMS), numbers(TERMS, TERMS), numbers(TERMS, 8)
    first = math.sqrt(TERMS + 1) * U * magnitude(x, y)
    passed = np.sqrt(np.square(first) @ np.square(z.double().numpy()))
    added = math.sqrt(TERMS + 1) * U * magnitude(x @ y, z)
    found = deviation_of(lambda x, y, z: (x @ y) @ z, x, y, z)
    np.testing.assert_allclose(found, np.hypot(passed, added), rtol=0.2)


@pytest.mark.parametrize("bits", [11, 14])
def test_float32_is_within_the_tolerance_and_fewer_bits_are_not(bits):
    model, x = torch.nn.Linear(TERMS, 8), numbers(4, TERMS)
    expected, tolerance = float64_reference(model, x)
    weight, bias = (w.detach().double().numpy() for w in model.parameters())
    np.testing.assert_allclose(x.double().numpy() @ weight.T + bias, expected, 1e-12, 1e-12)
    assert {w.dtype for w in model.parameters()} == {torch.float32}
    got = model(x).detach().numpy()
    assert (np.abs(got - expected) <= tolerance).all()
    mantissa, exponent = torch.frexp(x)
    short = torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)
    assert (np.abs(model(short).detach().numpy() - expected) > tolerance).any()


def test_torch_draws_and_indices_are_left_as_they_are():
    torch.manual_seed(3)
    before = torch.rand(3)
    torch.manual_seed(3)
    again = [float64_reference(torch.nn.ReLU(), numbers(2))[1] for _ in range(2)]
    assert torch.equal(torch.rand(3), before)
    np.testing.assert_array_equal(*again)
    table = torch.nn.Embedding(5, 3)
    expected, tolerance = float64_reference(table, torch.tensor([[1, 2]]))
    np.testing.assert_array_equal(table.weight.detach().numpy()[[1, 2]][None], expected)
    assert tolerance.max() < 12 * U * np.abs(expected).max()
