"""Recurrent networks."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, run_kernel, run_ort

from ortmeter.errors import RefusedError

RNG = np.random.default_rng(0)


STEPS, BATCH, SIZE, HIDDEN = 5, 3, 4, 6


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def floats(*shape):
    return RNG.standard_normal(shape).astype("f4")


def network(
    op_type, direction, *, lengths=None, bias=True, initial=True, peephole=False, **options
):
    """One layer with random weights."""
    count, gates = DIRECTIONS[direction], GATES[op_type]
    inputs = [
        floats(STEPS, BATCH, SIZE),
        floats(count, gates * HIDDEN, SIZE) * 0.3,
        floats(count, gates * HIDDEN, HIDDEN) * 0.3,
        floats(count, 2 * gates * HIDDEN) * 0.3 if bias else None,
        np.int32(lengths) if lengths else None,
        floats(count, BATCH, HIDDEN) if initial else None,
    ]
    if op_type == "LSTM":
        inputs.append(floats(count, BATCH, HIDDEN) if initial else None)
        inputs.append(floats(count, 3 * HIDDEN) if peephole else None)
    while inputs[-1] is None:
        del inputs[-1]
    n_outputs = 3 if op_type == "LSTM" else 2
    options |= {"direction": direction, "hidden_size": HIDDEN}
    return case(op_type, 14, *inputs, n_outputs=n_outputs, **options)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_networks(op_type, direction):
    for options in (
        {},
        {"lengths": [5, 2, 3]},
        {"lengths": [1, 5, 4], "initial": False},
        {"bias": False, "initial": False},
        {"clip": 0.3},
    ):
        assert_agrees(network(op_type, direction, **options), run_ort)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_variants_of_the_gates(direction):
    for op_type, options in (
        ("GRU", {"linear_before_reset": 1}),
        ("GRU", {"linear_before_reset": 1, "lengths": [5, 1, 2]}),
        ("LSTM", {"peephole": True, "lengths": [2, 2, 5]}),
        ("LSTM", {"input_forget": 1}),
    ):
        assert_agrees(network(op_type, direction, **options), run_ort)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("op_type", "activations", "alpha", "beta"),
    [
        ("RNN", ["Relu"], [], []),
        ("GRU", ["HardSigmoid", "Softsign"], [0.3], [0.4]),
        ("LSTM", ["Sigmoid", "ScaledTanh", "LeakyRelu"], [1.2, 0.05], [0.7]),
        ("LSTM", ["HardSigmoid", "Tanh", "Elu"], [0.3, 0.5], [0.4]),
    ],
)
def test_activations_of_the_gates(op_type, activations, alpha, beta, direction):
    count = DIRECTIONS[direction]
    options = {"activations": activations * count}
    if alpha:
        options |= {"activation_alpha": alpha * count}
    if beta:
        options |= {"activation_beta": beta * count}
    assert_agrees(network(op_type, direction, **options), run_ort)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    """A layout that ONNX Runtime refuses on CPU: the other one, transposed."""
    time_first = network(op_type, "bidirectional")
    x, w, r, bias, lengths, *states = time_first.inputs
    moved = [x.swapaxes(0, 1), w, r, bias, lengths, *(state.swapaxes(0, 1) for state in states)]
    batch_first = case(
        op_type, 14, *moved, n_outputs=time_first.n_outputs, layout=1, **time_first.attributes
    )
    y, *finals = run_ort(time_first)
    expected = [y.transpose(2, 0, 1, 3), *(final.swapaxes(0, 1) for final in finals)]
    assert_same(expected, run_kernel(batch_first))


def test_an_unknown_activation_is_refused():
    with pytest.raises(RefusedError, match=r"'Sine'.*accepted: relu, tanh"):
        run_kernel(network("RNN", "forward", activations=["Sine"]))
