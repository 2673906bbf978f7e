"""A graph compiled into steps over numbered slots, and the loop that runs them."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from ortmeter.errors import ModelError, RefusedError
from ortmeter.evaluator.kernels import NodeError, Source, known_errors, raise_for
from ortmeter.evaluator.node import NOTHING, Names, Node
from ortmeter.evaluator.values import Signature, signature
from ortmeter.operators.descriptions import describe
from ortmeter.operators.registry import Kernel

#: Sees each node that ran, with its inputs and outputs.
Watch: TypeAlias = Callable[[Node, tuple[Any, ...], tuple[Any, ...]], None]


class NodeStep:
    """One node of a plan: the slots of its inputs and of its outputs, and what runs it.

    That is the kernel of the first source that takes the inputs.
    """

    __slots__ = (
        *("_chosen", "_errors", "_kernels", "_sources"),
        *("inputs", "kernel", "node", "output", "outputs", "take", "used"),
    )

    def __init__(
        self, node: Node, inputs: Sequence[int], outputs: Sequence[int], sources: Sequence[Source]
    ) -> None:
        self.node = node
        self.inputs = tuple(_trimmed(inputs))
        self.outputs = tuple(outputs)
        self.output = outputs[0] if len(outputs) == 1 else NOTHING
        self.take = _taker(self.inputs)
        self._sources = sources
        self._errors = [known_errors(source, node) for source in sources]
        self._kernels: dict[int, Kernel | NotImplementedError] = {}
        self._chosen: dict[Signature, int] = {}
        #: What runs the node first, and the source that ran it last.
        self.kernel, self.used = self._first()

    def _first(self) -> tuple[Kernel, str]:
        """Choose what to try first: the sources one by one when that depends on the inputs."""
        for rank, source in enumerate(self._sources):
            if self._errors[rank]:
                break
            kernel = self._kernel(rank)
            if not isinstance(kernel, NotImplementedError):
                return kernel, source.name
        return self.search, ""

    def _kernel(self, rank: int) -> Kernel | NotImplementedError:
        """Build the kernel of a source once; its absence is remembered too."""
        if rank not in self._kernels:
            try:
                self._kernels[rank] = self._sources[rank].kernel(self.node)
            except NotImplementedError as error:
                self._kernels[rank] = error.with_traceback(None)
        return self._kernels[rank]

    def search(self, *inputs: Any) -> Any:
        """Run the node on the first source that accepts, the same one for the same types."""
        key = signature(inputs)
        reasons: list[str] = []
        for rank in range(self._chosen.get(key, 0), len(self._sources)):
            source = self._sources[rank]
            try:
                if wrong := [e.reason for e in self._errors[rank] if e.applies(self.node, inputs)]:
                    told = f"known to be wrong ({wrong[0]}); use the argument kernels to force it"
                    raise RefusedError(told)
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

    def apply(self, inputs: tuple[Any, ...]) -> Any:
        try:
            return self.kernel(*inputs)
        except Exception as error:  # noqa: BLE001 - the sources know what it means
            return self.recover(inputs, error)

    def recover(self, inputs: tuple[Any, ...], error: Exception) -> Any:
        """Search among the sources when the first kernel refuses, now and from now on."""
        if not isinstance(error, NotImplementedError) or self.kernel == self.search:
            raise_for(self.node, self.used, inputs, error)
        self.kernel = self.search
        return self.search(*inputs)

    def execute(self, values: list[Any]) -> None:
        self.store(values, self.apply(self.take(values)))

    def store(self, values: list[Any], result: Any) -> None:
        results = result if type(result) is tuple else (result,)
        if len(results) < len(self.outputs):
            raise ModelError(
                f"The kernel of {self.node} gave {len(results)} outputs instead of "
                f"{len(self.outputs)}"
            )
        for slot, value in zip(self.outputs, results, strict=False):
            if slot:
                values[slot] = value


def _trimmed(slots: Sequence[int]) -> Sequence[int]:
    """Leave out the absent inputs at the end."""
    return slots[: max((i + 1 for i, slot in enumerate(slots) if slot != NOTHING), default=0)]


def _taker(slots: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(slots) > 1:
        return itemgetter(*slots)
    if slots:
        (only,) = slots
        return lambda values: (values[only],)
    return lambda _values: ()


class Plan:
    """A compiled graph: names and their slots, what the caller gives, what it wants, the steps.

    *watch* sees each node that ran.
    """

    def __init__(
        self,
        names: Names,
        inputs: Sequence[str],
        outputs: Sequence[str],
        steps: Sequence[NodeStep],
        watch: Watch | None = None,
    ) -> None:
        self.slots = names.slots
        self.captures = tuple(names.captures)
        self.constants = names.constants
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.steps = tuple(steps)
        self._watch = watch
        self._given = [self.slots[name] for name in (*self.inputs, *self.captures)]
        self._initial = [self.constants.get(i) for i in range(len(self.slots))]
        self._schedules: dict[tuple[str, ...], list[tuple[NodeStep, tuple[int, ...]]]] = {}

    def run(self, given: Sequence[Any]) -> list[Any]:
        """Compute the outputs from the inputs, then the captures."""
        return self.compute(self.outputs, self.start(given))

    def start(self, given: Sequence[Any]) -> list[Any]:
        """Fill the slots with the inputs, then the captures; ``None`` keeps a default."""
        values = self._initial.copy()
        for slot, value in zip(self._given, given, strict=True):
            if value is not None:
                values[slot] = value
        return values

    def compute(self, names: tuple[str, ...], values: list[Any]) -> list[Any]:
        """Compute results from the slots, which are emptied whatever happens."""
        inputs: Any = None
        watch = self._watch
        try:
            for step, free in self._schedule(names):
                # NodeStep.execute, without its calls: they would be a third of the time of a walk.
                inputs = step.take(values)
                try:
                    result = step.kernel(*inputs)
                except Exception as error:  # noqa: BLE001 - the step knows what it means
                    result = step.recover(inputs, error)
                if step.output and type(result) is not tuple:
                    values[step.output] = result
                else:
                    step.store(values, result)
                if watch is not None:
                    watch(step.node, inputs, tuple(values[slot] for slot in step.outputs))
                for slot in free:
                    values[slot] = None
            return [values[self.slots[name]] for name in names]
        finally:
            # The traceback of an error holds this frame, and would hold the values.
            values.clear()
            inputs = result = None

    def _schedule(self, names: tuple[str, ...]) -> list[tuple[NodeStep, tuple[int, ...]]]:
        """Find the steps that results need, with the slots that each one frees."""
        if names not in self._schedules:
            needed = {NOTHING, *(self.slots[name] for name in names)}
            pairs = []
            for step in reversed(self.steps):
                if not needed.isdisjoint(set(step.outputs) - {NOTHING}):
                    last_used = {*step.inputs, *step.outputs} - needed
                    pairs.append((step, tuple(sorted(last_used))))
                    needed.update(step.inputs)
            self._schedules[names] = pairs[::-1]
        return self._schedules[names]
