"""The backend of torch.compile."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.fx import GraphModule

from ortmeter.backend.errors import FallbackWarning, UnsupportedGraphError
from ortmeter.backend.levels import parse_level
from ortmeter.backend.record import CompiledGraph, Fallback
from ortmeter.backend.session import GraphRunner, Settings
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.runtime.providers import resolve_provider

__all__ = ["OrtBackend", "compile_graph"]


class OrtBackend:
    """Run the graphs of ``torch.compile`` on ONNX Runtime, for inference.

    Parameters
    ----------
    optimize : str
        Optimization level: ``none``, ``default`` or ``default+onnxruntime``, followed by ``-Rule``
        for each disabled rule, as in ``default+onnxruntime-GroupQuery``.
    fallback : bool
        If true, a graph that cannot run on ONNX Runtime runs on torch, with a warning that names
        the operator. If false, an error is raised.
    prepack : bool
        On CPU, let ONNX Runtime keep a copy of the weights in the layout of its kernels, which is
        faster for a few rows at a time. If false, or on CUDA, large weights are read in the memory
        of torch, without copy, and changes are visible at once.
    provider : str, optional
        ``cpu``, ``cuda`` or ``cuda:1``: expected device of the tensors. By default, any.
    threads : int, optional
        Threads inside an operator, on CPU. By default ``torch.get_num_threads()``.
    tf32 : bool
        Let CUDA round the operands of float32 products to TF32.

    Attributes
    ----------
    graphs : list of CompiledGraph
        Description of each graph that runs on ONNX Runtime, without references to inputs, outputs
        or weights.
    fallbacks : list of Fallback
        Graphs that run on torch, with the reason.

    Raises
    ------
    InvalidArgumentError
        An option has a value that is not accepted.
    ProviderUnavailableError
        The provider does not work on this machine.

    Notes
    -----
    Changes of weights are detected. Weights copied into the session (small ones, and large ones
    with ``prepack=True``) are checked at each call. If they changed, the session is built again,
    which takes as long as the compilation; ``graphs[i].builds`` counts the sessions. Modules that
    share a graph (:meth:`torch.nn.Module.compile` on each layer) have separate sessions. torch does
    not count writes through ``.data``, or into tensors created under ``torch.inference_mode``: the
    session does not see them.

    The opset is 23. On CUDA, nodes that have no kernel at this opset, such as MaxPool, run on the
    CPU, with a :class:`~ortmeter.runtime.placement.PlacementWarning`.

    ``make test-op-db`` compares every level with eager on the samples by which torch tests its
    operators. The sign of a zero, the payload of a NaN, and the order of equal elements in ``sort``
    and ``topk`` without ``stable=True`` may differ.

    Outputs are contiguous. A graph whose outputs share memory with each other or with an input, or
    that writes into an input, runs on torch. On CUDA, outputs are in memory of torch and ordered on
    the current stream. As for any tensor of torch, call ``record_stream`` if another stream reads
    them.

    Examples
    --------
    >>> import torch
    >>> backend = OrtBackend("default")
    >>> model = torch.nn.Linear(3, 2).eval()
    >>> with torch.no_grad():
    ...     compiled = torch.compile(model, backend=backend)
    ...     torch.testing.assert_close(compiled(torch.ones(4, 3)), model(torch.ones(4, 3)))
    >>> backend.graphs[0].operators
    {'Gemm': 1}
    """

    def __init__(
        self,
        optimize: str = "default+onnxruntime",
        *,
        fallback: bool = True,
        prepack: bool = True,
        provider: str | None = None,
        threads: int | None = None,
        tf32: bool = False,
    ) -> None:
        if threads is not None and threads < 0:
            raise InvalidArgumentError(
                f"threads={threads}. Accepted: None (as torch), 0 (automatic), 1, ..."
            )
        self._settings = Settings(
            level=parse_level(optimize),
            prepack=prepack,
            provider=None if provider is None else resolve_provider(provider),
            threads=threads,
            tf32=tf32,
        )
        self._fallback = fallback
        self.graphs: list[CompiledGraph] = []
        self.fallbacks: list[Fallback] = []

    def __call__(
        self, graph_module: GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        """Compile a graph of dynamo; ``torch.compile`` calls it.

        Raises
        ------
        UnsupportedGraphError
            The graph cannot run on ONNX Runtime and ``fallback`` is False.
        """
        runner = GraphRunner(graph_module, self._settings, self.graphs, self._give_up)
        return runner.prepare(example_inputs)

    def _give_up(self, module: GraphModule, cause: Exception) -> Callable[..., Any]:
        """Leave a graph to torch, or raise."""
        error = cause
        if not isinstance(error, UnsupportedGraphError):
            known = isinstance(cause, OrtMeterError)
            error = UnsupportedGraphError(
                str(cause) if known else f"the backend fails with {type(cause).__name__}: {cause}"
            )
        if not self._fallback:
            raise error from cause
        operations = sum(node.op.startswith("call_") for node in module.graph.nodes)
        if error.reason not in [known.reason for known in self.fallbacks]:
            warnings.warn(
                f"A graph of {operations} operations runs on torch: {error}",
                FallbackWarning,
                stacklevel=2,
            )
        self.fallbacks.append(Fallback(error.reason, operations))
        forward: Callable[..., Any] = module.forward
        return forward


def compile_graph(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of dynamo, called by ``torch.compile(model, backend="ortmeter")``.

    Parameters
    ----------
    graph_module : GraphModule
        The graph.
    example_inputs : sequence
        Its arguments in the call that triggers the compilation.
    options : mapping, optional
        Parameters of :class:`OrtBackend`, given to ``torch.compile(..., options=...)``.

    Returns
    -------
    callable
        Takes the arguments of the graph, returns its outputs.

    Raises
    ------
    InvalidArgumentError
        An option is unknown, or has a value that is not accepted.

    Examples
    --------
    >>> import torch
    >>> with torch.no_grad():
    ...     double = torch.compile(
    ...         lambda x: x * 2, backend=compile_graph, options={"optimize": "none"}
    ...     )
    ...     double(torch.ones(2)).tolist()
    [2.0, 2.0]
    """
    given = dict(options or {})
    accepted = inspect.signature(OrtBackend).parameters
    if unknown := [name for name in given if name not in accepted]:
        raise InvalidArgumentError(
            f"Unknown options: {', '.join(unknown)}. Accepted: {', '.join(accepted)}"
        )
    return OrtBackend(**given)(graph_module, example_inputs)
