"""General ways to vary a graph that an optimizer looks for, and the cases that they make.

No rule knows an optimizer: each one changes what ONNX lets change, whatever the pattern. What is
not a valid model is left out, by the checker of ONNX.
"""

import dataclasses
import functools
import itertools
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.helper

from ortmeter.errors import InvalidArgumentError
from ortmeter.evaluator import Evaluator
from ortmeter.observatory.fusions.drafts import OPEN, WRAPS, Draft, patterns

__all__ = ["FusionCase", "fusion_cases"]

_Varied: TypeAlias = Iterator[tuple[str, Draft]]

#: Between the changes in a name.
JOIN = " | "
_OPSETS = (7, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23)
_KINDS = ("f16", "f64", "i32", "i64")
_SIZE, _SIZES = 4, (0, 1, 3)  # of the axes of patterns, and other ones
_SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (1,),
    (4,),
    (4, 1),
    (1, 4),
    (4, 4),
    (1, 1, 4),
    (2, 1, 4),
    (2, 4, 4),
    (4, 1, 1),
)
_SHAPES += ((1, 1, 1, 4), (2, 1, 4, 4), (1, 2, 1, 4, 4))
_CHANGED = (0, 1, -1, 2)
#: Other values of attributes; None is no attribute.
_VALUES: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("allowzero", "ceil_mode", "count_include_pad", "keepdims"), (0, 1, None)),
    **dict.fromkeys(("noop_with_empty_axes", "transA", "transB"), (0, 1, None)),
    "alpha": (0.5, None),
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID"),
    "axes": ([-1], [0], [1], [-2], [-2, -1], [-1, -2], [0, 1], None),
    "axis": (0, 1, -1, -2, None),
    "beta": (0.5, 0.0, None),
    "epsilon": (0.1, None),
    "group": (2, 4),
    "mode": ("constant", "reflect", "edge"),
    "pads": ([1, 1, 1, 1], [0, 1, 1, 0]),
    "strides": ([2, 2], [1, 2]),
    "to": (1, 10, 11, 6, 7, 3),
}
_CASES, _MOST_CHANGES = 20, 3  # that are drawn, for a pattern


def _attributes(draft: Draft) -> _Varied:
    for rank, node in enumerate(draft.nodes):
        if not (schema := _schema(node)):
            continue
        given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        for name in sorted({*schema.attributes, *given}):
            values = _permutations(given.get(name)) if name == "perm" else _VALUES.get(name, ())
            for value in values:
                if value != given.get(name):
                    told = "no " + name if value is None else f"{name}={_plain(value)}"
                    yield f"{node.output[0]} {told}", draft.with_node(rank, **{name: value})


def _schema(node: onnx.NodeProto) -> Any:
    # Of the widest opset: what moved to an input later is an attribute here.
    known = node.op_type, Draft.opset, node.domain
    return onnx.defs.get_schema(*known) if onnx.defs.has(*known) else None


def _plain(value: Any) -> str:
    return str(value).replace(" ", "")


def _permutations(given: Any) -> tuple[Any, ...]:
    """List the identity, the last two axes exchanged, all reversed, rotated, and the default."""
    axes = list(range(len(given or (0, 1))))
    swapped = [*axes[:-2], *reversed(axes[-2:])]
    listed = (axes, swapped, axes[::-1], axes[1:] + axes[:1])
    return (*{str(axes): axes for axes in listed}.values(), None)


def _inputs(draft: Draft) -> _Varied:
    for rank, node in enumerate(draft.nodes):
        names, label = list(node.input), node.output[0]
        for at in range(1, len(names)):
            swapped = [names[at], *names[1:at], names[0], *names[at + 1 :]]
            yield f"{label} inputs 0 and {at} exchanged", draft.with_node(rank, inputs=swapped)
            same = [*names[:at], names[0], *names[at + 1 :]]
            yield f"{label} input {at} is input 0", draft.with_node(rank, inputs=same)
        if len(names) > 1:
            yield f"{label} last input missing", draft.with_node(rank, inputs=names[:-1])


def _roles(draft: Draft) -> _Varied:
    for name, one in draft.operands.items():
        for role in sorted({"input", "initializer", "constant"} - {one.role}):
            yield f"{name} is an {role}".replace("an c", "a c"), draft.with_operand(name, role=role)


def _shapes(draft: Draft) -> _Varied:
    for name, one in draft.operands.items():
        if isinstance(one.values, tuple):
            continue
        shapes = [*_SHAPES, (1, *one.shape), (2, *one.shape), one.shape[1:]]
        for at, size in itertools.product(range(len(one.shape)), _SIZES):
            shapes.append((*one.shape[:at], size, *one.shape[at + 1 :]))
        for shape in dict.fromkeys(shapes):
            if shape != one.shape:
                label = f"{name} has the shape {_plain(list(shape))}"
                yield label, draft.with_operand(name, shape=shape)


def _sizes(draft: Draft) -> _Varied:
    """Change all the axes of a size, or all the ranks: those of inputs and of weights."""
    tensors = {
        n: o for n, o in draft.operands.items() if o.shape and not isinstance(o.values, tuple)
    }
    for size in _SIZES:
        changed = draft
        for name, one in tensors.items():
            shape = tuple(size if axis == _SIZE else axis for axis in one.shape)
            changed = changed.with_operand(name, shape=shape)
        yield f"axes of {size}", changed
    for rank, few in itertools.product(range(6), range(2)):
        changed = draft
        for name, one in tensors.items():
            wanted = rank if one.role == "input" else min(few, len(one.shape))
            shape = ((2,) * wanted + one.shape)[len(one.shape) :]
            changed = changed.with_operand(name, shape=shape)
        yield f"inputs of rank {rank}, weights of rank {few}", changed


def _numbers(draft: Draft) -> _Varied:
    for name, one in draft.operands.items():
        if isinstance(one.values, tuple):
            lists = [one.values[:-1], one.values[::-1]]
            for at, value in itertools.product(range(len(one.values)), _CHANGED):
                lists.append((*one.values[:at], value, *one.values[at + 1 :]))
            for values in dict.fromkeys(lists):
                if values != one.values:
                    changed = draft.with_operand(name, values=values, shape=(len(values),))
                    yield f"{name}={_plain(list(values))}", changed
        elif one.values is not None:
            for number in dict.fromkeys((1.5 * one.values, -one.values, 0.0, 1.0)):
                if number != one.values:
                    yield f"{name}={number:g}", draft.with_operand(name, values=number)


def _uses(draft: Draft) -> _Varied:
    for name in (name for node in draft.nodes for name in node.output):
        if name not in draft.outputs:
            outputs = (*draft.outputs, name)
            yield f"{name} is an output", dataclasses.replace(draft, outputs=outputs)
            again = onnx.helper.make_node("Neg", [name], [f"{name}_used"])
            nodes, outputs = (*draft.nodes, again), (*draft.outputs, f"{name}_used")
            changed = dataclasses.replace(draft, nodes=nodes, outputs=outputs)
            yield f"{name} is used twice", changed


def _between(draft: Draft) -> _Varied:
    """Put a node in front of an operand of a node."""
    for rank, node in enumerate(draft.nodes):
        for at, name in enumerate(node.input):
            for op in ("Identity", "Transpose", "Neg"):
                if name:
                    label = f"{name}_{op.lower()}_{rank}"
                    inputs = [*node.input[:at], label, *node.input[at + 1 :]]
                    nodes = list(draft.with_node(rank, inputs=inputs).nodes)
                    nodes.insert(rank, onnx.helper.make_node(op, [name], [label]))
                    changed = dataclasses.replace(draft, nodes=tuple(nodes))
                    yield f"{op} of {name} into {node.output[0]}", changed


def _around(draft: Draft) -> _Varied:
    if any(one.type == OPEN for one in draft.operands.values()):
        yield from ((kind, dataclasses.replace(draft, kind=kind)) for kind in _KINDS)
    yield from ((f"opset {n}", dataclasses.replace(draft, opset=n)) for n in _OPSETS)
    yield from ((f"in {wrap}", dataclasses.replace(draft, wrap=wrap)) for wrap in WRAPS)
    yield "free sizes", dataclasses.replace(draft, is_free=True)


def _names(draft: Draft) -> _Varied:
    same = draft
    for rank in range(len(draft.nodes)):
        same = same.with_node(rank, name="same")
    yield "nodes of one name", same
    # What optimizers call the tensors that they add begins with the names of others.
    old = draft.nodes[0].output[0]
    for new in ("X_token_0", "X_transposed", "X_cast"):
        changed = draft
        for rank, node in enumerate(draft.nodes):
            inputs, outputs = (
                [new if name == old else name for name in names]
                for names in (node.input, node.output)
            )
            changed = changed.with_node(rank, inputs=inputs, outputs=outputs)
        names = tuple(new if name == old else name for name in draft.outputs)
        yield f"{old} is called {new}", dataclasses.replace(changed, outputs=names)


#: Each rule changes one thing, and its label says which.
RULES: tuple[Callable[[Draft], _Varied], ...] = (
    *(_attributes, _inputs, _roles, _shapes, _sizes, _numbers, _uses, _between),
    *(_around, _names),
)


@dataclass(frozen=True)
class FusionCase:
    """A graph that an optimizer looks for, with some changes.

    Parameters
    ----------
    pattern : str
        One of the patterns.
    changes : tuple of str
        Labels of the changes, in their order.

    Examples
    --------
    >>> case = FusionCase.parse("GemmTransposeFusion | X has the shape [3,4] | opset 13")
    >>> [node.op_type for node in case.model().graph.node], case.feeds()["X"].shape
    (['Transpose', 'Gemm'], (3, 4))
    """

    pattern: str
    changes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, name: str) -> "FusionCase":
        """Read a name.

        Raises
        ------
        InvalidArgumentError
            There is no such pattern, or no such change.
        """
        pattern, *changes = name.split(JOIN)
        case = cls(pattern, tuple(changes))
        case.draft  # noqa: B018 - it raises
        return case

    @property
    def name(self) -> str:
        """The pattern and the changes."""
        return JOIN.join((self.pattern, *self.changes))

    @property
    def op(self) -> str:
        """The optimizer."""
        return patterns()[self.pattern][0]

    @functools.cached_property
    def draft(self) -> Draft:
        """The graph."""
        if self.pattern not in patterns():
            raise InvalidArgumentError(
                f"{self.pattern!r} is no pattern. Accepted: {', '.join(patterns())}"
            )
        if not self.changes:
            return patterns()[self.pattern][1]
        *before, change = self.changes
        choices = _choices(self.pattern, tuple(before))
        if change not in choices:
            raise InvalidArgumentError(
                f"{change!r} is no change of {self.pattern}. Accepted: {', '.join(choices)}"
            )
        return choices[change]

    def model(self) -> onnx.ModelProto:
        """Build the model."""
        return self.draft.model()

    def feeds(self) -> dict[str, np.ndarray]:
        """Draw the inputs; they are the same each time."""
        return self.draft.feeds()

    @functools.cached_property
    def is_valid(self) -> bool:
        """Whether the checker of ONNX accepts the model, whose scales are positive."""
        with suppress(Exception):  # protobuf and onnx have their own
            onnx.checker.check_model(self.model(), full_check=True)
            return all((scale > 0).all() for scale in _scales(self.draft))
        return False


def _scales(draft: Draft) -> list[np.ndarray]:
    """Compute what quantizes: ONNX wants positive scales, and its checker does not look."""
    names = [
        name
        for node in draft.nodes
        if (schema := _schema(node))
        for name, formal in zip(node.input, schema.inputs, strict=False)
        if formal.name.endswith("_scale")
    ]
    if not names:
        return []
    flat = dataclasses.replace(draft, wrap="")
    return Evaluator(flat.model(), sources=("reference",)).run(names, flat.feeds())


@functools.lru_cache(maxsize=64)
def _choices(pattern: str, changes: tuple[str, ...]) -> dict[str, Draft]:
    draft = FusionCase(pattern, changes).draft
    return dict(itertools.chain.from_iterable(rule(draft) for rule in RULES))


def fusion_cases(seed: int = 0, count: int = _CASES, words: str = "") -> Iterator[FusionCase]:
    """Yield the patterns as they are, and valid variations of each.

    Each change is made alone, and each change of an attribute on shapes that are not square too,
    where what is silent on square ones fails. Then some are drawn, of two or three changes.

    Parameters
    ----------
    seed : int
        Seed of the sample.
    count : int
        Variations of a pattern that are drawn, valid or not.
    words : str
        Where a name of a pattern has one of these words, only such patterns.

    Yields
    ------
    FusionCase
        Each one once.

    Examples
    --------
    >>> next(fusion_cases()).name
    'EliminateIdentity'
    """
    asked = re.split(r"[ ,]+", words.casefold().strip(" ,"))
    named = [one for one in patterns() if any(word in one.casefold() for word in asked)]
    for pattern in named or patterns():
        rng = np.random.default_rng([seed, zlib.crc32(pattern.encode())])
        alone = ((label,) for label in _choices(pattern, ()))
        cases = [FusionCase(pattern, changes) for changes in ((), *alone, *_not_square(pattern))]
        cases += (_varied(pattern, rng) for _ in range(count))
        yield from {case.name: case for case in cases if case.is_valid}.values()


def _not_square(pattern: str) -> Iterator[tuple[str, str]]:
    draft = patterns()[pattern][1]
    name, one = next(iter(draft.operands.items()))
    for shape in dict.fromkeys([(3, *one.shape[1:]), (*one.shape[:-1], 3)]):
        for label, _ in _attributes(draft):
            yield f"{name} has the shape {_plain(list(shape))}", label


def _varied(pattern: str, rng: np.random.Generator) -> FusionCase:
    """Apply some rules in turn, each one to what the ones before made."""
    draft, changes = patterns()[pattern][1], []
    for _ in range(rng.integers(2, _MOST_CHANGES, endpoint=True)):
        if choices := list(RULES[rng.integers(len(RULES))](draft)):
            change, draft = choices[rng.integers(len(choices))]
            changes.append(change)
    return FusionCase(pattern, tuple(changes))
