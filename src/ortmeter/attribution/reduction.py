"""Cut a model while something that is seen in it holds, by delta debugging."""

import contextlib
import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import onnx
import onnx.inliner
import onnx.numpy_helper
from onnx.helper import make_tensor_value_info

from ortmeter.dtypes import onnx_type
from ortmeter.operators import find_operator
from ortmeter.runtime.graphs import NOT_INFERRED, constant_tensors, read_by
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.models import sub_model

#: Bytes of an array from which it is worth drawing.
EMBEDDED = 512
_QUANTILES = 17

_Arrays = Mapping[str, np.ndarray]
_Record = Callable[[onnx.ModelProto, _Arrays], _Arrays]
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Reduced:
    """A model and its inputs, made from another one.

    Parameters
    ----------
    name : str
        What it was made from.
    proto : ModelProto
        The model.
    arrays : mapping of str to array
        Its inputs.
    step : str
        What was cut last.
    drawn : mapping of str to list of float
        Quantiles of the inputs and weights that were drawn again, see ``draw``.
    """

    name: str
    proto: onnx.ModelProto = field(repr=False)
    arrays: _Arrays = field(repr=False)
    step: str = "the model as it is"
    drawn: Mapping[str, list[float]] = field(default_factory=dict, repr=False)

    def model(self) -> onnx.ModelProto:
        """Return the model."""
        return self.proto

    def feeds(self) -> dict[str, np.ndarray]:
        """Return its inputs."""
        return dict(self.arrays)


_Holds = Callable[[Reduced], bool]


def reduce_model(
    model: ModelLike,
    feeds: _Arrays,
    holds: _Holds,
    record: _Record,
    *,
    name: str = "model",
) -> Reduced:
    """Cut a model while a predicate holds.

    Nodes are removed by halves, then by smaller parts, until none of them can go (ddmin [1]_): what
    the others read of them becomes an input, with the value that it had, or a weight when it
    follows from constants. Outputs are removed; axes of the same size are shortened together, then
    those of each input; weights and inputs of floats are drawn again from their quantiles. Local
    functions are inlined. Bodies of If, Loop and Scan stay whole, with the values that they read
    around them.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Its inputs.
    holds : callable
        Takes a :class:`Reduced`, returns whether it still shows what is looked for. It is not
        called with the model itself.
    record : callable
        Takes a model and its inputs, returns the arrays that its nodes compute, by name. Where one
        is missing, nothing is cut.
    name : str
        Name of the model.

    Returns
    -------
    Reduced
        The smallest one that holds, which is the last one that did.

    References
    ----------
    .. [1] Zeller and Hildebrandt, *Simplifying and isolating failure-inducing input*, 2002.

    Examples
    --------
    >>> from ortmeter.attribution.intermediates import run_exposed
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Z) { A = Exp(X) B = Neg(A) C = Abs(B) Z = Sqrt(C) }'''
    >>> def has_abs(reduced):
    ...     return "Abs" in [node.op_type for node in reduced.model().graph.node]
    >>> best = reduce_model(text, {"X": np.ones(4, np.float32)}, has_abs, run_exposed)
    >>> [node.op_type for node in best.model().graph.node], best.feeds()
    (['Abs'], {'B': array([-2.7182817], dtype=float32)})
    """
    search = _Reduction(Reduced(name, load_model(model), dict(feeds)), holds)
    if (proto := search.best.proto).functions:
        inlined = onnx.inliner.inline_local_functions(proto)
        search.finds(replace(search.best, proto=inlined, step="functions inlined"))
    _cut_nodes(search, CutGraph(search.best, record(search.best.proto, feeds)))
    _cut_sizes(search)
    _draw_again(search)
    return search.best


def minimal(items: list[_Item], holds: Callable[[list[_Item]], bool]) -> list[_Item]:
    """Return a part of a list that holds, none of whose items can go.

    It tries the parts, then, where they are more than two, what is left without each of them.

    Examples
    --------
    >>> minimal(list(range(100)), lambda kept: {17, 60} <= {*kept})
    [17, 60]
    """
    count = 2
    while len(items) > 1:
        ends = [len(items) * rank // count for rank in range(count + 1)]
        parts = [items[start:stop] for start, stop in itertools.pairwise(ends)]
        if count > 2:  # noqa: PLR2004 - halves are what is left without the other
            parts += [items[:start] + items[stop:] for start, stop in itertools.pairwise(ends)]
        found = next(filter(holds, parts), None)
        if found:
            count = 2 if 2 * len(found) <= len(items) else max(count - 1, 2)
            items = found
        elif count < len(items):
            count = min(2 * count, len(items))
        else:
            break
    return items


@dataclass
class _Reduction:
    """The smallest model so far."""

    best: Reduced
    holds: _Holds

    def finds(self, smaller: Reduced | None) -> bool:
        """Whether a model exists and holds: it is then the best."""
        if smaller is None or not self.holds(smaller):
            return False
        self.best = smaller
        return True


class CutGraph:
    """A graph, and the values that can replace its nodes."""

    def __init__(self, source: Reduced, values: _Arrays) -> None:
        graph = source.proto.graph
        self.source, self.values = source, {**values, **source.arrays}
        self.constants = {t.name: t for t in graph.initializer if t.name not in source.arrays}
        self.ends = {output.name: output for output in graph.output}
        self.declared = dict(self.ends)
        with contextlib.suppress(*NOT_INFERRED):  # a model above 2 GiB for instance
            inferred = onnx.shape_inference.infer_shapes(source.proto).graph
            self.declared |= {value.name: value for value in inferred.value_info}
        for name, tensor in constant_tensors(graph.node).items():
            self.values[name] = onnx.numpy_helper.to_array(tensor)
        for node in graph.node:
            is_random = find_operator(node.op_type, node.domain).is_random
            if not is_random and read_by(node) - {""} <= self.constants.keys():
                made = {n: self.values[n] for n in node.output if n in self.values}
                self.constants |= {n: onnx.numpy_helper.from_array(a, n) for n, a in made.items()}

    def keep(
        self, nodes: Sequence[onnx.NodeProto], step: str, outputs: Sequence[str] = ()
    ) -> Reduced | None:
        """Make a model of some nodes; None where a value that it needs is not known."""
        made = dict.fromkeys(name for node in nodes for name in node.output if name)
        read = dict.fromkeys(name for node in nodes for name in sorted(read_by(node)) if name)
        outside = [name for name in read if name not in made]
        given = [name for name in outside if name not in self.constants]
        ends = outputs or [name for name in made if name not in read or name in self.ends]
        if not {*given} <= self.values.keys() or not {*ends} <= {*self.values, *self.declared}:
            return None
        proto = sub_model(
            self.source.proto,
            nodes,
            [_info(name, self.values[name], self.values[name].shape) for name in given],
            # Without sizes, which may change.
            [
                _info(name, self.values[name], [None] * self.values[name].ndim)
                if name in self.values
                else self.declared[name]
                for name in ends
            ],
            [self.constants[name] for name in outside if name in self.constants],
        )
        arrays = {name: self.values[name] for name in given}
        return replace(self.source, proto=proto, arrays=arrays, step=step)


def _info(name: str, array: np.ndarray, shape: Sequence[int | None]) -> onnx.ValueInfoProto:
    return make_tensor_value_info(name, onnx_type(array.dtype), shape)


def _cut_nodes(search: _Reduction, graph: CutGraph) -> None:
    """Remove nodes, then outputs."""
    nodes = list(search.best.proto.graph.node)
    count = len(nodes)

    def keep(kept: list[onnx.NodeProto]) -> bool:
        labels = (f"{n.op_type} {n.name or next(iter(n.output), '')}" for n in (kept[0], kept[-1]))
        ends = " to ".join(dict.fromkeys(labels))
        return search.finds(graph.keep(kept, f"{len(kept)} of {count} nodes, {ends}"))

    plain = [node for node in nodes if node.op_type != "Constant"]
    if 0 < len(plain) < count and keep(plain):
        nodes = plain
    nodes = minimal(nodes, keep)
    outputs = [output.name for output in search.best.proto.graph.output]
    minimal(outputs, lambda kept: search.finds(graph.keep(nodes, f"outputs {kept}", kept)))


def _cut_sizes(search: _Reduction) -> None:
    """Shorten the axes that have the same size, together, then those of each input."""
    shapes = [array.shape for array in arrays_of(search.best).values()]
    for size in sorted({size for shape in shapes for size in shape if size > 1}, reverse=True):
        arrays = arrays_of(search.best).items()
        axes = [(name, i) for name, a in arrays for i, s in enumerate(a.shape) if s == size]
        alone = [[axis] for axis in axes if axis[0] in search.best.arrays and len(axes) > 1]
        for group in (axes, *alone):
            _shorten(search, group, size)


def _shorten(search: _Reduction, axes: Sequence[tuple[str, int]], size: int) -> None:
    """Shorten axes to 1, else by halves."""
    for new in (1, *(size >> power for power in range(1, size.bit_length() - 1))):
        changed = arrays = arrays_of(search.best)
        longer = [(name, axis) for name, axis in axes if arrays[name].shape[axis] > new]
        for name, axis in longer:
            changed = {**changed, name: changed[name].take(range(new), axis)}
        what = ", ".join(f"{axis} of {name}" for name, axis in longer)
        shorter = with_arrays(search.best, changed, f"{new} of {size} along axes {what}")
        if not longer or (not search.finds(shorter) and new > 1):
            break


def _draw_again(search: _Reduction) -> None:
    """Draw large arrays of floats again: together, else one by one."""
    arrays = arrays_of(search.best)
    large = [n for n, a in arrays.items() if a.dtype.kind == "f" and a.nbytes > EMBEDDED]
    for names in (large, *([name] for name in large)):
        if new := [name for name in names if name not in search.best.drawn]:
            points = {name: quantiles(arrays[name]) for name in new}
            changed = {name: draw(name, arrays[name], points[name]) for name in new}
            drawn = with_arrays(search.best, changed, f"{', '.join(new)} drawn again")
            search.finds(replace(drawn, drawn={**search.best.drawn, **points}))


def quantiles(array: np.ndarray) -> list[float]:
    """Return the quantiles of an array, as a script writes them."""
    finite = np.nan_to_num(array).astype(np.float64)
    found = np.quantile(finite, np.linspace(0, 1, _QUANTILES), method="nearest")
    return [round(q) if array.dtype.kind in "iub" else float(f"{q:.6g}") for q in found]


def draw(name: str, like: np.ndarray, points: Sequence[float]) -> np.ndarray:
    """Draw an array of floats from quantiles, the same for a name."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = np.interp(rng.random(like.shape), np.linspace(0, 1, len(points)), points)
    return np.asarray(drawn, like.dtype)


def arrays_of(reduced: Reduced) -> dict[str, np.ndarray]:
    """List the inputs and the weights."""
    tensors = reduced.proto.graph.initializer
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in tensors}
    return {**weights, **reduced.arrays}


def with_arrays(reduced: Reduced, changed: _Arrays, step: str) -> Reduced:
    """Copy a model with other inputs and weights; sizes of what it computes are not declared."""
    arrays = {**arrays_of(reduced), **changed}
    feeds = {name: arrays[name] for name in reduced.arrays}
    graph = onnx.GraphProto()
    graph.CopyFrom(reduced.proto.graph)
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            dim.Clear()
    inputs = [_info(name, array, array.shape) for name, array in feeds.items()]
    weights = [onnx.numpy_helper.from_array(arrays[t.name], t.name) for t in graph.initializer]
    proto = sub_model(reduced.proto, graph.node, inputs, graph.output, weights)
    return replace(reduced, proto=proto, arrays=feeds, step=step)
