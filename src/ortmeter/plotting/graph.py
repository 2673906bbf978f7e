"""Draw a model."""

from collections import Counter
from collections.abc import Mapping

import google.protobuf.message
import onnx
import onnx.shape_inference

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._dot import NodeNote, write_dot
from ortmeter.plotting._labels import clean, shorten
from ortmeter.plotting._svg import lay_out
from ortmeter.plotting.drawing import Drawing
from ortmeter.runtime.graphs import walk_nodes
from ortmeter.runtime.loading import ModelLike, load_model

__all__ = ["NodeNote", "draw_model"]


def draw_model(
    model: ModelLike,
    *,
    title: str | None = None,
    notes: Mapping[str | int, NodeNote] | None = None,
    max_nodes: int = 1000,
) -> Drawing:
    """Draw a model.

    Every node is a box with its operator, its attributes and its initializers; inputs and outputs
    of the graph are boxes too; a subgraph is a frame that a dashed edge links to its node. Edges
    bear the name of the result, its type and its shape when they can be inferred.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        Anything that :func:`ortmeter.runtime.loading.load_model` takes.
    title : str, optional
        Title of the drawing, the name of the graph by default.
    notes : dict of NodeNote, optional
        What to add to the nodes, by name of node, or by index in the main graph. The name comes
        first; a name that several nodes share adds the note to each of them.
    max_nodes : int
        The layout of a graph takes more than a proportional time: a model with more nodes is an
        error.

    Returns
    -------
    Drawing
        The drawing, the same for the same model.

    Raises
    ------
    InvalidArgumentError
        A note has a key that is not a node, or the model has more than *max_nodes* nodes.
    MissingDependencyError
        pygraphviz is not installed.
    ModelError
        The model cannot be read.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> draw_model(text, notes={0: NodeNote("0.3 ms", share=1.0)})
    Drawing(title='g')
    """
    graph = _infer_shapes(load_model(model)).graph
    operators = Counter(clean(node.op_type) for node in walk_nodes(graph.node))
    if operators.total() > max_nodes:
        raise InvalidArgumentError(
            f"The model has {operators.total()} nodes, more than max_nodes={max_nodes}"
        )
    dot, elements = write_dot(graph, notes or {})
    title = clean(title or graph.name or "model")
    return Drawing(title, dot, lay_out(dot, elements, f"{title}: {_describe(operators)}"))


def _describe(operators: Counter[str]) -> str:
    """Tell what a drawing shows to a reader who does not see it."""
    counts = [f"{count} {shorten(operator)}" for operator, count in operators.most_common(8)]
    return f"graph of {operators.total()} nodes ({', '.join(counts)})"


def _infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add the types of the results when they can be inferred, keep the model as it is otherwise."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (
        onnx.shape_inference.InferenceError,
        google.protobuf.message.Error,  # above 2 GB
        RuntimeError,
        ValueError,
    ):
        return model
