"""Layers that carry a state from token to token."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator.torch_kernels._helpers import by_heads
from ortmeter.evaluator.torch_kernels._registry import kernel

__all__ = ["causal_conv_with_state", "linear_attention"]

_RULES = ("linear", "gated", "delta", "gated_delta")


@kernel("CausalConvWithState", since=27)
def causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    past_state: Tensor | None = None,
    *,
    activation: str = "none",
    n_outputs: int = 1,
) -> Any:
    """Convolve each channel with its past; then what the next block needs of the past."""
    before = weight.shape[2] - 1
    past = x.new_zeros(*x.shape[:2], before) if past_state is None else past_state
    padded = torch.cat((past, x), 2)
    y = functional.conv1d(padded, weight, bias, groups=x.shape[1])
    if activation in ("silu", "swish"):
        y = functional.silu(y)
    elif activation != "none":
        raise InvalidArgumentError(
            f"CausalConvWithState: activation is {activation!r}; accepted: none, silu, swish"
        )
    return (y, padded[:, :, padded.shape[2] - before :]) if n_outputs > 1 else y


@kernel("LinearAttention", since=27)
def linear_attention(  # noqa: PLR0917 - the inputs of the operator
    query: Tensor,
    key: Tensor,
    value: Tensor,
    past_state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """Attention by a state that is updated token by token, in float32 at least."""
    del chunk_size
    if update_rule not in _RULES:
        raise InvalidArgumentError(f"update_rule is {update_rule!r}; accepted: {_RULES}")
    work = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (
        by_heads(x.to(work), heads)
        for x, heads in ((query, q_num_heads), (key, kv_num_heads), (value, kv_num_heads))
    )
    state = (
        q.new_zeros(k.shape[0], k.shape[1], k.shape[3], v.shape[3])
        if past_state is None
        else past_state.to(work)
    )
    fade = None if decay is None else by_heads(decay.to(work), kv_num_heads).exp().unsqueeze(-1)
    rate = None if beta is None else by_heads(beta.to(work), beta.shape[-1])
    outputs = []
    for t in range(q.shape[2]):
        state = state if fade is None else state * fade[:, :, t]
        added = v[:, :, t]
        if rate is not None:
            known = (state * k[:, :, t].unsqueeze(-1)).sum(-2)
            added = rate[:, :, t] * (added - known)
        state = state + k[:, :, t].unsqueeze(-1) * added.unsqueeze(-2)
        read = state.repeat_interleave(q_num_heads // kv_num_heads, 1)
        outputs.append((q[:, :, t].unsqueeze(-2) @ read).squeeze(-2))
    y = torch.stack(outputs, 1) * (scale or q.shape[3] ** -0.5)
    kept = query.dtype if past_state is None else past_state.dtype
    return y.flatten(2).to(query.dtype), state.to(kept)
