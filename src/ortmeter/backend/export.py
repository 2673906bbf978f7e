"""From a graph of dynamo to an ONNX model."""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import onnx.shape_inference
import onnx_ir
import torch
from torch.fx import GraphModule, Node

from ortmeter.backend._internals import (
    example_value,
    is_updated_in_place,
    is_weight,
    outside_tracing,
    size_in,
)
from ortmeter.backend._noise import quiet
from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.backend.outputs import OutputPlan, plan_outputs
from ortmeter.dtypes import short_name

__all__ = ["ExportedGraph", "GraphInput", "export_graph"]

# The exporter forgets that these use the statistics of the batch.
_TRAINING = frozenset({"_native_batch_norm_legit_functional", "_native_batch_norm_legit"})
_STACK_TRACE = "pkg.torch.onnx.stack_trace"
# fmt: off
_RANDOM = frozenset({
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
})
# fmt: on


@dataclass(frozen=True)
class GraphInput:
    """An input of the ONNX model.

    Parameters
    ----------
    name : str
        Its name in the model.
    position : int
        Rank of the argument of the graph it is fed with.
    is_weight : bool
        Whether it is a parameter or a buffer which the graph only reads.
    """

    name: str
    position: int
    is_weight: bool


@dataclass(frozen=True)
class ExportedGraph:
    """An ONNX model with the way from and to the arguments of the graph of torch.

    Parameters
    ----------
    model : onnx_ir.Model
        Weights are inputs.
    inputs : tuple of GraphInput
        In the order of the model.
    outputs : OutputPlan
        How the first outputs of the model become those of the graph.
    numbers : frozenset of int
        Ranks of the arguments that are numbers, which the model takes as tensors.
    updated : tuple of int
        Ranks of the arguments that the graph writes into: their new values are the last outputs
        of the model.
    """

    model: onnx_ir.Model
    inputs: tuple[GraphInput, ...]
    outputs: OutputPlan
    numbers: frozenset[int]
    updated: tuple[int, ...]


def export_graph(module: GraphModule, arguments: Sequence[Any], opset: int) -> ExportedGraph | None:
    """Export a graph of dynamo.

    Parameters
    ----------
    module : GraphModule
        Left as it is: dynamo reads it again.
    arguments : sequence
        Tensors, numbers and symbolic sizes.
    opset : int
        Version of the standard operators.

    Returns
    -------
    ExportedGraph or None
        None when there is nothing to compute: the graph has views and sizes only.

    Raises
    ------
    UnsupportedGraphError
        The graph cannot be expressed in ONNX; the message names the operator.
    """
    outputs = plan_outputs(module)
    nodes = _placeholders(module)
    updated = [i for i, node in enumerate(nodes) if is_updated_in_place(node)]
    if not outputs.computed and not updated:
        return None
    with outside_tracing(), quiet():
        model, kept, written = _convert(module, outputs, updated, arguments, opset)
        if not written <= set(updated):
            updated = sorted(written)
            model, kept, _ = _convert(module, outputs, updated, arguments, opset)
    for node in _onnx_nodes(model):
        _refuse_random(node)
        node.metadata_props.pop(_STACK_TRACE, None)  # paths of this machine
    return ExportedGraph(
        model=model,
        inputs=tuple(
            GraphInput(str(value.name), i, i not in updated and is_weight(nodes[i], arguments[i]))
            for i, value in zip(kept, model.graph.inputs, strict=True)
        ),
        outputs=outputs,
        numbers=frozenset(i for i in kept if not isinstance(arguments[i], torch.Tensor)),
        updated=tuple(updated),
    )


def _convert(
    module: GraphModule,
    outputs: OutputPlan,
    updated: Sequence[int],
    arguments: Sequence[Any],
    opset: int,
) -> tuple[onnx_ir.Model, list[int], set[int]]:
    """Convert a graph whose updated arguments are further outputs.

    Returns the model, the ranks of the arguments that it takes, and the ranks of those that the
    exporter sees written.
    """
    names = [node.name for node in _placeholders(module)]
    prepared, kept = _prepare(module, outputs, [names[i] for i in updated])
    try:
        program = _run_exporter(prepared, [arguments[i] for i in kept], opset)
    except Exception as cause:
        raise UnsupportedGraphError(_describe(cause)) from cause
    exported = cast("torch.export.ExportedProgram", program.exported_program)
    _refuse_training(exported)
    _refuse_other_types(program.model, exported)
    signature = exported.graph_signature
    if signature.buffers_to_mutate:
        constants = ", ".join(signature.buffers_to_mutate.values())
        raise UnsupportedGraphError(f"{constants}: the graph writes into a constant")
    written = {names.index(name) for name in signature.user_inputs_to_mutate.values()}
    return program.model, kept, written


def _placeholders(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _prepare(
    module: GraphModule, outputs: OutputPlan, updated: Sequence[str]
) -> tuple[GraphModule, list[int]]:
    """Copy a graph so that its inputs are tensors and its outputs what ONNX has to compute.

    Returns the copy and the ranks of the arguments that it takes.
    """
    prepared = GraphModule(module, copy.deepcopy(module.graph))
    nodes = {node.name: node for node in prepared.graph.nodes}
    wanted = [*(node.name for node in outputs.computed), *updated]
    prepared.graph.output_node().args = (tuple(nodes[name] for name in wanted),)
    kept = _replace_sizes(prepared)
    prepared.recompile()
    return prepared, kept


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


def _run_exporter(
    module: GraphModule, arguments: Sequence[Any], opset: int
) -> torch.onnx.ONNXProgram:
    shapes = tuple(_dynamic_axes(example_value(node)) for node in _placeholders(module))
    values = tuple(size_in(a) if isinstance(a, torch.SymInt) else a for a in arguments)
    exported = torch.export.export(
        module, values, dynamic_shapes=shapes if any(s is not None for s in shapes) else None
    )
    program = torch.onnx.export(
        exported, dynamo=True, optimize=False, opset_version=opset, verbose=False
    )
    return cast("torch.onnx.ONNXProgram", program)


def _dynamic_axes(value: Any) -> Any:
    """Which sizes vary from one call to the next, in the words of torch.export."""
    auto = torch.export.Dim.AUTO
    if isinstance(value, torch.SymInt):
        return auto
    sizes = enumerate(getattr(value, "shape", ()))
    return {axis: auto for axis, size in sizes if isinstance(size, torch.SymInt)} or None


def _describe(cause: BaseException) -> str:
    """Name the operator that the exporter does not know, else say what it says."""
    text = str(cause)
    unknown = re.search(r"OpOverload\(op='([\w.]+)', overload='(\w+)'\)", text)
    if unknown:
        return f"{unknown[1]}.{unknown[2]}: torch.onnx does not know this operator"
    summary = text.partition("## Exception summary")[2].strip() or text
    return f"{type(cause).__name__}: {summary.strip().splitlines()[0] if summary.strip() else text}"


def _refuse_training(program: torch.export.ExportedProgram) -> None:
    """Refuse what the exporter converts as if it were not training."""
    for node in program.graph.nodes:
        name = getattr(node.target, "_opname", "")
        if name in _TRAINING:
            raise UnsupportedGraphError(
                f"aten.{name}: torch.onnx exports batch normalization for inference only",
                "Call model.eval()",
            )


def _refuse_other_types(model: onnx_ir.Model, program: torch.export.ExportedProgram) -> None:
    """Refuse what is converted to operators of another type, as shifts of unsigned integers.

    The exporter declares the types of torch; those of the operators are inferred.
    """
    untyped = onnx_ir.to_proto(model)
    del untyped.graph.value_info[:]
    for output in untyped.graph.output:
        output.ClearField("type")
    graph = onnx.shape_inference.infer_shapes(untyped).graph
    inferred = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    targets = {node.name: node.target for node in program.graph.nodes}
    for node in model.graph:
        for value in node.outputs:
            got, declared = inferred.get(str(value.name), 0), value.dtype
            if got and declared and got != declared:
                raise UnsupportedGraphError(
                    f"{targets.get(value.name, node.op_type)}: torch.onnx converts it to operators "
                    f"that give {short_name(got)} while torch gives {short_name(declared)}"
                )


def _refuse_random(node: onnx_ir.Node) -> None:
    """Refuse numbers drawn from another generator than the one of torch."""
    if node.op_type in _RANDOM:
        raise UnsupportedGraphError(
            f"{node.op_type}: ONNX Runtime does not draw from the generator of torch",
            "model.eval() leaves dropout out",
        )


def _onnx_nodes(model: onnx_ir.Model) -> Iterator[onnx_ir.Node]:
    """Go through the nodes of a model, subgraphs and functions included."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()
