"""Values that break: cases on edge values and shapes, judged by two independent references."""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pandas as pd

from ortmeter.child import ChildError
from ortmeter.dtypes import float_info
from ortmeter.errors import OrtMeterError
from ortmeter.evaluator.judges import evaluated
from ortmeter.observatory.case import Case
from ortmeter.observatory.edge_cases import SHAPES, SMALL, edge_feeds, reshaped
from ortmeter.observatory.matrix import Processes, RuntimeCandidate
from ortmeter.observatory.reference import reference
from ortmeter.operators import Operator, find_operator
from ortmeter.progress import follow
from ortmeter.runtime.graphs import attributes
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.timing.candidates import SessionSpec

__all__ = ["measure_edges"]

#: What is told of a wrong result.
COLUMNS = (
    *("case", "what", "verdict", "edge", "inputs", "expected", "got", "since", "candidates"),
    "reason",
)
#: Ways to be wrong, the worst first.
WAYS = ("dies", "wrong integer", "NaN", "infinity", "value", "shape", "sign of zero", "fails")
WRONG, OPEN, ALWAYS, NOT_JUDGED = "wrong", "open", "always", "not judged"

_FOUND = ["able", *(name for name in COLUMNS if name not in ("verdict", "since"))]

_Arrays = Mapping[str, np.ndarray]
_Place = tuple[int, ...]
_Outputs = Mapping[str, _Arrays | OrtMeterError]

_SOURCES = ("reference", "torch")  # independent of each other, and of ONNX Runtime
_DRAWN = "as drawn"
# Share of a float that is a rounding, and of an integer in float64.
_ROUNDING, _DOUBLE_ROUNDING = 1e-2, 2.0**-40
_FIRST = 1000  # wrong elements looked at
_INTEGERS = ("i8", "u8", "i32", "i64")
_DISAGREE = "the references disagree"
# Where ONNX says another thing than both references, by operator and way: its sentence.
_SPECIFIED = {
    ("Clip", "infinity"): "They default to numeric_limits::lowest() and numeric_limits::max()",
    ("ReduceMean", "NaN"): "Reduction over an empty set of values yields undefined",
    # exp(-0.0) - 1 is 0.0.
    ("Selu", "sign of zero"): "y = gamma * (alpha * e^x - alpha) for x <= 0",
    ("Celu", "sign of zero"): "max(0,x) + min(0,alpha*(exp(x/alpha)-1))",
}


def measure_edges(
    candidates: Sequence[RuntimeCandidate],
    cases: Mapping[str, Case],
    *,
    provider: str | Provider = "cpu",
    threads: int = 1,
) -> pd.DataFrame:
    """Find the edge values and shapes on which candidates return wrong results.

    The references are ``onnx.reference``, on NumPy, and the kernels of this package on torch, in
    the types of the case and in float64. Two that agree judge.

    Parameters
    ----------
    candidates : sequence of RuntimeCandidate
        Releases, the oldest first.
    cases : mapping of str to Case
        See :func:`~ortmeter.observatory.edge_cases.edge_cases`.
    provider : str or Provider
        Where they run.
    threads : int
        Number of threads.

    Returns
    -------
    pandas.DataFrame
        A row for each case and each way to be wrong, the worst first. Texts:

        * *case*: its name.
        * *what*: ``dies``, ``wrong integer``, ``NaN`` and ``infinity`` (added or missing),
          ``value``, ``shape``, ``sign of zero``, ``fails``, or ``not judged``.
        * *verdict*: ``wrong``, or ``open`` where the references disagree or ONNX does not decide.
        * *edge*: the edge values or shapes that show it.
        * *inputs*, *expected*, *got*: of one element; *inputs* is an edge where an element of the
          output is made of many.
        * *since*: the first candidate that is wrong, ``always`` if all that run the case are.
        * *candidates*: those that are wrong.
        * *reason*: why it is open.
    """
    where = resolve_provider(provider)
    settings = {"provider": where, "threads": threads}
    rows: list[dict[str, str]] = []
    with Processes({one.name: one for one in candidates}) as processes:
        for name, case in follow(cases.items(), "cases"):
            answers = processes.outputs(case.prepared(where, threads))
            able = [one for one, got in answers.items() if not isinstance(got, OrtMeterError)]

            def ask(edge: _Edge, names: Sequence[str] = able) -> _Outputs:
                return processes.outputs(SessionSpec(edge.model, edge.feeds, settings), names)

            known = {**dict.fromkeys(_FOUND, ""), "case": name, "able": ", ".join(able)}
            rows += ({**known, **row} for row in _found(_edges(case, ask)))
    return _gathered(pd.DataFrame(rows, columns=_FOUND))


class _Edge:
    """A case on some values: what the references return, which share no code."""

    def __init__(self, label: str, case: Case, feeds: _Arrays | None) -> None:
        self.label, self.case = label, case
        self.model, self.feeds = case.model(), feeds or case.feeds()
        first, second = (evaluated(self.model, self.feeds, (source,)) for source in _SOURCES)
        if first.shares_code(second):
            raise OrtMeterError("one reference")
        self.answers, self.exact = (first.outputs, second.outputs), _exact(case, self.feeds)

    def judge(self, got: _Arrays | OrtMeterError) -> Iterator[dict[str, str]]:
        """Yield the ways in which outputs, or the lack of them, are wrong."""
        if isinstance(got, OrtMeterError):
            shapes = [f"{one.dtype.name}{list(one.shape)}" for one in self.answers[0].values()]
            what = "dies" if isinstance(got, ChildError) else "fails"
            yield self._told(what, self.label, ", ".join(shapes), str(got).partition(": ")[2])
            return
        for name, array in got.items():
            answers = [one[name] for one in (*self.answers, self.exact) if name in one]
            shapes = [str(list(one.shape)) for one in answers]
            if str(list(array.shape)) not in shapes:
                reason = self._nameless(array) if len({*shapes}) == 1 else _DISAGREE
                yield self._told("shape", self.label, shapes[0], str(list(array.shape)), reason)
            elif len({*shapes}) == 1:
                yield from self._elements(name, array, answers)

    def _elements(
        self, name: str, got: np.ndarray, answers: Sequence[np.ndarray]
    ) -> Iterator[dict[str, str]]:
        """Yield one element of each way to be wrong, judged and open."""
        first = answers[0]
        # An integer that float64 rounds agrees with what float64 loses.
        told = answers if got.dtype.kind == "f" else answers[: len(_SOURCES)]
        wrong = functools.reduce(np.logical_and, (_differs(got, one) for one in told))
        unknown = functools.reduce(np.logical_or, (_differs(first, one) for one in answers))
        found = set()
        for place in map(tuple, np.argwhere(wrong)[:_FIRST]):
            what = _way(got[place], first[place])
            operands = self._operands(got.shape, place)
            reason = _DISAGREE if unknown[place] else self._nameless(got)
            reason = reason or self._undecided(what, got[place], answers[-1], (name, place))
            if (what, bool(reason)) not in found:
                found.add((what, bool(reason)))
                inputs = ", ".join(f"{n} = {_shown(one)}" for n, one in operands.items())
                yield self._told(
                    what, inputs or self.label, _shown(first[place]), _shown(got[place]), reason
                )

    def _told(
        self, what: str, inputs: str, expected: str, got: str, reason: str = ""
    ) -> dict[str, str]:
        specified = (_SPECIFIED.get((node.op_type, what)) for node in self.model.graph.node)
        told = {"what": what, "inputs": inputs, "expected": expected, "got": got}
        return {**told, "reason": next(filter(None, specified), reason)}

    @functools.cached_property
    def _known(self) -> list[Operator]:
        return [find_operator(node.op_type, node.domain) for node in self.model.graph.node]

    @functools.cached_property
    def _compares(self) -> bool:
        reductions = [attributes(node).get("reduction") for node in self.model.graph.node]
        exact = any(one.is_exact and one.kind != "movement" for one in self._known)
        return exact or b"max" in reductions or b"min" in reductions

    @functools.cached_property
    def _floats(self) -> dict[str, np.ndarray]:
        return {name: array for name, array in self.feeds.items() if array.dtype.kind == "f"}

    @functools.cached_property
    def _is_finite(self) -> bool:
        return all(np.isfinite(array).all() for array in self._floats.values())

    def _operands(self, shape: _Place, place: _Place) -> dict[str, Any]:
        """Read what makes an element, of an operator that takes one of each input, else nothing."""
        if any(one.kind != "elementwise" or one.is_quantized for one in self._known):
            return {}
        weights = {t.name: onnx.numpy_helper.to_array(t) for t in self.model.graph.initializer}
        with suppress(ValueError):
            both = {**self.feeds, **weights}.items()
            return {name: np.broadcast_to(array, shape)[place] for name, array in both}
        return {}

    def _nameless(self, got: np.ndarray) -> str:
        """Say whether the inputs have what ONNX gives no order or no integer."""
        if self._compares and any(np.isnan(array).any() for array in self._floats.values()):
            return "ONNX does not order NaN"
        of_integers = got.dtype.kind != "f" or any(one.is_quantized for one in self._known)
        if of_integers and not self._is_finite:
            return "no integer stands for NaN or an infinity"
        return ""

    def _undecided(self, what: str, got: Any, expected: np.ndarray, at: tuple[str, _Place]) -> str:
        """Say why ONNX does not decide between a result and that of the references."""
        name, place = at
        by_element = all(one.kind in ("elementwise", "movement") for one in self._known)
        if what == "sign of zero":
            operands = self._operands(expected.shape, place).values()
            zeros = [one for one in operands if one.dtype.kind == "f" and one == 0]
            if self._compares and len({*map(np.signbit, zeros)}) > 1:
                return "zeros of both signs are equal"
            return "" if by_element else "a sum may begin with 0.0"
        if by_element or got.dtype.kind != "f":
            return ""
        if self._is_finite:
            limit = float(float_info(got.dtype).max) / 4
            return "" if (np.abs(expected) < limit).all() else "it overflows"
        if not np.isfinite(got) and not np.isfinite(expected[place]):
            return "infinities may meet a zero, or each other"
        zero, one = (found[name][place] if found else None for found in self._without_specials)
        return "products by zero may be left out" if zero is not None and zero == one else ""

    @functools.cached_property
    def _without_specials(self) -> list[_Arrays | None]:
        """What a reference returns where NaN and infinities are 0, and 1."""
        found = []
        for value in (0, 1):
            plain = {
                name: np.where(np.isfinite(array), array, array.dtype.type(value))
                for name, array in self._floats.items()
            }
            edge = _answered("", self.case, {**self.feeds, **plain})
            found.append(edge.answers[0] if edge else None)
        return found


def _differs(got: np.ndarray, one: np.ndarray) -> np.ndarray:
    """Tell the elements that no rounding explains."""
    with np.errstate(all="ignore"):
        if got.dtype.kind != "f" and one.dtype.kind != "f":
            return np.asarray(got != one)
        if got.dtype.kind != "f":
            most = 1 + _DOUBLE_ROUNDING * np.abs(one)
            return np.asarray(~(np.abs(got.astype(np.float64) - one) <= most))
        a, b = got.astype(np.float64), one.astype(got.dtype).astype(np.float64)
        most = _ROUNDING * np.maximum(np.abs(a), np.abs(b)) + float(float_info(got.dtype).tiny)
        near = (np.abs(a - b) <= most) & np.isfinite(a) & np.isfinite(b)
        sign = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
        return np.asarray(~(near | (a == b) | (np.isnan(a) & np.isnan(b))) | sign)


def _way(got: Any, expected: Any) -> str:
    if got.dtype.kind != "f":
        return "wrong integer"
    if np.isnan(got) != np.isnan(expected):
        return "NaN"
    if np.isinf(got) or np.isinf(expected):
        return "infinity"
    return "sign of zero" if got == expected == 0 else "value"


def _shown(value: Any) -> str:
    return f"{value.item():.9g}" if value.dtype.kind == "f" else str(value.item())


def _edges(case: Case, ask: Callable[[_Edge], _Outputs]) -> Iterator[tuple[_Edge, _Outputs]]:
    """Yield the edges of a case, on small shapes if some candidate takes them, and the outputs."""
    small = (_answered(_DRAWN, reshaped(case, change)) for change in SMALL)
    asked = ((edge, ask(edge)) for edge in small if edge)
    taken = (pair for pair in asked if any(isinstance(got, dict) for got in pair[1].values()))
    if (first := next(taken, None)) is None:
        return
    yield first
    base = first[0].case
    variants = [
        *((label, base, feeds) for label, feeds in edge_feeds(base)),
        *((label, reshaped(base, change), None) for label, change in SHAPES.items()),
    ]
    for label, other, feeds in variants:
        if (feeds or other != base) and (edge := _answered(label, other, feeds)):
            yield edge, ask(edge)


def _answered(label: str, case: Case, feeds: _Arrays | None = None) -> _Edge | None:
    """Ask the references; None unless both answer."""
    # Each one refuses in its own ways.
    with suppress(Exception), np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
        return _Edge(label, case, feeds)
    return None


def _exact(case: Case, feeds: _Arrays) -> _Arrays:
    """Compute in float64, integers too: what overflows in their type differs."""
    if case.type in _INTEGERS:
        case = dataclasses.replace(case, type="f64")
    try:
        types = {name: array.dtype for name, array in case.feeds().items()}
        with np.errstate(all="ignore"):
            feeds = {name: array.astype(types[name]) for name, array in feeds.items()}
            return reference(case.model(), feeds).outputs
    except OrtMeterError:
        return {}


def _found(edges: Iterable[tuple[_Edge, _Outputs]]) -> Iterator[dict[str, str]]:
    """Yield what is wrong at each edge, or that nothing is judged."""
    usual: set[tuple[str, str]] | None = None
    for edge, outputs in edges:
        found = [(name, row) for name, got in outputs.items() for row in edge.judge(got)]
        if usual is None:
            # What drawn values show too is no edge: its error is compared with float64 elsewhere.
            both = ("value", "wrong integer")
            usual = {(name, row["what"]) for name, row in found if row["what"] in both}
        answered = any(not isinstance(got, OrtMeterError) for got in outputs.values())
        refused = "" if answered else "every candidate refuses it"
        for name, row in found:
            reason = row["reason"] or (refused if row["what"] == "fails" else "")
            if (name, row["what"]) not in usual:
                yield {**row, "edge": edge.label, "candidates": name, "reason": reason}
    if usual is None:
        yield {"what": NOT_JUDGED, "reason": "one reference"}


def _gathered(found: pd.DataFrame) -> pd.DataFrame:
    """Make one row of what is wrong in the same way, in the same candidates."""
    last = dict.fromkeys(("able", "inputs", "expected", "got"), "last")
    alike = found.groupby(["case", "what", "edge", "reason"], sort=False)
    rows = alike.agg({"candidates": _joined, **last}).reset_index()
    rows["verdict"] = np.where(rows["reason"] == "", WRONG, OPEN)
    alike = rows.groupby(["case", "what", "verdict", "candidates"], sort=False)
    rows = alike.agg({"edge": _joined, "reason": "last", **last}).reset_index()
    always = (rows["candidates"] == rows["able"]) & (rows["able"] != "")
    rows["since"] = rows["candidates"].str.replace(",.*", "", regex=True).mask(always, ALWAYS)
    order = [WRONG, OPEN, *WAYS, NOT_JUDGED]
    rows = rows.sort_values(["verdict", "what"], key=lambda column: column.map(order.index))
    # What is also open adds nothing to what is wrong.
    rows = rows.drop_duplicates(["case", "what", "candidates"])
    return rows[[*COLUMNS]].reset_index(drop=True)


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
