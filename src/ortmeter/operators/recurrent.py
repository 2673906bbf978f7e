"""Recurrent networks, step by step, and the functions of torch that stand in for them."""

from collections.abc import Callable
from typing import Any

from ortmeter.operators.late import Tensor, TensorFunction, torch
from ortmeter.operators.registry import family, kernel, stand_in
from ortmeter.operators.tensors import named, refused

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


def _walk(op_type: str, step: Callable[..., tuple[Tensor, Tensor]]) -> None:
    """Give the kernel of a network: a judge of edge values beside onnx.reference."""

    @kernel(op_type, since=7)
    def run(
        x: Tensor,
        w: Tensor,
        r: Tensor,
        bias: Tensor | None = None,
        *others: Tensor | None,
        hidden_size: int | None = None,
        direction: str = "forward",
        **variant: Any,
    ) -> tuple[Tensor, ...]:
        is_plain = direction == "forward" and {*others} <= {None} and len(x)
        if not is_plain or variant.keys() - {"linear_before_reset"}:
            raise refused(op_type, "forward, whole sequences, usual activations, no state", x)
        added = x.new_zeros(2, w.shape[1]) if bias is None else bias[0].view(2, -1)
        h = c = x.new_zeros(x.shape[1], hidden_size or r.shape[2])
        rows = []
        for row in x @ w[0].T + added[0]:
            h, c = step(row, h, c, r[0], added[1], **variant)
            rows.append(h)
        return (torch.stack(rows).unsqueeze(1), h[None], c[None])[: 3 if op_type == "LSTM" else 2]


def _lstm(x: Tensor, h: Tensor, c: Tensor, r: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
    i, o, f, new = (x + h @ r.T + added).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * new.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(  # noqa: PLR0917 - what a step has
    x: Tensor, h: Tensor, c: Tensor, r: Tensor, added: Tensor, linear_before_reset: int = 0
) -> tuple[Tensor, Tensor]:
    size = h.shape[-1]
    gates, new = x[..., : 2 * size], x[..., 2 * size :]
    z, reset = (gates + h @ r[: 2 * size].T + added[: 2 * size]).sigmoid().chunk(2, -1)
    last, more = r[2 * size :].T, added[2 * size :]
    past = reset * (h @ last + more) if linear_before_reset else (reset * h) @ last + more
    return (1 - z) * (new + past).tanh() + z * h, c


_walk("LSTM", _lstm)
_walk("GRU", _gru)
_network("RNN", named("rnn_tanh"), (0,))
_network("GRU", named("gru"), (1, 0, 2))
_network("LSTM", named("lstm"), (0, 2, 3, 1))
