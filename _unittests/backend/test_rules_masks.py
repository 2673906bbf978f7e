"""Constant masks: which ones are a window on the past, and those that are not."""

import numpy as np
import pytest
from backend_attention_patterns import band
from backend_graphs import Graph

from ortmeter.backend.rules.attention import window

CAUSAL = band(5, 5)
MASKS = {
    "all of the past": (CAUSAL, 5),
    "a window": (band(5, 3), 3),
    "itself": (np.eye(5, dtype=bool), 1),
    "for each head": (np.stack([band(5, 2)] * 3)[None], 2),
    "numbers": (np.where(CAUSAL, 0, -np.inf), 5),
    "the lowest number": (np.where(CAUSAL, 0, np.finfo("f4").min), 5),
}
NO_MASKS = {
    "the past is hidden": CAUSAL.T,
    "the present is hidden": np.tri(5, k=-1, dtype=bool),
    "the next is seen": np.tri(5, k=1, dtype=bool),
    "all is seen": np.ones((5, 5), bool),
    "nothing is seen": np.zeros((5, 5), bool),
    "the heads differ": np.stack([band(5, 2), band(5, 3)])[None],
    "a bias": np.where(CAUSAL, 1, -np.inf),
    "dimmed": np.where(CAUSAL, 0, -1.0),
    "the future": np.where(CAUSAL, -np.inf, 0),
    "integers": CAUSAL.astype(np.int64),
    "a rectangle": np.ones((4, 5), bool),
    "a vector": np.ones(5, bool),
    "no key": np.ones((0, 0), bool),
}


def mask(array, nodes="Y = Identity(mask)", shape=None):
    """The mask of a graph, as the rules see it."""
    kinds = {"b": "bool", "i": "int64", "f": "real"}
    dims = ", ".join(map(str, array.shape if shape is None else shape))
    text = f"g (float[n] X) => ({kinds[array.dtype.kind]}[{dims}] Y) {{ {nodes} }}"
    model = Graph(text, {"mask": array, "many": np.array([2, 1, 5, 5])}).model()
    (value,) = model.graph.outputs
    return value.producer().inputs[0] if nodes.startswith("Y = Identity") else value


@pytest.mark.parametrize("name", MASKS)
def test_a_window_on_the_past_is_recognized(name):
    array, width = MASKS[name]
    assert window(mask(array)) == width


@pytest.mark.parametrize("name", NO_MASKS)
def test_another_mask_is_not(name):
    assert window(mask(NO_MASKS[name])) is None


def test_a_constant_may_be_repeated_for_each_sequence():
    expanded = {"nodes": "Y = Expand(mask, many)", "shape": (2, 1, 5, 5)}
    assert window(mask(band(5, 3), **expanded)) == 3
    assert window(mask(np.ones((1, 1), bool), **expanded)) is None  # all is seen


def test_a_computed_mask_is_not_known():
    assert window(mask(CAUSAL, "Y = Not(mask)")) is None
