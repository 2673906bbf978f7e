"""Run an ONNX graph node by node, with replaceable kernels."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from ortmeter.errors import FeedError, InvalidArgumentError
from ortmeter.evaluator.compiler import Callback, Compiler, Context
from ortmeter.evaluator.kernels import KernelKey, Source, Swap, Swaps
from ortmeter.evaluator.node import Names, initializers, opset_versions
from ortmeter.evaluator.plan import Plan
from ortmeter.evaluator.sources import SOURCES, make_source, schema_kernel
from ortmeter.evaluator.values import Memory, addresses, fed_library, owned
from ortmeter.operators.descriptions import describe, describe_type, element_type
from ortmeter.optional import pd
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.providers import Provider, resolve_provider


class Evaluator:
    """Run an ONNX model node by node; the kernel of each node can be replaced.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    kernels : mapping, optional
        Kernels that replace those of the sources: ``{"LayerNormalization": "ort"}`` by operator,
        ``{("com.microsoft", "FusedMatMul"): "reference"}`` for another domain,
        ``{"node:norm_1": function}`` by node, which has priority. A node without a name is
        designated by its first output. A value is the name of a source, or a callable
        ``f(*inputs, **attributes)`` that returns one output or a tuple of outputs. The callable
        gets and returns arrays of the library of the feeds, and must not write into its inputs.
        Nodes of subgraphs and of local functions can be replaced too.
    sources : sequence of {"torch", "ort", "reference"}
        Sources of the other kernels: ``torch`` is the kernels of this package on torch tensors,
        ``ort`` is a session of ONNX Runtime with this single node, ``reference`` is
        :mod:`onnx.reference`. The first source that supports a node and the types of its inputs
        runs it. If none does, the node runs on the definition that this package has of it, for
        operators that ONNX lacks, or as the function that its ONNX schema defines, if any.
    device : str or Provider
        ``cpu``, ``cuda``, ``cuda:1`` or ``auto``: where torch and ONNX Runtime run.
    tf32 : bool
        Let CUDA round the operands of float32 products to TF32, in torch and in ONNX Runtime.
    callback : callable, optional
        ``f(node, inputs, outputs)``, called after each node of the model (subgraphs and local
        functions included, constants excepted) with its ``NodeProto`` and lists of arrays, which
        it must not write into: nodes may share their memory.

    Raises
    ------
    ModelError
        The model cannot be read, or a graph is not valid.
    InvalidArgumentError
        A source is unknown, a kernel is neither a source nor a callable, or its key matches no node
        of the model.
    MissingDependencyError
        A source needs torch or onnxruntime, which is not installed.
    ProviderUnavailableError
        The device does not work on this machine.

    Notes
    -----
    Sources known to be wrong for an operator (:data:`~ortmeter.evaluator.KNOWN_ERRORS`) are passed
    over, unless *kernels* names them.

    Values are torch tensors on the device when torch is one of the sources, or on CUDA; NumPy
    arrays otherwise. Each one is released after its last use. An evaluator serves one thread.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Z) { Y = Abs(X)  Z = Sqrt(Y) }'''
    >>> evaluator = Evaluator(text, {"Abs": np.abs}, sources=("reference",))
    >>> evaluator.run(None, {"X": np.float32([-4, 9])})[0].tolist()
    [2.0, 3.0]
    >>> evaluator.assignment["source"].tolist()
    ['callable', 'reference']
    """

    def __init__(
        self,
        model: ModelLike,
        kernels: Mapping[KernelKey, Swap] | None = None,
        sources: Sequence[str] = SOURCES,
        device: str | Provider = "cpu",
        *,
        tf32: bool = False,
        callback: Callback | None = None,
    ) -> None:
        proto = load_model(model)
        kernels = kernels or {}
        order = _checked_sources(sources)
        swaps = Swaps(kernels, SOURCES)
        asked = {*order, *(swap for swap in kernels.values() if isinstance(swap, str))}
        provider = resolve_provider(device)
        library = "torch" if "torch" in asked or provider.on_cuda else "numpy"
        self._memory = Memory(provider, library, tf32=tf32)
        self._context = Context(self._memory, callback)
        known = {name: make_source(name, self._memory) for name in asked}
        fallback = [known[name] for name in order]
        # Before ONNX Runtime, unless it was asked for first.
        ours = [rank for rank, name in enumerate(order) if name != "ort"] or [len(order) - 1]
        fallback.insert(ours[-1] + 1, make_source("definition", self._memory))
        bodies = Compiler((), fallback, known, Swaps({}, ()), Context(self._memory))
        fallback.append(Source("schema", functools.partial(schema_kernel, bodies.function)))
        self._compiler = Compiler(proto.functions, fallback, known, swaps, self._context)
        self._plan = self._compiler.graph(proto.graph, Names("", opset_versions(proto), {}))
        swaps.check([node for node, _ in self._compiler.records])
        self._weights = frozenset(addresses(self._plan.constants.values()))
        self._feeds = FeedChecker(proto.graph, self._memory)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._plan.outputs

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """Compute results.

        Parameters
        ----------
        output_names : sequence of str, optional
            Any results of the main graph, intermediate ones included; all the outputs by default.
            Only the nodes that they need are run.
        feeds : mapping of str to array
            Inputs: NumPy arrays, torch tensors, or anything that holds an array; a list for a
            sequence; ``None`` for an empty optional. They may be on the host or on the device.

        Returns
        -------
        list of array
            In the order of the names: torch tensors on the device when a feed is one, NumPy arrays
            otherwise. Each one has its own memory: writing into it changes neither the feeds, nor
            the weights, nor another result.

        Raises
        ------
        FeedError
            An input is missing, unknown, or has a wrong type, rank, shape or device.
        InvalidArgumentError
            A result is unknown.
        ModelError
            No kernel runs a node, or its kernel fails; the message names it.
        """
        names = self._plan.outputs if output_names is None else tuple(output_names)
        known = self._plan.slots
        if unknown := [name for name in names if not name or name not in known]:
            raise InvalidArgumentError(
                f"Unknown results: {', '.join(unknown)}. "
                f"Accepted: {', '.join(sorted(filter(None, known)))}"
            )
        given = self._feeds.take(feeds)
        self._context.library = fed_library(feeds.values())
        fed = set(addresses(given))
        values = self._plan.start(given)
        del given  # only the slots keep the inputs, until their last use
        with self._memory.policy():
            results = self._plan.compute(names, values)
            results = [owned(result, self._weights, fed) for result in results]
        return [self._context.show(result) for result in results]

    @property
    def assignment(self) -> "pd.DataFrame":
        """Source that ran each node last.

        One row per node of the model: ``graph`` (empty for the main one, ``node/attribute`` for a
        subgraph, ``domain.name`` for a function), ``node`` (its name or its first output),
        ``domain``, ``op_type``, and ``source``: ``torch``, ``ort``, ``reference``, ``definition``
        (that of this package), ``schema`` (the function of the ONNX schema), ``function`` (a local
        one), ``evaluator`` (constants, and operators that execute graphs), ``callable`` (a function
        of the user). Before a run, it is the first source to try, empty if it depends on the
        inputs.
        """
        rows = [
            (node.scope, node.label, node.domain, node.op_type, step.used if step else "evaluator")
            for node, step in self._compiler.records
        ]
        return pd.DataFrame(rows, columns=["graph", "node", "domain", "op_type", "source"])


def parts(evaluator: Evaluator) -> tuple[Plan, "FeedChecker", Context]:
    """Open an evaluator: its plan, what checks its feeds, what its kernels share."""
    return evaluator._plan, evaluator._feeds, evaluator._context  # noqa: SLF001 - same subpackage


def _checked_sources(sources: Sequence[str]) -> tuple[str, ...]:
    names = (sources,) if isinstance(sources, str) else tuple(sources)
    if not names or not set(names) <= set(SOURCES):
        raise InvalidArgumentError(
            f"sources={sources!r}. Accepted: one or more of {', '.join(SOURCES)}"
        )
    return tuple(dict.fromkeys(names))


class FeedChecker:
    """Checks the feeds of a graph; inputs that have an initializer are optional."""

    def __init__(self, graph: onnx.GraphProto, memory: Memory) -> None:
        self._types = {value.name: value.type for value in graph.input}
        self._checks = {name: _compiled(kind) for name, kind in self._types.items()}
        self._defaults = {name for name, _ in initializers(graph)}
        self._memory = memory

    def take(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Return the values in the order of the graph; ``None`` for a default."""
        values = []
        for name, fits in self._checks.items():
            if name in feeds:
                value = self._convert(name, feeds[name])
                if not fits(value):
                    raise FeedError(f"{self._wanted(name)} was given {describe([value])}")
                values.append(value)
            elif name in self._defaults:
                values.append(None)
            else:
                raise FeedError(f"Missing input: {name!r}. {self._expected()}")
        if not feeds.keys() <= self._types.keys():
            unknown = ", ".join(repr(name) for name in feeds if name not in self._types)
            raise FeedError(f"Unknown inputs: {unknown}. {self._expected()}")
        return values

    def _convert(self, name: str, value: Any) -> Any:
        try:
            return self._memory.receive(value)
        except InvalidArgumentError as cause:
            raise FeedError(f"{self._wanted(name)} cannot be read: {cause}") from cause

    def _wanted(self, name: str) -> str:
        return f"Input {name!r} {describe_type(self._types[name])}"

    def _expected(self) -> str:
        return "Expected: " + ", ".join(
            f"{name!r} {describe_type(kind)}" for name, kind in self._types.items()
        )


def _compiled(kind: onnx.TypeProto) -> Callable[[Any], bool]:
    """Make the check of a type: to read its protos takes longer than a small run."""
    match kind.WhichOneof("value"):
        case "tensor_type":
            return _compiled_tensor(kind.tensor_type)
        case "sequence_type":
            fits = _compiled(kind.sequence_type.elem_type)
            return lambda value: isinstance(value, list) and all(map(fits, value))
        case "optional_type":
            fits = _compiled(kind.optional_type.elem_type)
            return lambda value: value is None or fits(value)
    return lambda _value: True


def _compiled_tensor(declared: onnx.TypeProto.Tensor) -> Callable[[Any], bool]:
    wanted, has_any_rank = declared.elem_type, not declared.HasField("shape")
    # A size below zero is one that an exporter did not know.
    sizes = [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else None
        for dim in declared.shape.dim
    ]

    def fits(value: Any) -> bool:
        if value is None or isinstance(value, list):
            return False
        if wanted and element_type(value.dtype) != wanted:
            return False
        pairs = zip(sizes, value.shape, strict=False)
        return has_any_rank or (
            len(sizes) == len(value.shape) and all(size in {None, n} for size, n in pairs)
        )

    return fits
