"""Convert a model to 16, 8 or 4 bits, and read which instructions of the CPU compute with them."""

import contextlib
import copy
import functools
import io
import itertools
import logging
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper
import onnx.version_converter

from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.optional import import_optional
from ortmeter.runtime.cpu import cpu_flags
from ortmeter.runtime.graphs import (
    bodies,
    captured,
    constant_tensors,
    in_order,
    onnx_opset,
    read_by,
    rename_reads,
    replace_items,
    walk_graphs,
    walk_nodes,
    with_intermediate_outputs,
)
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.sessions import make_session

__all__ = ["PRECISIONS", "convert_precision", "cpu_instructions"]

_Samples: TypeAlias = Sequence[Mapping[str, np.ndarray]]
# Of a warning: the line of the source, and the first sentence.
_WARNED = re.compile(rb"\[W:onnxruntime:[^,]*, (\S+) [^]]*\] (.*?)(?:\. |\.?\x1b|\.?$)")
_BLOCK = 32  # weights that share a scale
#: Operators that compute with what is quantized already.
_QUANTIZED = {"ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger"}
_QUANTIZED |= {"DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm"}
_QUANTIZED |= {"QLinearConv", "QLinearMatMul", "QuantizeLinear"}
#: Inputs that are weights of products.
_WEIGHTS = {"Conv": (1,), "ConvTranspose": (1,), "Gemm": (1,), "LSTM": (1, 2), "MatMul": (0, 1)}

# Instructions -> names that Linux has for them, on x86 and on ARM.
_INSTRUCTIONS: Mapping[str, frozenset[str]] = {
    "VNNI, products of 8 bits": frozenset(["avx512_vnni", "avx_vnni", "asimddp"]),
    "AMX or i8mm, matrices of 8 bits": frozenset(["amx_int8", "i8mm"]),
    "bf16, products of bfloat16": frozenset(["avx512_bf16", "amx_bf16", "bf16"]),
    "fp16, arithmetic in float16": frozenset(["avx512_fp16", "asimdhp"]),
}


def cpu_instructions() -> dict[str, bool | None]:
    """Return which instructions for 16 and 8 bits this CPU has.

    Returns
    -------
    dict of str to bool or None
        By kind of instructions, None where the system does not tell.

    Examples
    --------
    >>> list(cpu_instructions())[0]
    'VNNI, products of 8 bits'
    """
    flags = set(cpu_flags())
    return {name: bool(flags & names) if flags else None for name, names in _INSTRUCTIONS.items()}


def convert_precision(
    model: ModelLike, precision: str, samples: _Samples = (), **options: Any
) -> onnx.ModelProto:
    """Convert a float32 model to fewer bits, with the tools of ONNX Runtime.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. It is not modified.
    precision : str
        One of :data:`PRECISIONS`. ``U8S8`` means activations of uint8 and weights of int8;
        ``channels``, one scale per channel of a weight instead of one per weight.
    samples : sequence of mapping of str to array
        Inputs from which the static ways (QDQ) compute the ranges of the results.
    **options
        Arguments of ``quantize_static`` or ``quantize_dynamic`` of ``onnxruntime.quantization``,
        for a way to 8 bits: *nodes_to_exclude*, *op_types_to_quantize*, *extra_options*,
        *calibration_cache_path*... *calibrate_method* is a name: ``Percentile``. On an x86 CPU
        without VNNI, ``reduce_range=True`` gives weights 7 bits: ONNX Runtime adds two products of
        uint8 and int8 in 16 bits there, which overflow otherwise.

    Returns
    -------
    onnx.ModelProto
        Its inputs and outputs are still float32. An opset that is too old is raised; weights of
        Constant nodes, shared weights and those of bodies are converted too: by QDQ, those of the
        branches of If that the samples take.

    Raises
    ------
    InvalidArgumentError
        The precision or an option is not known, a static one has no samples, or there is nothing
        to convert.
    ModelError
        The model cannot be read, or the tool failed.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[1, 2] X) => (float[1, 2] Y) <float[2, 2] W = {1, 2, 3, 4}> { Y = MatMul(X, W) }'''
    >>> [node.op_type for node in convert_precision(text, "dynamic U8S8").graph.node]
    ['DynamicQuantizeLinear', 'Mul', 'MatMulInteger', 'Cast', 'Mul']
    """
    if precision not in list(PRECISIONS):
        raise InvalidArgumentError(f"precision={precision!r}. Accepted: {', '.join(PRECISIONS)}")
    if not samples and precision.startswith("QDQ"):
        raise InvalidArgumentError(
            f"precision={precision!r} without samples. Accepted: one or more, to compute ranges"
        )
    import_optional("onnxruntime", "cpu", "gpu")
    original = load_model(model)
    told = f"precision={precision!r}"
    if precision.startswith("Q") and (found := _quantized(original)):
        raise ModelError(f"{told}: {found}")
    prepared = _prepared(original, precision, samples, per_channel=options.get("per_channel"))
    before = _content(prepared)
    quiet = warnings.catch_warnings(action="ignore", category=RuntimeWarning)  # of ranges with NaN
    with silenced(), quiet, contextlib.redirect_stdout(io.StringIO()):  # a calibration prints
        try:
            convert = functools.partial(PRECISIONS[precision], **options)
            if precision.startswith("Q"):
                _convert_branches(prepared, convert, samples, itertools.count())
                _drop_unused(prepared.graph)
            converted = convert(prepared, samples)
        except Exception as error:  # of any kind: it is not our code
            if options and isinstance(error, KeyError | TypeError):
                told += f", options {options}: {error}"
                raise InvalidArgumentError(f"{told}. Accepted: the options of the tool") from error
            reason = f"the tool of ONNX Runtime failed: {type(error).__name__}: {error}"
            raise ModelError(f"{told}: {reason}") from error
    if _content(converted) == before:
        what = "no MatMul" if precision.startswith("weights") else "nothing that the tool converts"
        why = _quantized(original) or f"{what} has constant weights"
        raise InvalidArgumentError(f"{told}: nothing to convert in this model: {why}")
    return converted


def _content(model: onnx.ModelProto) -> Counter[object]:
    """Count the operators and the types of the weights, which a conversion changes."""
    kinds = (t.data_type for graph in walk_graphs(model.graph) for t in graph.initializer)
    return Counter([*(node.op_type for node in walk_nodes(model.graph.node)), *kinds])


def _quantized(model: onnx.ModelProto) -> str:
    """Say that a model is quantized already; empty for one that is not."""
    ops = Counter(node.op_type for node in walk_nodes(model.graph.node))
    found = ", ".join(f"{ops[op]} {op}" for op in sorted(_QUANTIZED & ops.keys()))
    return (
        f"this model is already quantized ({found}): convert the float32 model it was made from"
        if found
        else ""
    )


def _convert_branches(
    model: onnx.ModelProto,
    convert: Callable[..., onnx.ModelProto],
    samples: _Samples,
    ranks: Iterator[int],
) -> None:
    """Convert each branch of If that samples take as a model: static tools do not enter them."""
    nodes = [node for node in model.graph.node if node.op_type == "If"]
    if not nodes:
        return
    given = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = {name for node in nodes for name in read_by(node)} - given.keys()
    session = make_session(with_intermediate_outputs(model, names), provider="cpu")
    runs = [{**given, **sample, **run_session(session, sample)} for sample in samples]
    for node in nodes:
        for branch in node.attribute:
            inside, is_then = captured(branch.g), branch.name == "then_branch"
            taken = [run for run in runs if bool(run[node.input[0]]) == is_then]
            if not taken or not inside - given.keys():
                continue
            feeds = [{name: run[name] for name in inside - given.keys()} for run in taken]
            part = oh.make_model(
                branch.g, opset_imports=model.opset_import, ir_version=model.ir_version
            )
            part.graph.input.extend(
                oh.make_tensor_value_info(
                    name, oh.np_dtype_to_tensor_dtype(array.dtype), [None] * array.ndim
                )
                for name, array in feeds[0].items()
            )
            part.graph.initializer.extend(t for t in model.graph.initializer if t.name in inside)
            _convert_branches(part, convert, feeds, ranks)
            _drop_unused(part.graph)
            part = convert(part, feeds)
            own = [tensor for tensor in part.graph.initializer if tensor.name not in inside]
            replace_items(part.graph.initializer, own)
            made = {tensor.name for tensor in part.graph.initializer}
            made |= {name for node in part.graph.node for name in node.output if name}
            made -= {value.name for value in part.graph.output}
            rank = next(ranks)  # names may be those of the main graph, or of another branch
            _rename(part.graph, {name: f"ortmeter/branch {rank}/{name}" for name in made})
            branch.g.CopyFrom(part.graph)
            del branch.g.input[:]
            known = {one.domain for one in model.opset_import}
            model.opset_import.extend(o for o in part.opset_import if o.domain not in known)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Remove the initializers that nothing reads, of which a session warns."""
    read = {name for node in graph.node for name in read_by(node)}
    read |= {value.name for value in (*graph.input, *graph.output)}
    replace_items(graph.initializer, [t for t in graph.initializer if t.name in read])


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for value in (*graph.value_info, *graph.output):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        rename_reads(node, names)
        node.output[:] = [names.get(name, name) for name in node.output]


def _prepared(
    model: onnx.ModelProto, precision: str, samples: _Samples, *, per_channel: bool | None
) -> onnx.ModelProto:
    """Copy a model into the form that the tools expect: weights are initializers of one reader."""
    channels = bool(per_channel) or precision.endswith("channels")
    copied = _raised(model, precision, channels=channels)
    fed = {name for sample in samples for name in sample}
    for graph in walk_graphs(copied.graph):
        _lift(graph)
    constants = {tensor.name for tensor in copied.graph.initializer} - fed
    replace_items(copied.graph.input, [v for v in copied.graph.input if v.name not in constants])
    copied.ir_version = max(copied.ir_version, 4)  # an initializer need not be an input
    ranks = itertools.count()
    if channels or precision.startswith("dynamic"):
        _own_weights(copied.graph, {}, ranks, dynamic=precision.startswith("dynamic"))
    if channels:
        _vector_biases(copied.graph, ranks)
    for graph in walk_graphs(copied.graph):
        _drop_unused(graph)
    return copied


def _raised(model: onnx.ModelProto, precision: str, *, channels: bool) -> onnx.ModelProto:
    """Copy a model, at the opset that has what is written: scales per channel, 16-bit scales."""
    copied = copy.deepcopy(model)
    opset = onnx_opset(model)
    least = 13 if channels and precision.startswith("Q") else 0
    if precision == "float16":
        ops = {node.op_type for node in walk_nodes(model.graph.node)} & _QUANTIZED
        if ops - {"DequantizeLinear", "QuantizeLinear"}:
            raise ModelError(f"precision={precision!r}: {_quantized(model)}")
        least = 19 if ops else least
    if not 0 < opset < least:
        return copied
    try:
        return onnx.version_converter.convert_version(copied, least)
    except Exception as error:  # of any kind: it is not our code
        raise ModelError(
            f"precision={precision!r} needs opset {least}, and onnx.version_converter cannot raise "
            f"opset {opset}: {error}"
        ) from error


def _lift(graph: onnx.GraphProto) -> None:
    """Make initializers of the numbers of Constant nodes."""
    outputs = {value.name for value in graph.output}
    found = constant_tensors(graph.node)
    lifted = {name: tensor for name, tensor in found.items() if name not in outputs}
    kept = [node for node in graph.node if lifted.keys().isdisjoint(node.output)]
    for name, tensor in lifted.items():
        graph.initializer.append(tensor)
        graph.initializer[-1].name = name
    replace_items(graph.node, kept)


def _own_weights(
    graph: onnx.GraphProto,
    around: Mapping[str, onnx.TensorProto],
    ranks: Iterator[int],
    *,
    dynamic: bool,
) -> None:
    """Give each kind of reader its own weight, and, for dynamic ways, those around a body to it.

    A shared weight gets the scales of its first reader; dynamic ways transpose that of Gemm, LSTM.
    """
    here = {t.name: t for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    known = {**around, **here}
    inside = [body for node in graph.node for _, body in bodies(node)]
    reads = Counter(name for node in graph.node for name in node.input)
    reads.update(name for body in inside for name in captured(body))
    own: dict[object, str] = {}
    for node in graph.node:
        weights = _WEIGHTS.get(node.op_type, ()) if dynamic or node.op_type != "LSTM" else ()
        for rank in weights:
            name = node.input[rank]
            if name not in known or (name in here and reads[name] == 1):
                continue
            alike = [a.SerializeToString(deterministic=True) for a in node.attribute]
            way = id(node) if node.op_type == "LSTM" else tuple(alike)
            kind = name, node.op_type, rank, way
            if kind not in own:
                own[kind] = f"ortmeter/{next(ranks)}/{name}"
                graph.initializer.append(known[name])
                graph.initializer[-1].name = own[kind]
            node.input[rank] = own[kind]
    for body in inside if dynamic else ():
        _own_weights(body, known, ranks, dynamic=dynamic)


def _vector_biases(graph: onnx.GraphProto, ranks: Iterator[int]) -> None:
    """Give the bias of a Gemm one number per column: scales per channel have no other."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "Gemm" or not node.input[2:] or not known.keys() >= {*node.input[1:]}:
            continue
        transposed = any(a.name == "transB" and a.i for a in node.attribute)
        columns = known[node.input[1]].dims[0 if transposed else 1]
        bias = onnx.numpy_helper.to_array(known[node.input[2]])
        if bias.shape != (columns,) and bias.size == (*bias.shape, 1)[bias.ndim - 1]:
            row = np.ascontiguousarray(np.broadcast_to(bias.reshape(-1), columns))
            node.input[2] = f"ortmeter/{next(ranks)}/{node.input[2]}"
            graph.initializer.append(onnx.numpy_helper.from_array(row, node.input[2]))


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Silence the tools, which advise in the log what most models do not need.

    Their sessions warn on the standard error, once per weight: that is one warning here.
    """
    before = logging.root.manager.disable
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        stderr = os.open(os.devnull, os.O_WRONLY)
    logging.disable(logging.WARNING)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            logging.disable(before)
            os.dup2(stderr, 2)
            os.close(stderr)
            log.seek(0)
            lines = log.read().splitlines(keepends=True)
    kinds: dict[bytes, list[str]] = {}
    for line in lines:
        if b"Removing initializer" in line:  # of the tools: a model has none that is not used
            continue
        if found := _WARNED.search(line):
            kinds.setdefault(found[1], []).append(found[2].decode(errors="replace"))
        else:
            os.write(2, line)
    if kinds:
        told = (f"{len(texts)} like {texts[0]!r}" for texts in kinds.values())
        warnings.warn(f"ONNX Runtime warned: {'; '.join(told)}", stacklevel=4)


def _to_half(model: onnx.ModelProto, _samples: _Samples) -> onnx.ModelProto:
    from onnxruntime.transformers import float16

    blocked = _dividing_by_large(model)
    return _sorted(
        float16.convert_float_to_float16(model, keep_io_types=True, node_block_list=blocked)
    )


def _sorted(model: onnx.ModelProto) -> onnx.ModelProto:
    """Sort nodes: tools put the casts of inputs last, and forget what branches read."""
    replace_items(model.graph.node, in_order(model.graph.node))
    return model


def _dividing_by_large(model: onnx.ModelProto) -> list[str]:
    """Name the nodes that stay in float32: the tool clamps what they divide by to 65504."""
    large = {
        tensor.name
        for graph in walk_graphs(model.graph)
        for tensor in graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
        and np.abs(onnx.numpy_helper.to_array(tensor)).max(initial=0) > np.finfo(np.float16).max
    }
    found = []
    for rank, node in enumerate(walk_nodes(model.graph.node)):
        divisor = {"BatchNormalization": 4, "Div": 1}.get(node.op_type)
        if divisor is not None and node.input[divisor] in large:
            node.name = node.name or f"ortmeter/{rank}"
            found.append(node.name)
    return found


def _dynamic(
    model: onnx.ModelProto,
    _samples: _Samples,
    *,
    weights: str,
    per_channel: bool = False,
    **more: Any,
) -> onnx.ModelProto:
    from onnxruntime import quantization

    options = {"weight_type": quantization.QuantType[weights], "per_channel": per_channel, **more}
    if any(True for node in model.graph.node for _ in bodies(node)):
        inside = {"EnableSubgraph": True, "DefaultTensorType": onnx.TensorProto.FLOAT}
        options["extra_options"] = {**inside, **options.get("extra_options", {})}
    return _written(functools.partial(quantization.quantize_dynamic, model, **options))


def _static(
    model: onnx.ModelProto,
    samples: _Samples,
    *,
    activations: str,
    weights: str,
    per_channel: bool = False,
    calibrate_method: str = "MinMax",
    **more: Any,
) -> onnx.ModelProto:
    from onnxruntime import quantization

    options = {
        # The tools ask for one sample after the other, until there is none.
        "calibration_data_reader": SimpleNamespace(
            get_next=functools.partial(next, iter(samples), None)
        ),
        "quant_format": quantization.QuantFormat.QDQ,
        "activation_type": quantization.QuantType[activations],
        "weight_type": quantization.QuantType[weights],
        "per_channel": per_channel,
        "calibrate_method": quantization.CalibrationMethod[calibrate_method],
        **more,
    }
    return _written(functools.partial(quantization.quantize_static, model, **options))


def _written(write: Callable[..., None]) -> onnx.ModelProto:
    """Return the model that a tool writes into a file."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        file = Path(folder) / "quantized.onnx"
        write(model_output=file)
        return _sorted(onnx.load(file))


def _weights_only(
    model: onnx.ModelProto, _samples: _Samples, *, bits: int, accuracy: int
) -> onnx.ModelProto:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    tool = MatMulNBitsQuantizer(
        model, bits=bits, block_size=_BLOCK, is_symmetric=True, accuracy_level=accuracy
    )
    tool.process()
    converted: onnx.ModelProto = tool.model.model
    return converted


_Convert: TypeAlias = Callable[..., onnx.ModelProto]
# What MatMulNBits may round its inputs to: nothing, or int8.
_ACCURACY = {"": 0, " int8": 4}


#: What a model may be converted to -> how.
PRECISIONS: Mapping[str, _Convert] = {
    "float16": _to_half,
    "dynamic U8S8": functools.partial(_dynamic, weights="QInt8"),
    "dynamic U8U8": functools.partial(_dynamic, weights="QUInt8"),
    "dynamic channels": functools.partial(_dynamic, weights="QInt8", per_channel=True),
    "QDQ U8S8": functools.partial(_static, activations="QUInt8", weights="QInt8"),
    "QDQ S8S8": functools.partial(_static, activations="QInt8", weights="QInt8"),
    "QDQ U8U8": functools.partial(_static, activations="QUInt8", weights="QUInt8"),
    "QDQ channels": functools.partial(
        _static, activations="QUInt8", weights="QInt8", per_channel=True
    ),
    **{
        f"weights {bits} bits{how}": functools.partial(_weights_only, bits=bits, accuracy=accuracy)
        for bits in (8, 4)
        for how, accuracy in _ACCURACY.items()
    },
}
