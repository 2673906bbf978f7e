"""Expressions, their kernels and what they should give, for tests."""

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ortmeter.backend.kernels.compiler import compile_library
from ortmeter.backend.kernels.expression import Expression, Literal, Step
from ortmeter.backend.kernels.sources import DOMAIN, cpu_source
from ortmeter.dtypes import numpy_dtype
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.sessions import make_session

F32, F64, F16 = ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16
BOOL, I64 = ir.DataType.BOOL, ir.DataType.INT64


def step(op_type, *arguments, dtype=F32, **attributes):
    return Step(op_type, tuple(sorted(attributes.items())), arguments, dtype)


def number(value, dtype=F32):
    return Literal(value, dtype)


def unary(op_type, dtype=F32, **attributes):
    """One function of one input."""
    return Expression((dtype,), (step(op_type, "x0", dtype=dtype, **attributes),))


def in_type(expression, dtype, source=F32):
    """The same expression where a type becomes another."""

    def change(given):
        return dtype if given == source else given

    def argument(given):
        return Literal(given.value, change(given.dtype)) if isinstance(given, Literal) else given

    steps = tuple(
        Step(s.op_type, s.attributes, tuple(map(argument, s.arguments)), change(s.dtype))
        for s in expression.steps
    )
    return Expression(tuple(map(change, expression.inputs)), steps)


def graph(text, opset=21, **constants):
    """A model whose constants of one element or more are given, with the shapes of its results."""
    proto = load_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))


def kernel_model(expression):
    """A model of one node, the kernel of an expression, whose shapes are free."""
    inputs = [
        ir.Value(name=f"x{i}", type=ir.TensorType(t)) for i, t in enumerate(expression.inputs)
    ]
    node = ir.Node(DOMAIN, expression.name, inputs, num_outputs=len(expression.dtypes))
    for i, (result, dtype) in enumerate(zip(node.outputs, expression.dtypes, strict=True)):
        result.name, result.type = f"y{i}", ir.TensorType(dtype)
    return _model(inputs, node.outputs, [node])


def reference_model(expression):
    """A model of the operators of an expression."""
    inputs = [
        ir.Value(name=f"x{i}", type=ir.TensorType(t)) for i, t in enumerate(expression.inputs)
    ]
    nodes, results = expression.nodes(inputs)
    for i, result in enumerate(results):
        result.name = f"y{i}"
    return _model(inputs, results, nodes)


def _model(inputs, outputs, nodes):
    opsets = {"": 22, DOMAIN: 1}
    made = ir.Graph(inputs, outputs, nodes=nodes, name="g", opset_imports=opsets)
    return ir.Model(made, ir_version=10)


def run_kernels(expressions, feeds, threads=1, library=None):
    """Results of the kernels of several expressions on the same arrays."""
    expressions = list(expressions)
    library = library or compile_library(cpu_source(list(dict.fromkeys(expressions))))
    results = []
    for expression in expressions:
        model = ir.to_proto(kernel_model(expression))
        session = make_session(model, provider="cpu", threads=threads, custom_ops=[library])
        (result,) = session.run(None, named(expression, feeds))
        results.append(result)
    return results


def named(expression, feeds):
    """Arrays in the types of the inputs of an expression."""
    pairs = zip(expression.inputs, feeds, strict=False)
    return {f"x{i}": np.asarray(a).astype(numpy_dtype(int(t))) for i, (t, a) in enumerate(pairs)}


def expected(expression, feeds):
    """What the reference implementation of ONNX computes in float64, on the rounded inputs."""
    wide = in_type(in_type(expression, F64), F64, source=F16)
    rounded = named(expression, feeds).values()
    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(ir.to_proto(reference_model(wide)))
        (result,) = evaluator.run(None, named(wide, rounded))
    return result


def ulps(reference, got):
    """Largest error in ulp of the type of a result, where both are finite and normal."""
    kind = np.finfo(got.dtype)
    with np.errstate(all="ignore"):
        rounded = reference.astype(got.dtype)
        usual = np.isfinite(rounded) & (np.abs(reference) >= 2 * kind.tiny)
        error = np.abs(got.astype(np.longdouble) - reference)
    return float(np.max(error[usual] / np.spacing(np.abs(rounded[usual])), initial=0))
