"""Choose the kernel of a node: what the user swaps, else the first source that takes its inputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ortmeter.errors import InvalidArgumentError, ModelError, RefusedError
from ortmeter.evaluator.node import Node, domain_name
from ortmeter.evaluator.values import Signature, signature
from ortmeter.facts import Fact, read_facts
from ortmeter.operators.descriptions import describe
from ortmeter.operators.registry import Kernel
from ortmeter.runtime.placement import enumerate_some

KernelKey: TypeAlias = str | tuple[str, str]
Swap: TypeAlias = str | Callable[..., Any]


class NodeError(ModelError):
    """A node cannot run; the message says which one, on what and why."""


class Source(NamedTuple):
    """Where kernels come from: a name, and what returns the kernel of a node, or refuses."""

    name: str
    kernel: Callable[[Node], Kernel]


class KnownError(Fact, frozen=True, kw_only=True):
    """A wrong answer of a source, for an operator of the standard domain.

    Only the types, ranks and presence of the inputs may count, not their values.
    """

    source: str
    op_type: str
    reason: str
    given: int | None = None
    missing: int | None = None
    opset_below: int | None = None
    sets: str = ""
    attributes: Mapping[str, str | int] = {}

    def applies(self, node: Node, inputs: Sequence[Any]) -> bool:
        """Check that every condition holds."""
        present = {rank for rank, value in enumerate(inputs) if value is not None}
        return (
            (self.given is None or self.given in present)
            and self.missing not in present
            and (self.opset_below is None or node.opset < self.opset_below)
            and (not self.sets or bool(node.attributes.get(self.sets)))
            and all(node.attributes.get(n, type(v)()) == v for n, v in self.attributes.items())
        )


KNOWN_ERRORS = read_facts(__package__, "known_errors.toml", KnownError)
"""Every known error: such a source is passed over, unless ``kernels`` asks for it."""


def _known_errors(source: Source, node: Node) -> list[KnownError]:
    key = ("", source.name, node.op_type)
    return [error for error in KNOWN_ERRORS if (node.domain, error.source, error.op_type) == key]


class Choice(NamedTuple):
    """What runs a node first, where it comes from, and what runs it when that refuses."""

    kernel: Kernel
    source: str
    chain: "KernelChain | None" = None


class KernelChain:
    """The kernels of a node in the order of the sources; the first one that accepts runs."""

    def __init__(self, node: Node, sources: Sequence[Source], *, is_cautious: bool = True) -> None:
        self.node = node
        self.used = ""
        self._sources = sources
        self._errors = [_known_errors(source, node) if is_cautious else [] for source in sources]
        self._kernels: dict[int, Kernel | NotImplementedError] = {}
        self._chosen: dict[Signature, int] = {}

    def choose(self) -> Choice:
        """Choose what to try first: the chain itself when that depends on the inputs."""
        for rank, source in enumerate(self._sources):
            if self._errors[rank]:
                break
            kernel = self._kernel(rank)
            if not isinstance(kernel, NotImplementedError):
                return Choice(kernel, source.name, self)
        return Choice(self, "", self)

    def __call__(self, *inputs: Any) -> Any:
        """Run the node, from the source that accepted these types before."""
        key = signature(inputs)
        reasons: list[str] = []
        for rank in range(self._chosen.get(key, 0), len(self._sources)):
            source = self._sources[rank]
            try:
                self._refuse_known_errors(rank, inputs)
                kernel = self._kernel(rank)
                if isinstance(kernel, NotImplementedError):
                    raise kernel
                result = kernel(*inputs)
            except NotImplementedError as error:
                reasons.append(f"{source.name}: {error}")
                continue
            except Exception as error:  # noqa: BLE001 - the message says what it is
                raise_for(self.node, source.name, inputs, error)
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
                    f"known to be wrong ({error.reason}); use the argument kernels to force it"
                )

    def _kernel(self, rank: int) -> Kernel | NotImplementedError:
        """Build the kernel of a source once; its absence is remembered too."""
        if rank not in self._kernels:
            try:
                self._kernels[rank] = self._sources[rank].kernel(self.node)
            except NotImplementedError as error:
                self._kernels[rank] = error.with_traceback(None)
        return self._kernels[rank]


def raise_for(node: Node, source: str, inputs: Sequence[Any], cause: Exception) -> NoReturn:
    """Say which node failed, on what, and why; a node of a body has already said it."""
    if isinstance(cause, NodeError):
        raise cause
    raise NodeError(
        f"The {source} kernel of {node} fails on {describe(inputs)}: {cause}"
    ) from cause


_NODE = "node:"


class Swaps:
    """What the user puts in place of the sources, by operator or by node."""

    def __init__(self, kernels: Mapping[KernelKey, Swap], sources: Iterable[str]) -> None:
        self._kernels = {_checked_key(key): swap for key, swap in kernels.items()}
        self._given = dict(zip(self._kernels, kernels, strict=True))
        self._matched: set[KernelKey] = set()
        for key, swap in kernels.items():
            if not callable(swap) and swap not in (accepted := tuple(sources)):
                raise InvalidArgumentError(
                    f"kernels[{key!r}]={swap!r} is not a kernel. Accepted: a callable or "
                    + ", ".join(map(repr, accepted))
                )

    def find(self, node: Node) -> Swap | None:
        """Find what the user wants for a node: its name comes before its operator."""
        keys = (_NODE + node.label, (node.domain, node.op_type))
        found = [key for key in keys if key in self._kernels]
        self._matched.update(found)
        return self._kernels[found[0]] if found else None

    def check(self, nodes: Sequence[Node]) -> None:
        """Raise when a key designates none of the nodes, which were all seen."""
        if unused := [self._given[key] for key in self._kernels if key not in self._matched]:
            raise InvalidArgumentError(
                f"kernels: {', '.join(map(repr, unused))} match no node of this model. "
                f"Operators: {', '.join(sorted({node.operator for node in nodes}))}. "
                f"Nodes: {enumerate_some([*dict.fromkeys(node.label for node in nodes)])}"
            )


def _checked_key(key: KernelKey) -> KernelKey:
    """Write a key in one way: ``(domain, op)`` or ``node:name``."""
    match key:
        case str() if key.startswith(_NODE):
            return key
        case str():
            return ("", key)
        case (str(domain), str(op_type)):
            return (domain_name(domain), op_type)
    raise InvalidArgumentError(
        f"kernels: {key!r} is not a key. Accepted: 'Op', ('domain', 'Op') or 'node:name'"
    )
