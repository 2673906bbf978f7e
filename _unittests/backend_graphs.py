"""Small graphs for the rewriting rules, as text, in any element type."""

from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from ortmeter.backend.rules import RULES
from ortmeter.backend.rules.rule import OPSET
from ortmeter.dtypes import numpy_dtype, onnx_type
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.sessions import make_session


@dataclass(frozen=True)
class Graph:
    """A graph of the standard domain.

    In its text, ``real`` is the element type, ``REAL`` its number in ONNX and ``WIDE`` the number
    of the type for what must be precise. Constants of 64 bits take the element type, those of 32
    bits the precise one.
    """

    text: str
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def replace(self, pieces, **constants):
        """The same graph with other pieces of text and other constants, None to drop one."""
        text = self.text
        for old, new in pieces.items():
            assert old in text, old
            text = text.replace(old, new)
        kept = {n: array for n, array in (self.constants | constants).items() if array is not None}
        return Graph(text, kept)

    def inner_results(self):
        """Names of the results that are not outputs."""
        graph = self.proto().graph
        outputs = {value.name for value in graph.output}
        return [name for node in graph.node for name in node.output if name not in outputs]

    def proto(self, element="float", *, outputs=(), readers=()):
        """The graph as a model, where some results are outputs as well, or are read once more."""
        wide = "double" if element == "double" else "float"
        words = {"REAL": str(onnx_type(element)), "WIDE": str(onnx_type(wide)), "real": element}
        text = self.text
        for word, value in words.items():
            text = text.replace(word, value)
        proto = load_model(f'<ir_version: 10, opset_import: ["": {OPSET}]> {text}')
        for name, array in self.constants.items():
            kind = {"float64": element, "float32": wide}.get(array.dtype.name, array.dtype)
            tensor = onnx.numpy_helper.from_array(array.astype(numpy_dtype(kind)), name)
            proto.graph.initializer.append(tensor)
        for name in readers:
            proto.graph.node.append(onnx.helper.make_node("Identity", [name], [f"{name}_read"]))
        for name in (*outputs, *(f"{name}_read" for name in readers)):
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
        return onnx.shape_inference.infer_shapes(proto, data_prop=True)

    def model(self, element="float", **more):
        """The graph as the rules see it."""
        return ir.from_proto(self.proto(element, **more))

    def feeds(self, seed=0):
        """Values for the inputs, in 64 bits."""
        rng = np.random.default_rng(seed)
        inputs = self.proto("double").graph.input
        shapes = {i.name: [d.dim_value or 2 for d in i.type.tensor_type.shape.dim] for i in inputs}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    def expected(self, feeds, **more):
        """Outputs in 64 bits, from the reference implementation of ONNX."""
        return ReferenceEvaluator(self.proto("double", **more)).run(None, feeds)


def operators(model):
    """Operators of a graph, in order."""
    return [node.op_type for node in model.graph]


def run(model, feeds, element="float"):
    """Outputs of a model on ONNX Runtime."""
    kind = numpy_dtype(element)
    session = make_session(ir.to_proto(model), provider="cpu")
    return session.run(None, {name: array.astype(kind) for name, array in feeds.items()})


def relative_errors(graph, model, element="float", **more):
    """Errors of the outputs of a rewritten graph, relative to the largest one of the original."""
    feeds = graph.feeds()
    kind = numpy_dtype(element)
    expected = graph.expected(
        {n: a.astype(kind).astype(np.float64) for n, a in feeds.items()}, **more
    )
    got = run(model, feeds, element)
    assert [a.shape for a in expected] == [a.shape for a in got]
    return [np.abs(a - b).max() / np.abs(a).max() for a, b in zip(expected, got, strict=True)]


def apply(rule, graph, element="float", provider="cpu", **more):
    """Apply one rule; give the model and how many times it fired."""
    model = graph.model(element, **more)
    return model, RULES[rule].apply(model, provider)
