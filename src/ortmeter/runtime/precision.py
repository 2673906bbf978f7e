"""Convert a model to 16, 8 or 4 bits, and read which instructions of the CPU compute with them."""

import contextlib
import functools
import io
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper

from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional
from ortmeter.runtime.cpu import cpu_flags
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["PRECISIONS", "convert_precision", "cpu_instructions", "grids_of"]

_Samples: TypeAlias = Sequence[Mapping[str, np.ndarray]]
_HALF, _BRAIN = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
# Of a warning: the line of the source, and the first sentence.
_WARNED = re.compile(rb"\[W:onnxruntime:[^,]*, (\S+) [^]]*\] (.*?)(?:\. |\.?\x1b|\.?$)")
_BLOCK = 32  # weights that share a scale

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
        Inputs from which the static ways (QDQ, QOperator) compute the ranges of the results.
    **options
        Arguments of ``quantize_static`` or ``quantize_dynamic`` of ``onnxruntime.quantization``,
        for a way to 8 bits: *nodes_to_exclude*, *op_types_to_quantize*, *extra_options*,
        *calibration_cache_path*... *calibrate_method* is a name: ``Percentile``. On an x86 CPU
        without VNNI, ``reduce_range=True`` gives weights 7 bits: ONNX Runtime adds two products of
        uint8 and int8 in 16 bits there, which overflow otherwise.

    Returns
    -------
    onnx.ModelProto
        Its inputs and outputs are still float32.

    Raises
    ------
    InvalidArgumentError
        The precision or an option is not known, a static one has no samples, or there is nothing
        to convert.
    ModelError
        The model cannot be read.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[1, 2] X) => (float[1, 2] Y) <float[2, 2] W = {1, 2, 3, 4}> { Y = MatMul(X, W) }'''
    >>> [node.op_type for node in convert_precision(text, "dynamic U8S8").graph.node]
    ['DynamicQuantizeLinear', 'Mul', 'MatMulInteger', 'Cast', 'Mul']
    """
    if precision not in list(PRECISIONS):
        raise InvalidArgumentError(f"precision={precision!r}. Accepted: {', '.join(PRECISIONS)}")
    if not samples and precision.startswith(("QDQ", "QOperator")):
        raise InvalidArgumentError(
            f"precision={precision!r} without samples. Accepted: one or more, to compute ranges"
        )
    import_optional("onnxruntime", "cpu", "gpu")
    original, copied = load_model(model), onnx.ModelProto()
    copied.CopyFrom(original)
    try:
        with silenced(), contextlib.redirect_stdout(io.StringIO()):  # a calibration prints
            converted = PRECISIONS[precision](copied, samples, **options)
    except (KeyError, TypeError) as error:
        if not options:
            raise
        told = f"precision={precision!r}, options {options}: {error}"
        raise InvalidArgumentError(f"{told}. Accepted: those of the tool") from error
    if _content(converted) == _content(original):
        raise InvalidArgumentError(f"precision={precision!r}: nothing to convert in this model")
    return converted


def grids_of(precision: str) -> tuple[int | str | None, int | str | None, int | str | None]:
    """Return what a product rounds its activations, its weights and its result to.

    Parameters
    ----------
    precision : str
        One of :data:`PRECISIONS`.

    Returns
    -------
    tuple of three int, str or None
        A number of bits, a floating-point type, or None for float32, as
        :func:`~ortmeter.discrepancy.quantized.quantized_matmul_bound` takes them.

    Examples
    --------
    >>> grids_of("QDQ U8S8"), grids_of("weights 4 bits")
    ((8, 8, 8), (None, 4, None))
    """
    first, *others = precision.split()
    if not others:
        return precision, precision, precision
    if first == "weights":
        return (8 if others[-1] == "int8" else None), int(others[0]), None
    return 8, 8, None if first == "dynamic" else 8


def _content(model: onnx.ModelProto) -> list[object]:
    """List the operators and the types of the weights, which a conversion changes."""
    return [n.op_type for n in model.graph.node] + [t.data_type for t in model.graph.initializer]


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
        if found := _WARNED.search(line):
            kinds.setdefault(found[1], []).append(found[2].decode(errors="replace"))
        else:
            os.write(2, line)
    if kinds:
        told = (f"{len(texts)} like {texts[0]!r}" for texts in kinds.values())
        warnings.warn(f"ONNX Runtime warned: {'; '.join(told)}", stacklevel=4)


def _to_half(model: onnx.ModelProto, _samples: _Samples) -> onnx.ModelProto:
    from onnxruntime.quantization.onnx_model import ONNXModel
    from onnxruntime.transformers import float16

    converted = ONNXModel(float16.convert_float_to_float16(model, keep_io_types=True))
    converted.topological_sort()  # the casts of the inputs come last
    found: onnx.ModelProto = converted.model
    return found


def _to_brain(model: onnx.ModelProto, samples: _Samples) -> onnx.ModelProto:
    """Convert to float16, then rename the type; weights are rounded from float32."""
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    converted = _to_half(model, samples)
    for tensor in converted.graph.initializer:
        if tensor.data_type == _HALF:
            values = weights[tensor.name].astype(numpy_dtype(_BRAIN))
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    for value in converted.graph.value_info:
        if value.type.tensor_type.elem_type == _HALF:
            value.type.tensor_type.elem_type = _BRAIN
    for node in converted.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == _HALF:
                attribute.i = _BRAIN
    return converted


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
    return _written(functools.partial(quantization.quantize_dynamic, model, **options))


def _static(
    model: onnx.ModelProto,
    samples: _Samples,
    *,
    form: str,
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
        "quant_format": quantization.QuantFormat[form],
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
        return onnx.load(file)


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
_KINDS = {"U8": "QUInt8", "S8": "QInt8"}
# What MatMulNBits may round its inputs to: nothing, or int8.
_ACCURACY = {"": 0, " int8": 4}


def _make_static(form: str, kinds: str, *, per_channel: bool = False) -> _Convert:
    activations, weights = (_KINDS[kind] for kind in (kinds[:2], kinds[2:]))
    return functools.partial(
        _static, form=form, activations=activations, weights=weights, per_channel=per_channel
    )


#: What a model may be converted to -> how.
PRECISIONS: Mapping[str, _Convert] = {
    "float16": _to_half,
    "bfloat16": _to_brain,
    "dynamic U8S8": functools.partial(_dynamic, weights="QInt8"),
    "dynamic U8U8": functools.partial(_dynamic, weights="QUInt8"),
    "dynamic channels": functools.partial(_dynamic, weights="QInt8", per_channel=True),
    **{
        f"{form} {kinds}": _make_static(form, kinds)
        for form in ("QDQ", "QOperator")
        for kinds in ("U8S8", "S8S8", "U8U8")
    },
    **{
        f"{form} channels": _make_static(form, "U8S8", per_channel=True)
        for form in ("QDQ", "QOperator")
    },
    **{
        f"weights {bits} bits{how}": functools.partial(_weights_only, bits=bits, accuracy=accuracy)
        for bits in (8, 4)
        for how, accuracy in _ACCURACY.items()
    },
}
