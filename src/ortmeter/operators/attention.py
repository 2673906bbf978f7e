"""Attention and rotary embedding."""

import math
from typing import Any

import numpy as np

from ortmeter.operators.late import Array, Tensor, TensorFunction, functional, special
from ortmeter.operators.registry import MICROSOFT, definition, family, stand_in

declare = family("attention")
declare("Attention RotaryEmbedding", cpu_types="f32 f16")
declare("GroupQueryAttention", domain=MICROSOFT, cpu_types="f32 f16")
declare("Attention MultiHeadAttention RotaryEmbedding", domain=MICROSOFT)


@stand_in("Attention")
def _torch_attention(
    q: Tensor, k: Tensor, *_others: Any, is_causal: int = 0, scale: float | None = None, **_: Any
) -> TensorFunction:
    causal, grouped = bool(is_causal), q.shape[1] != k.shape[1]
    return lambda q, k, v, mask=None: functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


@definition("RotaryEmbedding")
def _rotate(x: Array, places: Array, cos: Array, sin: Array, *, interleaved: int = 0) -> Array:
    """Rotate the pairs of elements of (batch, heads, rows, size) by the angles of the places."""
    if (x.ndim, places.ndim) != (4, 2):
        raise NotImplementedError("inputs by heads and a place for each row only")
    cos, sin = cos[places][:, None], sin[places][:, None]
    if interleaved:
        left, right = x[..., ::2], x[..., 1::2]
        pair = (left * cos - right * sin, left * sin + right * cos)
        return np.stack(pair, axis=-1).reshape(x.shape)
    left, right = np.split(x, 2, axis=-1)
    return np.concatenate([left * cos - right * sin, left * sin + right * cos], axis=-1)


def _heads(x: Array, count: int) -> Array:
    return np.swapaxes(x.reshape((*x.shape[:2], count, -1)), 1, 2)


def _attend(q: Array, k: Array, v: Array, hidden: Array | None = None) -> Array:
    """Attend, by heads, to the keys that are not hidden; return (batch, rows, all the heads)."""
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    rows = np.swapaxes(special.softmax(scores, axis=-1) @ v, 1, 2)
    return np.asarray(rows.reshape((*rows.shape[:2], -1)))


def _after(rows: int, keys: int) -> Array:
    """Say which keys come after a row, the last row being that of the last key."""
    return np.arange(keys) > np.arange(keys - rows, keys)[:, None]


@definition("MultiHeadAttention")
def _multi_head(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None = None,
    *,
    num_heads: int = 1,
    unidirectional: int = 0,
) -> Array:
    if {q.ndim, k.ndim, v.ndim} != {3}:
        raise NotImplementedError("inputs of 3 dimensions only")
    parts = np.split(bias, 3) if bias is not None else (0, 0, 0)
    q, k, v = (_heads(x + part, num_heads) for x, part in zip((q, k, v), parts, strict=True))
    return _attend(q, k, v, _after(q.shape[2], k.shape[2]) if unidirectional else None)


@definition("Attention")
def _packed_attention(x: Array, weights: Array, bias: Array, *, num_heads: int = 1) -> Array:
    return _multi_head(*np.split(x @ weights + bias, 3, axis=-1), num_heads=num_heads)


@definition("GroupQueryAttention")
def _grouped(
    *inputs: Any, num_heads: int = 1, kv_num_heads: int = 1, do_rotary: int = 0
) -> tuple[Array, ...]:
    """Attend to the past and to the new rows; all the batches have the same length."""
    q, k, v, past_k, past_v, lengths, _total, *angles = inputs
    (last,) = set(lengths.ravel().tolist())
    rows = q.shape[1]
    known = rows if past_k is None else rows + past_k.shape[2]
    if last + 1 != known or len(angles) != 2 * bool(do_rotary):
        raise NotImplementedError("a past in a larger buffer, or other inputs than two of angles")
    queries, new_k = _heads(q, num_heads), _heads(k, kv_num_heads)
    if do_rotary:
        places = np.tile(np.arange(last + 1 - rows, last + 1), (len(q), 1))
        queries, new_k = (_rotate(x, places, *angles) for x in (queries, new_k))
    keys, values = (
        new if past is None else np.concatenate([past, new], axis=2)
        for past, new in ((past_k, new_k), (past_v, _heads(v, kv_num_heads)))
    )
    k, v = (np.repeat(x, num_heads // kv_num_heads, axis=1) for x in (keys, values))
    return _attend(queries, k, v, _after(rows, keys.shape[2])), keys, values
