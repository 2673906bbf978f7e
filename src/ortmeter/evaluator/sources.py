"""Where kernels come from: torch, ONNX Runtime, onnx.reference, the bodies of ONNX schemas."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import onnx
import onnx.defs
import onnx.helper
import onnx.shape_inference

from ortmeter.dtypes import short_name
from ortmeter.errors import ModelError, ProviderUnavailableError, RefusedError
from ortmeter.evaluator.kernels import Source
from ortmeter.evaluator.node import Node
from ortmeter.evaluator.plan import Plan
from ortmeter.evaluator.values import Memory, Signature, signature
from ortmeter.operators import registry
from ortmeter.operators.descriptions import element_type, type_proto
from ortmeter.operators.registry import Kernel
from ortmeter.optional import import_optional
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.iobinding import BoundSession, is_bindable
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

if TYPE_CHECKING:
    import onnxruntime

SOURCES = ("torch", "ort", "reference")


def make_source(name: str, memory: Memory) -> Source:
    """Make a source whose kernels take and return values in some memory."""
    if name == "ort":
        import_optional("onnxruntime", "cpu", "gpu")
    return Source(name, functools.partial(_KERNELS[name], memory))


def _torch_kernel(memory: Memory, node: Node) -> Kernel:
    """Find the kernel of this package, on torch tensors."""
    function = registry.find_kernel(node.domain, node.op_type, node.opset)
    if function is None:
        raise RefusedError(f"no kernel for {node.op_type} of opset {node.opset}")
    parameters = inspect.signature(function).parameters
    options = {
        name: memory.hold(value) if _holds_arrays(value) else value
        for name, value in node.attributes.items()
    }
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if not takes_any and (unknown := options.keys() - parameters.keys()):
        raise RefusedError(f"attributes {', '.join(sorted(unknown))} are not supported")
    if "n_outputs" in parameters:
        options["n_outputs"] = node.n_outputs
    return functools.partial(function, **options) if options else function


def _holds_arrays(value: Any) -> bool:
    return hasattr(value[0] if isinstance(value, list) and value else value, "dtype")


# Two elements or more in one byte for ONNX Runtime, one element in one byte for everyone else.
_PACKED = {"i2", "i4", "u2", "u4", "f4e2m1"}
# The opset of the standard domain beside an operator of another domain.
_STANDARD_OPSET = 21
# The first one that has every type that ONNX Runtime exchanges.
_IR_VERSION = 10


@functools.lru_cache(maxsize=512)
def one_node_session(
    model: bytes, provider: Provider, *, tf32: bool
) -> "onnxruntime.InferenceSession":
    """Create the session of one node, shared by all the evaluators of the process."""
    # What is asked is this operator, not what an optimizer would replace it with.
    return make_session(model, provider=provider, optimization="none", tf32=tf32)


def _ort_kernel(memory: Memory, node: Node) -> Kernel:
    """Prepare sessions of one node, made when the types and the ranks are known."""
    models: dict[Signature, bytes] = {}

    def run(*inputs: Any) -> tuple[Any, ...]:
        key = signature(inputs)
        if key not in models:
            _refuse_packed(_element_types(inputs))
            models[key] = _one_node_model(node, inputs)
        outputs = _run_session(_session(models[key], memory), inputs, memory)
        return tuple(outputs.get(f"y{i}") for i in range(node.n_outputs))

    return run


def _session(model: bytes, memory: Memory) -> "onnxruntime.InferenceSession":
    try:
        session = one_node_session(model, memory.device, tf32=memory.tf32)
    except (ModelError, ProviderUnavailableError) as cause:
        raise RefusedError(str(cause)) from cause
    _refuse_packed(o.type for o in session.get_outputs() if o.type.startswith("tensor("))
    return session


def _run_session(
    session: "onnxruntime.InferenceSession", inputs: Sequence[Any], memory: Memory
) -> dict[str, Any]:
    feeds = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    names = [output.name for output in session.get_outputs()]
    try:
        if is_bindable(session):
            with BoundSession(session, feeds) as bound:
                bound.run()
                outputs = bound.outputs(memory.library)
        else:
            arrays = {name: memory.export(value, "numpy") for name, value in feeds.items()}
            outputs = dict(zip(names, session.run(names, arrays), strict=True))
    except Exception as cause:
        if "NOT_IMPLEMENTED" in str(cause):
            raise RefusedError(str(cause)) from cause
        raise
    return {name: memory.hold(value) for name, value in outputs.items()}


def _one_node_model(node: Node, inputs: Sequence[Any]) -> bytes:
    """Write the model of one node, without its names: the nodes that do the same share it."""
    present = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    named = list(enumerate(node.proto.output))
    wanted = [f"y{i}" for i, name in named if name]
    outputs = [f"y{i}" if name or not _is_optional(node, i) else "" for i, name in named]
    proto = onnx.helper.make_node(node.op_type, present, outputs, domain=node.domain)
    proto.attribute.extend(node.proto.attribute)
    graph = onnx.helper.make_graph(
        [proto],
        "node",
        [
            onnx.helper.make_value_info(name, type_proto(value))
            for name, value in zip(present, inputs, strict=True)
            if name
        ],
        # ONNX Runtime infers the types of the outputs.
        [onnx.ValueInfoProto(name=name) for name in wanted],
    )
    # ONNX Runtime refuses an opset that it does not know, even when the operator is an old one.
    opset = node.schema.since_version if node.schema else node.opset
    imports = {"": _STANDARD_OPSET, node.domain: opset}
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid(*item) for item in imports.items()],
        ir_version=_IR_VERSION,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _is_optional(node: Node, output: int) -> bool:
    if node.schema is None or output >= len(node.schema.outputs):
        return True
    option = onnx.defs.OpSchema.FormalParameterOption.Optional
    return bool(node.schema.outputs[output].option == option)


def _element_types(values: Iterable[Any]) -> Iterable[int]:
    for value in values:
        if isinstance(value, list):
            yield from _element_types(value)
        elif value is not None:
            yield element_type(value.dtype)


def _refuse_packed(types: Iterable[int | str]) -> None:
    if packed := _PACKED.intersection(map(short_name, types)):
        raise RefusedError(f"{', '.join(sorted(packed))} is not exchanged with ONNX Runtime")


def _reference_kernel(memory: Memory, node: Node) -> Kernel:
    """Load the implementation of onnx.reference, on NumPy arrays, not the body of its schema."""
    operator = _load_operator(node)
    expected: dict[Signature, list[int]] = {}

    def run(*inputs: Any) -> tuple[Any, ...]:
        key = signature(inputs)
        if key not in expected:
            expected[key] = _output_types(node, inputs)
        try:
            results = operator.run(*(memory.export(value, "numpy") for value in inputs))
        except (RuntimeError, TypeError, ValueError) as cause:
            raise RefusedError(f"it fails ({cause})") from cause
        if node.op_type == "Optional":  # it returns its element in a list
            (results,) = results
        _check_types(results, expected[key])
        _refuse_one_element(node, inputs, results)
        return tuple(memory.hold(result) for result in results[: node.n_outputs])

    return run


def _load_operator(node: Node) -> Any:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpFunction

    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain = node.domain
    graph = onnx.helper.make_graph([proto], "node", [], [])
    try:
        opsets = {**node.imports, node.domain: node.opset}
        (operator,) = ReferenceEvaluator(graph, opsets=opsets).rt_nodes_
    except RuntimeError:  # of this opset, or at all
        operator = None
    if operator is None or isinstance(operator, OpFunction):  # we run the bodies of schemas
        raise RefusedError(f"no implementation of {node.operator}")
    if type(operator).__name__ == node.op_type:  # not one of those written for an older opset
        _refuse_old_attributes(node)
    return operator


def _refuse_old_attributes(node: Node) -> None:
    """Refuse the attributes of older opsets, which the newest implementations ignore silently."""
    newest = onnx.defs.get_schema(node.op_type, domain=node.domain)
    if old := node.attributes.keys() - newest.attributes.keys():
        raise RefusedError(f"attributes {', '.join(sorted(old))} of opset {node.opset}")


def _refuse_one_element(node: Node, inputs: Sequence[Any], results: Sequence[Any]) -> None:
    """Refuse what onnx.reference reads at -0.5 instead of 0, in a Resize to one element."""
    if node.op_type != "Resize":
        return
    told = node.attributes
    is_moved = told.get("coordinate_transformation_mode") == "pytorch_half_pixel"
    if is_moved and (told.get("mode") == "cubic" or told.get("antialias")):
        sizes = zip(inputs[0].shape, results[0].shape, strict=True)
        if any(after == 1 < before for before, after in sizes):
            raise RefusedError("onnx.reference is wrong where this Resize leaves one element")


def _output_types(node: Node, inputs: Sequence[Any]) -> list[int]:
    """Element types that ONNX gives to the outputs, 0 when it does not say."""
    if node.schema is None:
        return []
    given = {
        name: type_proto(value)
        for name, value in zip(node.proto.input, inputs, strict=False)
        if name and value is not None
    }
    imports = [onnx.helper.make_opsetid(*item) for item in node.imports.items()]
    try:
        inferred = onnx.shape_inference.infer_node_outputs(
            node.schema, node.proto, given, opset_imports=imports
        )
    except Exception:  # noqa: BLE001 - inference is a help, not a condition
        return []
    unknown = onnx.TypeProto()
    return [inferred.get(name, unknown).tensor_type.elem_type for name in node.proto.output]


def _check_types(results: Sequence[Any], expected: Sequence[int]) -> None:
    for result, wanted in zip(results, expected, strict=False):
        if not wanted or isinstance(result, list):
            continue
        got = element_type(as_numpy(result).dtype)
        if got != wanted:
            raise RefusedError(f"it gives {short_name(got)} instead of {short_name(wanted)}")


# Those of float8 are codes.
_FLOATS = {"f64", "f32", "f16", "bf16"}


def _definition_kernel(memory: Memory, node: Node) -> Kernel:
    """Bind a definition of this package, on NumPy arrays, of an operator that ONNX lacks.

    What a definition leaves out is refused.
    """
    definition = registry.find_operator(node.op_type, node.domain).definition
    if definition is None:
        raise RefusedError(f"no definition of {node.operator}")

    def run(*inputs: Any) -> tuple[Any, ...]:
        arrays = [memory.export(value, "numpy") for value in inputs]
        try:
            found = definition(*arrays, **node.attributes)
        except Exception as cause:
            raise RefusedError(f"the definition does not cover this node ({cause})") from cause
        results = found if isinstance(found, tuple) else (found,)
        if len(results) < node.n_outputs:
            raise RefusedError(f"the definition gives {len(results)} outputs")
        return tuple(memory.hold(_narrowed(result, arrays)) for result in results)

    return run


def _narrowed(result: Any, inputs: Sequence[Any]) -> Any:
    """Round a float to the type of the first one that was read: definitions compute in float64."""
    given = (x.dtype for x in inputs if x is not None and short_name(x.dtype) in _FLOATS)
    is_float = short_name(result.dtype) in _FLOATS
    return result.astype(next(given, result.dtype)) if is_float else result


_KERNELS: dict[str, Callable[[Memory, Node], Kernel]] = {
    "torch": _torch_kernel,
    "ort": _ort_kernel,
    "reference": _reference_kernel,
    "definition": _definition_kernel,
}


def schema_kernel(compile_body: Callable[..., Plan], node: Node) -> Kernel:
    """Compile the function that an ONNX schema defines, whose nodes run on the other sources.

    A body that depends on the types and shapes of the inputs is compiled for each of them.
    """
    schema: Any = node.schema  # its type stubs lack the functions
    if schema is None or not (schema.has_function or schema.has_context_dependent_function):
        raise RefusedError("the schema of ONNX has no function body")
    defaults = {a.name: a.default_value for a in schema.attributes.values()}
    none = onnx.AttributeProto.UNDEFINED
    bound = {name: value for name, value in defaults.items() if value.type != none}
    bound.update((attribute.name, attribute) for attribute in node.proto.attribute)
    plans: dict[Signature, Plan] = {}

    def run(*inputs: Any) -> tuple[Any, ...]:
        key = signature(inputs)
        if not schema.has_function:
            key += tuple(tuple(getattr(value, "shape", ())) for value in inputs)
        if key not in plans:
            plans[key] = compile_body(_body(schema, node, inputs), node, bound, str(node))
        plan = plans[key]
        missing = (None,) * (len(plan.inputs) - len(inputs))
        return tuple(plan.run((*inputs, *missing)))

    return run


def _body(schema: Any, node: Node, inputs: Sequence[Any]) -> onnx.FunctionProto:
    """Ask the schema for the body; some depend on the types of the inputs, few on their shapes."""
    function = onnx.FunctionProto()
    if schema.has_function:
        version = _latest(schema.function_opset_versions, node.opset)
        function.ParseFromString(schema.get_function_with_opset_version(version))
    else:
        version = _latest(schema.context_dependent_function_opset_versions, node.opset)
        types = [type_proto(value, with_shapes=True).SerializeToString() for value in inputs]
        function.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                version, node.proto.SerializeToString(), types
            )
        )
    if not function.node:
        raise RefusedError("the schema of ONNX has no body for these types and shapes")
    return function


def _latest(versions: Sequence[int], opset: int) -> int:
    older = [version for version in versions if version <= opset]
    if not older:
        raise RefusedError(f"the schema of ONNX has no body for opset {opset}")
    return max(older)
