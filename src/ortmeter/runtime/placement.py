"""Where ONNX Runtime runs each node of a session, and a warning if nodes of CUDA run on the CPU.

ONNX Runtime silently runs a node without a CUDA kernel on the CPU, with copies. It also places the
computations of shapes there, on purpose: these do not cause a warning.
"""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from weakref import WeakSet

import onnx

from ortmeter.child import told_warnings
from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import onnxruntime
from ortmeter.runtime.cuda_kernels import KERNELS_OF, cuda_kernel, cuda_opsets
from ortmeter.runtime.graphs import walk_graphs, walk_nodes
from ortmeter.runtime.providers import Provider

__all__ = ["NodeAssignment", "PlacementWarning", "node_assignment"]

_CPU = "CPUExecutionProvider"
_SHOWN = 3
#: What runs on the CPU is blocked there by ONNX Runtime, between two nodes that reorder.
_STANDARD, _REORDERS = {"ai.onnx", "com.microsoft.nchwc"}, ("ReorderInput", "ReorderOutput")


class PlacementLog:
    """Keeps what is warned of as long as it lives, here and in child processes, once each."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        _logs.add(self)


_logs: WeakSet[PlacementLog] = WeakSet()


class PlacementWarning(UserWarning):
    """Nodes of a session on CUDA run on the CPU; the message gives their names and the reason.

    ``warnings.simplefilter("error", PlacementWarning)`` turns it into an error.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        for log in _logs:  # now: a filter may hide what follows
            if message not in log.messages:
                log.messages.append(message)


@dataclass(frozen=True)
class NodeAssignment:
    """Where one node of the graph that runs was placed.

    Parameters
    ----------
    provider : str
        Execution provider of the node, as ONNX Runtime names it.
    op_type, domain, name : str
        Operator, its domain (empty for the standard one) and the name of the node.
    """

    provider: str
    op_type: str
    domain: str
    name: str


def node_assignment(session: "onnxruntime.InferenceSession") -> tuple[NodeAssignment, ...]:
    """List the nodes of the graph that runs with the provider of each.

    Parameters
    ----------
    session : onnxruntime.InferenceSession
        A session created by :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    tuple of NodeAssignment
        One item per node, in the order of ONNX Runtime.

    Raises
    ------
    InvalidArgumentError
        The session was not created by :func:`~ortmeter.runtime.sessions.make_session` and did not
        record the placement of its nodes.

    Examples
    --------
    >>> from ortmeter.runtime.sessions import make_session
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[2] X) => (float[2] Y) { Y = Abs(X) }'''
    >>> session = make_session(text, provider="cpu")
    >>> [(node.op_type, node.provider) for node in node_assignment(session)]
    [('Abs', 'CPUExecutionProvider')]
    """
    try:
        placed = session.get_provider_graph_assignment_info()
    except Exception as cause:
        raise InvalidArgumentError(
            "This session did not record where its nodes run: create it with "
            f"ortmeter.make_session ({cause})"
        ) from cause
    return tuple(
        NodeAssignment(subgraph.ep_name, node.op_type, node.domain, node.name)
        for subgraph in placed
        for node in subgraph.get_nodes()
    )


def warn_of_cpu_nodes(
    model: onnx.ModelProto, placed: Sequence[NodeAssignment], provider: Provider
) -> None:
    """Warn when nodes of a session run on the CPU, on CUDA those that have no kernel there."""
    on_cpu = ((node, "not taken") for node in placed if node.provider == _CPU)
    reasons: dict[str, list[str]] = {}
    for node, reason in without_kernel(model, placed) if provider.on_cuda else on_cpu:
        reasons.setdefault(f"{node.op_type} ({reason})", []).append(node.name or "without a name")
    if not reasons:
        return
    count = sum(map(len, reasons.values()))
    listed = "; ".join(f"{reason}: {enumerate_some(names)}" for reason, names in reasons.items())
    message = (
        f"{count} of {len(placed)} nodes of {model.graph.name!r} run on the CPU in a session on "
        f"{provider.label}, with copies to and from it: {listed}"
    )
    if provider.on_cuda:
        message += f". Kernels are those of ONNX Runtime {KERNELS_OF}"
        if onnxruntime.__version__ != KERNELS_OF:
            message += f", while {onnxruntime.__version__} runs"
    told_warnings.add((PlacementWarning, message))
    warnings.warn(message, PlacementWarning, stacklevel=3)


def enumerate_some(names: Sequence[str]) -> str:
    """Write the first names, and how many are left."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def without_kernel(
    model: onnx.ModelProto, placed: Iterable[NodeAssignment]
) -> Iterable[tuple[NodeAssignment, str]]:
    """List the nodes that run on the CPU because CUDA has no kernel for them, and say which."""
    opsets = {"" if o.domain in _STANDARD else o.domain: o.version for o in model.opset_import}
    names = [(node, node.name or node.op_type) for node in placed]
    on_cpu = {name for node, name in names if node.provider == _CPU}
    shapes, known = _shape_nodes(model.graph, {name for _, name in names} - on_cpu)
    for node, name in names:
        if node.provider != _CPU or name in shapes or node.op_type in _REORDERS:
            continue
        domain = "" if node.domain in _STANDARD else node.domain
        opset = opsets.get(domain, 1)
        if not cuda_kernel(node.op_type, domain, opset=opset):
            found = cuda_opsets(node.op_type, domain)
            others = ", ".join(f"{one[0]} to {one[-1]}" for one in found)
            has = f"; opsets {others} have one" if found else ""
            yield node, f"no CUDA kernel at opset {opset}{has}"
        elif name in known:  # what is not there was made by an optimization
            yield node, "its types or attributes have no CUDA kernel"


def _shape_nodes(graph: onnx.GraphProto, on_device: set[str]) -> tuple[set[str], set[str]]:
    """Name the nodes that compute shapes, which follow Shape or Size and read nothing large.

    ONNX Runtime keeps them on the CPU (GetCpuPreferredNodes in its sources), until a node on CUDA.
    The names of all nodes are also returned.
    """
    graphs = list(walk_graphs(graph))
    free = {tensor.name for one in graphs for tensor in one.initializer}
    free |= {value.name for one in graphs for value in one.input}
    held: set[str] = set()  # tensors in the memory of the CPU; others are free to be read there
    shapes, known = set[str](), set[str]()
    for node in walk_nodes(graph.node):
        name = node.name or node.op_type  # several nodes without a name are taken as one
        known.add(name)
        read = set(node.input) - {""}
        if node.op_type == "Constant":
            free.update(node.output)
        elif node.op_type in {"Shape", "Size"}:
            held.update(node.output)
            shapes.add(name)
        elif read & held and name not in on_device:
            held.update(node.output)
            if read <= held | free:
                shapes.add(name)
    return shapes, known
