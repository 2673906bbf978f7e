"""Libraries of kernels: written, compiled, tried beside what they replace, and kept."""

import hashlib
import json
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir
import torch

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import trial
from ortmeter.backend.kernels.compiler import compile_device, compile_library
from ortmeter.backend.kernels.expression import Expression, Literal, Step
from ortmeter.backend.kernels.sources import (
    DOMAIN,
    cpu_source,
    cuda_device_source,
    cuda_host_source,
)
from ortmeter.child import ChildError, call
from ortmeter.dtypes import numpy_dtype
from ortmeter.files import write_atomically
from ortmeter.optional import import_optional
from ortmeter.runtime.providers import Provider

_PROGRAM = Path(trial.__file__)
_TIMEOUT_S = 300
# Sent from outside, by somebody or for lack of memory: what a wrong kernel does gives others.
_STOPS = (signal.SIGINT, signal.SIGTERM, 9)
OPSET = 23
# From the least precise.
_REALS = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def build_library(
    expressions: Sequence[Expression], provider: Provider
) -> tuple[Path, dict[str, str]]:
    """Build a library that has a kernel for each expression, in any order.

    It is what :func:`~ortmeter.make_session` takes as ``custom_ops``. Beside it comes what is wrong
    with some of its kernels, by name: they are not to be used. A KernelError says that there is no
    compiler, that it refuses the source, or that the library cannot be tried.
    """
    once = sorted(set(expressions), key=lambda expression: expression.name)
    if provider.name == "cuda":
        capability = "".join(map(str, torch.cuda.get_device_capability(provider.index)))
        image = compile_device(cuda_device_source(once), f"sm_{capability}")
        library = compile_library(cuda_host_source(once, image), libraries=["dl"])
    else:
        library = compile_library(cpu_source(once))
    return library, check_library(library, once, provider)


def check_library(
    library: Path, expressions: Sequence[Expression], provider: Provider
) -> dict[str, str]:
    """Run each kernel of a library in a child process; return what is wrong, by name.

    The answer is kept beside the library, for this version of ONNX Runtime. It is not when the
    child was stopped, had no memory or no device: that says nothing of the kernels.
    """
    version = import_optional("onnxruntime", "cpu", "gpu").__version__
    model = _trial_content(expressions)
    key = hashlib.sha256(model + _PROGRAM.read_bytes() + version.encode()).hexdigest()[:8]
    answer = library.with_name(f"{library.stem}-{key}.json")
    wrong = _read_answer(answer)
    if wrong is None:
        wrong = _run_trial(library, expressions, provider)
        write_atomically(answer, json.dumps(wrong).encode())
    return wrong


def _read_answer(answer: Path) -> dict[str, str] | None:
    """Return what a trial that came to its end found, None when there is none."""
    try:
        return {str(k): str(v) for k, v in json.loads(answer.read_text(encoding="utf-8")).items()}
    except (OSError, AttributeError, ValueError):
        return None


def _run_trial(
    library: Path, expressions: Sequence[Expression], provider: Provider
) -> dict[str, str]:
    """Return what is wrong, by name; when no kernel can be named, try half of them at a time."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "trial.onnx"
        model.write_bytes(_trial_content(expressions))
        given = {"provider": provider.execution_provider, "device": str(provider.index)}
        asked = {"library": str(library), "model": str(model), **given}
        try:
            return call(trial.try_kernels, asked, timeout_s=_TIMEOUT_S)
        except trial.FailedError as error:
            refused, why = isinstance(error, trial.LibraryError), str(error)
        except ChildError as error:
            if error.code is None or -error.code in _STOPS:
                raise KernelError(
                    f"the trial of the compiled kernels was stopped: {error}"
                ) from error
            refused, why = False, f"the process died with exit code {error.code}"
    if refused or len(expressions) == 1:
        return dict.fromkeys((expression.name for expression in expressions), why)
    half = len(expressions) // 2
    parts = (expressions[:half], expressions[half:])
    first, second = (_run_trial(library, part, provider) for part in parts)
    return first | second


def _trial_content(expressions: Sequence[Expression]) -> bytes:
    return ir.to_proto(trial_model(expressions)).SerializeToString(deterministic=True)


def trial_model(expressions: Sequence[Expression]) -> ir.Model:
    """Write a model that computes each expression twice: operator by operator, by its kernel.

    Inputs are in float32, for the values that a test can draw, and outputs in float64. Operators
    compute in float32 what kernels hold in float32, and are rounded where kernels round: ONNX
    Runtime lacks many of them in bfloat16. The name of an output ends with the least precise of its
    types.
    """
    inputs: list[ir.Value] = []
    outputs: list[ir.Value] = []
    nodes: list[ir.Node] = []
    for expression in expressions:
        given = [
            ir.Value(name=f"{expression.name}_x{i}", type=ir.TensorType(ir.DataType.FLOAT))
            for i in range(len(expression.inputs))
        ]
        read = [_cast(value, dtype) for value, dtype in zip(given, expression.inputs, strict=True)]
        values = [node.outputs[0] for node in read]
        held = [
            _cast(value, _held(dtype))
            for value, dtype in zip(values, expression.inputs, strict=True)
        ]
        apart, wide = in_float32(expression).nodes([node.outputs[0] for node in held])
        rounded = [_cast(value, t) for value, t in zip(wide, expression.dtypes, strict=True)]
        kernel = ir.Node(DOMAIN, expression.name, values, num_outputs=len(rounded))
        inputs += given
        nodes += [*read, *held, *apart, *rounded, kernel]
        for rank, (node, got) in enumerate(zip(rounded, kernel.outputs, strict=True)):
            for way, value in (("expected", node.outputs[0]), ("got", got)):
                result = _cast(value, ir.DataType.DOUBLE)
                name = f"{expression.name}:{rank}:{way}:{_least_precise(expression)}"
                result.outputs[0].name = name
                nodes.append(result)
                outputs.append(result.outputs[0])
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        name="trial",
        opset_imports={"": OPSET, DOMAIN: 1},
    )
    return ir.Model(graph, ir_version=10)


def in_float32(expression: Expression) -> Expression:
    """Write an expression in float32 where it has half types, whose casts still round."""
    steps: list[Step] = []
    names: dict[str | Literal | None, str] = {}
    for i, step in enumerate(expression.steps):
        arguments = tuple(
            Literal(a.value, _held(a.dtype)) if isinstance(a, Literal) else names.get(a, a)
            for a in step.arguments
        )
        if step.op_type == "Cast" and step.dtype != _held(step.dtype):
            steps.append(replace(step, arguments=arguments))
            arguments = (f"t{len(steps) - 1}",)
            step = replace(step, attributes=(("to", int(ir.DataType.FLOAT)),))  # noqa: PLW2901
        steps.append(replace(step, arguments=arguments, dtype=_held(step.dtype)))
        names[f"t{i}"] = f"t{len(steps) - 1}"
    more = tuple(int(names[f"t{i}"].removeprefix("t")) for i in expression.more)
    return Expression(tuple(map(_held, expression.inputs)), tuple(steps), more)


def _held(dtype: ir.DataType) -> ir.DataType:
    return ir.DataType.FLOAT if dtype in _REALS[:2] else dtype


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))])
    node.outputs[0].type = ir.TensorType(dtype)
    return node


def _least_precise(expression: Expression) -> str:
    types = {*expression.inputs, *(step.dtype for step in expression.steps)}
    return next((numpy_dtype(int(t)).name for t in _REALS if t in types), "float64")
