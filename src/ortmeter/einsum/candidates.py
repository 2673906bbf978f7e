"""The models of an equation that differ, with their estimated costs."""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from ortmeter.dtypes import onnx_type
from ortmeter.einsum.cost import estimate_einsum, estimate_steps
from ortmeter.einsum.emit import FUSED, einsum_model, emit_model, letters_in_double
from ortmeter.einsum.parse import Operands
from ortmeter.einsum.plan import EinsumPlan, make_plan
from ortmeter.einsum.steps import absorb_transposes

#: Name of the candidate that is the operator alone.
PLAIN = "Einsum"
_MOST_ORDERS = 120
_ALL_PATHS = 4  # operands
_LARGER = 8  # times the operands: what a product element by element may write


@dataclass(frozen=True, eq=False)
class EinsumCandidate:
    """A candidate model of an equation.

    Parameters
    ----------
    name : str
        ``Einsum``, or a description of the decomposition.
    plan : EinsumPlan
        Its steps; for ``Einsum``, they are only used to estimate its cost.
    cost : float
        Estimated seconds of a run.
    order : str, optional
        Order of the letters, None if it is chosen for each product.
    decomposed : bool
        False for the plain ``Einsum``.
    contrib : bool
        Whether transposes and products are fused into ``com.microsoft.FusedMatMul``.
    split : bool
        Whether slow transposes are replaced by two fast ones.
    threads : int
        Threads of its session, see :func:`~ortmeter.runtime.sessions.make_session`.
    """

    name: str
    plan: EinsumPlan
    cost: float
    order: str | None = None
    decomposed: bool = True
    contrib: bool = False
    split: bool = False
    threads: int = 1

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model, whose inputs are the operands in their order."""
        operands, steps = self.plan.operands, self.plan.steps
        if not self.decomposed:
            return einsum_model(self.plan.equation, *operands.shapes, dtype=operands.dtype)
        return emit_model(operands, steps, contrib=self.contrib, split=self.split)


def list_candidates(
    operands: Operands, *, every_order: bool = True, threads: int = 1, seed: int = 0
) -> list[EinsumCandidate]:
    """Write the models that differ, the most promising first; one of them is the plain Einsum.

    ONNX Runtime may compute the plain Einsum wrongly, or not survive it: it is then left out.
    Without *every_order*, only the plan chooses the order, which is a hundred times shorter.
    """
    plain = make_plan(operands)
    distinct: dict[object, EinsumCandidate] = {}
    orders = distinct_orders(operands, np.random.default_rng(seed)) if every_order else []
    for planned in _plans(plain, orders, paths=every_order):
        for candidate in _variants(planned, threads):
            key = (candidate.plan.steps, candidate.contrib, candidate.split)
            distinct.setdefault(key, candidate)
    found = [*distinct.values()]
    if 0 not in operands.sizes.of.values() and not letters_in_double(operands):
        # The plan of the plain operator only describes the equation.
        seconds = estimate_einsum(operands)
        found.insert(0, EinsumCandidate(PLAIN, plain, seconds, decomposed=False, threads=threads))
    return sorted(found, key=lambda c: c.cost)


def distinct_orders(operands: Operands, rng: np.random.Generator) -> list[str]:
    """List orders of the letters that may give distinct graphs, drawn when there are over 120.

    With two operands, only the order inside each group matters (batch, rows, columns, summed
    letters), and which of rows and columns comes first: one order stands for all those that agree
    on that.
    """
    if len(operands.shapes) < 2:  # noqa: PLR2004 - no product
        return []
    groups = _groups(operands)
    if math.prod(math.factorial(len(group)) for group in groups) <= _MOST_ORDERS:
        choices = itertools.product(*map(itertools.permutations, groups))
        chosen = [tuple(map("".join, choice)) for choice in choices]
    else:
        chosen = [
            tuple("".join(rng.permutation(list(group))) for group in groups)
            for _ in range(_MOST_ORDERS)
        ]
    orders = [
        "".join(part)
        for batch, rows, columns, *others in chosen
        for part in ((batch, rows, columns, *others), (batch, columns, rows, *others))
    ]
    return list(dict.fromkeys(orders))


def _groups(operands: Operands) -> tuple[str, ...]:
    """Letters that a product treats alike; all of them when there are several products."""
    inputs, output = operands.equation.inputs, operands.equation.output
    letters = "".join(dict.fromkeys("".join(inputs)))
    if len(inputs) != 2:  # noqa: PLR2004 - one product
        return letters, "", ""
    left, right = (
        set(x) - set(stretched)
        for x, stretched in zip(inputs, operands.sizes.stretched, strict=True)
    )
    shared = left & right
    groups = (shared & set(output), left - shared, right - shared, shared - set(output))
    named = ["".join(x for x in letters if x in group) for group in groups]
    rest = "".join(x for x in letters if not any(x in group for group in named))
    return (*named, rest)


def _plans(plain: EinsumPlan, orders: Sequence[str], *, paths: bool) -> Iterator[EinsumCandidate]:
    """Plans of each order and path; their cost is not known yet."""
    operands = plain.operands
    count = len(operands.shapes)
    for order in orders:
        yield EinsumCandidate(f"order {order}", make_plan(operands, order=order), 0.0, order)
    yield EinsumCandidate("decomposed", plain, 0.0)
    for path in _paths(count) if paths else ():
        name = ", ".join(f"{i} {j}" for i, j in path)
        yield EinsumCandidate(f"path {name}", make_plan(operands, path=path), 0.0)
    if _suits_elements(operands):
        yield EinsumCandidate("product, then sum", make_plan(operands, elementwise=True), 0.0)


def _paths(count: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """List paths: all of them up to four operands, else from left to right and from right to left.

    A product goes to the end of the list of operands.
    """
    if count > _ALL_PATHS:
        yield ((0, 1), *((0, left) for left in range(count - 2, 0, -1)))
        yield tuple((i - 1, i) for i in range(count - 1, 0, -1))
    elif count > 2:  # noqa: PLR2004 - two operands have one path
        pairs = [itertools.combinations(range(left), 2) for left in range(count, 1, -1)]
        yield from itertools.product(*pairs)


def _suits_elements(operands: Operands) -> bool:
    """Return whether a product element by element may beat products of tiny matrices."""
    inputs, output = operands.equation.inputs, operands.equation.output
    if len(inputs) != 2:  # noqa: PLR2004 - one product
        return False
    summed = "".join(set(inputs[0]) & set(inputs[1]) - set(output))
    elements = operands.sizes.count(output + summed) or 0
    largest = max(math.prod(shape) for shape in operands.shapes)  # type: ignore[arg-type]
    return bool(summed) and elements <= _LARGER * largest


def _variants(candidate: EinsumCandidate, threads: int) -> Iterator[EinsumCandidate]:
    """The ways to write the same plan, each with its cost."""
    operands, plan = candidate.plan.operands, candidate.plan
    absorbed, flags = absorb_transposes(plan.steps)
    for contrib, steps in ((False, plan.steps), (True, absorbed)):
        if contrib and not (flags and onnx_type(operands.dtype) in FUSED):
            break
        name = f"{candidate.name}{', FusedMatMul' if contrib else ''}"
        cost = estimate_steps(operands, steps, threads=threads)
        written = replace(candidate, name=name, cost=cost.whole, contrib=contrib, threads=threads)
        yield written
        if cost.split < cost.whole:
            name += ", split transposes"
            yield replace(written, name=name, cost=cost.split, split=True)
