"""Layers of networks: convolutions, pools, recurrent layers, activations."""

import math

import numpy as np

from ortmeter.observatory.case import Case, call


def _conv(variant: str, x: str, w: str, attributes: str = "group = 1") -> Case:
    channels = w.split(",", maxsplit=1)[0]  # of the bias
    return call(f"Conv<{attributes}>", f"T[{x}] X, T[{w}] W*, T[{channels}] B*", variant)


def _transposed(variant: str, x: str, w: str, channels: int, attributes: str) -> Case:
    return call(f"ConvTranspose<{attributes}>", f"T[{x}] X, T[{w}] W*, T[{channels}] B*", variant)


_SAME = "pads = [1,1,1,1]"
_USUAL = "T[1,32,28,28] X, T[32,32,3,3] W*, T[32] B*"
_CONVOLUTIONS = (
    _conv("1x1", "1,64,28,28", "64,64,1,1"),
    _conv("1x1 many channels", "1,256,7,7", "256,256,1,1"),
    _conv("3x3", "1,32,28,28", "32,32,3,3", _SAME),
    _conv("3x3 many channels", "1,96,7,7", "96,96,3,3", _SAME),
    _conv("7x7 first layer", "1,3,112,112", "16,3,7,7", "strides = [2,2], pads = [3,3,3,3]"),
    _conv("3x3 dilated", "1,32,28,28", "32,32,3,3", "dilations = [2,2], pads = [2,2,2,2]"),
    _conv("3x3 4 groups", "1,64,28,28", "64,16,3,3", f"group = 4, {_SAME}"),
    Case("Conv", f"C = Conv<{_SAME}>(X, W, B) Y = Relu(C)", _USUAL, "3x3 with Relu"),
    _conv("depthwise 3x3", "1,64,28,28", "64,1,3,3", f"group = 64, {_SAME}"),
    _conv("depthwise 5x5", "1,64,28,28", "64,1,5,5", "group = 64, pads = [2,2,2,2]"),
    _conv("1-D", "1,64,400", "64,64,3", "pads = [1,1]"),
    _conv("1-D depthwise 31", "1,128,200", "128,1,31", "group = 128, pads = [15,15]"),
    _conv("3-D", "1,8,8,16,16", "8,8,3,3,3", "pads = [1,1,1,1,1,1]"),
    call(f"Conv<{_SAME}>", "T[1,32,14,14] X, T[32,32,3,3] W", "3x3 variable"),
    Case(
        "Conv", f"C = Conv<{_SAME}>(X, W, B) D = Add(C, Z) Y = Relu(D)",
        f"{_USUAL}, T[1,32,28,28] Z", "3x3 residual",
    ),
    Case(
        "Conv", f"C = Conv<{_SAME}>(X, W) Y = BatchNormalization(C, S, B, M, V)",
        "T[1,32,28,28] X, T[32,32,3,3] W*, T[32] S*, T[32] B*, T[32] M*, T[32] V* = positive",
        "3x3 with BatchNormalization",
    ),
    _transposed("2x2 strided", "1,32,14,14", "32,16,2,2", 16, "strides = [2,2]"),
    _transposed("4x4 strided", "1,32,14,14", "32,16,4,4", 16, f"strides = [2,2], {_SAME}"),
    _transposed("1-D", "1,64,100", "64,32,8", 32, "strides = [4], pads = [2,2]"),
)  # fmt: skip

_IMAGES, _FEW_IMAGES = "T[1,64,28,28] X", "T[1,16,28,28] X"
_2X2, _3X3 = "kernel_shape = [2,2], strides = [2,2]", "kernel_shape = [3,3], pads = [1,1,1,1]"
# The first one of each square of four.
_CORNERS = " ".join(map(str, np.arange(16 * 28 * 28).reshape(16, 28, 28)[:, ::2, ::2].flat))
_POOLS = (
    call(f"MaxPool<{_2X2}>", _IMAGES, "2x2"),
    call(f"AveragePool<{_3X3}>", _FEW_IMAGES, "3x3"),
    call(f"AveragePool<{_3X3}, count_include_pad = 1>", _FEW_IMAGES, "3x3 borders counted"),
    call(f"LpPool<{_2X2}>", _FEW_IMAGES, "2x2"),
    call(f"MaxPool<{_3X3}, strides = [2,2]>", "T[1,16,56,56] X", "3x3 strided"),
    call(f"MaxPool<{_2X2}>", _IMAGES, "2x2 and indices", outputs="T Y, i64 I"),
    call(f"MaxPool<{_2X2}>", _IMAGES, "2x2", "u8"),
    call("GlobalAveragePool", "T[1,256,14,14] X"),
    call("GlobalMaxPool", "T[1,256,14,14] X"),
    call("GlobalLpPool", "T[1,256,14,14] X"),
    call(f"MaxUnpool<{_2X2}>", f"T[1,16,14,14] P, i64[1,16,14,14] I = {_CORNERS}"),
)


def _recurrent(op: str, gates: int, variant: str, x: str, attributes: str = "") -> Case:
    """Write a layer of 64 units over inputs of 64 features."""
    ways = 2 if "bidirectional" in attributes else 1
    rows = gates * 64
    inputs = f"T[{x}] X, T[{ways},{rows},64] W*, T[{ways},{rows},64] R*, T[{ways},{2 * rows}] B*"
    return call(f"{op}<hidden_size = 64, {attributes}>", inputs, variant)


_RECURRENT = (
    _recurrent("LSTM", 4, "32 steps", "32,1,64", 'direction = "forward"'),
    _recurrent("LSTM", 4, "32 steps bidirectional", "32,1,64", 'direction = "bidirectional"'),
    _recurrent("LSTM", 4, "8 steps of 16 rows", "8,16,64", 'direction = "forward"'),
    _recurrent("GRU", 3, "32 steps", "32,1,64", "linear_before_reset = 0"),
    _recurrent("GRU", 3, "32 steps linear before reset", "32,1,64", "linear_before_reset = 1"),
    _recurrent("RNN", 1, "32 steps", "32,1,64", 'activations = ["Tanh"]'),
)

_ROWS = "T[1,64,1024] X"
_ACTIVATIONS = (
    call("com.microsoft.Gelu", _ROWS, "contrib"),
    call("com.microsoft.QuickGelu", _ROWS),
    call("com.microsoft.FastGelu", _ROWS),
    call("com.microsoft.BiasGelu", f"{_ROWS}, T[1024] B*"),
    Case(
        "FastGelu",
        "C = Pow(X, N) D = Mul(C, K) A = Add(X, D) E = Mul(A, R) G = Tanh(E) P = Add(G, O) "
        "M = Mul(X, P) Y = Mul(M, H)",
        f"{_ROWS}, T[] N = 3, T[] K = 0.044715, T[] R = {math.sqrt(2 / math.pi)}, T[] O = 1, "
        "T[] H = 0.5", "of eight nodes",
    ),
    Case(
        "QuickGelu", "A = Mul(X, K) G = Sigmoid(A) Y = Mul(X, G)", f"{_ROWS}, T[] K = 1.702",
        "of three nodes",
    ),
    call("Dropout", _ROWS, "inference"),
)  # fmt: skip

CASES = (*_CONVOLUTIONS, *_POOLS, *_RECURRENT, *_ACTIVATIONS)
