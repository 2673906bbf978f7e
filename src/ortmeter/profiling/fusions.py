"""Find the fusions of ONNX Runtime that one tensor prevents, by making them happen.

A fusion removes the tensors inside it, so a tensor that something else reads prevents it. The nodes
around an operator that was not fused are cut out of the model and given to ONNX Runtime, which
fuses them or not: no rule of its optimizer is written here.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx.utils

from ortmeter.errors import OrtMeterError
from ortmeter.runtime.graphs import NOT_INFERRED, readers_of
from ortmeter.runtime.sessions import optimized_model

#: Operators that a product absorbs.
_APPENDED = {"Add", "BatchNormalization", "Mul"}
_APPENDED |= {"Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"}
_PRODUCTS = frozenset(["Conv", "Gemm", "MatMul"])
_LAYER_NORM = frozenset(["Add", "Div", "Mul", "Pow", "ReduceMean", "Sqrt", "Sub"])
#: Operator found in every form of a chain -> operators of the chain, nodes before it, nodes after.
_CHAINS: Mapping[str, tuple[frozenset[str], int, int]] = {
    "Erf": (frozenset(["Add", "Div", "Erf", "Mul"]), 1, 3),
    "Sqrt": (_LAYER_NORM, 5, 3),
}
_MOST_TRIED = 20


@dataclass(frozen=True)
class NearMiss:
    """A fusion that the readers of some tensors prevent.

    Parameters
    ----------
    nodes : tuple of str
        Nodes that would be fused, in the order of the graph.
    saved : tuple of str
        Those whose time the fusion could save.
    fused : tuple of str
        Operators that ONNX Runtime makes of them.
    obstacles : tuple of (str, tuple of str)
        Tensors that are needed outside, with the nodes that read them; no node for an output of
        the model.
    """

    nodes: tuple[str, ...]
    saved: tuple[str, ...]
    fused: tuple[str, ...]
    obstacles: tuple[tuple[str, tuple[str, ...]], ...]


def find_near_misses(
    original: onnx.ModelProto, remaining: Mapping[str, float], *, provider: str = "cpu"
) -> list[NearMiss]:
    """Find the fusions that ONNX Runtime would make if no other node read an intermediate result.

    Parameters
    ----------
    original : onnx.ModelProto
        Model before optimization; every node has a name.
    remaining : mapping of str to float
        Nodes of *original* that run as they are, with their time in any unit: those that take the
        most are tried first, 20 at most.
    provider : str
        Provider whose fusions are tried.

    Returns
    -------
    list of NearMiss
        Fusions that ONNX Runtime made of these nodes alone, and did not make once a tensor inside
        was an output.

    Examples
    --------
    >>> import onnx.parser
    >>> model = onnx.parser.parse_model('''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4, 8] X, float[8, 8] W, float[8] B) => (float[4, 8] P, float[4, 8] Y) {
    ...   [product] P = MatMul(X, W)  [bias] Y = Add(P, B) }''')
    >>> (found,) = find_near_misses(model, {"product": 9, "bias": 1})
    >>> found.nodes, found.fused, found.obstacles
    (('product', 'bias'), ('Gemm',), (('P', ()),))
    """
    try:
        graph = _FusionGraph(onnx.shape_inference.infer_shapes(original), provider)
    except NOT_INFERRED:
        return []
    anchors = [node for node in graph.nodes if node.name in remaining]
    anchors.sort(key=lambda node: -remaining[node.name])
    tried = ((anchor, variants) for anchor in anchors if (variants := graph.variants(anchor)))
    misses = itertools.starmap(graph.near_miss, itertools.islice(tried, _MOST_TRIED))
    return [miss for miss in misses if miss]


class _FusionGraph:
    """Producers and readers of the tensors of the main graph, without constants."""

    def __init__(self, model: onnx.ModelProto, provider: str) -> None:
        self.provider, graph = provider, model.graph
        self.extractor = onnx.utils.Extractor(model)
        self.nodes = [node for node in graph.node if node.op_type != "Constant"]
        self.constants = {tensor.name for tensor in graph.initializer}
        self.constants |= {n.output[0] for n in graph.node if n.op_type == "Constant"}
        self.outputs = {value.name for value in graph.output}
        self.producer = {name: node for node in self.nodes for name in node.output}
        self.readers = readers_of(self.nodes)

    def variants(self, anchor: onnx.NodeProto) -> list[list[onnx.NodeProto]]:
        """List the sets of nodes that could become one, with a tensor inside needed outside.

        One of the last nodes may be what reads that tensor: each one is left out in turn.
        """
        sets = []
        for region in self._regions(anchor):
            read = {name for node in region for name in node.input}
            ends = [n for n in region if n is not anchor and not read & set(n.output)]
            sets.append(region)
            sets += [[n for n in region if n is not end] for end in ends if len(ends) > 1]
        return [nodes for nodes in sets if self.inner(nodes)]

    def _regions(self, anchor: onnx.NodeProto) -> Iterator[list[onnx.NodeProto]]:
        if anchor.op_type in _APPENDED:
            for name in anchor.input:
                if (before := self.producer.get(name)) and before.op_type in _PRODUCTS:
                    yield [before, anchor]
        if chain := _CHAINS.get(anchor.op_type):
            yield self._chain(anchor, *chain)

    def _chain(
        self, anchor: onnx.NodeProto, kinds: Collection[str], before: int, after: int
    ) -> list[onnx.NodeProto]:
        names = {anchor.name}
        level = [anchor]
        for _ in range(before):
            level = self._before(level, kinds)
            names.update(node.name for node in level)
        level = [anchor]
        for _ in range(after):
            readers = (reader for n in level for name in n.output for reader in self.readers[name])
            level = [node for node in readers if node.op_type in kinds]
            names.update(node.name for node in level)
            # Another node may compute a factor: 0.5 x in a Gelu.
            sides = self._before(level, {"Mul"})
            names.update(n.name for n in sides if not self.constants.isdisjoint(n.input))
        return [node for node in self.nodes if node.name in names]

    def _before(
        self, nodes: Iterable[onnx.NodeProto], kinds: Collection[str]
    ) -> list[onnx.NodeProto]:
        made = (self.producer.get(name) for node in nodes for name in node.input)
        return [node for node in made if node is not None and node.op_type in kinds]

    def inner(self, region: Sequence[onnx.NodeProto]) -> dict[str, tuple[str, ...]]:
        """Find the tensors inside that are needed outside, with the nodes that read them there."""
        names = {node.name for node in region}
        needed = {}
        for output in (output for node in region for output in node.output):
            readers = self.readers[output]
            outside = tuple(node.name for node in readers if node.name not in names)
            if len(outside) < len(readers) and (outside or output in self.outputs):
                needed[output] = outside
        return needed

    def near_miss(
        self, anchor: onnx.NodeProto, variants: Iterable[list[onnx.NodeProto]]
    ) -> NearMiss | None:
        """Let ONNX Runtime fuse the nodes alone, then with each tensor that is needed outside."""
        for nodes in variants:
            try:
                if not (fused := self._fused(anchor, nodes)):
                    continue
                obstacles = tuple(
                    (name, readers)
                    for name, readers in self.inner(nodes).items()
                    if not self._fused(anchor, nodes, name)
                )
            except (ValueError, OrtMeterError):  # a type is not known, or the cut is not a model
                continue
            if obstacles:
                # Fusing saves what is appended to a product, and all of a chain but its anchor.
                pair = anchor.op_type in _APPENDED
                saved = tuple(node.name for node in nodes if (node is anchor) == pair)
                return NearMiss(tuple(node.name for node in nodes), saved, fused, obstacles)
        return None

    def _fused(
        self, anchor: onnx.NodeProto, nodes: Sequence[onnx.NodeProto], *more: str
    ) -> tuple[str, ...]:
        """Operators that replace the nodes, empty when the one of the anchor is still there.

        Outputs of the nodes and their constants are what none reads, and *more*.
        """
        read = {name for node in nodes for name in node.input if name}
        written = [name for node in nodes for name in node.output if name]
        inputs = read.difference(written, self.constants)
        outputs = [name for name in written if name not in read]
        model = self.extractor.extract_model(sorted(inputs), [*outputs, *more])
        optimized = optimized_model(model, provider=self.provider)
        after = [node.op_type for node in optimized.graph.node]
        if after.count(anchor.op_type) >= [n.op_type for n in nodes].count(anchor.op_type):
            return ()
        return tuple(sorted({op for op in after if not op.startswith("Reorder")}))
