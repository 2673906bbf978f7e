"""Recurrent networks on the functions that torch has for them: RNN, GRU and LSTM."""

from collections.abc import Callable

from ortmeter.operators.late import Tensor, TensorFunction, torch
from ortmeter.operators.registry import family, kernel
from ortmeter.operators.tensors import named, refused

declare = family("other")
declare("GRU LSTM RNN")

# What torch computes: its activations, the rank in ONNX of each of its gates, which variants.
_FUNCTIONS: dict[str, tuple[TensorFunction, list[str], tuple[int, ...], Callable[..., object]]] = {
    "RNN": (named("rnn_tanh"), ["tanh"], (0,), lambda: True),
    "GRU": (
        named("gru"),
        ["sigmoid", "tanh"],
        (1, 0, 2),
        lambda *, linear_before_reset=0: linear_before_reset,
    ),
    "LSTM": (
        named("lstm"),
        ["sigmoid", "tanh", "tanh"],
        (0, 2, 3, 1),
        lambda *, input_forget=0: not input_forget,
    ),
}
_USUAL = "whole sequences, usual activations, no peephole, a GRU that is linear before its reset"


def _register_network(op_type: str) -> None:
    function, usual, order, is_known = _FUNCTIONS[op_type]

    @kernel(op_type, since=7, options_of=is_known)
    def run(  # noqa: PLR0917 - the inputs of the operators, the last two of LSTM only
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor | None = None,
        lengths: Tensor | None = None,
        initial_h: Tensor | None = None,
        initial_c: Tensor | None = None,
        peephole: Tensor | None = None,
        *,
        activations: list[str] | None = None,
        direction: str = "forward",
        hidden_size: int | None = None,
        layout: int = 0,
        **variant: int,
    ) -> tuple[Tensor, ...]:
        del hidden_size
        x = x.transpose(0, 1) if layout else x
        count, hidden = r.shape[0], r.shape[2]
        other = [name.lower() for name in activations or usual * count] != usual * count
        cut = lengths is not None and bool((lengths != x.shape[0]).any())
        whole = not cut and peephole is None and x.numel()
        if other or not whole or not is_known(**variant):
            raise refused(op_type, _USUAL, x, also=f" and {activations=}")
        backward = direction == "reverse"

        def in_order(gates: Tensor) -> Tensor:
            parts = gates.chunk(len(order))
            return torch.cat([parts[rank] for rank in order])

        added = w.new_zeros(count, 2 * w.shape[1]) if bias is None else bias
        parts = (t for i in range(count) for t in (w[i], r[i], *added[i].chunk(2)))
        states = [
            x.new_zeros(count, x.shape[1], hidden)
            if state is None
            else (state.transpose(0, 1) if layout else state).contiguous()
            for state in (initial_h, initial_c)[: 2 if op_type == "LSTM" else 1]
        ]
        y, *finals = function(
            *(x.flip(0) if backward else x, states if op_type == "LSTM" else states[0]),
            *([*map(in_order, parts)], True, 1, 0.0, False, count > 1, False),
        )
        y = y.unflatten(-1, (count, hidden))
        y = y.flip(0) if backward else y
        if layout:
            return (y.transpose(0, 1), *(final.transpose(0, 1) for final in finals))
        return (y.transpose(1, 2), *finals)


for _op_type in _FUNCTIONS:
    _register_network(_op_type)
