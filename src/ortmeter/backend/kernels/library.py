"""Libraries of kernels: written, compiled, tried beside what they replace, and kept."""

import hashlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import torch

from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels import trial
from ortmeter.backend.kernels.compiler import compile_device, compile_library
from ortmeter.backend.kernels.expression import MICROSOFT, Expression
from ortmeter.backend.kernels.sources import (
    DOMAIN,
    cpu_source,
    cuda_device_source,
    cuda_host_source,
)
from ortmeter.child import run_child
from ortmeter.dtypes import numpy_dtype
from ortmeter.files import write_atomically
from ortmeter.optional import import_optional
from ortmeter.runtime.providers import Provider

_PROGRAM = Path(trial.__file__)
_TIMEOUT_S = 300
# Sent from outside, by somebody or for lack of memory: what a wrong kernel does gives others.
_STOPPED = {-signal.SIGINT: "SIGINT", -signal.SIGTERM: "SIGTERM", -9: "SIGKILL"}
_OPSET = 23
# From the least precise.
_REALS = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def build_library(expressions: Sequence[Expression], provider: Provider) -> Path:
    """Build a library that has a kernel for each expression, in any order.

    It is what :func:`~ortmeter.make_session` takes as ``custom_ops``. A KernelError says that there
    is no compiler, that it refuses the source, or that the library fails its trial.
    """
    once = sorted(set(expressions), key=lambda expression: expression.name)
    if provider.name == "cuda":
        image = compile_device(cuda_device_source(once), _architecture(provider))
        library = compile_library(cuda_host_source(once, image), libraries=["dl"])
    else:
        library = compile_library(cpu_source(once))
    check_library(library, once, provider)
    return library


def _architecture(provider: Provider) -> str:
    major, minor = torch.cuda.get_device_capability(provider.index)
    return f"sm_{major}{minor}"


def check_library(library: Path, expressions: Sequence[Expression], provider: Provider) -> None:
    """Run each kernel of a library in a child process and compare it with ONNX Runtime.

    The answer is kept beside the library, for this version of ONNX Runtime, unless the child was
    stopped: that says nothing of the kernels.
    """
    version = import_optional("onnxruntime", "cpu", "gpu").__version__
    model = ir.to_proto(trial_model(expressions)).SerializeToString(deterministic=True)
    key = hashlib.sha256(model + _PROGRAM.read_bytes() + version.encode()).hexdigest()[:8]
    answer = library.with_name(f"{library.stem}-{key}.json")
    reason = _read_reason(answer)
    if reason is None:
        reason = _run_trial(library, model, provider)
        write_atomically(answer, json.dumps({"reason": reason}).encode())
    if reason:
        raise KernelError(f"the compiled kernels fail their trial: {reason}")


def _read_reason(answer: Path) -> str | None:
    """Return what a trial that came to its end found, None when there is none."""
    try:
        return str(json.loads(answer.read_text(encoding="utf-8"))["reason"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _run_trial(library: Path, content: bytes, provider: Provider) -> str:
    """Return what is wrong, nothing when the kernels are right."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "trial.onnx"
        model.write_bytes(content)
        provided = provider.execution_provider
        try:
            child = run_child(trial.__name__, library, model, provided, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError(f"the trial of the compiled kernels was stopped: {error}") from error
    if stopped := _STOPPED.get(child.returncode):
        raise KernelError(f"the trial of the compiled kernels was stopped by {stopped}")
    try:
        return str(json.loads(child.stdout.splitlines()[-1])["reason"])
    except (IndexError, KeyError, TypeError, ValueError):
        return f"the process died with exit code {child.returncode}"


def trial_model(expressions: Sequence[Expression]) -> ir.Model:
    """Write a model that computes each expression twice: operator by operator, by its kernel.

    Inputs are in float32, for the values that a test can draw, and outputs in float64. The name of
    an output ends with the least precise of its types.
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
        apart = expression.nodes(values)
        kernel = ir.Node(DOMAIN, expression.name, values)
        results = [_cast(node.outputs[0], ir.DataType.DOUBLE) for node in (apart[-1], kernel)]
        for node, way in zip(results, ("expected", "got"), strict=True):
            node.outputs[0].name = f"{expression.name}_{way}:{_least_precise(expression)}"
        inputs += given
        nodes += [*read, *apart, kernel, *results]
        outputs += [node.outputs[0] for node in results]
    graph = ir.Graph(
        inputs,
        outputs,
        nodes=nodes,
        name="trial",
        opset_imports={"": _OPSET, MICROSOFT: 1, DOMAIN: 1},
    )
    return ir.Model(graph, ir_version=10)


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(dtype))])
    node.outputs[0].type = ir.TensorType(dtype)
    return node


def _least_precise(expression: Expression) -> str:
    types = {*expression.inputs, *(step.dtype for step in expression.steps)}
    return next((numpy_dtype(int(t)).name for t in _REALS if t in types), "float64")
