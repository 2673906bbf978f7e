"""Models of one equation, to choose from."""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np
import onnx

from ortmeter.einsum._absorption import absorb_transposes
from ortmeter.einsum._cost_model import estimate_einsum, estimate_steps
from ortmeter.einsum._splitting import split_transposes
from ortmeter.einsum.emit import einsum_model
from ortmeter.einsum.plan import decompose_einsum
from ortmeter.einsum.result import EinsumPlan
from ortmeter.einsum.steps import Step

__all__ = ["EinsumCandidate", "distinct_orders", "list_candidates"]

_Path: TypeAlias = tuple[tuple[int, ...], ...]

_MOST_ORDERS = 120
_FUSED = {"float16", "float32", "float64"}  # types of FusedMatMul
_LARGER = 8  # times the operands: what a product element by element may write


@dataclass(frozen=True, eq=False)
class EinsumCandidate:
    """A model of an equation.

    Parameters
    ----------
    name : str
        ``Einsum``, or what tells a decomposition from the others.
    plan : EinsumPlan
        Its steps. Those of an ``Einsum`` only estimate its cost.
    cost : float
        Estimated seconds of a run.
    order : str, optional
        Order of the letters, None when it was chosen product by product.
    path : tuple of tuple of int, optional
        Operands multiplied at each step, None for that of opt_einsum.
    decomposed : bool
        False for the plain ``Einsum``.
    contrib : bool
        Whether products absorb transpositions by ``com.microsoft.FusedMatMul``.
    split : bool
        Whether slow transpositions are two fast ones.
    """

    name: str
    plan: EinsumPlan
    cost: float
    order: str | None = None
    path: _Path | None = None
    decomposed: bool = True
    contrib: bool = False
    split: bool = False

    @functools.cached_property
    def model(self) -> onnx.ModelProto:
        """The model, whose inputs are the operands in their order."""
        plan = self.plan
        if not self.decomposed:
            # The inference of shapes of onnx ignores that Einsum broadcasts dimensions of size 1.
            ranks = [(None,) * len(shape) for shape in plan.shapes]
            shapes = ranks if any(plan.operands.sizes.stretched) else plan.shapes
            return einsum_model(plan.equation, *shapes, dtype=plan.dtype)
        model = plan.to_onnx(contrib=self.contrib)
        return (split_transposes(model) or model) if self.split else model


def list_candidates(
    equation: str,
    *shapes: Sequence[int],
    dtype: np.dtype[Any],
    every_order: bool = True,
    threads: int = 1,
    seed: int = 0,
) -> list[EinsumCandidate]:
    """Write the models of an equation that differ, the most promising first.

    Parameters
    ----------
    equation : str
        As :func:`numpy.einsum` accepts.
    *shapes : tuple of int
        Shape of each operand.
    dtype : dtype
        Type of the elements.
    every_order : bool
        False leaves the order of the letters to the plan, which is a hundred times shorter.
    threads : int
        Threads inside an operator.
    seed : int
        Seed of the choice among orders, when there are more than 120.

    Returns
    -------
    list of EinsumCandidate
        No two of them have the same steps; one is the plain ``Einsum``.

    Examples
    --------
    >>> found = list_candidates("ij,jk->ik", (20, 30), (30, 40), dtype=np.dtype("float32"))
    >>> sorted(candidate.name for candidate in found)
    ['Einsum', 'order ikj', 'order kij', 'order kij, FusedMatMul']
    """
    plain = decompose_einsum(equation, *shapes, dtype=dtype)
    found: dict[object, EinsumCandidate] = {}
    orders = distinct_orders(plain, np.random.default_rng(seed)) if every_order else []
    for name, plan, choice in _plans(plain, orders, paths=every_order):
        for candidate in _variants(EinsumCandidate(name, plan, 0.0, **choice), threads):
            key = (plan.steps, candidate.contrib, candidate.split)
            found.setdefault(key, candidate)
    return sorted([_einsum(plain), *found.values()], key=lambda c: c.cost)


def distinct_orders(plan: EinsumPlan, rng: np.random.Generator) -> list[str]:
    """List orders of the letters that may give distinct graphs.

    Parameters
    ----------
    plan : EinsumPlan
        Any plan of the equation.
    rng : numpy.random.Generator
        Draws among orders, when there are more than 120.

    Returns
    -------
    list of str
        With two operands, only the order inside each group matters (batch, rows, columns, summed
        letters), and which of rows and columns comes first: one order stands for all those that
        agree on that.

    Examples
    --------
    >>> plan = decompose_einsum("bsnh,btnh->bnts", (2, 3, 4, 5), (2, 6, 4, 5))
    >>> distinct_orders(plan, np.random.default_rng(0))
    ['bnsth', 'bntsh', 'nbsth', 'nbtsh']
    """
    if len(plan.shapes) < 2:  # noqa: PLR2004 - no product
        return []
    groups = _groups(plan)
    total = math.prod(math.factorial(len(group)) for group in groups)
    if total <= _MOST_ORDERS:
        chosen = [
            tuple(map("".join, order))
            for order in itertools.product(*(itertools.permutations(g) for g in groups))
        ]
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


def _groups(plan: EinsumPlan) -> tuple[str, ...]:
    """Letters that a product treats alike; all of them when there are several products."""
    inputs, output = plan.operands.equation.inputs, plan.operands.equation.output
    letters = "".join(dict.fromkeys("".join(inputs)))
    if len(inputs) != 2:  # noqa: PLR2004 - one product
        return letters, "", ""
    own = [set(t) - set(s) for t, s in zip(inputs, plan.operands.sizes.stretched, strict=True)]
    shared = own[0] & own[1]
    groups = (shared & set(output), own[0] - shared, own[1] - shared, shared - set(output))
    named = ["".join(x for x in letters if x in group) for group in groups]
    rest = "".join(x for x in letters if not any(x in group for group in named))
    return (*named, rest)


def _plans(
    plain: EinsumPlan, orders: Sequence[str], *, paths: bool
) -> Iterator[tuple[str, EinsumPlan, dict[str, Any]]]:
    """Plans of each order and path, with their names."""
    equation, shapes, dtype = plain.equation, plain.shapes, plain.dtype
    decompose = functools.partial(decompose_einsum, equation, *shapes, dtype=dtype)
    for order in orders:
        yield f"order {order}", decompose(order=order), {"order": order}
    yield "decomposed", plain, {}
    for name, path in _paths(plain) if paths else ():
        yield f"path {name}", decompose(path=path), {"path": path}
    product = _product_then_sum(plain)
    if product is not None:
        yield "product, then sum", product, {}


def _paths(plan: EinsumPlan) -> Iterator[tuple[str, _Path]]:
    """Other paths than the default one."""
    count = len(plan.shapes)
    if count < 3:  # noqa: PLR2004 - two operands have one path
        return
    yield "from left to right", _left_to_right(count)
    yield "from right to left", tuple((i - 1, i) for i in range(count - 1, 0, -1))


def _left_to_right(count: int) -> _Path:
    # The product goes to the end of the list.
    return ((0, 1), *((0, left) for left in range(count - 2, 0, -1)))


def _variants(candidate: EinsumCandidate, threads: int) -> Iterator[EinsumCandidate]:
    """The ways to write the same plan, each with its cost."""
    plan = candidate.plan
    shapes, itemsize = dict(zip(plan.input_names, _shapes(plan), strict=True)), plan.dtype.itemsize
    absorbed, flags = absorb_transposes(plan.steps)
    ways = {False: plan.steps, **({True: absorbed} if flags and plan.dtype.name in _FUSED else {})}
    for contrib, steps in ways.items():
        name = f"{candidate.name}{', FusedMatMul' if contrib else ''}"
        cost = estimate_steps(steps, shapes, itemsize, threads=threads)
        yield replace(candidate, name=name, cost=cost.whole, contrib=contrib)
        if cost.split < cost.whole:
            name += ", split transposes"
            yield replace(candidate, name=name, cost=cost.split, contrib=contrib, split=True)


def _shapes(plan: EinsumPlan) -> tuple[tuple[int, ...], ...]:
    """Shapes of the operands, which a search knows."""
    return cast("tuple[tuple[int, ...], ...]", plan.shapes)


def _einsum(plan: EinsumPlan) -> EinsumCandidate:
    """The plain operator; its plan only describes the equation."""
    equation = plan.operands.equation
    sizes = cast("Mapping[str, int]", plan.operands.sizes.of)
    cost = estimate_einsum(equation.inputs, equation.output, sizes, plan.dtype.itemsize)
    return EinsumCandidate("Einsum", plan, cost, decomposed=False)


def _product_then_sum(plan: EinsumPlan) -> EinsumPlan | None:
    """Multiply element by element, then sum: better than products of tiny matrices."""
    inputs, output = plan.operands.equation.inputs, plan.operands.equation.output
    if len(inputs) != 2 or not "".join(inputs).isalpha():  # noqa: PLR2004 - one product
        return None
    summed = "".join(x for x in dict.fromkeys(inputs[0]) if x in inputs[1] and x not in output)
    elements = plan.operands.sizes.count(output + summed) or 0
    if not summed or elements > _LARGER * max(map(math.prod, _shapes(plan))):
        return None
    product = decompose_einsum(
        f"{','.join(inputs)}->{output}{summed}", *plan.shapes, dtype=plan.dtype
    )
    last = product.steps[-1]
    axes = tuple(output)
    if last.axes != (*axes, *summed):
        return None
    total = Step(
        "reduce_sum",
        ("P",),
        "Y",
        (last.axes,),
        axes,
        plan.operands.sizes.shape(axes),
        elements - (plan.operands.sizes.count(output) or 0),
        (elements + (plan.operands.sizes.count(output) or 0)) * plan.dtype.itemsize,
        tuple(range(len(axes), len(last.axes))),
    )
    return replace(plan, steps=(*product.steps[:-1], replace(last, output="P"), total))
