"""Recurrent networks."""

import numpy as np
import pytest
from kernel_checks import assert_agrees, assert_same, case, one_node, run_kernel, run_ort

from ortmeter.errors import ModelError, RefusedError
from ortmeter.evaluator import Evaluator

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


# torch has the GRU that is linear before its reset only.
RESET = {"GRU": {"linear_before_reset": 1}}


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op_type", GATES)
def test_recurrent_networks(op_type, direction):
    usual = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
    for options in (
        {},
        {"lengths": [STEPS] * BATCH},
        {"bias": False, "initial": False},
        {"activations": usual[op_type] * DIRECTIONS[direction]},
    ):
        assert_agrees(network(op_type, direction, **options, **RESET.get(op_type, {})), run_ort)


@pytest.mark.parametrize("op_type", GATES)
def test_batch_first(op_type):
    """A layout that ONNX Runtime refuses on CPU: the other one, transposed."""
    time_first = network(op_type, "bidirectional", **RESET.get(op_type, {}))
    x, w, r, bias, lengths, *states = time_first.inputs
    moved = [x.swapaxes(0, 1), w, r, bias, lengths, *(state.swapaxes(0, 1) for state in states)]
    batch_first = case(
        op_type, 14, *moved, n_outputs=time_first.n_outputs, layout=1, **time_first.attributes
    )
    y, *finals = run_ort(time_first)
    expected = [y.transpose(2, 0, 1, 3), *(final.swapaxes(0, 1) for final in finals)]
    assert_same(expected, run_kernel(batch_first))


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        ("GRU", {}),
        ("RNN", {"activations": ["Relu"]}),
        ("RNN", {"lengths": [5, 2, 3]}),
        ("LSTM", {"peephole": True}),
        ("LSTM", {"input_forget": 1}),
    ],
)
def test_other_networks_are_refused(op_type, options):
    with pytest.raises(RefusedError, match=rf"{op_type}: given.*accepted: whole sequences"):
        run_kernel(network(op_type, "forward", **options))


@pytest.mark.parametrize(
    ("op_type", "options"),
    [
        *(
            (op_type, options)
            for op_type in GATES
            for options in ({"lengths": [5, 2, 3]}, {"clip": 0.2})
        ),
        ("GRU", {"activations": ["HardSigmoid", "Softsign"]}),
        ("LSTM", {"activations": ["HardSigmoid", "Tanh", "Relu"]}),
        ("LSTM", {"input_forget": 1}),
    ],
)
def test_what_the_reference_ignores_runs_elsewhere(op_type, options):
    node = network(op_type, "forward", **options)
    model, feeds = one_node(node)
    forced = Evaluator(model, {op_type: "reference"}).run(None, feeds)
    expected = run_ort(node)
    assert not np.allclose(forced[0], expected[0], atol=1e-3)
    evaluator = Evaluator(model)
    assert_same(expected, evaluator.run(None, feeds))
    assert evaluator.assignment["source"].tolist() == ["ort"]
    with pytest.raises(ModelError, match="known to be wrong"):
        Evaluator(model, sources=("torch", "reference")).run(None, feeds)
