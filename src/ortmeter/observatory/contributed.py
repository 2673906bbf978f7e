"""Operators of ONNX Runtime that ONNX lacks, written from their definitions, in float64.

They take arrays in the order of the operator and its attributes by name, and return the first
outputs. What a case does not need is left out: an unknown attribute is an error.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit, ndtr, softmax

DOMAIN = "com.microsoft"

_Array: TypeAlias = np.ndarray


def _gelu(x: _Array) -> _Array:
    return np.asarray(x * ndtr(x))


def _fast_gelu(x: _Array, bias: _Array | None = None) -> _Array:
    """Follow the formula that its kernels share, with their two constants of seven digits."""
    x = x if bias is None else x + bias
    inner = float(np.float32(0.7978845608)), float(np.float32(0.035677408136))
    return np.asarray(x * (1 + np.tanh(x * (inner[0] + inner[1] * x * x))) / 2)


def _quick_gelu(x: _Array, *, alpha: float = float(np.float32(1.702))) -> _Array:
    return np.asarray(x * expit(alpha * x))


def _matmul(a: _Array, b: _Array, *, alpha: float = 1, transA: int = 0, transB: int = 0) -> _Array:
    a, b = (
        np.swapaxes(array, -1, -2) if swapped else array
        for array, swapped in ((a, transA), (b, transB))
    )
    return np.asarray(alpha * (a @ b))


def _gemm(a: _Array, b: _Array, c: _Array, *, activation: str, **options: Any) -> _Array:
    if activation != "Relu":
        raise NotImplementedError(activation)
    return np.asarray(np.maximum(_matmul(a, b, **options) + c, 0))


def _distances(a: _Array, b: _Array, *, metric: str = "sqeuclidean") -> _Array:
    squares = np.square(a[:, None] - b[None]).sum(-1)
    return np.sqrt(squares) if metric == "euclidean" else np.asarray(squares)


def _layer_norm(x: _Array, scale: _Array, bias: _Array | float | None, epsilon: float) -> _Array:
    centred = x - x.mean(-1, keepdims=True)
    normalized = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + epsilon)
    return np.asarray(normalized * scale + (0 if bias is None else bias))


def _skip_layer_norm(
    x: _Array,
    skip: _Array,
    scale: _Array,
    beta: _Array | None = None,
    bias: _Array | None = None,
    *,
    epsilon: float = 1e-12,
) -> _Array:
    return _layer_norm(x + skip + (0 if bias is None else bias), scale, beta, epsilon)


def _skip_rms_norm(x: _Array, skip: _Array, scale: _Array, *, epsilon: float = 1e-12) -> _Array:
    total = x + skip
    return np.asarray(total / np.sqrt(np.square(total).mean(-1, keepdims=True) + epsilon) * scale)


def _embed_layer_norm(*inputs: _Array, epsilon: float = 1e-12) -> tuple[_Array, _Array]:
    ids, segments, words, places, kinds, scale, bias = inputs
    total = words[ids] + places[: ids.shape[1]] + kinds[segments]
    return _layer_norm(total, scale, bias, epsilon), np.zeros(len(ids), np.int32)


def _rotate(
    x: _Array, places: _Array, cos: _Array, sin: _Array, *, interleaved: bool = False
) -> _Array:
    """Rotate the pairs of elements of (batch, heads, rows, size) by the angles of the places."""
    cos, sin = cos[places][:, None], sin[places][:, None]
    if interleaved:
        one, two = x[..., ::2], x[..., 1::2]
        pair = (one * cos - two * sin, one * sin + two * cos)
        return np.stack(pair, axis=-1).reshape(x.shape)
    one, two = np.split(x, 2, axis=-1)
    return np.concatenate([one * cos - two * sin, one * sin + two * cos], axis=-1)


def _rotary(x: _Array, places: _Array, cos: _Array, sin: _Array, *, interleaved: int = 0) -> _Array:
    return _rotate(x, places, cos, sin, interleaved=bool(interleaved))


def _heads(x: _Array, count: int) -> _Array:
    return np.swapaxes(x.reshape((*x.shape[:2], count, -1)), 1, 2)


def _attend(q: _Array, k: _Array, v: _Array, hidden: _Array | None = None) -> _Array:
    """Attend, by heads, to the keys that are not hidden; return (batch, rows, all the heads)."""
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    found = np.swapaxes(softmax(scores, axis=-1) @ v, 1, 2)
    return np.asarray(found.reshape((*found.shape[:2], -1)))


def _after(rows: int, keys: int) -> _Array:
    """Say which keys come after a row, the last row being that of the last key."""
    return np.arange(keys) > np.arange(keys - rows, keys)[:, None]


def _multi_head(
    q: _Array,
    k: _Array,
    v: _Array,
    bias: _Array | None = None,
    *,
    num_heads: int = 1,
    unidirectional: int = 0,
) -> _Array:
    parts = np.split(bias, 3) if bias is not None else (0, 0, 0)
    q, k, v = (_heads(x + part, num_heads) for x, part in zip((q, k, v), parts, strict=True))
    return _attend(q, k, v, _after(q.shape[2], k.shape[2]) if unidirectional else None)


def _attention(x: _Array, weights: _Array, bias: _Array, *, num_heads: int = 1) -> _Array:
    return _multi_head(*np.split(x @ weights + bias, 3, axis=-1), num_heads=num_heads)


def _grouped(
    *inputs: Any, num_heads: int = 1, kv_num_heads: int = 1, do_rotary: int = 0
) -> tuple[_Array, ...]:
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


def _matmul_of_few_bits(
    a: _Array, codes: _Array, scales: _Array, *, bits: int = 4, N: int, **_sizes: int
) -> _Array:
    """Multiply by codes of a few bits, the lowest first, around the middle of their range."""
    shifts = np.arange(0, 8, bits)
    digits = (codes[..., None] >> shifts.astype(np.uint8)) & (2**bits - 1)
    blocks = digits.reshape((N, scales.size // N, -1)).astype(np.float64) - 2 ** (bits - 1)
    return np.asarray(a @ (blocks * scales.reshape((N, -1, 1))).reshape((N, -1)).T)


def _dequantize(x: _Array, scale: _Array, zero: _Array) -> _Array:
    return np.asarray((x.astype(np.float64) - zero.astype(np.float64)) * scale)


def _quantize(y: _Array, scale: _Array, zero: _Array) -> _Array:
    info = np.iinfo(zero.dtype)
    return np.asarray(np.clip(np.rint(y / scale) + zero, info.min, info.max), zero.dtype)


def _dynamic_matmul(
    x: _Array, w: _Array, scale: _Array, zero: _Array, bias: _Array | float = 0
) -> _Array:
    """Quantize the rows as DynamicQuantizeLinear does, in float32."""
    rows = x.astype(np.float32)
    low, high = np.minimum(rows.min(), 0), np.maximum(rows.max(), 0)
    step = np.asarray((high - low) / np.float32(255))
    middle = np.clip(np.rint(-low / step), 0, 255).astype(np.uint8)
    codes = _quantize(rows, step, middle)
    return np.asarray(_dequantize(codes, step, middle) @ _dequantize(w, scale, zero) + bias)


def _integer_matmul(*inputs: _Array) -> _Array:
    x, w, x_scale, w_scale, x_zero, w_zero, bias = inputs
    product = _dequantize(x, x_scale, x_zero) @ _dequantize(w, w_scale, w_zero)
    return np.asarray(product + bias)


def _q_gemm(*inputs: _Array, transB: int = 0) -> _Array:
    x, x_scale, x_zero, w, w_scale, w_zero, bias, y_scale, y_zero = inputs
    product = _matmul(
        _dequantize(x, x_scale, x_zero), _dequantize(w, w_scale, w_zero), transB=transB
    )
    return _quantize(product + bias * (x_scale * w_scale), y_scale, y_zero)


def _q_binary(function: Callable[..., _Array]) -> Callable[..., _Array]:
    def run(*inputs: _Array) -> _Array:
        return _quantize(function(_dequantize(*inputs[:3]), _dequantize(*inputs[3:6])), *inputs[6:])

    return run


def _q_unary(function: Callable[..., _Array]) -> Callable[..., _Array]:
    def run(*inputs: _Array, **options: Any) -> _Array:
        return _quantize(function(_dequantize(*inputs[:3]), **options), *inputs[3:])

    return run


def _mean_of_images(x: _Array, *, channels_last: int = 0) -> _Array:
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    return np.asarray(x.mean(axes, keepdims=True))


def _windows(
    x: _Array, shape: Sequence[int], pads: Sequence[int], strides: Sequence[int], first: int
) -> _Array:
    """List the windows of an image whose spatial axes start at *first*; NaN beyond its borders."""
    rank = len(shape)
    pads = pads or [0] * 2 * rank
    around = [(0, 0)] * x.ndim
    around[first : first + rank] = zip(pads[:rank], pads[rank:], strict=True)
    axes = tuple(range(first, first + rank))
    padded = np.pad(x.astype(np.float64), around, constant_values=np.nan)
    found = np.lib.stride_tricks.sliding_window_view(padded, tuple(shape), axes)
    steps = [slice(None)] * x.ndim
    steps[first : first + rank] = [slice(None, None, step) for step in strides or [1] * rank]
    return found[tuple(steps)].reshape((*found[tuple(steps)].shape[: x.ndim], -1))


def _average_pool(
    x: _Array, *, kernel_shape: Sequence[int], pads: Sequence[int] = (), strides: Sequence[int] = ()
) -> _Array:
    return np.asarray(np.nanmean(_windows(x, kernel_shape, pads, strides, 2), axis=-1))


def _max_pool_of_rows(
    x: _Array, *, kernel_shape: Sequence[int], pads: Sequence[int] = (), strides: Sequence[int] = ()
) -> _Array:
    return np.asarray(np.nanmax(_windows(x, kernel_shape, pads, strides, 1), -1).astype(x.dtype))


def _q_softmax(x: _Array, *, axis: int = -1, opset: int = 13) -> _Array:
    if opset < 13:  # noqa: PLR2004 - from there it normalizes one axis
        raise NotImplementedError("opset < 13")
    return np.asarray(softmax(x, axis=axis))


def _q_concat(scale: _Array, zero: _Array, *inputs: _Array, axis: int = 0) -> _Array:
    parts = [_dequantize(*inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantize(np.concatenate(parts, axis), scale, zero)


#: For each operator, a function of its inputs and of its attributes.
CONTRIBUTED: Mapping[str, Callable[..., Any]] = {
    "Attention": _attention,
    "BiasGelu": lambda x, bias: _gelu(x + bias),
    "CDist": _distances,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "EmbedLayerNormalization": _embed_layer_norm,
    "FastGelu": _fast_gelu,
    "FusedGemm": _gemm,
    "FusedMatMul": _matmul,
    "Gelu": _gelu,
    "GroupQueryAttention": _grouped,
    "Inverse": np.linalg.inv,
    "MatMulIntegerToFloat": _integer_matmul,
    "MatMulNBits": _matmul_of_few_bits,
    "MultiHeadAttention": _multi_head,
    "NhwcMaxPool": _max_pool_of_rows,
    "QGemm": _q_gemm,
    "QLinearAdd": _q_binary(np.add),
    "QLinearAveragePool": _q_unary(_average_pool),
    "QLinearConcat": _q_concat,
    "QLinearGlobalAveragePool": _q_unary(_mean_of_images),
    "QLinearMul": _q_binary(np.multiply),
    "QLinearSigmoid": _q_unary(expit),
    "QLinearSoftmax": _q_unary(_q_softmax),
    "QuickGelu": _quick_gelu,
    "RotaryEmbedding": _rotary,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
}
