"""Weights: where they live, and whether their changes are seen."""

import gc
import weakref

import pytest
import torch
from torch import nn

from ortmeter.backend import OrtBackend
from ortmeter.backend.weights import SMALL_BYTES

LARGE = 160  # a square of this side is above the limit for constants


class Layer(nn.Linear):
    def forward(self, x):
        return super().forward(x) + x


def compiled_linear(backend, size=LARGE):
    model = nn.Linear(size, size)
    return model, torch.compile(model, backend=backend), torch.randn(3, size)


def write_in_place(model):
    model.weight.mul_(2)


def write_into_a_small_one(model):
    model.bias.add_(1)


def move_the_data(model):
    model.weight.data = model.weight.data * 3


def replace(model):
    model.weight = nn.Parameter(torch.ones_like(model.weight))


@pytest.mark.parametrize(
    ("change", "prepack", "builds"),
    [
        (write_in_place, True, 2),
        (write_into_a_small_one, True, 2),
        (move_the_data, True, 2),
        (replace, True, 2),
        (write_in_place, False, 1),
        (write_into_a_small_one, False, 2),
        (move_the_data, False, 1),
        (replace, False, 1),
    ],
)
def test_a_change_of_the_weights_is_seen(change, prepack, builds):
    assert LARGE**2 * 4 > SMALL_BYTES
    backend = OrtBackend(prepack=prepack, fallback=False)
    model, compiled, x = compiled_linear(backend)
    with torch.no_grad():
        before = compiled(x)
        torch.testing.assert_close(before, model(x))
        change(model)
        torch.testing.assert_close(compiled(x), model(x))
        assert not torch.allclose(before, compiled(x))
    assert [graph.builds for graph in backend.graphs] == [builds]


def test_layers_that_share_a_graph_keep_their_own_weights():
    backend = OrtBackend()
    layers = [Layer(LARGE, LARGE) for _ in range(3)]
    x = torch.randn(2, LARGE)
    with torch.no_grad():
        expected = [layer(x) for layer in layers]
        for layer in layers:
            layer.compile(backend=backend)
        for _ in range(2):
            torch.testing.assert_close([layer(x) for layer in layers], expected)
    assert [graph.builds for graph in backend.graphs] == [1, 1, 1]


def test_the_backend_does_not_keep_a_model_alive():
    backend = OrtBackend()
    model, compiled, x = compiled_linear(backend)
    with torch.no_grad():
        compiled(x)
    weight = weakref.ref(model.weight)
    torch._dynamo.reset()
    del model, compiled
    gc.collect()
    assert weight() is None
    assert len(backend.graphs) == 1
