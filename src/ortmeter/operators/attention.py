"""Attention and rotary embedding."""

import math
from typing import Any

import numpy as np

from ortmeter.operators.late import Array, Dtype, Tensor, TensorFunction, functional, special, torch
from ortmeter.operators.registry import MICROSOFT, definition, family, kernel, stand_in
from ortmeter.operators.tensors import by_heads, dtype_of, refused

declare = family("attention")
declare("Attention RotaryEmbedding", cpu_types="f32 f16")
declare("GroupQueryAttention", domain=MICROSOFT, cpu_types="f32 f16")
declare("Attention MultiHeadAttention RotaryEmbedding", domain=MICROSOFT)

_PACKED = 3  # rank of (batch, sequence, heads * size)
_RAW, _CAPPED, _BIASED, _PROBABILITIES = range(4)  # values of qk_matmul_output_mode


def _allowed(
    shape: tuple[int, int],
    *,
    past: int,
    valid: Tensor | None,
    is_causal: int,
    left: int,
    right: int,
    device: Any,
) -> Tensor | None:
    """Return True where a query sees a key, besides the mask; None when every key is seen."""
    if valid is None and not (is_causal or left >= 0 or right >= 0):
        return None
    queries, keys = (torch.arange(size, device=device) for size in shape)
    # Absolute positions of the queries: those that precede them are in a cache.
    places = queries.reshape(-1, 1) + past
    seen = torch.ones(shape, dtype=torch.bool, device=device)
    if valid is not None:
        valid = valid.reshape(-1, 1, 1, 1)
        places = places + (valid - shape[0])
        seen = keys < valid
    ahead = keys - places
    if is_causal:
        seen = seen & (ahead <= 0)
    if left >= 0:
        seen = seen & (ahead >= -left)
    return seen & (ahead <= right) if right >= 0 else seen


@kernel("Attention", since=23)
def _attention(  # noqa: PLR0917 - the inputs of the operator
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    n_outputs: int = 1,
) -> Any:
    packed = q.ndim == _PACKED
    if packed:
        q, k, v = (
            _unpack(x, heads)
            for x, heads in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads))
        )
    past = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = torch.cat((past_key, k), 2), torch.cat((past_value, v), 2)
    allowed = _allowed(
        (q.shape[2], k.shape[2]),
        past=past,
        valid=nonpad_kv_seqlen,
        is_causal=is_causal,
        left=left_window_size,
        right=right_window_size,
        device=q.device,
    )
    bias = _bias(mask, allowed, q, k)
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    precision = q.dtype if softmax_precision is None else dtype_of("Attention", softmax_precision)
    if n_outputs <= _PROBABILITIES and not softcap and precision == q.dtype:
        y, scores = _fused(q, k, v, bias, scale), None
    else:
        y, scores = _detailed(
            q,
            k,
            v,
            bias,
            scale=scale,
            softcap=softcap,
            precision=precision,
            mode=qk_matmul_output_mode,
        )
    if packed:
        y = y.transpose(1, 2).flatten(2)
    return (y, k, v, scores)[:n_outputs] if n_outputs > 1 else y


def _unpack(x: Tensor, heads: int | None) -> Tensor:
    if heads is None:
        accepted = "4 dimensions, or q_num_heads and kv_num_heads"
        raise refused("Attention", accepted, x, also=" and no number of heads")
    return by_heads(x, heads)


def _bias(mask: Tensor | None, allowed: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Return what is added to the scores: a mask, and minus infinity where nothing is seen."""
    if mask is not None:
        mask = mask if mask.dtype == torch.bool else mask.to(q.dtype)
        mask = mask.unsqueeze(0) if mask.ndim == 1 else mask
        missing = k.shape[2] - mask.shape[-1]
        if missing > 0:
            hidden = 0.0 if mask.dtype == torch.bool else -math.inf
            mask = functional.pad(mask, (0, missing), value=hidden)
        if mask.dtype == torch.bool:
            allowed = mask if allowed is None else mask & allowed
            mask = None
    if allowed is None:
        return mask
    zero = torch.zeros((), dtype=q.dtype, device=q.device) if mask is None else mask
    return torch.where(allowed, zero, -math.inf)


def _fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Run the kernel of torch; queries that see nothing give zeros."""
    grouped = q.shape[1] != k.shape[1]
    y = functional.scaled_dot_product_attention(q, k, v, bias, scale=scale, enable_gqa=grouped)
    if bias is not None:
        # torch gives these zeros on CPU, and promises nothing for its other kernels.
        return torch.where(_sees_nothing(bias), 0, y)
    if y.device.type == "cpu" and not y.any(-1).all():  # torch: zeros where no score is a number
        return _detailed(q, k, v, None, scale=scale, softcap=0.0, precision=q.dtype, mode=_RAW)[0]
    return y


def _sees_nothing(bias: Tensor) -> Tensor:
    return torch.isneginf(bias).all(-1, keepdim=True)


def _detailed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    softcap: float,
    precision: Dtype,
    mode: int,
) -> tuple[Tensor, Tensor]:
    """Compute the steps one by one; return the result and the scores of the step asked for."""
    if q.shape[1] != k.shape[1]:
        repeats = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    root = math.sqrt(scale)
    raw = (q * root) @ (k * root).transpose(2, 3)
    capped = torch.tanh(raw / softcap) * softcap if softcap else raw
    biased = capped if bias is None else capped + bias
    probabilities = torch.softmax(biased.to(precision), -1)
    if bias is not None:
        probabilities = torch.where(_sees_nothing(bias), 0, probabilities)
    probabilities = probabilities.to(q.dtype)
    steps = {_RAW: raw, _CAPPED: capped, _BIASED: biased, _PROBABILITIES: probabilities}
    return probabilities @ v, steps[mode]


@stand_in("Attention")
def _torch_attention(
    q: Tensor, k: Tensor, *_others: Any, is_causal: int = 0, scale: float | None = None, **_: Any
) -> TensorFunction:
    causal, grouped = bool(is_causal), q.shape[1] != k.shape[1]
    return lambda q, k, v, mask=None: functional.scaled_dot_product_attention(
        q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )


@kernel("RotaryEmbedding", since=23)
def _rotary_embedding(
    x: Tensor,
    cos_cache: Tensor,
    sin_cache: Tensor,
    position_ids: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    heads = (by_heads(x, num_heads) if x.ndim == _PACKED else x).transpose(1, 2)
    size = rotary_embedding_dim or heads.shape[3]
    cos, sin = (
        (cache if position_ids is None else cache[position_ids]).unsqueeze(2)
        for cache in (cos_cache, sin_cache)
    )
    turned, kept = heads[..., :size], heads[..., size:]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    pair = (cos * first - sin * second, sin * first + cos * second)
    turned = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
    y = torch.cat((turned, kept), -1)
    return y.flatten(2) if x.ndim == _PACKED else y.transpose(1, 2)


@definition("RotaryEmbedding")
def _rotate(x: Array, places: Array, cos: Array, sin: Array, *, interleaved: int = 0) -> Array:
    """Rotate the pairs of elements of (batch, heads, rows, size) by the angles of the places."""
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
