"""A graph of dynamo on ONNX Runtime: a session for each set of weights that it is called with."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx_ir
import onnxruntime
import torch
from torch.fx import GraphModule, traceback

from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.backend.export import ExportedGraph, example_value, export_graph, may_be
from ortmeter.backend.levels import Level, optimize_model
from ortmeter.backend.record import CompiledGraph, count_operators
from ortmeter.backend.weights import WeightWatch, hold_weights, split_weights
from ortmeter.dtypes import onnx_type, short_name
from ortmeter.errors import ModelError
from ortmeter.runtime.ortvalues import booleans_are_bytes, to_ortvalue
from ortmeter.runtime.placement import node_assignment
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

if TYPE_CHECKING:
    from torch.cuda import Stream

_CPU = Provider("cpu")
#: Makes a value of ONNX Runtime of a tensor, on the same memory.
Hold: TypeAlias = Callable[[torch.Tensor], Any]
#: Runs a session on values of some inputs then on tensors, returns one tensor per output.
Call: TypeAlias = Callable[[Sequence[Any], Sequence[torch.Tensor]], list[torch.Tensor]]
_Forward: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Settings:
    """How graphs are compiled; see :class:`~ortmeter.backend.OrtBackend`."""

    level: Level
    prepack: bool
    provider: Provider | None
    threads: int | None
    tf32: bool


class GraphRunner:
    """A graph of dynamo, with one program for each set of weights in use.

    The record of each program goes to *graphs*; ``give_up(module, cause)`` returns what runs the
    graph when ONNX Runtime cannot, or raises.
    """

    def __init__(
        self,
        module: GraphModule,
        settings: Settings,
        graphs: list[CompiledGraph],
        give_up: Callable[[GraphModule, Exception], _Forward],
    ) -> None:
        self._module = module
        self._settings = settings
        self._graphs = graphs
        self._give_up = give_up
        self._programs: list[Program] = []
        self._last: Program | _Torch | None = None
        self._lock = threading.RLock()

    def prepare(self, arguments: Sequence[Any]) -> _Forward:
        """Compile for these arguments; return what runs the graph."""
        tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
            cause = UnsupportedGraphError(
                "an input or a parameter needs its gradient, which ONNX Runtime does not compute",
                "Call the model under torch.no_grad() or torch.inference_mode()",
            )
            return self._give_up(self._module, cause)
        self._choose(arguments)
        return self.run

    def run(self, *arguments: Any) -> Any:
        """Run the graph."""
        program = self._last
        if program is None or not program.recognizes(arguments):
            del program  # with the memory of its session, if it is outdated
            program = self._choose(arguments)
        try:
            return program.run(arguments)
        except ModelError as cause:
            return self._abandon(cause).run(arguments)

    def _abandon(self, cause: ModelError) -> "_Torch":
        """Leave the graph to torch from now on."""
        with self._lock:
            self._forget(list(self._programs))
            self._last = left = _Torch(self._give_up(self._module, cause))
            return left

    def _choose(self, arguments: Sequence[Any]) -> "Program | _Torch":
        """Find the program of these weights, or build it."""
        with _annotation_kept(), self._lock:
            self._last = None
            known = (program for program in self._programs if program.recognizes(arguments))
            self._last = chosen = next(known, None) or self._build(arguments)
            return chosen

    def _build(self, arguments: Sequence[Any]) -> "Program | _Torch":
        outdated = [program for program in self._programs if program.is_outdated()]
        builds = self._forget(outdated)
        del outdated  # with the memory of its session
        try:
            program = build_program(self._module, arguments, self._settings, builds=builds + 1)
        except Exception as cause:  # noqa: BLE001 - whatever torch or ONNX Runtime refuse
            return _Torch(self._give_up(self._module, cause))
        if program is None:
            return _Torch(self._module.forward)
        self._programs.append(program)
        self._graphs.append(program.record)
        return program

    def _forget(self, outdated: list["Program"]) -> int:
        """Drop programs and their records; return how often they were built."""
        for program in outdated:
            self._programs.remove(program)
            if program.record in self._graphs:
                self._graphs.remove(program.record)
        return sum(program.record.builds for program in outdated)


class _Torch:
    """Runs a graph on torch, whatever its weights."""

    def __init__(self, forward: _Forward) -> None:
        self._forward = forward

    def run(self, arguments: Sequence[Any]) -> Any:
        return self._forward(*arguments)

    def recognizes(self, arguments: Sequence[Any]) -> bool:  # noqa: ARG002 - as a program
        return True


@contextmanager
def _annotation_kept() -> Iterator[None]:
    """Keep what torch is about to remove from a table that an export replaces.

    While a thread exports, torch annotates the calls of the others in a table of the process, and
    the end of the export restores the table as it was: the removal would fail.
    """
    annotated = torch.compiler.is_exporting() or "custom" in traceback.current_meta
    try:
        yield
    finally:
        if annotated:
            traceback.current_meta.setdefault("custom", {})


class Program:
    """A session fed with the arguments of a graph.

    It takes the arguments of ranks *weights*, bound until they are others or elsewhere, then those
    of ranks *feeds*; *kept* is what the session reads and must outlive it.
    """

    def __init__(
        self,
        hold: Hold,
        call: Call,
        *,
        kept: object,
        weights: Sequence[int],
        feeds: Sequence[int],
        exported: ExportedGraph,
        watch: WeightWatch,
        record: CompiledGraph,
    ) -> None:
        self._hold, self._call, self._kept = hold, call, kept
        self._weights, self._feeds = weights, feeds
        self._bound: tuple[WeightWatch, list[Any]] | None = None
        self._numbers = [rank for rank, i in enumerate(feeds) if i in exported.numbers]
        # How many arguments are the feeds as they are: a list costs as much as a small copy.
        straight = not self._numbers and list(feeds) == list(range(len(feeds)))
        self._first = len(feeds) if straight else -1
        self._make_outputs = exported.make_outputs
        self.recognizes, self.is_outdated = watch.recognizes, watch.is_outdated
        self.record = record

    def run(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Run on the arguments of the graph and return its outputs."""
        bound = self._bound
        if bound is None or (self._weights and not bound[0].recognizes(arguments)):
            bound = self._bound = self._bind(arguments)
        feeds = arguments
        if len(arguments) != self._first:
            feeds = [arguments[i] for i in self._feeds]
            for i in self._numbers:
                feeds[i] = torch.tensor(feeds[i])
        try:
            computed = self._call(bound[1], feeds)
        except Exception as cause:
            raise ModelError(f"ONNX Runtime failed: {str(cause).strip()}") from cause
        return computed if self._make_outputs is None else self._make_outputs(*arguments, *computed)

    def _bind(self, arguments: Sequence[Any]) -> tuple[WeightWatch, list[Any]]:
        """Make values of the weights once: it costs more than a small product does."""
        values = [self._hold(arguments[i].detach()) for i in self._weights]
        return WeightWatch(arguments, self._weights, written=False), values


def build_program(
    module: GraphModule, arguments: Sequence[Any], settings: Settings, *, builds: int
) -> Program | None:
    """Compile a graph of dynamo for the weights it is called with.

    None when it has nothing to compute. Otherwise it may raise an UnsupportedGraphError, or a
    ModelError when ONNX Runtime has no kernel for one of its nodes.
    """
    start = time.perf_counter()
    exported = export_graph(module, arguments)
    if exported is None:
        return None
    provider = _provider(exported, arguments, settings)
    model, before = exported.model, count_operators(onnx_ir.to_proto(exported.model))
    exported_at = time.perf_counter()

    small, large = split_weights(exported, arguments)
    hold_weights(model, small, arguments, fold=True)
    threads = torch.get_num_threads() if settings.threads is None else settings.threads
    ranks = exported.inputs
    fusions, refusals = optimize_model(model, settings.level, provider=str(provider))
    light = onnx_ir.to_proto(model)
    optimized_at = time.perf_counter()

    read = [str(value.name) for value in model.graph.inputs if value.name in ranks]
    prepacked = settings.prepack and not provider.allocation
    held = {name: large[name] for name in read if name in large} if prepacked else {}
    hold_weights(model, held, arguments, fold=False)
    # Other tensor objects on the same memory: the session must not keep the parameters alive.
    tensors = {name: arguments[i].detach() for name, i in held.items()}
    values = {name: to_ortvalue(tensor, _CPU) for name, tensor in tensors.items()}
    stream = session_stream(provider)
    session = make_session(
        onnx_ir.to_proto(model),
        provider=provider,
        threads=threads,
        tf32=settings.tf32,
        initializers=values,
        stream=None if stream is None else stream.cuda_stream,
    )
    _check_outputs(session, exported)
    record = CompiledGraph(
        model=light,
        level=str(settings.level),
        provider=str(provider),
        exported_operators=before,
        fusions=fusions,
        export_s=exported_at - start,
        optimization_s=optimized_at - exported_at,
        session_s=time.perf_counter() - optimized_at,
        weight_bytes=sum(arguments[i].nbytes for i in large.values()),
        placement=dict(Counter(node.provider for node in node_assignment(session))),
        builds=builds,
        refusals=tuple(refusals),
    )
    read = [name for name in read if name not in held]
    # One that is not contiguous is copied at each call: a copy does not see what is written.
    bound = [name for name in read if name in large and arguments[ranks[name]].is_contiguous()]
    fed = [name for name in read if name not in bound]
    hold, call = call_on_tensors(session, provider, [*bound, *fed], synchronize=stream is None)
    if stream is not None:
        hold, call = follow_stream(hold, call, stream)
    return Program(
        hold,
        call,
        kept=(tensors, values),
        weights=[ranks[name] for name in bound],
        feeds=[ranks[name] for name in fed],
        exported=exported,
        watch=WeightWatch(arguments, [*small.values(), *held.values()]),
        record=record,
    )


def _check_outputs(session: onnxruntime.InferenceSession, exported: ExportedGraph) -> None:
    """Refuse outputs that have another type or shape in the session than in torch."""
    in_torch = map(example_value, exported.computed)
    for value, tensor in zip(session.get_outputs(), in_torch, strict=True):
        same = onnx_type(value.type) == onnx_type(tensor.dtype)
        if not (same and may_be(value.shape, tensor.shape)):
            raise UnsupportedGraphError(
                f"{value.name}: ONNX Runtime returns {short_name(value.type)}{value.shape}, "
                f"torch {short_name(tensor.dtype)}{list(tensor.shape)}"
            )


def _provider(exported: ExportedGraph, arguments: Sequence[Any], settings: Settings) -> Provider:
    """Where a graph runs: on the device of its tensors, which must all be there."""
    nodes = exported.computed[0].graph.nodes
    held = [*arguments, *map(example_value, nodes)]
    devices = {str(value.device) for value in held if isinstance(value, torch.Tensor)}
    found = sorted(devices - {"cpu"}) or ["cpu"]
    # torch.onnx.ops.symbolic says that its results are on the CPU
    told = not any(str(node.target).startswith("onnx_symbolic") for node in nodes)
    outputs = {str(example_value(node).device) for node in exported.computed if told}
    if len(found) > 1 or not outputs <= {found[0]}:
        raise UnsupportedGraphError(
            f"tensors are on {', '.join(sorted({*found, *outputs}))}: a session runs on one device"
        )
    if found[0].partition(":")[0] not in {"cpu", "cuda"}:
        raise UnsupportedGraphError(f"tensors are on {found[0]}. Accepted: cpu, cuda")
    provider = Provider.parse(found[0])
    if settings.provider not in {None, provider}:
        raise UnsupportedGraphError(
            f"provider={str(settings.provider)!r} was requested but tensors are on {provider}"
        )
    return provider


def session_stream(provider: Provider) -> "Stream | None":
    """Choose the stream of a session on CUDA: the current one of torch on its device.

    The default stream has a null handle, which ONNX Runtime takes for "none given": a stream of its
    own stands for it.
    """
    if not provider.on_cuda:
        return None
    current = torch.cuda.current_stream(provider.index)
    return current if current.cuda_stream else torch.cuda.Stream(provider.index)  # type: ignore[no-untyped-call]


def follow_stream(hold: Hold, call: Call, stream: "Stream") -> tuple[Hold, Call]:
    """Make what a session does on its stream happen in the order of the current one of torch.

    The host does not wait: *call* leaves its outputs pending. They are copied into memory of torch,
    which knows what reads it (``record_stream``): the next run writes over that of ONNX Runtime as
    soon as the tensors are gone, whatever other streams still have to read.
    """
    one_at_a_time = threading.Lock()  # the launches of two threads would mix

    def kept(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:
            # What the session reads, a copy or not, must not be given away meanwhile.
            tensor = tensor.detach().contiguous()
            tensor.record_stream(stream)
        return hold(tensor)

    def ordered(held: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        current = torch.cuda.current_stream(stream.device)
        same = current == stream
        with one_at_a_time:
            values = [*held, *map(hold if same else kept, tensors)]
            if not same:  # once the copies above are on the current stream
                stream.wait_stream(current)
            with torch.cuda.stream(stream):
                results = [tensor.clone() for tensor in call(values, ())]
        if not same:
            for result in results:
                result.record_stream(current)
            current.wait_stream(stream)
        return results

    return kept, ordered


def call_on_tensors(
    session: onnxruntime.InferenceSession,
    provider: Provider,
    names: Sequence[str],
    *,
    synchronize: bool,
) -> tuple[Hold, Call]:
    """Make what runs a session on the memory of tensors of its device.

    The first function makes the value of an input, the second one runs on values then on tensors,
    in the order of *names*. Without *synchronize* the outputs are left pending on the stream of the
    session.
    """
    # These are not documented: a call costs less than through a binding. On the CPU a dictionary
    # costs less than vectors; from a GPU it would copy the outputs.
    ort: Any = onnxruntime.capi.onnxruntime_pybind11_state
    to_value, new_vector = ort.OrtValue.from_dlpack, ort.OrtValueVector
    to_capsule = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]
    # The function in C under the one of torch, and the session under that of Python: together they
    # save a tenth of a small call.
    from_capsule = torch._C._from_dlpack  # noqa: SLF001
    outputs = session.get_outputs()
    output_names = [node.name for node in outputs]
    booleans = [i for i, node in enumerate(outputs) if node.type == "tensor(bool)"]
    device = onnxruntime.OrtDevice.make(provider.name, provider.index)._get_c_device()  # noqa: SLF001
    devices = [device] * len(outputs)
    options = onnxruntime.RunOptions()
    if not synchronize:
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    inner, on_cuda, boolean = session._sess, provider.on_cuda, torch.bool  # noqa: SLF001
    run, run_on_device = inner.run_with_ort_values, inner.run_with_ortvaluevector
    has_booleans = any(node.type == "tensor(bool)" for node in session.get_inputs())
    as_bytes = has_booleans and booleans_are_bytes()

    def hold(tensor: torch.Tensor) -> Any:
        if not tensor.is_contiguous():
            tensor = tensor.detach().contiguous()
        if as_bytes and tensor.dtype is boolean:
            return to_value(to_capsule(tensor.view(torch.uint8)), True)
        return to_value(to_capsule(tensor))

    def call(held: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        given: dict[str, Any] = dict(zip(names, held, strict=False)) if held else {}
        for rank, tensor in enumerate(tensors, len(held)):
            given[names[rank]] = hold(tensor)
        if on_cuda:
            feeds, fetches = new_vector(), new_vector()
            for value in given.values():
                feeds.push_back(value)
            run_on_device(options, names, feeds, output_names, fetches, devices)
        else:
            fetches = run(given, output_names, options)
        results: list[torch.Tensor] = fetches.to_dlpacks(from_capsule)
        for i in booleans:
            results[i] = results[i].view(boolean)
        return results

    return hold, call
