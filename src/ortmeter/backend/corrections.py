"""What torch.onnx and ONNX Runtime compute otherwise than torch: written again, or refused."""

import dis
import functools
import inspect
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir._tape import Builder
from onnxscript.onnx_opset import opset18 as op

from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.dtypes import short_name

_ATEN = torch.ops.aten
_FX_NODE = "pkg.torch.onnx.fx_node"


def _tensor(value: Any, dtype: ir.DataType) -> Any:
    # as torch, a number that the type does not have wraps around
    return ir.tensor(np.array(value).astype(dtype.numpy()))


def _number(value: Any, dtype: ir.DataType) -> Any:
    return op.Constant(value=_tensor(value, dtype))


def _scalar_tensor(s: Any, dtype: int | None = None, **_: Any) -> Any:
    """Write a number in its own type; torch.onnx rounds it to 32 bits."""
    wanted = ir.DataType(dtype or ir.DataType.FLOAT)
    return op.Cast(s, to=wanted) if isinstance(s, ir.Value) else _number(s, wanted)


def _power(self: Any, exponent: float) -> Any:
    """Power by a number, where half of a power is a square root in torch."""
    if self.dtype.is_integer():
        raise UnsupportedGraphError("aten.pow: ONNX Runtime computes integers in float64")
    if abs(exponent) != 0.5:  # noqa: PLR2004
        return op.Pow(self, _number(exponent, self.dtype))
    root = op.Sqrt(self)
    return root if exponent > 0 else op.Reciprocal(root)


def _refused(name: str, reason: str) -> Callable[..., Any]:
    """Make the translation of an operator that torch has to run."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedGraphError(f"aten.{name}: {reason}")

    return refuse


#: Functions of ONNX for operators that torch.onnx converts into something else.
TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    _ATEN.scalar_tensor.default: _scalar_tensor,
    _ATEN.pow.Tensor_Scalar: _power,
}
# Operators that models rarely have, which torch.onnx converts into something else.
_LEFT_TO_TORCH = {
    **dict.fromkeys(
        ("blackman_window", "hamming_window", "hann_window"),
        "the windows of ONNX have other coefficients",
    ),
    **dict.fromkeys(("angle", "heaviside", "logit", "xlogy"), "torch.onnx loses NaN"),
    **dict.fromkeys(("addcdiv", "addcmul"), "torch.onnx rounds its number to 32 bits"),
    "atan2": "torch.onnx has other angles of zeros and infinities",
    "diagonal": "torch.onnx adds the rest times 0, which is NaN for infinity",
    **dict.fromkeys(
        ("floor_divide", "fmod", "remainder"), "torch.onnx has not the digits for the rest"
    ),
    **dict.fromkeys(("log1p", "log_sigmoid"), "torch.onnx has not the digits near zero"),
    **dict.fromkeys(("logaddexp", "logaddexp2"), "torch.onnx overflows"),
    "logcumsumexp": "torch.onnx adds exponentials that vanish beside the largest one",
    **dict.fromkeys(("sgn", "sign"), "ONNX Runtime has another sign of NaN"),
    "signbit": "torch.onnx ignores the sign of zero",
    "scatter_reduce": "ONNX has no mean, and no extreme without a start",
    "sinc": "torch.onnx rounds the angle to 16 bits",
    "special_erfcx": "torch.onnx converts it to 0 times inf",
    "trace": "torch.onnx adds the rest times 0, and integers in 32 bits",
    **dict.fromkeys(
        ("embedding_bag", "_embedding_bag"), "ONNX Runtime dies of its means, has not its places"
    ),
}
TRANSLATIONS |= {
    getattr(getattr(_ATEN, name), overload): _refused(name, reason)
    for name, reason in _LEFT_TO_TORCH.items()
    for overload in getattr(_ATEN, name).overloads()
    if "out" not in overload
}

_COMPARISONS = frozenset({"eq", "ge", "gt", "le", "lt", "ne"})
# Kernels that lose NaN.
_LOSES_NAN = frozenset({"ReduceMax", "ReduceMin", "MaxPool"})
# Operators and those of torch, which are asked for it; other products are of sizes.
_IN_FLOAT64 = {"Einsum": "aten.einsum", "Pow": "aten.pow", "ReduceProd": "aten.prod"}
_INTEGERS = frozenset({ir.DataType.INT32, ir.DataType.INT64})
_COMPARES = frozenset({"Clip", "Max", "Min"})
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


def round_compared_numbers(program: torch.export.ExportedProgram) -> None:
    """Round numbers to the 16 bits of what they are compared with; torch.onnx widens both."""
    for node in program.graph.nodes:
        if getattr(node.target, "_opname", "").rstrip("_") not in _COMPARISONS:
            continue
        x, y = (a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in node.args)
        if torch.result_type(x, y) not in {torch.float16, torch.bfloat16}:
            continue
        if isinstance(y, int | float):
            node.args = (node.args[0], torch.tensor(y, dtype=x.dtype).item())
        elif getattr(y, "dtype", x.dtype) != x.dtype:
            name = node.target._opname  # noqa: SLF001 - of an operator of torch
            raise UnsupportedGraphError(f"aten.{name}: torch.onnx compares 16 bits with 32 bits")


def refuse_operators(
    program: torch.export.ExportedProgram, translation: Callable[[torch.fx.Node], Any]
) -> None:
    """Refuse operators of torch that torch.onnx converts into something else.

    ``translation(node)`` is the function by which it converts a node, or None.
    """
    for node in program.graph.nodes:
        name = getattr(node.target, "_opname", "")
        holds, reason = _LEFT_CALLS.get(name, (None, ""))
        if holds is None or not holds(node):
            reason = _what_is_ignored(node, translation(node)) if name else ""
        if reason:
            way_out = ["Call model.eval()"] if "norm" in name else []
            raise UnsupportedGraphError(f"aten.{name}: {reason}", *way_out)


#: Calls of operators of torch that torch.onnx converts into something else, and how.
_LEFT_CALLS: dict[str, tuple[Callable[[Any], Any], str]] = {
    **dict.fromkeys(  # it forgets that these use the statistics of the batch
        ("_native_batch_norm_legit_functional", "_native_batch_norm_legit"),
        (lambda _: True, "torch.onnx exports batch normalization for inference only"),
    ),
    **dict.fromkeys(
        ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        (lambda node: node.args[2], "ONNX Runtime has no antialiasing with aligned corners"),
    ),
    "div": (
        lambda node: node.kwargs.get("rounding_mode"),
        "torch.onnx divides integers in 32 bits, and has not the digits for the rest",
    ),
    "elu": (
        lambda node: {*node.args[3:]} - {1},
        "torch.onnx scales its positive inputs too",
    ),
    "instance_norm": (
        lambda node: node.args[3] is not None and node.args[5],
        "torch.onnx does not update the running statistics",
    ),
    "mean": (
        lambda node: node.meta["val"].dtype != node.args[0].meta["val"].dtype,
        "torch.onnx computes it in the type of its input",
    ),
    "repeat_interleave": (
        lambda node: node.args[1:2] == (0,),
        "a size of 0 means another one in ONNX",
    ),
}


def _what_is_ignored(node: torch.fx.Node, function: Callable[..., Any] | None) -> str:
    """Name the arguments other than the default that a translation leaves out."""
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
            if make := _correction(node):
                _replace(node, make)
    for rank, wanted in enumerate(types):
        value = model.graph.outputs[rank]
        if value.is_graph_input():  # their memory would be the same
            _output_of(ir.Node("", "Identity", [value]), model.graph, rank, value.dtype)
        _give_type(model.graph, rank, ir.tensor_adapters.from_torch_dtype(wanted))


def bound_clips(model: ir.Model) -> None:
    """Give each Clip its bounds: onnxscript makes one without of a minimum or a maximum."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and _correction(node) is _bound:
            _replace(node, _bound)


def _dtype(node: ir.Node) -> ir.DataType | None:
    """Type of the first input of a node."""
    first = node.inputs[0] if node.inputs else None
    return None if first is None else first.dtype


def _refuse(node: ir.Node) -> None:
    """Refuse what ONNX Runtime computes in another way, or less precisely."""
    empty = any(value is not None and _size(value) == 0 for value in node.inputs)
    left = _size(node.outputs[0]) if node.outputs else None
    if empty and (
        (node.op_type in _WRONG_WHEN_EMPTY and left != 0)
        # Its shape may be another: ONNX Runtime keeps the last axis where it is named -1.
        or (node.op_type.startswith("Reduce") and (left == 0 or _counts_from_the_end(node)))
    ):
        reason = "of an empty tensor"
    elif (
        _IN_FLOAT64.get(node.op_type, "\n") in node.metadata_props.get(_FX_NODE, "")
        and _dtype(node) in _INTEGERS
    ):
        reason = "of integers, which ONNX Runtime computes in float64"
    elif node.op_type.startswith("Cast") and _is_rounded(node):
        reason = "to 32 bits, inside an operator of 64 bits"
    else:
        holds, told = _LEFT_NODES.get(node.op_type, (None, ""))
        reason = told if holds and holds(node) else ""
    if reason:
        raise UnsupportedGraphError(
            f"{node.op_type} {reason}: its values would differ from torch's"
        )


def _is_float(node: ir.Node) -> bool:
    dtype = _dtype(node)
    return dtype is not None and dtype.is_floating_point()


#: Nodes that ONNX Runtime computes otherwise than torch, and how.
_LEFT_NODES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("ArgMax", "ArgMin"), (_is_float, "of floats, where ONNX Runtime loses NaN")),
    "DFT": (
        lambda node: not _is_precise(node),
        "of a length that is no power of two, where ONNX Runtime loses precision",
    ),
    "LogSoftmax": (
        lambda node: _dtype(node) == ir.DataType.DOUBLE,
        "of 64 bits, where ONNX Runtime loses NaN",
    ),
    "ReduceSum": (
        lambda node: _dtype(node) in _INTEGERS and not _is_small(node.inputs[0]),
        "of integers, which ONNX Runtime adds in float64",
    ),
    "Resize": (
        lambda node: (
            _dtype(node) == ir.DataType.UINT8
            and node.attributes.get_string("mode", "nearest") != "nearest"
        ),
        "of bytes, which ONNX Runtime does not round",
    ),
    "STFT": (lambda _: True, "is less precise in ONNX Runtime"),
}


def _counts_from_the_end(node: ir.Node) -> bool:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    axes = None if given is None else ir.convenience.get_const_tensor(given)
    return axes is not None and bool((axes.numpy() < 0).any())


def _is_rounded(node: Any) -> bool:
    """Whether torch.onnx rounds to 32 bits, on its own, a value or a number of 64 bits."""
    source, result = _dtype(node), node.outputs[0].dtype
    if {source, result} != {ir.DataType.FLOAT, ir.DataType.DOUBLE}:
        return False
    if f"torch.float{8 * result.itemsize}" in node.metadata_props.get(_FX_NODE, ""):
        return False  # torch converts it
    if _is_promoted(node.inputs[0], node.outputs[0]):
        return False
    number = ir.convenience.get_const_tensor(node.inputs[0])
    if source == ir.DataType.DOUBLE or number is None:
        return source == ir.DataType.DOUBLE
    # one of few digits, as 0.5 or 3, is not rounded
    return bool(np.any(number.numpy() * 2.0**12 % 1))


def _is_promoted(number: ir.Value, cast: ir.Value) -> bool:
    """Whether a number is rounded to the type of the tensors that it meets, as torch does."""
    if number.shape is None or len(number.shape) > 0:
        return False
    met = ([x for x in user.inputs if x is not cast and x is not None] for user in cast.consumers())
    return all(any(x.shape is not None and len(x.shape) > 0 for x in others) for others in met)


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


def _correction(node: ir.Node) -> Callable[[ir.Node, Any], list[ir.Value]] | None:
    """Find what writes a node again whose kernel loses NaN, infinities or digits."""
    name, dtype = node.op_type, _dtype(node)
    if dtype is None:
        return None
    if dtype.is_integer():
        return _compare if dtype.itemsize == 8 and name in _COMPARES else None  # noqa: PLR2004
    found = {"Clip": _bound, "TopK": _sort_nan} | dict.fromkeys(_LOSES_NAN, _keep_nan)
    return found.get(name) if dtype.is_floating_point() else None


def _is_small(value: ir.Value | None) -> bool:
    """Whether integers have 16 bits at most, or are conditions: float64 adds them exactly."""
    node = None if value is None else value.producer()
    source = None if node is None or node.op_type != "Cast" else _dtype(node)
    return source is not None and source.itemsize <= 2  # noqa: PLR2004 - bytes


def _replace(node: ir.Node, make: Callable[[ir.Node, Any], list[ir.Value]]) -> None:
    """Put what *make* writes on a tape in the place of a node."""
    assert node.graph is not None
    tape = Builder()
    results = make(node, tape)
    for new, old in zip(results, node.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
    ir.convenience.replace_nodes_and_values(
        node.graph, node, [node], tape.nodes, node.outputs, results
    )


def _keep_nan(node: Any, tape: Any) -> list[ir.Value]:
    """Return NaN where the maximum of what is NaN finds one."""
    kept, count, dtype = node.attributes, len(node.outputs), node.inputs[0].dtype
    first, *others = tape.op_multi_out(node.op_type, node.inputs, kept, num_outputs=count)

    # the maximum of -inf is the lowest number in a kernel
    pools = node.op_type == "MaxPool" and dtype == ir.DataType.FLOAT
    lowest = tape.Constant(value=_tensor(-math.inf, dtype)) if pools else None

    def find(value: Any) -> Any:
        if value is None or value.dtype != dtype:
            return value
        found = tape.Cast(tape.IsNaN(value), to=dtype)
        if lowest is not None:
            found = tape.Sub(found, tape.Cast(tape.Equal(value, lowest), to=dtype))
        found.type = ir.TensorType(dtype)
        return found

    where = tape.op(node.op_type.replace("Min", "Max"), [*map(find, node.inputs)], kept)
    place = tape.Constant(value=_tensor(math.nan, dtype))
    if lowest is not None:
        zero = tape.Constant(value=_tensor(0, dtype))
        place = tape.Where(tape.Less(where, zero), lowest, place)
    return [tape.Where(tape.Cast(where, to=ir.DataType.BOOL), place, first), *others]


def _sort_nan(node: Any, tape: Any) -> list[ir.Value]:
    """Sort NaN after infinity, in a type that has room for both; the kernel puts it anywhere."""
    x, count = node.inputs
    wide = ir.DataType.DOUBLE
    last, most = (tape.Constant(value=_tensor(v, wide)) for v in (math.inf, sys.float_info.max))
    key = tape.Where(tape.IsNaN(x), last, tape.Min(tape.Cast(x, to=wide), most))
    _, places = tape.TopK(key, count, **node.attributes, _outputs=2)
    axis = node.attributes.get_int("axis", -1)
    return [tape.GatherElements(x, places, axis=axis), places]


def _bound(node: Any, tape: Any) -> list[ir.Value]:
    """Give Clip its infinite bounds; without one, the kernel takes the largest number."""
    x, low, high = [*node.inputs, None, None][:3]
    ends = [(low, -math.inf), (high, math.inf)]
    given = [end or tape.Constant(value=_tensor(v, x.dtype)) for end, v in ends]
    return [tape.Clip(x, *given)]


def _compare(node: Any, tape: Any) -> list[ir.Value]:
    """Choose among integers of 64 bits; the kernels compare them wrongly out of 32 bits."""
    x, *others = node.inputs
    tests = ["Less" if node.op_type == "Max" else "Greater"] * len(others)
    if node.op_type == "Clip":
        tests = ["Less", "Greater"]
    for test, other in zip(tests, others, strict=False):
        if other is not None:
            x = tape.Where(tape.op(test, [x, other]), other, x)
    return [x]


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
