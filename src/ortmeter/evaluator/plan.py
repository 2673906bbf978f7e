"""A graph compiled into steps over numbered slots, and the loop that runs them."""

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

from ortmeter.errors import ModelError
from ortmeter.evaluator.kernels import Choice, raise_for
from ortmeter.evaluator.node import NOTHING, Names, Node

#: Sees each node that ran, with its inputs and outputs.
Watch: TypeAlias = Callable[[Node, tuple[Any, ...], tuple[Any, ...]], None]


class NodeStep:
    """One node of a plan: the slots of its inputs, what runs it, the slots of its outputs."""

    __slots__ = ("chain", "inputs", "kernel", "node", "output", "outputs", "source", "take")

    def __init__(
        self, node: Node, inputs: Sequence[int], outputs: Sequence[int], choice: Choice
    ) -> None:
        self.node = node
        self.inputs = tuple(_trimmed(inputs))
        self.outputs = tuple(outputs)
        self.output = outputs[0] if len(outputs) == 1 else NOTHING
        self.take = _taker(self.inputs)
        self.kernel, self.source, self.chain = choice

    @property
    def used(self) -> str:
        """Source that ran this node last."""
        return self.chain.used if self.chain and self.kernel is self.chain else self.source

    def apply(self, inputs: tuple[Any, ...]) -> Any:
        try:
            return self.kernel(*inputs)
        except Exception as error:  # noqa: BLE001 - the sources know what it means
            return self.recover(inputs, error)

    def recover(self, inputs: tuple[Any, ...], error: Exception) -> Any:
        """Run the next kernels when the first one refuses, now and from now on."""
        is_refusal = isinstance(error, NotImplementedError) and self.kernel is not self.chain
        if self.chain is None or not is_refusal:
            raise_for(self.node, self.source, inputs, error)
        self.kernel = self.chain
        return self.chain(*inputs)

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
        self._names = names
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

    def with_steps(self, steps: Sequence[NodeStep], watch: Watch | None = None) -> "Plan":
        return Plan(self._names, self.inputs, self.outputs, steps, watch)

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

    def walk(self, values: list[Any]) -> Iterator[NodeStep]:
        """Compute the outputs; each step is given before it runs, the slots as it finds them."""
        for step, free in self._schedule(self.outputs):
            yield step
            step.execute(values)
            for slot in free:
                values[slot] = None

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
