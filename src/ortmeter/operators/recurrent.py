"""Recurrent networks: torch has functions that stand in for RNN, GRU and LSTM."""

from typing import Any

from ortmeter.operators.late import Tensor, TensorFunction, torch
from ortmeter.operators.registry import family, stand_in
from ortmeter.operators.tensors import named

declare = family("other")
declare("GRU LSTM RNN")


def _network(op_type: str, function: TensorFunction, order: tuple[int, ...]) -> None:
    """Give the function of torch of a network, and the rank in ONNX of each of its gates."""

    @stand_in(op_type)
    def make(x: Tensor, w: Tensor, r: Tensor, bias: Tensor, *_states: Any, **_: Any) -> Any:
        count, hidden = r.shape[0], r.shape[2]
        parts = (t for i in range(count) for t in (w[i], r[i], *bias[i].chunk(2)))
        gates = (part.chunk(len(order)) for part in parts)
        weights = [torch.cat([own[rank] for rank in order]) for own in gates]
        zero = x.new_zeros(count, x.shape[1], hidden)
        start = [zero, zero] if op_type == "LSTM" else zero

        def run(x: Tensor, *_others: Any) -> tuple[Tensor, ...]:
            y, *finals = function(x, start, weights, True, 1, 0.0, False, count > 1, False)
            return (y.unflatten(-1, (count, hidden)).transpose(1, 2), *finals)

        return run


_network("RNN", named("rnn_tanh"), (0,))
_network("GRU", named("gru"), (1, 0, 2))
_network("LSTM", named("lstm"), (0, 2, 3, 1))
