"""Recurrent networks: what stands in for them on torch, and what the reference ignores."""

import numpy as np
import pytest
from kernel_checks import assert_same, case, one_node, run_ort, to_numpy, to_torch

from ortmeter.errors import ModelError
from ortmeter.evaluator import Evaluator
from ortmeter.operators import find_operator

RNG = np.random.default_rng(0)
STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DIRECTIONS = {"forward": 1, "bidirectional": 2}


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4") * np.float32(0.3)


def network(op_type, direction="forward", *, lengths=None, **options):
    """One layer with random weights; the GRU of torch is linear before its reset."""
    count, gates = DIRECTIONS[direction], GATES[op_type]
    inputs = [
        floats(STEPS, BATCH, SIZE),
        floats(count, gates * HIDDEN, SIZE),
        floats(count, gates * HIDDEN, HIDDEN),
        floats(count, 2 * gates * HIDDEN),
        *([np.int32(lengths)] if lengths else []),
    ]
    options |= {"linear_before_reset": 1} if op_type == "GRU" else {}
    options |= {"direction": direction, "hidden_size": HIDDEN}
    return case(op_type, 14, *inputs, n_outputs=3 if op_type == "LSTM" else 2, **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_networks(op_type, direction):
    node = network(op_type, direction)
    inputs = [*map(to_torch, node.inputs)]
    got = find_operator(op_type).stand_in(*inputs, **node.attributes)(*inputs)
    assert_same(run_ort(node), to_numpy(got))


@pytest.mark.parametrize(
    ("op_type", "options"),
    [("LSTM", {}), ("GRU", {"linear_before_reset": 0}), ("GRU", {"linear_before_reset": 1})],
)
@pytest.mark.parametrize("biased", [False, True])
def test_a_kernel_walks_the_steps(op_type, options, biased):
    node = network(op_type)
    given = case(
        op_type,
        14,
        *node.inputs[: 4 if biased else 3],
        n_outputs=3 if op_type == "LSTM" else 2,
        hidden_size=HIDDEN,
        **options,
    )
    model, feeds = one_node(given)
    found = Evaluator(model, sources=("torch",))
    assert_same(run_ort(given), found.run(None, feeds))
    assert found.assignment["source"].tolist() == ["torch"]


@pytest.mark.parametrize("options", [{"direction": "reverse"}, {"layout": 1}, {"clip": 0.5}])
def test_a_kernel_refuses_what_it_does_not_walk(options):
    node = network("LSTM")
    model, feeds = one_node(case("LSTM", 14, *node.inputs, hidden_size=HIDDEN, **options))
    with pytest.raises(ModelError, match="LSTM"):
        Evaluator(model, sources=("torch",)).run(None, feeds)


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        *(
            (op_type, options)
            for op_type in GATES
            for options in ({"lengths": [5, 2, 3]}, {"clip": 0.02})
        ),
        ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Relu"]}),
        ("LSTM", {"input_forget": 1}),
    ],
)
def test_what_the_reference_ignores_runs_elsewhere(op_type, options):
    node = network(op_type, **options)
    model, feeds = one_node(node)
    forced = Evaluator(model, {op_type: "reference"}).run(None, feeds)
    expected = run_ort(node)
    assert not np.allclose(forced[0], expected[0], atol=1e-3)
    evaluator = Evaluator(model)
    assert_same(expected, evaluator.run(None, feeds))
    assert evaluator.assignment["source"].tolist() == ["ort"]
    with pytest.raises(ModelError, match="known to be wrong"):
        Evaluator(model, sources=("torch", "reference")).run(None, feeds)
