"""Run a graph on the program built for the weights it is called with."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.fx import GraphModule

from ortmeter.backend.building import Settings, build_program
from ortmeter.backend.errors import UnsupportedGraphError
from ortmeter.backend.program import Program
from ortmeter.backend.record import CompiledGraph
from ortmeter.errors import ModelError

__all__ = ["GraphRunner"]

_Forward = Callable[..., Any]


class GraphRunner:
    """A graph of dynamo, with one program for each set of weights in use.

    Parameters
    ----------
    module : GraphModule
        The graph.
    settings : Settings
        How to compile it.
    graphs : list of CompiledGraph
        Where the record of each program is kept.
    give_up : callable
        ``give_up(module, cause)`` returns what runs the graph when ONNX Runtime cannot, or raises.
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
        self._last: _Runnable = _Unbuilt()
        self._lock = threading.RLock()

    def prepare(self, arguments: Sequence[Any]) -> _Forward:
        """Compile for these arguments; return what runs the graph."""
        if _needs_gradients(arguments):
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
        if not program.recognizes(arguments):
            del program  # with the memory of its session, if it is outdated
            program = self._choose(arguments)
        try:
            return program(arguments)
        except ModelError as cause:
            return self._abandon(cause)(arguments)

    def _abandon(self, cause: ModelError) -> "_Runnable":
        """Leave the graph to torch from now on."""
        with self._lock:
            self._forget(list(self._programs))
            self._last = _Torch(self._give_up(self._module, cause))
            return self._last

    def _choose(self, arguments: Sequence[Any]) -> "_Runnable":
        """Find the program of these weights, or build it."""
        with self._lock:
            known = [program for program in self._programs if program.recognizes(arguments)]
            self._last = known[0] if known else _Unbuilt()
            if not known:
                self._last = self._build(arguments)
            return self._last

    def _build(self, arguments: Sequence[Any]) -> "_Runnable":
        outdated = [program for program in self._programs if program.is_outdated()]
        rank, builds = self._forget(outdated)
        del outdated  # with the memory of its session
        try:
            program = build_program(self._module, arguments, self._settings)
        except Exception as cause:  # noqa: BLE001 - whatever torch or ONNX Runtime refuse
            return _Torch(self._give_up(self._module, cause))
        if program is None:
            return _Torch(self._module.forward)
        program.record = dataclasses.replace(program.record, builds=builds + 1)
        self._programs.append(program)
        self._graphs.insert(rank, program.record)
        return program

    def _forget(self, outdated: list[Program]) -> tuple[int, int]:
        """Drop programs; return the place that they leave in the records, and their builds."""
        rank, builds = len(self._graphs), 0
        for program in outdated:
            self._programs.remove(program)
            if program.record in self._graphs:
                rank = min(rank, self._graphs.index(program.record))
                self._graphs.remove(program.record)
            builds += program.record.builds
        return min(rank, len(self._graphs)), builds


class _Runnable(Protocol):
    def __call__(self, arguments: Sequence[Any]) -> Any: ...

    def recognizes(self, arguments: Sequence[Any]) -> bool: ...


class _Unbuilt:
    """Stands for a program before there is one."""

    def __call__(self, arguments: Sequence[Any]) -> Any:
        raise AssertionError(arguments)

    def recognizes(self, arguments: Sequence[Any]) -> bool:  # noqa: ARG002 - a protocol
        return False


class _Torch:
    """Runs a graph on torch, whatever its weights."""

    def __init__(self, forward: _Forward) -> None:
        self._forward = forward

    def __call__(self, arguments: Sequence[Any]) -> Any:
        return self._forward(*arguments)

    def recognizes(self, arguments: Sequence[Any]) -> bool:  # noqa: ARG002 - a protocol
        return True


def _needs_gradients(arguments: Sequence[Any]) -> bool:
    return torch.is_grad_enabled() and any(
        isinstance(argument, torch.Tensor) and argument.requires_grad for argument in arguments
    )
