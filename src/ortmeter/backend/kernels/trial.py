"""Try a library before its first use, beside the operators that it replaces."""

import hashlib
import json
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from ortmeter import _kernel_trial
from ortmeter.backend.errors import KernelError
from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.operators import MICROSOFT
from ortmeter.backend.kernels.sources import DOMAIN
from ortmeter.child import child_command
from ortmeter.dtypes import numpy_dtype
from ortmeter.files import write_atomically
from ortmeter.optional import import_optional
from ortmeter.runtime.providers import Provider

__all__ = ["check_library", "trial_model"]

_PROGRAM = Path(_kernel_trial.__file__)
_TIMEOUT_S = 300
# Sent from outside, by somebody or for lack of memory: what a wrong kernel does gives others.
_STOPPED = {-signal.SIGINT: "SIGINT", -signal.SIGTERM: "SIGTERM", -9: "SIGKILL"}
_OPSET = 23
# From the least precise.
_REALS = (ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE)


def check_library(library: Path, expressions: Sequence[Expression], provider: Provider) -> None:
    """Run each kernel of a library in a child process and compare it with ONNX Runtime.

    Parameters
    ----------
    library : Path
        A compiled library. The answer is kept beside it, for this version of ONNX Runtime, unless
        the child was stopped: that says nothing of the kernels.
    expressions : sequence of Expression
        What its kernels compute.
    provider : Provider
        Where they run.

    Raises
    ------
    KernelError
        The child died or was stopped, or a result is wrong.
    """
    version = import_optional("onnxruntime", "cpu", "gpu").__version__
    model = ir.to_proto(trial_model(expressions)).SerializeToString(deterministic=True)
    trial = hashlib.sha256(model + _PROGRAM.read_bytes() + version.encode()).hexdigest()[:8]
    answer = library.with_name(f"{library.stem}-{trial}.json")
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
            child = subprocess.run(  # noqa: S603 - our own module
                child_command("ortmeter._kernel_trial", library, model, provided),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
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

    Parameters
    ----------
    expressions : sequence of Expression
        What the kernels compute.

    Returns
    -------
    onnx_ir.Model
        Inputs are in float32, for the values that a test can draw, and outputs in float64. The
        name of an output ends with the least precise of its types.
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
