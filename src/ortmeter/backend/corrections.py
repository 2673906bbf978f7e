"""What torch.onnx and ONNX Runtime compute otherwise than torch: written again, or refused."""

import dis
import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from onnxscript.onnx_opset import opset18 as op

from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.dtypes import short_name

_ATEN = torch.ops.aten


def _number(value: Any, dtype: ir.DataType) -> Any:
    # as torch, a number that the type does not have wraps around
    return op.Constant(value=ir.tensor(np.array(value).astype(dtype.numpy())))


def _log1p(self: Any, dtype: ir.DataType | None = None) -> Any:
    """``log(1 + x)``, corrected by what ``1 + x`` rounds away."""
    one = _number(1, dtype or self.dtype)
    total = op.Add(one, self)
    rounded = op.Log(total)
    corrected = op.Div(op.Mul(rounded, self), op.Sub(total, one))
    large = op.Where(op.Equal(total, self), rounded, corrected)
    return op.Where(op.Equal(total, one), self, large)


def _log_sigmoid(self: Any) -> Any:
    """``min(x, 0) - log(1 + exp(-|x|))``, which overflows nowhere."""
    logarithm = _log1p(op.Exp(op.Neg(op.Abs(self))), self.dtype)
    return op.Sub(op.Min(self, _number(0, self.dtype)), logarithm)


def _scaled(operator: str) -> Callable[..., Any]:
    """Make the translation of ``self + value * operator(x, y)``; torch.onnx rounds to 32 bits."""

    def scaled(self: Any, x: Any, y: Any, value: float = 1.0) -> Any:
        return op.Add(self, op.Mul(getattr(op, operator)(x, y), _number(value, self.dtype)))

    return scaled


def _scalar_tensor(s: Any, dtype: int | None = None, **_: Any) -> Any:
    """Write a number in its own type; torch.onnx rounds it to 32 bits."""
    wanted = ir.DataType(dtype or ir.DataType.FLOAT)
    return op.Cast(s, to=wanted) if isinstance(s, ir.Value) else _number(s, wanted)


def _window(make: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """Make the translation of a window; ONNX has other coefficients, and NaN or 0 for one point."""

    def window(length: int, dtype: int | None = None, **_: Any) -> Any:
        wanted = ir.DataType.FLOAT if dtype in {None, -1} else ir.DataType(dtype)
        return _number(make(length, dtype=torch.float64).numpy(), wanted)

    return window


#: Functions of ONNX for operators that torch.onnx converts into something else.
TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.log1p.default: _log1p,
    _ATEN.log_sigmoid.default: _log_sigmoid,
    _ATEN.addcdiv.default: _scaled("Div"),
    _ATEN.addcmul.default: _scaled("Mul"),
    _ATEN.scalar_tensor.default: _scalar_tensor,
    _ATEN.hann_window.default: _window(torch.hann_window),
    _ATEN.hamming_window.default: _window(torch.hamming_window),
    _ATEN.blackman_window.default: _window(torch.blackman_window),
}

# The exporter forgets that these use the statistics of the batch.
_TRAINING = frozenset({"_native_batch_norm_legit_functional", "_native_batch_norm_legit"})
# Kernels that lose NaN, and what finds one in the same places.
_LOSES_NAN = {
    "ReduceMax": "ReduceMax",
    "ReduceMin": "ReduceMax",
    "ArgMax": "ArgMax",
    "ArgMin": "ArgMax",
    "MaxPool": "MaxPool",
}
# Kernels whose result over an empty axis is not what torch has.
_WRONG_WHEN_EMPTY = frozenset({"Gemm", "ReduceMean"})


# fmt: off
# Where a result is stored, how a gradient is, hints: arguments that change no value.
_WITHOUT_EFFECT = frozenset({
    "cudnn_enable", "cudnn_enabled", "device", "implicit", "layout", "memory_format",
    "non_blocking", "output_size", "padding_idx", "path", "pin_memory", "requires_grad",
    "scale_grad_by_freq", "sorted", "sparse", "sparse_grad",
})
# fmt: on


def refuse_operators(
    program: torch.export.ExportedProgram, translation: Callable[[torch.fx.Node], Any]
) -> None:
    """Refuse operators of torch that torch.onnx converts into something else.

    ``translation(node)`` is the function by which it converts a node, or None.
    """
    for node in program.graph.nodes:
        name = getattr(node.target, "_opname", "")
        if name in _TRAINING:
            reason = "torch.onnx exports batch normalization for inference only"
        elif name == "instance_norm" and node.args[3] is not None and node.args[5]:
            reason = "torch.onnx does not update the running statistics"
        elif name == "sinc" and node.meta["val"].dtype.itemsize < 4:  # noqa: PLR2004 - 32 bits
            reason = "torch.onnx rounds the angle to 16 bits"
        elif name == "elu" and {*node.args[3:]} - {1}:
            reason = "torch.onnx scales its positive inputs too"
        elif name == "special_erfcx":
            reason = "torch.onnx converts it to 0 times inf"
        elif name == "scatter_reduce" and node.args[4] == "mean":
            reason = "ONNX has no mean of what is scattered"
        elif "embedding_bag" in name and node.args[0].meta["val"].dtype is torch.float64:
            reason = "torch.onnx rounds its sums to 32 bits"
        elif not name or not (reason := _what_is_left_out(node, name, translation(node))):
            continue
        way_out = ["Call model.eval()"] if "norm" in name else []
        raise UnsupportedGraphError(f"aten.{name}: {reason}", *way_out)


def _what_is_left_out(node: torch.fx.Node, name: str, function: Callable[..., Any] | None) -> str:
    """Name the results, or arguments other than the default, that a translation leaves out."""
    if name == "repeat_interleave" and node.args[1:2] == (0,):
        return "a size of 0 means another one in ONNX"
    if name.endswith("_aa") and node.args[2]:
        return "ONNX Runtime has no antialiasing with aligned corners"
    if "embedding_bag" in name and any(user.args[1] for user in node.users):
        return "torch.onnx does not compute the sizes and places of the bags"
    if function is None:
        return ""
    schema = {a.name: a for a in cast("Any", node.target)._schema.arguments}  # noqa: SLF001
    taken = inspect.signature(function).parameters
    given = [*zip(schema, taken, node.args, strict=False)]
    given += [(name, name, value) for name, value in node.kwargs.items()]
    ignored = [
        name
        for name, parameter, value in given
        if parameter not in _names_read(function)
        and name not in _WITHOUT_EFFECT
        and schema[name].has_default_value()
        and value != schema[name].default_value
        and not (name.startswith("scales") and _are_exact_scales(node))
    ]
    return f"torch.onnx ignores {', '.join(ignored)}" if ignored else ""


@functools.cache
def _names_read(function: Callable[..., Any]) -> set[str]:
    """Names of the variables that the body of a function reads."""
    body = dis.get_instructions(inspect.unwrap(function))
    loads = [instruction.argval for instruction in body if "LOAD" in instruction.opname]
    return {name for names in loads for name in (names if isinstance(names, tuple) else (names,))}


def _are_exact_scales(node: torch.fx.Node) -> bool:
    """Whether an image is resized by scales that follow from its sizes, or that torch ignores."""
    image, sizes, aligned, *scales = cast("Any", node.args)
    before = image.meta["val"].shape[2:]
    exact = zip(before, scales, sizes, strict=False)
    return aligned or all(not scale or size * scale == to for size, scale, to in exact)


def correct_model(model: ir.Model, types: Sequence[torch.dtype]) -> None:
    """Make a model compute what torch does, with outputs of these types; refuse what cannot."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "":
            _refuse(node)
            if node.op_type == "GroupNormalization" and _dtype(node) == ir.DataType.DOUBLE:
                node.attributes.add(ir.AttrInt64("stash_type", ir.DataType.DOUBLE))
            dtype = _dtype(node)
            if node.op_type in _LOSES_NAN and dtype is not None and dtype.is_floating_point():
                _keep_nan(node, dtype)
    for rank, wanted in enumerate(types):
        value = model.graph.outputs[rank]
        if value.is_graph_input():  # their memory would be the same
            _output_of(ir.Node("", "Identity", [value]), model.graph, rank, value.dtype)
        _give_type(model.graph, rank, ir.tensor_adapters.from_torch_dtype(wanted))


def _dtype(node: ir.Node) -> ir.DataType | None:
    """Type of the first input of a node."""
    first = node.inputs[0] if node.inputs else None
    return None if first is None else first.dtype


def _refuse(node: ir.Node) -> None:
    """Refuse what ONNX Runtime computes in another way, or less precisely."""
    empty = any(value is not None and _size(value) == 0 for value in node.inputs)
    left = _size(node.outputs[0]) if node.outputs else None
    reason = ""
    if empty and (
        (node.op_type in _WRONG_WHEN_EMPTY and left != 0)
        or (node.op_type.startswith("Reduce") and left == 0)  # its shape may be another
    ):
        reason = "of an empty tensor"
    elif node.op_type == "STFT":
        reason = "is less precise in ONNX Runtime"
    elif node.op_type == "DFT" and not _is_precise(node):
        reason = "of a length that is no power of two, where ONNX Runtime loses precision"
    elif node.op_type == "Resize" and _dtype(node) == ir.DataType.UINT8:
        mode = node.attributes.get_string("mode", "nearest")
        reason = "" if mode == "nearest" else "of bytes, which ONNX Runtime does not round"
    if reason:
        raise UnsupportedGraphError(
            f"{node.op_type} {reason}: its values would differ from torch's"
        )


def _is_precise(node: ir.Node) -> bool:
    """Whether the axes of a DFT that can be transformed have a power of two of elements."""
    shape, length = node.inputs[0].shape if node.inputs[0] else None, [*node.inputs, None][1]
    if length is not None or shape is None:
        return False
    return all(isinstance(size, int) and size & (size - 1) == 0 for size in list(shape)[1:-1])


def _size(value: ir.Value) -> int | None:
    """Count the elements of a value whose shape is known, or has a zero."""
    sizes = list(value.shape) if value.shape is not None else [None]
    if 0 in sizes:
        return 0
    return math.prod(s for s in sizes if isinstance(s, int)) if None not in sizes else None


def _keep_nan(node: ir.Node, dtype: ir.DataType) -> None:
    """Return NaN, or its place, where the same operator finds one."""
    assert node.graph is not None
    x, *rest = node.inputs
    written: list[ir.Node] = []

    def write(op_type: str, *inputs: Any, **attributes: Any) -> ir.Value:
        given = ir.convenience.convert_attributes(attributes)
        written.append(ir.Node("", op_type, inputs, given))
        return written[-1].outputs[0]

    kept: dict[str, Any] = dict(node.attributes)
    plain = ir.Node("", node.op_type, node.inputs, kept.values(), num_outputs=len(node.outputs))
    written.append(plain)
    found = write("Cast", write("IsNaN", x), to=dtype)
    found.type = ir.TensorType(dtype)
    where = place = write(_LOSES_NAN[node.op_type], found, *rest, **kept)
    if node.op_type.startswith("Arg"):
        axes = write("Constant", value_ints=[node.attributes.get_int("axis", 0)])
        where = write("ReduceMax", found, axes, keepdims=node.attributes.get_int("keepdims", 1))
    else:
        place = write("Constant", value=ir.tensor(np.array(math.nan, dtype.numpy())))
    first, *others = plain.outputs
    results = [write("Where", write("Cast", where, to=ir.DataType.BOOL), place, first), *others]
    for new, old in zip(results, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], written, node.outputs, results
    )


def _output_of(node: ir.Node, graph: ir.Graph, rank: int, dtype: ir.DataType | None) -> None:
    """Make the result of a node, which reads an output, this output."""
    old, (result,) = graph.outputs[rank], node.outputs
    result.type, result.shape = ir.TensorType(dtype or ir.DataType.UNDEFINED), old.shape
    result.name = f"{old.name}_as_torch"
    graph.append(node)
    graph.outputs[rank] = result


def _give_type(graph: ir.Graph, rank: int, wanted: ir.DataType) -> None:
    """Cast an output that has another type than in torch, for kernels that promote theirs."""
    value = graph.outputs[rank]
    found = value.dtype
    if found in {None, wanted}:
        return
    both_real = found.is_floating_point() and wanted.is_floating_point()
    if not both_real and found is not ir.DataType.BOOL:
        raise UnsupportedGraphError(
            f"an output is {short_name(int(found))} in ONNX and {short_name(int(wanted))} in torch"
        )
    cast = ir.Node("", "Cast", [value], ir.convenience.convert_attributes({"to": wanted}))
    _output_of(cast, graph, rank, wanted)
