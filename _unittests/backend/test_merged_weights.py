"""Weights that a rule puts together are copied once, and their changes are seen.

The rule is declared for CUDA only: here it is applied on CPU, whose kernels are the same.
"""

import gc
import weakref

import pytest
import torch
from torch import nn

from ortmeter.backend import OrtBackend
from ortmeter.backend.rules import RULES
from ortmeter.backend.weights import SMALL_BYTES

SIZE = 160  # a square of this side is not a constant
MERGED = "MergedProducts"


@pytest.fixture(autouse=True)
def merged_on_cpu(monkeypatch):
    types = RULES[MERGED].element_types
    monkeypatch.setitem(types, "cpu", types["cuda"])


class Gated(nn.Module):
    """Two projections of the same rows; a weight that is tied is read elsewhere too."""

    def __init__(self, *, tied=False):
        super().__init__()
        self.gate = nn.Linear(SIZE, SIZE, bias=False)
        self.up = nn.Linear(SIZE, 2 * SIZE)
        self.down = nn.Linear(2 * SIZE, SIZE)
        self.tied = tied

    def forward(self, x):
        y = self.down(torch.relu(self.gate(x)).repeat(1, 1, 2) * self.up(x))
        return y @ self.gate.weight if self.tied else y


def compiled(backend, **options):
    model = Gated(**options).eval()
    return model, torch.compile(model, backend=backend), torch.randn(1, 3, SIZE)


@pytest.mark.parametrize("tied", [False, True])
def test_products_are_merged_once(tied):
    assert SIZE**2 * 4 > SMALL_BYTES
    backend = OrtBackend(fallback=False)
    model, run, x = compiled(backend, tied=tied)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(run(x), model(x))
    (graph,) = backend.graphs
    assert graph.builds == 1
    assert graph.fusions[MERGED] == 2
    assert "Concat" not in graph.operators  # not at each run
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in graph.model.graph.input]
    # x, the weights of the last product, those that are merged, and the one read elsewhere
    assert sorted(shapes) == sorted(
        [[1, 3, SIZE], [SIZE, 2 * SIZE], [3 * SIZE, SIZE], *([[SIZE, SIZE]] if tied else [])]
    )


def write(model):
    model.gate.weight.mul_(2)


def load(model):
    model.load_state_dict({name: value + 1 for name, value in model.state_dict().items()})


def move(model):
    model.up.weight.data = model.up.weight.data * 3


def replace(model):
    model.up.weight = nn.Parameter(torch.ones_like(model.up.weight))


@pytest.mark.parametrize("change", [write, load, move, replace])
def test_a_change_of_what_was_merged_is_seen(change):
    backend = OrtBackend(fallback=False)
    model, run, x = compiled(backend)
    with torch.no_grad():
        before = run(x)
        change(model)
        torch.testing.assert_close(run(x), model(x))
        assert not torch.allclose(before, run(x))
    assert [(graph.builds, graph.fusions[MERGED]) for graph in backend.graphs] == [(2, 2)]


def test_weights_are_not_copied_without_prepack():
    backend = OrtBackend(prepack=False, fallback=False)
    model, run, x = compiled(backend)
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        model.gate.weight.data.zero_()  # not counted by torch, seen all the same
        torch.testing.assert_close(run(x), model(x))
    (graph,) = backend.graphs
    assert MERGED not in graph.fusions
    assert graph.builds == 1


def test_tensors_that_are_not_weights_are_not_merged():
    backend = OrtBackend(fallback=False)
    first, second = torch.randn(2, SIZE, SIZE)
    x = torch.randn(1, 3, SIZE)
    run = torch.compile(lambda x, a, b: (x @ a.t(), x @ b.t()), backend=backend)
    with torch.no_grad():
        run(x, first, second)
    assert backend.graphs[0].fusions == {"TransposedWeight": 2}


def test_a_model_is_not_kept_alive_by_its_copies():
    backend = OrtBackend(fallback=False)
    model, run, x = compiled(backend)
    with torch.no_grad():
        run(x)
    assert backend.graphs[0].fusions[MERGED] == 2
    weight = weakref.ref(model.gate.weight)
    torch._dynamo.reset()
    del model, run
    gc.collect()
    assert weight() is None
