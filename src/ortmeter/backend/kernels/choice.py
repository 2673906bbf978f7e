"""Use a kernel where it is shown to be faster than the operators that it replaces.

Both are interleaved, in sessions of their own with as many threads as the model will have. Inputs
are random, of the sizes that were seen.
"""

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from ortmeter.backend.kernels.expression import Expression
from ortmeter.backend.kernels.library import OPSET
from ortmeter.backend.kernels.sources import DOMAIN
from ortmeter.dtypes import numpy_dtype
from ortmeter.errors import ModelError
from ortmeter.files import write_atomically
from ortmeter.optional import import_optional
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Comparison, measure
from ortmeter.timing.measurement import format_seconds
from ortmeter.timing.statistics import is_faster_more_often

# Rounds and seconds; the second time when the first one does not decide.
_STAGES = ((30, 0.5), (90, 1.5))
NODES, KERNEL = "nodes", "kernel"
_Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def sizes_by_name(
    inputs: Iterable[ir.Value], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """Sizes of the dimensions that have a name, by the shapes of the inputs of a model."""
    return {
        str(dim): size
        for value in inputs
        for dim, size in zip(value.shape or (), shapes.get(str(value.name), ()), strict=False)
        if isinstance(dim, ir.SymbolicDim)
    }


def known_shapes(values: Iterable[ir.Value], sizes: Mapping[str, int]) -> _Shapes | None:
    """Shapes of values, None where one is not known or empty."""
    found = []
    for value in values:
        shape = None if value.shape is None else value.shape.evaluate(sizes)
        if shape is None or shape.is_dynamic() or 0 in shape:
            return None
        found.append(shape.numpy())
    return tuple(found)


@functools.cache
def why_not(library: Path, expression: Expression, shapes: _Shapes, threads: int) -> str:
    """Return why a kernel is not used on inputs of these shapes, nothing when it is faster.

    What is shown, one way or the other, is kept beside the library. What is undecided is tried
    again by the next process: the machine may have been busy.
    """
    version = import_optional("onnxruntime", "cpu", "gpu").__version__
    asked = repr((expression.name, *shapes, threads, version))
    answer = library.with_name(
        f"{library.stem}-{hashlib.sha256(asked.encode()).hexdigest()[:8]}.txt"
    )
    if answer.exists():
        return answer.read_text(encoding="utf-8")
    try:
        found = race(library, expression, shapes, threads)
    except ModelError:  # ONNX Runtime has no kernel for one of the operators
        return ""
    best = fastest(found)
    reason = (
        f"{expression.name} takes {format_seconds(found[KERNEL].median)} on "
        f"{', '.join(str(list(shape)) for shape in shapes)} with threads={threads}, its operators "
        f"{format_seconds(found[NODES].median)}"
    )
    if best is None:
        return f"{reason}: it is not shown to be faster"
    reason = "" if best == KERNEL else reason
    write_atomically(answer, reason.encode())
    return reason


def fastest(found: Comparison) -> str | None:
    """Return the one that passes a sign test on paired rounds, None if neither does."""
    for one, other in ((KERNEL, NODES), (NODES, KERNEL)):
        if is_faster_more_often(found[one].seconds, found[other].seconds):
            return one
    return None


def race(library: Path, expression: Expression, shapes: _Shapes, threads: int) -> Comparison:
    """Time a kernel and the operators that it replaces, interleaved."""
    rng = np.random.default_rng(0)
    feeds = {
        f"x{i}": _draw(dtype, shape, rng)
        for i, (dtype, shape) in enumerate(zip(expression.inputs, shapes, strict=True))
    }
    runs = {}
    for name in (NODES, KERNEL):
        model = ir.to_proto(_model(expression, shapes, apart=name == NODES))
        session = make_session(model, provider="cpu", threads=threads, custom_ops=[library])
        runs[name] = BoundSession(session, feeds).run
    for rounds, budget in _STAGES:
        found = measure(runs, repeat=rounds, warmup=1, precision=None, budget_s=budget)
        if fastest(found) is not None:
            break
    return found


def _draw(dtype: ir.DataType, shape: tuple[int, ...], rng: np.random.Generator) -> "np.ndarray":
    drawn = 4 * rng.standard_normal(shape, np.float32)
    return np.asarray(
        drawn > 0 if dtype == ir.DataType.BOOL else drawn.astype(numpy_dtype(int(dtype)))
    )


def _model(expression: Expression, shapes: _Shapes, *, apart: bool) -> ir.Model:
    """Write a model of an expression, operator by operator or as its kernel."""
    inputs = [
        ir.Value(name=f"x{i}", type=ir.TensorType(dtype), shape=ir.Shape(shape))
        for i, (dtype, shape) in enumerate(zip(expression.inputs, shapes, strict=True))
    ]
    kernel = ir.Node(DOMAIN, expression.name, inputs, num_outputs=len(expression.dtypes))
    nodes, results = expression.nodes(inputs) if apart else ([kernel], kernel.outputs)
    for i, (result, dtype) in enumerate(zip(results, expression.dtypes, strict=True)):
        result.name, result.type = f"y{i}", ir.TensorType(dtype)
    opsets = {"": OPSET, DOMAIN: 1}
    graph = ir.Graph(inputs, results, nodes=nodes, name="race", opset_imports=opsets)
    return ir.Model(graph, ir_version=10)
