"""A graph that is varied: nodes, operands, and what is around them."""

import dataclasses
import functools
import importlib.resources
import itertools
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.parser
import onnx.shape_inference

from ortmeter.dtypes import numpy_dtype, onnx_type
from ortmeter.runtime.graphs import NOT_INFERRED

#: Type of an operand that the pattern leaves open.
OPEN = "T"

_OPERAND = re.compile(r"(\w+)\[([\d,]*)\] (\w+)(?: = (\d+))?")
_LITERAL = re.compile(
    r"<[^>]*>|(?<=[(,])\s*(\[[-\d, ]*\]|#?-?\d[\d.]*(?:e-?\d+)?)(?=\s*[,)])"  # not in attributes
)
_OPSET, _FORMAT = 17, 8
_DOMAINS = {"com.microsoft": 1, "ai.onnx.ml": 3}
_LEAST, _MOST, _INDICES = 0.25, 2.0, 4  # magnitudes of floats: none is near zero; integers


@dataclass(frozen=True)
class Operand:
    """A tensor that a graph reads: its type, its shape, its numbers if they are given, its role.

    The role is ``input``, ``initializer`` or ``constant``, which is a node.
    """

    type: str
    shape: tuple[int, ...]
    role: str
    values: float | tuple[int, ...] | None = None

    def draw(self, name: str, kind: str) -> np.ndarray:
        """Return its numbers, the same each time; *kind* stands for the open type."""
        dtype = numpy_dtype(kind if self.type == OPEN else self.type)
        if self.values is not None:
            return np.broadcast_to(np.asarray(self.values), self.shape).astype(dtype)
        rng = np.random.default_rng(zlib.crc32(f"{name} {self.shape}".encode()))
        if dtype.kind == "b" or self.type == "i64":
            return rng.integers(0, 2 if dtype.kind == "b" else _INDICES, self.shape).astype(dtype)
        if self.type in ("u8", "i8"):
            return rng.integers(256, size=self.shape).astype(dtype)
        drawn = rng.uniform(_LEAST, _MOST, self.shape)
        if name not in _POSITIVE:
            drawn *= rng.choice([-1, 1], self.shape)
        return np.asarray(drawn if dtype.kind == "f" else np.ceil(drawn)).astype(dtype)


_POSITIVE = {"v", "s"}  # variances and scales


@dataclass(frozen=True)
class Draft:
    """Nodes and operands of a graph, not a model yet.

    Parameters
    ----------
    nodes : tuple of NodeProto
        In the form of any opset: axes are attributes or inputs.
    operands : mapping of str to Operand
        What they read.
    outputs : tuple of str
        Results.
    kind : str
        The open type: ``f32``, ``f16``...
    opset : int
        Version of the operators.
    wrap : str
        One of :data:`WRAPS`, or nothing.
    is_free : bool
        Whether the inputs declare no size.
    """

    nodes: tuple[onnx.NodeProto, ...]
    operands: Mapping[str, Operand]
    outputs: tuple[str, ...] = ("Y",)
    kind: str = "f32"
    opset: int = _OPSET
    wrap: str = ""
    is_free: bool = False

    def with_node(self, rank: int, **changes: Any) -> "Draft":
        """Return the graph with another name, inputs, outputs or attributes of a node.

        None removes an attribute.
        """
        node = onnx.NodeProto()
        node.CopyFrom(self.nodes[rank])
        node.name = changes.pop("name", node.name)
        node.input[:] = changes.pop("inputs", list(node.input))
        node.output[:] = changes.pop("outputs", list(node.output))
        kept = [attribute for attribute in node.attribute if attribute.name not in changes]
        added = [onnx.helper.make_attribute(*one) for one in changes.items() if one[1] is not None]
        del node.attribute[:]
        node.attribute.extend([*kept, *added])
        nodes = (*self.nodes[:rank], node, *self.nodes[rank + 1 :])
        return dataclasses.replace(self, nodes=nodes)

    def with_operand(self, name: str, **changes: Any) -> "Draft":
        """Return the graph with another operand of this name."""
        changed = dataclasses.replace(self.operands[name], **changes)
        return dataclasses.replace(self, operands={**self.operands, name: changed})

    def feeds(self) -> dict[str, np.ndarray]:
        """Draw the inputs."""
        given = self.operands.items()
        feeds = {n: one.draw(n, self.kind) for n, one in given if one.role == "input"}
        return {**feeds, "condition": np.array(True)} if self.wrap == "If" else feeds

    def model(self) -> onnx.ModelProto:
        """Build the model.

        Returns
        -------
        ModelProto
            It may not be valid: see :func:`onnx.checker.check_model`.
        """
        operands = dict(self.operands)
        nodes = [_of_opset(node, self.opset, operands) for node in self.nodes]
        read = {name for node in nodes for name in node.input}
        tensors = {
            name: onnx.numpy_helper.from_array(one.draw(name, self.kind), name)
            for name, one in operands.items()
            if one.role != "input" and name in read
        }
        constants = [
            onnx.helper.make_node("Constant", [], [name], value=tensor)
            for name, tensor in tensors.items()
            if operands[name].role == "constant"
        ]
        weights = [t for name, t in tensors.items() if operands[name].role == "initializer"]
        inputs = [
            onnx.helper.make_tensor_value_info(
                name, onnx_type(array.dtype), [None] * array.ndim if self.is_free else array.shape
            )
            for name, array in self.feeds().items()
        ]
        used = {node.domain for node in nodes}
        imports = {"": self.opset, **{d: v for d, v in _DOMAINS.items() if d in used}}
        opsets = [onnx.helper.make_opsetid(*pair) for pair in imports.items()]
        make = functools.partial(
            onnx.helper.make_model, opset_imports=opsets, ir_version=_FORMAT, producer_name=""
        )
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        nodes = [*constants, *nodes]
        graph = onnx.helper.make_graph(nodes, "fusion", inputs, outputs, weights)
        typed = self._typed(make(graph))
        del graph.output[:]
        graph.output.extend(typed)
        return make(_WRAPPED[self.wrap](graph) if self.wrap else graph)

    def _typed(self, model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
        """Declare the types and the ranks of the outputs; ONNX infers none of what it lacks."""
        try:
            found = onnx.shape_inference.infer_shapes(model).graph.output
        except NOT_INFERRED:
            found = model.graph.output
        kinds = {value.name: value.type.tensor_type for value in found}
        ranks = [len(value.type.tensor_type.shape.dim) for value in model.graph.input]
        usual, highest = onnx_type(self.kind), max(ranks, default=0)
        return [
            _declared(name, kinds[name].elem_type, len(kinds[name].shape.dim))
            if kinds[name].elem_type
            else _declared(name, usual, highest)
            for name in self.outputs
        ]


def _of_opset(node: onnx.NodeProto, opset: int, operands: dict[str, Operand]) -> onnx.NodeProto:
    """Write a node as an opset has it: what became an input may be an attribute, and back."""
    try:
        last = onnx.defs.get_schema(node.op_type, domain=node.domain)
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain) if not node.domain else last
    except onnx.defs.SchemaError:
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    names = [formal.name for formal in schema.inputs]
    for attribute in node.attribute:
        if attribute.name in names and attribute.name not in schema.attributes:
            value = onnx.helper.get_attribute_value(attribute)
            name = f"{node.output[0]}_{attribute.name}"
            is_list = isinstance(value, list)
            operands[name] = Operand(
                "i64" if is_list else OPEN,
                (len(value),) if is_list else (),
                "initializer",
                tuple(value) if is_list else value,
            )
            place = names.index(attribute.name)
            made.input.extend([""] * (place - len(made.input)) + [name])
            made.attribute.remove(attribute)
    for place, formal in reversed([*enumerate(last.inputs)][: len(node.input)]):
        one = operands.get(node.input[place])
        if formal.name in schema.attributes and formal.name not in names and one:
            value = one.values if isinstance(one.values, tuple) or not one.shape else None
            del made.input[place]
            if value is not None:
                made.attribute.append(onnx.helper.make_attribute(formal.name, value))
    return made


def _declared(name: str, kind: int, rank: int) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, kind, [None] * rank)


def _renamed(values: Iterable[onnx.ValueInfoProto], more: int = 0) -> list[onnx.ValueInfoProto]:
    """Declare the outputs of a node that has the others inside, with more axes."""
    kinds = ((value.name, value.type.tensor_type) for value in values)
    return [_declared(f"{name}_after", k.elem_type, len(k.shape.dim) + more) for name, k in kinds]


def _in_if(graph: onnx.GraphProto) -> onnx.GraphProto:
    branch = onnx.helper.make_graph(graph.node, "branch", [], graph.output, graph.initializer)
    after = _renamed(graph.output)
    node = onnx.helper.make_node(
        "If",
        [graph.input[-1].name],
        [one.name for one in after],
        then_branch=branch,
        else_branch=branch,
    )
    return onnx.helper.make_graph([node], "fusion", graph.input, after)


def _in_loop(graph: onnx.GraphProto) -> onnx.GraphProto:
    make_value, truth = onnx.helper.make_tensor_value_info, onnx.TensorProto.BOOL
    own = [make_value("turn", onnx.TensorProto.INT64, []), make_value("going", truth, [])]
    more = onnx.helper.make_node("Identity", ["going"], ["goes on"])
    results = [make_value("goes on", truth, []), *graph.output]
    body = onnx.helper.make_graph([more, *graph.node], "body", own, results, graph.initializer)
    after = _renamed(graph.output, 1)
    node = onnx.helper.make_node("Loop", ["turns", ""], [one.name for one in after], body=body)
    turns = onnx.numpy_helper.from_array(np.array(2), "turns")
    return onnx.helper.make_graph([node], "fusion", graph.input, after, [turns])


_WRAPPED = {"If": _in_if, "Loop": _in_loop}
#: What may be around the nodes.
WRAPS = tuple(_WRAPPED)


@functools.cache
def patterns() -> Mapping[str, tuple[str, Draft]]:
    """Read what each optimizer looks for: by name, the optimizer and the graph."""
    content = importlib.resources.files(__package__).joinpath("patterns.toml").read_bytes()
    read = msgspec.toml.decode(content, type=dict[str, list[dict[str, Any]]])
    found: dict[str, tuple[str, Draft]] = {}
    for optimizer, tables in read.items():
        count = itertools.count(2)
        for table in tables:
            for parts in table.get("each", [[]]):
                name = f"{optimizer} {next(count)}" if optimizer in found else optimizer
                filled = [parts] if isinstance(parts, str) else parts
                text = table["nodes"].format(*filled)
                found[name] = optimizer, _draft(table["operands"], text)
    return found


def _draft(operands: str, nodes: str) -> Draft:
    """Read a pattern: its operands, its nodes, and the numbers among what these read."""
    known = {
        name: Operand(
            kind,
            tuple(map(int, filter(None, shape.split(",")))),
            "input" if name[0].isupper() else "initializer",
            float(value) if value else None,
        )
        for kind, shape, name, value in _OPERAND.findall(operands)
    }

    def named(match: re.Match[str]) -> str:
        text, name = match[1], f"c{len(known)}"
        if text is None:  # attributes
            return match[0]
        if text.startswith("["):
            values = tuple(map(int, text.strip("[]").split(",")))
            known[name] = Operand("i64", (len(values),), "initializer", values)
        else:
            kind = "i64" if text.startswith("#") else OPEN
            known[name] = Operand(kind, (), "initializer", float(text.removeprefix("#")))
        return name

    graph = onnx.parser.parse_graph(f"g () => () {{ {_LITERAL.sub(named, nodes)} }}")
    read = {name for node in graph.node for name in node.input}
    return Draft(tuple(graph.node), {name: known[name] for name in known if name in read})
