"""From a graph of dynamo to an ONNX model.

ONNX has no views and writes into nothing: graphs whose outputs share memory, or that write into
their inputs, are left to torch. An output that is an input or a size is made by torch, after the
run.
"""

import contextlib
import copy
import functools
import operator
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx.shape_inference
import onnx_ir
import torch
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves

from ortmeter.backend.corrections import (
    TRANSLATIONS,
    correct_model,
    refuse_operators,
    round_compared_numbers,
)
from ortmeter.backend.errors import UnsupportedGraphError, quiet
from ortmeter.backend.rules.rule import OPSET
from ortmeter.dtypes import short_name
from ortmeter.operators import find_operator

_STACK_TRACE = "pkg.torch.onnx.stack_trace"
# What torch makes again of a result. Others that show its memory may also write into it: x += 1.
# fmt: off
_VIEWS = frozenset({
    "H", "T", "__getitem__", "adjoint", "alias", "as_strided", "chunk", "detach", "diagonal",
    "dsplit", "expand", "expand_as", "getitem", "hsplit", "linalg_diagonal", "mH", "mT", "moveaxis",
    "movedim", "narrow", "permute", "select", "slice", "split", "split_with_sizes", "squeeze",
    "swapaxes", "swapdims", "t", "tensor_split", "transpose", "unbind", "unflatten", "unfold",
    "unsafe_chunk", "unsafe_split", "unsqueeze", "view", "view_as", "vsplit",
    # the tensor itself, or a view of it, when there is nothing to do
    "atleast_1d", "atleast_2d", "atleast_3d", "bfloat16", "bool", "broadcast_to", "contiguous",
    "cpu", "cuda", "double", "flatten", "float", "half", "int", "long", "ravel", "reshape", "to",
    "type", "type_as",
})
# fmt: on
_TABLES = (
    ("torch.onnx._internal.exporter._registration:ONNXRegistry", "from_torchlib"),
    ("torch.export.exported_program", "_collect_all_valid_cia_ops"),
    ("torch.export.decomp_utils", "_collect_all_valid_cia_ops"),
)

#: Makes the outputs of a graph: ``make(*arguments, *computed)``.
_Make = Callable[..., Sequence[Any]]


@dataclass(frozen=True)
class ExportedGraph:
    """An ONNX model, whose weights are inputs, with the way from and to the graph of torch.

    The inputs of the model are fed with the arguments of the graph of these ranks: ``weights`` are
    those of parameters and buffers, which it only reads, ``numbers`` those of what is no tensor.
    The outputs of the model are ``computed``, from which ``make_outputs`` makes those of the graph
    (None when they are the same).
    """

    model: onnx_ir.Model
    inputs: dict[str, int]
    weights: frozenset[int]
    numbers: frozenset[int]
    computed: tuple[Node, ...]
    make_outputs: _Make | None


def export_graph(module: GraphModule, arguments: Sequence[Any]) -> ExportedGraph | None:
    """Export a graph of dynamo, which is left as it is: dynamo reads it again.

    None when there is nothing to compute: the graph has views and sizes only. Otherwise it may
    raise an UnsupportedGraphError, which names the operator.
    """
    computed, make_outputs = plan_outputs(module)
    if not computed:
        return None
    values = [*arguments, *map(example_value, computed)]
    types = {x.dtype for x in values if isinstance(x, torch.Tensor) and x.is_complex()}
    if types:
        names = ", ".join(sorted(map(str, types)))
        raise UnsupportedGraphError(f"{names}: ONNX Runtime has no complex tensors")
    _refuse_memory(module)
    # outside tracing, an export adds no guards to the graph that dynamo is compiling
    with torch._guards.tracing(None), quiet(), _tables_kept():  # noqa: SLF001
        model, kept = _convert(module, computed, arguments)
    owners: list[onnx_ir.Graph | onnx_ir.Function] = [model.graph, *model.functions.values()]
    for owner in owners:
        for node in owner.all_nodes():
            _refuse_random(node)
            node.metadata_props.pop(_STACK_TRACE, None)  # paths of this machine
    nodes = _placeholders(module)
    return ExportedGraph(
        model=model,
        inputs={str(x.name): i for i, x in zip(kept, model.graph.inputs, strict=True)},
        weights=frozenset(i for i in kept if is_weight(nodes[i], arguments[i])),
        numbers=frozenset(i for i in kept if not isinstance(arguments[i], torch.Tensor)),
        computed=computed,
        make_outputs=make_outputs,
    )


def _convert(
    module: GraphModule, computed: Sequence[Node], arguments: Sequence[Any]
) -> tuple[onnx_ir.Model, list[int]]:
    """Convert a copy of a graph, whose inputs are tensors and whose outputs are to be computed.

    Returns the model, and the ranks of the arguments that it takes.
    """
    prepared = GraphModule(module, copy.deepcopy(module.graph))
    nodes = {node.name: node for node in prepared.graph.nodes}
    prepared.graph.output_node().args = (tuple(nodes[node.name] for node in computed),)
    kept = _replace_sizes(prepared)
    prepared.recompile()
    try:
        program = _run_exporter(prepared, [arguments[i] for i in kept])
    except Exception as cause:
        raise _refusal(cause) from cause
    exported = cast("torch.export.ExportedProgram", program.exported_program)
    refuse_operators(exported, _translation())
    signature = exported.graph_signature
    written = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if written:
        raise UnsupportedGraphError(f"the graph writes into {', '.join(written)}")
    _refuse_memory(exported)
    _infer_types(program.model, exported)
    correct_model(program.model, [example_value(node).dtype for node in computed])
    return program.model, kept


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _replace_sizes(module: GraphModule) -> list[int]:
    """Read symbolic sizes from the tensors they come from; return the ranks of other inputs."""
    placeholders = _placeholders(module)
    sources: dict[Any, tuple[Node, int]] = {}
    for node in placeholders:
        for axis, size in enumerate(getattr(example_value(node), "shape", ())):
            if isinstance(size, torch.SymInt):
                sources.setdefault(size.node.expr, (node, axis))
    kept = []
    for i, node in enumerate(placeholders):
        size = example_value(node)
        source = sources.get(size.node.expr) if isinstance(size, torch.SymInt) else None
        if source is None:
            kept.append(i)
            continue
        with module.graph.inserting_after(placeholders[-1]):
            read = module.graph.call_function(torch.ops.aten.sym_size.int, source)
        node.replace_all_uses_with(read)
        module.graph.erase_node(node)
    return kept


def _run_exporter(module: GraphModule, arguments: Sequence[Any]) -> torch.onnx.ONNXProgram:
    shapes = tuple(_dynamic_axes(example_value(node)) for node in _placeholders(module))
    exported = torch.export.export(
        module,
        tuple(_example(argument) for argument in arguments),
        dynamic_shapes=shapes if any(s is not None for s in shapes) else None,
    )
    round_compared_numbers(exported)
    program = torch.onnx.export(
        exported,
        dynamo=True,
        optimize=False,
        opset_version=OPSET,
        verbose=False,
        custom_translation_table=TRANSLATIONS,
    )
    return cast("torch.onnx.ONNXProgram", program)


def _example(argument: Any) -> Any:
    """What to trace with: torch.export fails on views whose strides vary; ONNX has no strides."""
    if isinstance(argument, torch.SymInt):
        return argument.node.hint
    return argument.contiguous() if isinstance(argument, torch.Tensor) else argument


def _dynamic_axes(value: Any) -> Any:
    """Which sizes vary from one call to the next, in the words of torch.export."""
    auto = torch.export.Dim.AUTO
    if isinstance(value, torch.SymInt):
        return auto
    sizes = enumerate(getattr(value, "shape", ()))
    return {axis: auto for axis, size in sizes if isinstance(size, torch.SymInt)} or None


def _refusal(cause: BaseException) -> UnsupportedGraphError:
    """Name the operator that the exporter does not know, else say what it says."""
    found: BaseException | None = cause
    while found is not None:
        if isinstance(found, UnsupportedGraphError):
            return found
        found = found.__cause__
    text = str(cause)
    unknown = re.search(r"OpOverload\(op='([\w.]+)', overload='(\w+)'\)", text)
    if unknown:
        return UnsupportedGraphError(
            f"{unknown[1]}.{unknown[2]}: torch.onnx does not know this operator"
        )
    summary = text.partition("## Exception summary")[2].strip() or text.strip()
    line = re.sub(r"^<class '[\w.]+'>: ", "", (summary or type(cause).__name__).splitlines()[0])
    return UnsupportedGraphError(f"torch.onnx cannot convert the graph: {line}")


def _refuse_memory(program: GraphModule | torch.export.ExportedProgram) -> None:
    """Refuse to read the memory of a view: an export has contiguous values only."""
    for node in program.graph.nodes:
        value = example_value(_first_argument(node)) if "as_strided" in _name(node) else None
        if value is not None and (value.storage_offset() != 0 or not value.is_contiguous()):
            raise UnsupportedGraphError(
                f"{_name(node)}: it reads the memory of a view, which ONNX does not have"
            )


def _infer_types(model: onnx_ir.Model, program: torch.export.ExportedProgram) -> None:
    """Give each result its type, and refuse those of another type or shape than in torch.

    The exporter declares those of torch, not those of the operators in between: these are inferred.
    Shifts of unsigned integers, for instance, are converted to operators of another type.
    """
    untyped = onnx_ir.to_proto(model)
    del untyped.graph.value_info[:]
    for output in untyped.graph.output:
        output.ClearField("type")
    graph = onnx.shape_inference.infer_shapes(untyped).graph
    inferred = {v.name: v.type.tensor_type for v in (*graph.value_info, *graph.output)}
    operators = {node.name: _operator(node) for node in program.graph.nodes}
    for node in model.graph:
        for value in node.outputs:
            found = inferred.get(str(value.name))
            if found is None or not found.elem_type:
                continue
            sizes = [
                dim.dim_value if dim.HasField("dim_value") else None for dim in found.shape.dim
            ]
            got = onnx_ir.Shape(sizes) if found.HasField("shape") else None
            if value.dtype is None:
                value.type = onnx_ir.TensorType(onnx_ir.DataType(found.elem_type))
                value.shape = value.shape or got
                continue
            ours: Any = short_name(found.elem_type)
            theirs: Any = short_name(int(value.dtype))
            if ours == theirs and not may_be(got, value.shape):
                ours, theirs = got, value.shape
            if ours != theirs:
                raise UnsupportedGraphError(
                    f"{operators.get(value.name, node.op_type)}: torch.onnx converts it to "
                    f"operators that give {ours} while torch gives {theirs}"
                )


def may_be(shape: Iterable[Any] | None, other: Iterable[Any] | None) -> bool:
    """Whether two shapes, of which some sizes are unknown, can be the same."""
    if shape is None or other is None:
        return True
    sizes, others = list(shape), list(other)
    pairs = zip(sizes, others, strict=False)
    return len(sizes) == len(others) and all(
        a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int)
    )


def _operator(node: Node) -> Any:
    """Operator of a node, or of the node that returns it among others."""
    source = _first_argument(node) if node.target is operator.getitem else node
    return source.target


def _refuse_random(node: onnx_ir.Node) -> None:
    """Refuse numbers drawn from another generator than the one of torch."""
    if node.op_type == "Dropout" or find_operator(node.op_type, node.domain).is_random:
        raise UnsupportedGraphError(
            f"{node.op_type}: ONNX Runtime does not use the random generator of torch",
            "model.eval() disables dropout",
        )


def plan_outputs(module: GraphModule) -> tuple[tuple[Node, ...], _Make | None]:
    """Decide what ONNX Runtime computes, and how torch makes the outputs from it."""
    returned: list[Any] = list(cast("Iterable[Any]", module.graph.output_node().args[0]))
    inputs = _placeholders(module)
    nodes = dict.fromkeys(value for value in returned if isinstance(value, Node))
    known = {storage for node in inputs for storage in _storages(node)}
    if all(_storages(node) <= known for node in nodes if node.op != "placeholder"):
        return (), None  # views of inputs, or inputs that were written
    counts = Counter(x for node in dict.fromkeys([*inputs, *nodes]) for x in _storages(node))
    sources = [_source(n) if any(counts[x] > 1 for x in _storages(n)) else n for n in nodes]
    computed = tuple(n for n in dict.fromkeys(sources) if n.op != "placeholder" and _storages(n))
    for node in computed:
        if _storages(node) & known:
            raise UnsupportedGraphError(
                f"{_name(node)}: an output shares the memory of an input or of another output"
            )
        known |= _storages(node)
    is_plain = returned == list(computed)
    return computed, None if is_plain else _maker(module, [*inputs, *computed], returned)


def _storages(value: Any) -> set[int]:
    """Memory that a value shows; a node that splits a tensor returns several."""
    if not isinstance(value, Node):
        return set()
    tensors = [v for v in tree_leaves(example_value(value)) if isinstance(v, torch.Tensor)]
    # Storages of torch are objects with an identity, which the example values keep alive.
    return {id(tensor.untyped_storage()) for tensor in tensors}


def _is_view(node: Node) -> bool:
    """Whether a node shows the memory of its first argument, and writes nothing into it."""
    shown = _storages(node.args[0]) if node.args and _name(node) in _VIEWS else set()
    return set() < _storages(node) <= shown


def _source(node: Node) -> Node:
    """Follow views back to the result that they show, from which torch makes them."""
    while node.op != "placeholder" and _is_view(node):
        node = _first_argument(node)
    value = example_value(node)
    if node.op != "placeholder" and isinstance(value, torch.Tensor) and not value.is_contiguous():
        raise UnsupportedGraphError(
            f"{_name(node)}: an output is a view of its result, which is not contiguous in torch"
        )
    return node


def _name(node: Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _first_argument(node: Node) -> Node:
    return cast("Node", node.args[0])


def _maker(module: GraphModule, given: Iterable[Node], returned: Iterable[Any]) -> _Make:
    """Copy the nodes between what is given and what is returned into a graph of their own."""
    graph = Graph()
    copies = {node: graph.placeholder(node.name) for node in given}

    def copy(node: Node) -> Node:
        if node not in copies:
            if _storages(node) and not _is_view(node):
                raise UnsupportedGraphError(
                    f"{_name(node)}: an output follows from its result, which is not an output"
                )
            copies[node] = graph.node_copy(node, copy)
        return copies[node]

    graph.output(tuple(copy(v) if isinstance(v, Node) else v for v in returned))
    make: _Make = GraphModule(module, graph).forward
    return make


# What follows goes beyond the documented interface of torch.


def _translation() -> Callable[[Node], Any]:
    """Make what finds the function by which torch.onnx converts a node."""
    registry = pkgutil.resolve_name(_TABLES[0][0]).from_torchlib(opset_version=OPSET)
    dispatch = pkgutil.resolve_name("torch.onnx._internal.exporter._dispatching:dispatch")
    return lambda node: TRANSLATIONS.get(node.target) or dispatch(node, registry)[0]


@functools.cache
def _kept(make: Callable[..., Any], operators: int, **options: Any) -> Any:  # noqa: ARG001 - a key
    return make(**options)


def _copied_table(make: Callable[..., Any], operators: int, **options: Any) -> Any:
    table = _kept(make, operators, **options)
    if not isinstance(getattr(table, "functions", None), dict):
        return table
    table = copy.copy(table)  # an export adds its translations to it
    table.functions = {target: list(found) for target, found in table.functions.items()}
    return table


@contextlib.contextmanager
def _tables_kept() -> Iterator[None]:
    """Keep the tables of operators that torch writes again at each export, most of its time.

    ``quiet`` lets one thread in. A table is written again when operators were added since.
    """
    names = torch._C._dispatch_get_all_op_names()  # noqa: SLF001
    with contextlib.ExitStack() as stack:
        for place, name in _TABLES:
            with contextlib.suppress(ImportError, AttributeError, KeyError):
                owner = pkgutil.resolve_name(place)
                make, written = getattr(owner, name), vars(owner)[name]
                kept = staticmethod(functools.partial(_copied_table, make, len(names)))
                setattr(owner, name, kept)
                stack.callback(setattr, owner, name, written)
        with contextlib.suppress(AttributeError):
            operators: Any = torch._ops.OperatorBase  # noqa: SLF001
            stack.callback(setattr, operators, "py_impl", operators.py_impl)
            operators.py_impl = _registering(operators.py_impl)
        yield


def _registering(py_impl: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function for a key as torch does, which defines another one, typed, each time.

    An export does so eleven thousand times: half of its time.
    """
    keys = torch._C.DispatchKey  # noqa: SLF001

    def register(overload: Any, key: Any) -> Callable[..., Any]:
        if type(key) is not keys or key == keys.Python or key in overload.py_kernels:
            return cast("Callable[..., Any]", py_impl(overload, key))
        return functools.partial(_keep, overload, key)

    return register


def _keep(overload: Any, key: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    overload.py_kernels[key] = function
    overload._dispatch_cache.clear()  # noqa: SLF001
    return function


def example_value(node: Node) -> Any:
    """Value that dynamo computed for a node without data: a fake tensor, a symbol, a number."""
    return node.meta.get("example_value", node.meta.get("val"))


def is_weight(node: Node, argument: Any) -> bool:
    """Find the parameters and buffers of modules, which dynamo makes inputs of the graph."""
    if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {}):
        return True
    return isinstance(argument, torch.nn.Parameter)


def version_of(tensor: torch.Tensor) -> int | None:
    """Count the writes into a tensor; None when torch does not count them."""
    return None if tensor.is_inference() else getattr(tensor, "_version", None)
