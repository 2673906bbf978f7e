"""Choose the kernel of a node among the sources, once per types of its inputs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

from ortmeter.dtypes import short_name
from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.evaluator._node import Node
from ortmeter.evaluator._values import Signature, element_type, signature
from ortmeter.evaluator.known_errors import known_errors

__all__ = [
    "Choice",
    "Kernel",
    "KernelChain",
    "NodeError",
    "RefusedError",
    "Source",
    "describe",
    "raise_for",
]

Kernel: TypeAlias = Callable[..., Any]
"""Takes the inputs of a node, gives its output, or a tuple of its outputs."""


class RefusedError(OrtMeterError):
    """A source has no kernel for this operator, with these types and attributes."""


class NodeError(ModelError):
    """A node cannot run; the message says which one, on what and why."""


class Source(Protocol):
    """Where kernels come from."""

    name: str

    def kernel(self, node: Node) -> Kernel:
        """Return the kernel of a node, or raise an error that :meth:`refuses` recognises."""
        ...

    def refuses(self, error: Exception) -> bool:
        """Tell an error that means *not supported* from a failure."""
        ...


class Choice(NamedTuple):
    """What runs a node first, where it comes from, and what runs it when that refuses."""

    kernel: Kernel
    source: str
    chain: "KernelChain | None" = None


class KernelChain:
    """The kernels of a node in the order of the sources; the first one that accepts runs.

    Parameters
    ----------
    node : Node
        The node to run.
    sources : sequence of Source
        Where to look for kernels, in order.
    is_cautious : bool
        Pass over the sources that are known to be wrong for these inputs.
    """

    def __init__(self, node: Node, sources: Sequence[Source], *, is_cautious: bool = True) -> None:
        self.node = node
        self.used = ""
        self._sources = sources
        self._errors = [
            known_errors(source.name, node) if is_cautious else [] for source in sources
        ]
        self._first: Source | None = None
        self._kernels: dict[int, Kernel | Exception] = {}
        self._chosen: dict[Signature, int] = {}

    def choose(self) -> Choice:
        """Choose what to try first: the chain itself when that depends on the inputs."""
        for rank, source in enumerate(self._sources):
            if self._errors[rank]:
                break
            kernel = self._kernel(rank)
            if not isinstance(kernel, Exception):
                self._first = source
                return Choice(kernel, source.name, self)
        return Choice(self, "", self)

    def refuses(self, error: Exception) -> bool:
        """Tell whether this error of the first kernel leads to the next one."""
        return self._first is not None and self._first.refuses(error)

    def __call__(self, *inputs: Any) -> Any:
        """Run the node, from the source that accepted these types before."""
        key = signature(inputs)
        reasons: list[str] = []
        for rank in range(self._chosen.get(key, 0), len(self._sources)):
            source = self._sources[rank]
            try:
                self._refuse_known_errors(rank, inputs)
                result = _call(self._kernel(rank), inputs)
            except Exception as error:  # noqa: BLE001 - the source knows what it means
                if not source.refuses(error):
                    raise_for(self.node, source.name, inputs, error)
                reasons.append(f"{source.name}: {error}")
                continue
            self._chosen[key], self.used = rank, source.name
            return result
        raise NodeError(
            f"No kernel runs {self.node} of opset {self.node.opset} on {describe(inputs)}. "
            + "; ".join(reasons)
        )

    def _refuse_known_errors(self, rank: int, inputs: tuple[Any, ...]) -> None:
        for error in self._errors[rank]:
            if error.applies(self.node, inputs):
                raise RefusedError(
                    f"known to be wrong ({error.reason}); the argument kernels can ask for it"
                )

    def _kernel(self, rank: int) -> Kernel | Exception:
        """Build the kernel of a source once; its absence is remembered too."""
        if rank not in self._kernels:
            source = self._sources[rank]
            try:
                self._kernels[rank] = source.kernel(self.node)
            except Exception as error:
                if not source.refuses(error):
                    raise
                self._kernels[rank] = error.with_traceback(None)
        return self._kernels[rank]


def _call(kernel: Kernel | Exception, inputs: tuple[Any, ...]) -> Any:
    if isinstance(kernel, Exception):
        raise kernel
    return kernel(*inputs)


def raise_for(node: Node, source: str, inputs: Sequence[Any], cause: Exception) -> NoReturn:
    """Say which node failed, on what, and why; a node of a body has already said it."""
    if isinstance(cause, NodeError):
        raise cause
    raise NodeError(
        f"The {source} kernel of {node} fails on {describe(inputs)}: {cause}"
    ) from cause


def describe(inputs: Sequence[Any]) -> str:
    """Write inputs as ``f32[2, 3], none, sequence of 2``."""
    return ", ".join(map(_describe, inputs)) or "no input"


def _describe(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"sequence of {len(value)}"
    return f"{short_name(element_type(value.dtype))}{list(value.shape)}"
