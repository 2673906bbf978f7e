"""Activations written in a form that ONNX Runtime does not fuse, and what computes them instead.

A form is an operator and what its inputs are: a number, ``x``, ``row`` or another form. ``times``
is a product by a number or a division by its inverse.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx
import onnx.helper as oh
import onnx.numpy_helper

from ortmeter.errors import ModelError
from ortmeter.runtime.graphs import NOT_INFERRED, constant_tensors, readers_of, replace_items

__all__ = ["PATTERNS", "Match", "Pattern", "find_patterns", "fuse_patterns"]

_Form: TypeAlias = Any  # str, float or tuple of an operator and forms
_MICROSOFT = "com.microsoft"
_CLOSE = 5e-7  # a few roundings of a float32


@dataclass(frozen=True)
class Pattern:
    """An activation that ONNX Runtime computes faster than the form that exporters write.

    Parameters
    ----------
    name : str
        The activation.
    becomes : tuple of str
        Operators that are written instead.
    since : str
        Opset, or domain, that has them.
    reason : str
        Why ONNX Runtime does not fuse these forms.
    forms : tuple
        What is looked for, in order.
    """

    name: str
    becomes: tuple[str, ...]
    since: str
    reason: str
    forms: tuple[_Form, ...]


class Match(NamedTuple):
    """Nodes that compute an activation, the last one first, and what prevents a rewriting."""

    pattern: Pattern
    nodes: tuple[onnx.NodeProto, ...]
    x: str
    row: str
    obstacle: str


def _shared(factor: _Form, number: float) -> tuple[_Form, ...]:
    """Write x times a factor times a number in its three orders."""
    return (
        ("times", ("Mul", "x", factor), number),
        ("Mul", ("times", "x", number), factor),
        ("Mul", "x", ("times", factor, number)),
    )


def _biased(form: _Form) -> _Form:
    """Write a form of x plus a row."""
    if isinstance(form, tuple):
        return (form[0], *map(_biased, form[1:]))
    return ("Add", "x", "row") if form == "x" else form


_CLIPPED = ("Clip", ("Add", "x", 3.0), 0.0, 6.0)
_ERF = ("Add", ("Erf", ("times", "x", 0.5**0.5)), 1.0)
_ERF_FORMS = _shared(_ERF, 0.5)
_CUBES = (
    ("times", ("Pow", "x", 3.0), 0.044715),
    ("times", ("Mul", ("Mul", "x", "x"), "x"), 0.044715),
    ("Mul", ("Mul", "x", "x"), ("times", "x", 0.044715)),
    ("Mul", "x", ("Mul", "x", ("times", "x", 0.044715))),
)
_TANH_FORMS = tuple(
    form
    for cube in _CUBES
    for tanh in [("Tanh", ("times", ("Add", "x", cube), (2 / np.pi) ** 0.5))]
    for form in _shared(("Add", tanh, 1.0), 0.5)
)

#: What is looked for, the largest forms first.
PATTERNS = (
    Pattern(
        "HardSwish",
        ("HardSigmoid", "Mul"),
        "opset 6",
        "it has no rule for x * clip(x + 3, 0, 6) / 6",
        _shared(_CLIPPED, 1 / 6),
    ),
    Pattern(
        "HardSigmoid",
        ("HardSigmoid",),
        "opset 6",
        "it has no rule for clip(x + 3, 0, 6) / 6",
        (("times", _CLIPPED, 1 / 6),),
    ),
    Pattern(
        "BiasGelu",
        ("BiasGelu",),
        _MICROSOFT,
        "its rule wants a bias of one dimension",
        tuple(map(_biased, (("Gelu", "x"), *_ERF_FORMS))),
    ),
    Pattern(
        "Gelu",
        ("Gelu",),
        _MICROSOFT,
        "its rule wants x / sqrt(2), and the half outside of the product or with x",
        _ERF_FORMS,
    ),
    Pattern(
        "FastGelu",
        ("FastGelu",),
        _MICROSOFT,
        "its rule for tanh is not for this provider",
        _TANH_FORMS,
    ),
)


def find_patterns(model: onnx.ModelProto) -> list[Match]:
    """Find the activations that are written in a form of :data:`PATTERNS`.

    Parameters
    ----------
    model : onnx.ModelProto
        Its main graph is searched.

    Returns
    -------
    list of Match
        Each node is in one at most.

    Examples
    --------
    >>> import onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) <float three = {3}, float zero = {0}, float six = {6}> {
    ...   A = Add(X, three)  C = Clip(A, zero, six)  M = Mul(X, C)  Y = Div(M, six) }''')
    >>> [(match.pattern.name, match.x, match.obstacle) for match in find_patterns(model)]
    [('HardSwish', 'X', '')]
    """
    graph = _PatternGraph(model)
    used: set[int] = set()
    found = []
    for pattern in PATTERNS:
        for node in model.graph.node:
            if match := graph.match(pattern, node):
                ids = set(map(id, match.nodes))
                if used.isdisjoint(ids):
                    used |= ids
                    found.append(match)
    return found


def fuse_patterns(model: onnx.ModelProto) -> onnx.ModelProto:
    """Write the activations that :func:`find_patterns` finds with the operators made for them.

    Parameters
    ----------
    model : onnx.ModelProto
        It is modified.

    Returns
    -------
    onnx.ModelProto
        The model. The results change by a few roundings.

    Raises
    ------
    ModelError
        Nothing can be rewritten; the message says why.

    Examples
    --------
    >>> import onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) <float three = {3}, float zero = {0}, float six = {6}> {
    ...   A = Add(X, three)  C = Clip(A, zero, six)  M = Mul(X, C)  Y = Div(M, six) }''')
    >>> [node.op_type for node in fuse_patterns(model).graph.node]
    ['HardSigmoid', 'Mul']
    """
    matches = find_patterns(model)
    if not (fused := [match for match in matches if not match.obstacle]):
        names = ", ".join(pattern.name for pattern in PATTERNS)
        reasons = dict.fromkeys(f"{m.pattern.name}: {m.obstacle}" for m in matches)
        raise ModelError("; ".join(reasons) or f"no form of {names} in the main graph")
    instead = {id(match.nodes[0]): _written(match, model.graph) for match in fused}
    gone = {id(node) for match in fused for node in match.nodes}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        nodes += instead.get(id(node), [] if id(node) in gone else [node])
    replace_items(model.graph.node, nodes)
    is_contributed = any(match.pattern.since == _MICROSOFT for match in fused)
    if is_contributed and all(one.domain != _MICROSOFT for one in model.opset_import):
        model.opset_import.append(oh.make_opsetid(_MICROSOFT, 1))
    return model


def _written(match: Match, graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    name, output = match.nodes[0].name, match.nodes[0].output[0]
    if match.pattern.since == _MICROSOFT:
        inputs = [match.x]
        if match.row:
            known = {tensor.name: tensor for tensor in graph.initializer}
            known |= constant_tensors(graph.node)
            inputs.append(f"{output}/bias")
            bias = onnx.numpy_helper.to_array(known[match.row]).reshape(-1)
            graph.initializer.append(onnx.numpy_helper.from_array(bias, inputs[1]))
        op = match.pattern.becomes[0]
        return [oh.make_node(op, inputs, [output], name, domain=_MICROSOFT)]
    if match.pattern.becomes == ("HardSigmoid",):
        return [oh.make_node("HardSigmoid", [match.x], [output], name, alpha=1 / 6, beta=0.5)]
    inner = f"{output}/hard_sigmoid"
    first = oh.make_node("HardSigmoid", [match.x], [inner], f"{name}/hard", alpha=1 / 6, beta=0.5)
    return [first, oh.make_node("Mul", [match.x, inner], [output], name)]


class _PatternGraph:
    """The main graph, as a form reads it."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        graph = model.graph
        self.outputs = {value.name for value in graph.output}
        self.producer = {name: node for node in graph.node for name in node.output}
        self.readers = readers_of(graph.node)
        given = {value.name for value in graph.input}
        tensors = {t.name: t for t in graph.initializer if t.name not in given}
        tensors |= constant_tensors(graph.node)
        self.constants = {n: t for n, t in tensors.items() if t.data_type == onnx.TensorProto.FLOAT}

    def match(self, pattern: Pattern, root: onnx.NodeProto) -> Match | None:
        for form in pattern.forms:
            found = self._match_form(form, root.output[0], {}) if root.output else None
            if found is None or "x" not in found:
                continue
            nodes = tuple(node for key, node in found.items() if key not in {"x", "row"})
            x, row = found["x"], found.get("row", "")
            return Match(pattern, nodes, x, row, self._obstacle(nodes, x, row))
        return None

    def _match_form(
        self, form: _Form, name: str, found: Mapping[Any, Any]
    ) -> dict[Any, Any] | None:
        """Return what is found with this tensor: nodes by identity, x and row; or None."""
        if isinstance(form, float):
            return dict(found) if self._is_number(name, form) else None
        if form == "row" and not self._is_row(name):
            return None
        if isinstance(form, str):
            return {**found, form: name} if found.get(form, name) == name else None
        if (node := self.producer.get(name)) is None:
            return None
        for parts, inputs in _orders(form, node):
            state: dict[Any, Any] | None = {**found, id(node): node}
            for part, one in zip(parts, inputs, strict=True):
                state = None if state is None else self._match_form(part, one, state)
            if state is not None:
                return state
        return None

    def _is_number(self, name: str, number: float) -> bool:
        tensor = self.constants.get(name)
        if tensor is None or list(tensor.dims) not in ([], [1]):
            return False
        value = float(onnx.numpy_helper.to_array(tensor).item())
        return abs(value - number) <= _CLOSE * abs(number)

    def _is_row(self, name: str) -> bool:
        """Whether a tensor is constant, and of several dimensions of which only the last counts."""
        dims = list(self.constants[name].dims) if name in self.constants else [0]
        return len(dims) > 1 and set(dims[:-1]) == {1} and dims[-1] > 1

    def _obstacle(self, nodes: tuple[onnx.NodeProto, ...], x: str, row: str) -> str:
        inside = set(map(id, nodes))
        for name in (node.output[0] for node in nodes[1:]):
            if name in self.outputs:
                return f"{name!r}, inside of it, is an output of the model"
            for reader in self.readers[name]:
                if id(reader) not in inside:
                    return f"{name!r}, inside of it, is read by {reader.name or reader.op_type!r}"
        if row and not self._ranks.get(x, 0) >= len(self.constants[row].dims):
            return f"the rank of {x!r} is not known, or less than that of its bias"
        return ""

    @functools.cached_property
    def _ranks(self) -> dict[str, int]:
        """Ranks of the results that are known, by name."""
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model).graph
        except NOT_INFERRED:
            return {}
        return {
            value.name: len(value.type.tensor_type.shape.dim)
            for value in (*inferred.input, *inferred.value_info)
            if value.type.tensor_type.HasField("shape")
        }


def _orders(form: _Form, node: onnx.NodeProto) -> Iterator[tuple[tuple[_Form, ...], list[str]]]:
    """List the ways to read a node as a form: its parts, and the inputs that they are."""
    op, *parts = form
    inputs = list(node.input)
    if op == "times":
        part, number = parts
        parts = [part, 1 / number] if node.op_type == "Div" else [part, number]
        op = node.op_type if node.op_type in {"Div", "Mul"} else op
    given = {attribute.name: attribute for attribute in node.attribute}
    if op == "Clip" and len(inputs) == 1:  # before opset 11
        bounds = [given[name].f for name in ("min", "max") if name in given]
        parts = parts[:1] if bounds == parts[1:] else parts
    is_tanh = op == "Gelu" and "approximate" in given and given["approximate"].s != b"none"
    if node.op_type != op or is_tanh or len(parts) != len(inputs):
        return
    yield tuple(parts), inputs
    if op in {"Add", "Mul"}:
        yield tuple(parts), inputs[::-1]
