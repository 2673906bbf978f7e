"""Cases made of the nodes of a model: each one with the shapes and the values of a run."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from ortmeter.attribution.intermediates import operator_of, run_exposed
from ortmeter.attribution.reduction import CutGraph, Reduced, arrays_of
from ortmeter.dtypes import short_name
from ortmeter.runtime.arrays import as_numpy, is_array
from ortmeter.runtime.graphs import read_by
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.ortvalues import is_known_to_numpy
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec

#: They take no time worth a case.
SKIPPED = ("Constant", "Identity")

_TEXT = "OSUT"
_INTEGERS = ("int32", "int64")
_SHAPES = 2  # in a name
# Versions of the format: since 4 initializers need not be inputs; 8 has functions, and old releases
# read it.
_FEWEST, _FORMAT = 4, 8
_MAX_CONSTANT_ELEMENTS = 64  # integers that say what to do: axes, a shape


@dataclass(frozen=True)
class NodeCase(Reduced):
    """A node of a model, and the inputs that it gets in a run of the model.

    Parameters
    ----------
    name : str
        Operator, shapes of its first inputs, type: ``Conv-1x3x32x32-16x3x3x3-f32``.
    proto : ModelProto
        The node alone, in the opset of its model, with the names that it has there, and with
        initializers for the weights; old releases read its version of the format.
    arrays : mapping of str to array
        What it reads that a run computes.
    nodes : int
        How many nodes of the model have the same operator, attributes, shapes and types.
    """

    nodes: int = 1

    @property
    def node(self) -> onnx.NodeProto:
        """The node."""
        return self.proto.graph.node[0]

    @property
    def op(self) -> str:
        """Operator, without its domain."""
        return self.node.op_type

    def prepared(self, provider: Provider, threads: int = 1) -> SessionSpec:
        """Return what a process needs to run the case."""
        return SessionSpec(self.proto, self.feeds(), {"provider": provider, "threads": threads})


def node_cases(
    model: ModelLike, feeds: Mapping[str, Any], *, provider: str | Provider = "auto"
) -> tuple[dict[str, NodeCase], dict[str, str]]:
    """Make a case of each distinct node of a model.

    The model runs once, as it is written. What follows from constants alone is a weight.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs of the model.
    provider : str or Provider
        Where it runs.

    Returns
    -------
    dict of str to NodeCase
        By name, in the order of the graph. Nodes whose operator, attributes, shapes and types are
        the same are one case; so must be the integers that say what to do, such as axes.
    dict of str to str
        Nodes that are left out, with the reason.

    Raises
    ------
    ModelError
        The model cannot run, or its intermediate results would not fit.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2, 3] X) => (float[2, 3] Y) { A = Exp(X)  B = Exp(A)  Y = Add(A, B) }'''
    >>> cases, _ = node_cases(text, {"X": np.ones((2, 3), np.float32)}, provider="cpu")
    >>> {name: case.nodes for name, case in cases.items()}
    {'Exp-2x3-f32': 2, 'Add-2x3-2x3-f32': 1}
    """
    proto = load_model(model)
    run = {**run_exposed(proto, feeds, provider=provider, optimization="none"), **feeds}
    values = {
        name: as_numpy(value)
        for name, value in run.items()
        if is_array(value) and getattr(value, "is_tensor", lambda: True)()  # not a sequence
    }
    graph = CutGraph(Reduced("", proto, {n: values[n] for n in feeds if n in values}), values)
    cases: dict[Any, NodeCase] = {}
    names: Counter[str] = Counter()
    left_out: dict[str, str] = {}
    for node in proto.graph.node:
        outputs = {name: values.get(name) for name in node.output if name}
        if node.op_type in SKIPPED or outputs.keys() <= graph.constants.keys():
            continue
        computed = sorted(read_by(node) - {""} - graph.constants.keys())
        if reason := _why_not({name: values.get(name) for name in computed}, outputs):
            left_out[f"{node.op_type} {node.name or node.output[0]}"] = reason
            continue
        part = graph.keep([node], node.op_type)
        assert part is not None
        ordered = {**{n: part.arrays[n] for n in node.input if n in part.arrays}, **part.arrays}
        case = NodeCase("", part.proto, ordered)
        case.proto.ir_version = min(max(case.proto.ir_version, _FEWEST), _FORMAT)
        key = _signature(case, [values[name].shape for name in outputs])
        if key in cases:
            cases[key] = dataclasses.replace(cases[key], nodes=cases[key].nodes + 1)
            continue
        read = arrays_of(case)
        arrays = [read[name] for name in node.input if name]
        shapes = ["x".join(map(str, array.shape)) for array in arrays if array.ndim]
        kind = [short_name(array.dtype) for array in arrays[:1]]
        name = "-".join([operator_of(node), *shapes[:_SHAPES], *kind])
        names[name] += 1
        name += f"-{names[name]}" * (names[name] > 1)
        cases[key] = dataclasses.replace(case, name=name)
    return {case.name: case for case in cases.values()}, left_out


def _why_not(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> str:
    for what, values in (("reads", inputs), ("returns", outputs)):
        for name, value in values.items():
            if value is None:
                return f"it {what} {name!r}, which is not a tensor"
            if value.dtype.kind not in _TEXT and not is_known_to_numpy(value.dtype):
                return f"it {what} {name!r}, in {short_name(value.dtype)}"
    return ""


def _signature(case: NodeCase, written: list[tuple[int, ...]]) -> tuple[Any, ...]:
    """Return what two nodes have in common when they take the same time."""
    node = case.node
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    told = {}
    for name, array in arrays_of(case).items():
        is_weight = name not in case.arrays
        tells = is_weight and str(array.dtype) in _INTEGERS and array.size <= _MAX_CONSTANT_ELEMENTS
        axes = array.ravel().tolist() if tells else None
        told[name] = array.shape, array.dtype.str, is_weight, axes
    names = list(node.input)
    read = [(names.index(name), told.get(name)) for name in names]
    captured = sorted(str(told[name]) for name in told.keys() - {*names})
    return node.op_type, node.domain, *map(str, (attributes, read, captured, written))
