"""From a graph of dynamo to a program that runs on ONNX Runtime."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir
import torch
from torch.fx import GraphModule

from ortmeter.backend._internals import Call, call_on_tensors, example_value
from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.backend.export import ExportedGraph, export_graph
from ortmeter.backend.levels import Level, optimize_model
from ortmeter.backend.program import Program
from ortmeter.backend.record import CompiledGraph, count_operators, dump_model, resident_bytes
from ortmeter.backend.rules.merging import allow_copies
from ortmeter.backend.streams import follow_stream, session_stream
from ortmeter.backend.weights import (
    MergedWeights,
    Weights,
    WeightWatch,
    merge_weights,
    share_initializers,
    take_constants,
)
from ortmeter.runtime.ortvalues import to_ortvalue
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session, node_assignment

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["Settings", "build_program"]

_CPU = Provider("cpu")


@dataclass(frozen=True)
class Settings:
    """How graphs are compiled; see :class:`~ortmeter.backend.OrtBackend`."""

    level: Level
    prepack: bool
    opset: int
    provider: Provider | None
    threads: int | None
    tf32: bool
    dump: Path | None


def build_program(
    module: GraphModule, arguments: Sequence[Any], settings: Settings
) -> Program | None:
    """Compile a graph of dynamo for the weights it is called with.

    Parameters
    ----------
    module : GraphModule
        The graph; None is returned when it has nothing to compute.
    arguments : sequence
        Its arguments.
    settings : Settings
        How to compile it.

    Raises
    ------
    UnsupportedGraphError
        The graph cannot be expressed in ONNX, or not on this device.
    ModelError
        ONNX Runtime has no kernel for one of its nodes.
    """
    clock = _Clock()
    exported = export_graph(module, arguments, settings.opset)
    if exported is None:
        return None
    provider = _provider(exported, arguments, settings)
    model = exported.model
    before = count_operators(onnx_ir.to_proto(model))
    export_s = clock.lap()

    # Only small weights are constants while the model is optimised: folding a large one copies it.
    on_cpu = provider.name == "cpu"
    weights = Weights.split(exported, arguments, large_ones=settings.prepack and on_cpu)
    take_constants(model, weights.constants, arguments)
    ranks = {given.name: given.position for given in exported.inputs if given.is_weight}
    if settings.prepack:
        allow_copies(value for value in model.graph.inputs if value.name in ranks)
    optimized = optimize_model(model, settings.level, provider=str(provider))
    merged = MergedWeights({}, ())
    if "MergedProducts" in optimized.fusions:
        merged = merge_weights(model, ranks, arguments)
        weights = weights.read_by(model)
    light = onnx_ir.to_proto(model)
    optimization_s = clock.lap()

    memory = resident_bytes()
    share_initializers(model, weights.initializers, arguments)
    # Other tensor objects on the same memory: the session must not keep the parameters alive.
    tensors = {name: arguments[i].detach() for name, i in weights.initializers.items()}
    values = {name: to_ortvalue(tensor, _CPU) for name, tensor in tensors.items()}
    libraries = [] if optimized.kernels.library is None else [optimized.kernels.library]
    call, placement = _create_session(model, values, libraries, provider, settings)
    record = CompiledGraph(
        model=light,
        level=str(settings.level),
        provider=str(provider),
        exported_operators=before,
        fusions=optimized.fusions,
        export_s=export_s,
        optimization_s=optimization_s,
        session_s=clock.lap(),
        weight_bytes=_large_bytes(exported, weights, arguments),
        memory_bytes=None if memory is None else (resident_bytes() or memory) - memory,
        placement=placement,
        file=None if settings.dump is None else dump_model(light, settings.dump),
        kernels=optimized.kernels.library,
        without_kernels=optimized.kernels.reason,
    )
    positions = {given.name: given.position for given in exported.inputs}
    positions |= {name: len(arguments) + i for i, name in enumerate(merged.tensors)}
    feeds = [positions[str(value.name)] for value in model.graph.inputs]
    watch = WeightWatch(arguments, {*weights.positions(), *merged.sources})
    return Program(
        call,
        kept=(tensors, values),
        feeds=feeds,
        more=tuple(merged.tensors.values()),
        exported=exported,
        watch=watch,
        record=record,
    )


def _create_session(
    model: onnx_ir.Model,
    values: Mapping[str, "onnxruntime.OrtValue"],
    libraries: Sequence[Path],
    provider: Provider,
    settings: Settings,
) -> tuple[Call, dict[str, int]]:
    """Create the session; return what runs it and its number of nodes by provider."""
    stream = session_stream(provider)
    session = make_session(
        onnx_ir.to_proto(model),
        provider=provider,
        threads=torch.get_num_threads() if settings.threads is None else settings.threads,
        tf32=settings.tf32,
        initializers=values,
        stream=None if stream is None else stream.cuda_stream,
        custom_ops=libraries,
    )
    call = call_on_tensors(session, provider, synchronize=stream is None)
    placement = Counter(node.provider for node in node_assignment(session))
    return (call if stream is None else follow_stream(call, stream)), dict(placement)


def _provider(exported: ExportedGraph, arguments: Sequence[Any], settings: Settings) -> Provider:
    """Where a graph runs: on the device of its tensors, which must all be there."""
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    tensors += [example_value(node) for node in exported.outputs.computed]
    found = sorted({str(tensor.device) for tensor in tensors} - {"cpu"}) or ["cpu"]
    if complex_ones := sorted({str(t.dtype) for t in tensors if t.is_complex()}):
        raise UnsupportedGraphError(
            f"{', '.join(complex_ones)}: ONNX Runtime has no complex tensors"
        )
    outputs = {str(example_value(node).device) for node in exported.outputs.computed}
    if len(found) > 1 or not outputs <= {found[0]}:
        raise UnsupportedGraphError(
            f"tensors are on {', '.join(sorted({*found, *outputs}))}: a session runs on one device"
        )
    if found[0].partition(":")[0] not in {"cpu", "cuda"}:
        raise UnsupportedGraphError(f"tensors are on {found[0]}. Accepted: cpu, cuda")
    provider = Provider.parse(found[0])
    if settings.provider not in {None, provider}:
        raise UnsupportedGraphError(
            f"provider={str(settings.provider)!r} was asked for while tensors are on {provider}"
        )
    return provider


def _large_bytes(exported: ExportedGraph, weights: Weights, arguments: Sequence[Any]) -> int:
    """Size of the weights that are not constants of the model."""
    return sum(
        arguments[given.position].nbytes
        for given in exported.inputs
        if given.is_weight and given.name not in weights.constants
    )


class _Clock:
    """Seconds between laps."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed
