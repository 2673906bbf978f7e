"""Align the intermediate results of two graphs whose names differ, and find where they part."""

import heapq
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx

from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff
from ortmeter.discrepancy.arrays import arithmetic, is_integer
from ortmeter.dtypes import short_name
from ortmeter.evaluator.attribution_result import differing
from ortmeter.evaluator.node import domain_name
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.graphs import bodies
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.sessions import make_session

if TYPE_CHECKING:
    import pandas as pd

#: Whether two operators, of one graph each, may be the same.
Similar: TypeAlias = Callable[[str, str], bool]

_SAMPLED = 64  # values that tell results of one shape apart
_CLOSE = 1e-2  # relative error of two results that are the same one, whatever computed them
_SURE = 1.5  # score: more than the same operator
_NUMERIC = "biufcV"  # V: bfloat16 and float8


@dataclass(frozen=True)
class Result:
    """An intermediate result: its name, the node and the operator that compute it, its value.

    `parents` are the positions, in a list, of the results that its node reads; `alias` is the name
    that it has in the other graph, when that is known.
    """

    name: str
    node: str
    op: str
    value: np.ndarray
    parents: frozenset[int] = frozenset()
    alias: str = ""


@dataclass(frozen=True)
class Aligned:
    """Two results that stand for the same one.

    Parameters
    ----------
    expected, got : Result
        One of each graph.
    error : Discrepancy
        The second, compared with the first.
    before : float
        Largest error of the aligned results that it is computed from, relative to their largest
        values.
    """

    expected: Result
    got: Result
    error: Discrepancy
    before: float

    @property
    def size(self) -> float:
        """Largest error, relative to the largest value."""
        return relative(self.error)

    @property
    def jump(self) -> float:
        """Growth of the error: `size` over `before`, or over the rounding of the type."""
        return self.size / max(self.before, _rounding(self.error)) if self.size else 0.0

    @property
    def figures(self) -> tuple[float, ...]:
        """Absolute error, `size`, `before` and `jump`."""
        return self.error.abs, self.size, self.before, self.jump


@dataclass(frozen=True)
class Alignment:
    """Intermediate results of two graphs, aligned.

    Parameters
    ----------
    pairs : tuple of Aligned
        In the order of the first graph.
    n_expected, n_got : int
        Number of intermediate results of each graph.
    tolerance : Tolerance
        Results within it do not part.
    """

    pairs: tuple[Aligned, ...]
    n_expected: int
    n_got: int
    tolerance: Tolerance

    @property
    def first(self) -> Aligned | None:
        """First aligned results beyond the tolerance."""
        return next((p for p in self.pairs if not self.tolerance.check(p.error).passed), None)

    @property
    def largest_jump(self) -> Aligned | None:
        """Aligned results where the error grows the most, None if there is no error."""
        jumps = [pair for pair in self.pairs if differing(pair.error)]
        return max(jumps, key=lambda pair: pair.jump, default=None)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per aligned pair.

        Returns
        -------
        pandas.DataFrame
            Columns: *expected*, *expected op*, *got*, *op* (nodes), *absolute* (largest error),
            *relative* (to the largest value), *before* (the same of its inputs), *jump*.
        """
        import pandas as pd

        rows = [
            (p.expected.node, p.expected.op, p.got.node, p.got.op, *p.figures) for p in self.pairs
        ]
        columns = ["expected", "expected op", "got", "op", "absolute", "relative", "before", "jump"]
        return pd.DataFrame(rows, columns=columns)

    def __str__(self) -> str:
        count = f"{len(self.pairs)} results aligned of {self.n_expected} and {self.n_got}"
        if self.first is None or self.largest_jump is None:
            return f"{count}: none differs"
        first, jump = self.first, self.largest_jump
        beyond = "" if self.tolerance == Tolerance() else f" beyond {self.tolerance}"
        return (
            f"{count}: they part{beyond} at {_named(first)}; the error grows the most at "
            f"{_named(jump)}, from {jump.before:.3g} to {jump.size:.3g} of the largest value"
        )


def align(
    expected: ModelLike,
    got: ModelLike,
    feeds: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    *,
    tolerance: Tolerance | None = None,
    run_config: Mapping[str, Any] | None = None,
    **session: Any,
) -> Alignment:
    """Align the intermediate results of two models on the same inputs.

    Parameters
    ----------
    expected, got : ModelProto, bytes, path or text
        The reference and the tested model.
    feeds : mapping of str to array, or one for each model, optional
        Inputs, by default random and shared by both models.
    tolerance : Tolerance, optional
        Results beyond it part. By default, all values must be equal.
    run_config : mapping, optional
        Configuration entries of a run, see :class:`~ortmeter.runtime.iobinding.BoundSession`.
    **session
        Settings of both sessions, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    Alignment
        Pairs of results, the first that parts, the largest jump of the error.

    Raises
    ------
    ModelError, FeedError, ProviderUnavailableError, InvalidArgumentError
        As for :func:`~ortmeter.discrepancy.diff`.

    Notes
    -----
    All intermediate results are outputs of both sessions, which keeps ONNX Runtime from fusing
    their nodes, and are in memory at once. Two results may be the same if they have one shape, and
    close values or the same operator. Among the matchings that follow the order of both graphs, the
    one whose values, operators and names agree the most is taken, by dynamic programming: branches
    of the second graph are first put in the order of the first.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Z) { [e] Y = Exp(X)  [n] Z = Neg(Y) }'''
    >>> other = text.replace("Y", "V").replace("[e]", "[exp]").replace("Neg(V)", "Abs(V)")
    >>> found = align(text, other, provider="cpu")
    >>> [(pair.expected.node, pair.got.node) for pair in found.pairs], found.first
    ([('e', 'exp')], None)
    """
    models = [load_model(model) for model in (expected, got)]
    given = feeds_of_each([expected, got], feeds)
    first, second = (
        results_of(model, run_session(make_session(exposing(model), **session), arrays, run_config))
        for model, arrays in zip(models, given, strict=True)
    )
    names = [[output.name for output in model.graph.output] for model in models]
    return aligned(first, known_as(second, names[1], names[0]), tolerance or Tolerance())


def known_as(
    results: Sequence[Result], outputs: Sequence[str], others: Sequence[str]
) -> list[Result]:
    """Say which outputs of the other graph these are: by rank, when they are as many."""
    same = dict(zip(outputs, others, strict=True)) if len(outputs) == len(others) else {}
    return [replace(result, alias=same.get(result.name, "")) for result in results]


def aligned(
    expected: Sequence[Result],
    got: Sequence[Result],
    tolerance: Tolerance,
    similar: Similar = operator.eq,
) -> Alignment:
    """Align two lists of results, each one in the order of its graph."""
    pairs = match(expected, got, similar)
    sizes: dict[int, float] = {}  # by position in `got`, those of its ancestors until known
    partner = {j: i for i, j in pairs}
    found = []
    for j, result in enumerate(got):
        before = max((sizes[parent] for parent in result.parents), default=0.0)
        sizes[j] = before
        if j in partner:
            error = max_diff(
                expected[partner[j]].value, result.value, tolerance=tolerance, on_mismatch="report"
            )
            sizes[j] = relative(error)
            found.append((partner[j], Aligned(expected[partner[j]], result, error, before)))
    found.sort(key=lambda item: item[0])
    return Alignment(tuple(pair for _, pair in found), len(expected), len(got), tolerance)


def exposing(model: onnx.ModelProto) -> onnx.ModelProto:
    """Copy a model whose outputs are all the results of its nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    known = {value.name for value in model.graph.output}
    for node in model.graph.node:
        names = [name for name in node.output if name and name not in known]
        copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return copy


def results_of(model: onnx.ModelProto, values: Mapping[str, Any]) -> list[Result]:
    """List the results of the nodes of a model that are numbers, in its order."""
    found: list[Result] = []
    sources: dict[str, frozenset[int]] = {}  # name -> nearest results that it is computed from
    for node in model.graph.node:
        names = {*node.input, *(name for _, body in bodies(node) for name in captured(body))}
        parents = frozenset().union(*(sources.get(name, frozenset()) for name in names))
        computed = node.op_type != "Constant"
        for name in filter(None, node.output):
            value = values.get(name)
            sources[name] = parents
            if computed and isinstance(value, np.ndarray) and value.dtype.kind in _NUMERIC:
                sources[name] = frozenset([len(found)])
                found.append(Result(name, node.name or name, operator_of(node), value, parents))
    return found


def operator_of(node: onnx.NodeProto) -> str:
    return ".".join(filter(None, (domain_name(node.domain), node.op_type)))


def captured(body: onnx.GraphProto) -> set[str]:
    """Names that a body reads in the graph around it."""
    known = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    read: set[str] = set()
    for node in body.node:
        inner = (name for _, graph in bodies(node) for name in captured(graph))
        read |= {*node.input, *inner} - known
        known |= set(node.output)
    return (read | {value.name for value in body.output} - known) - {""}


def match(
    expected: Sequence[Result], got: Sequence[Result], similar: Similar = operator.eq
) -> list[tuple[int, int]]:
    """Pair positions of the same results; the sum of the scores of the pairs is the largest."""
    scores = _scores(expected, got, similar)
    order = _like_first(scores, [result.parents for result in got])
    chosen = _longest(scores[:, order])
    return [(i, order[column]) for i, column in chosen]


def _scores(expected: Sequence[Result], got: Sequence[Result], similar: Similar) -> np.ndarray:
    """Score pairs of results: 0 if they cannot be the same, up to 5 if everything agrees.

    Values that agree count more than an operator and a name: those may be given to another result.
    """
    scores = np.zeros((len(expected), len(got)))
    by_shape: dict[Any, list[int]] = {}
    for j, result in enumerate(got):
        by_shape.setdefault(_form(result.value), []).append(j)
    samples = {form: np.stack([_sample(got[j].value) for j in js]) for form, js in by_shape.items()}
    for i, result in enumerate(expected):
        form = _form(result.value)
        if form not in by_shape:
            continue
        mine, theirs = _sample(result.value), samples[form]
        scale = np.maximum(np.abs(mine).max(initial=0), np.abs(theirs).max(axis=1, initial=0))
        error = np.abs(theirs - mine).max(axis=1, initial=0) / np.where(scale > 0, scale, 1)
        with np.errstate(divide="ignore"):
            agree = np.clip(-np.log10(error) / 7, 0, 1)  # 1 when float32 results are equal
        agree[error > _CLOSE] = 0
        others = [got[j] for j in by_shape[form]]
        same_op = np.array([similar(result.op, other.op) for other in others], float)
        same_name = np.array([result.name in (other.name, other.alias) for other in others], float)
        possible = (error <= _CLOSE) | (same_op > 0) | (same_name > 0)
        scores[i, by_shape[form]] = (3 * agree + same_op + same_name) * possible
    return scores


def _form(value: np.ndarray) -> tuple[Any, ...]:
    """What two values that stand for the same have in common: their shape, integers or not."""
    return value.shape, is_integer(short_name(value.dtype))


def _sample(value: np.ndarray) -> np.ndarray:
    flat = value.reshape(-1)
    chosen = flat[np.linspace(0, max(flat.size - 1, 0), min(flat.size, _SAMPLED)).astype(int)]
    kind = np.complex128 if chosen.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        return np.asarray(np.nan_to_num(chosen.astype(kind), posinf=1e300, neginf=-1e300))


def _like_first(scores: np.ndarray, parents: Sequence[frozenset[int]]) -> list[int]:
    """Order the results of the second graph as those of the first that they resemble the most.

    A result stays after those that it is computed from.
    """
    n = len(parents)
    best = scores.argmax(axis=0) if len(scores) else np.zeros(n, int)
    sure = scores.max(axis=0, initial=0) > _SURE
    priority: list[int] = []
    for j in range(n):
        least = max((priority[parent] for parent in parents[j]), default=0)
        # What looks like nothing of the first graph stays after what is before it.
        own = int(best[j]) if sure[j] else max(priority[-1:], default=0)
        priority.append(max(own, least))
    missing = [len(some) for some in parents]
    children: list[list[int]] = [[] for _ in range(n)]
    for j, some in enumerate(parents):
        for parent in some:
            children[parent].append(j)
    ready = [(priority[j], j) for j in range(n) if not missing[j]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, j = heapq.heappop(ready)
        order.append(j)
        for child in children[j]:
            missing[child] -= 1
            if not missing[child]:
                heapq.heappush(ready, (priority[child], child))
    return order


def _longest(scores: np.ndarray) -> list[tuple[int, int]]:
    """Choose pairs in the order of both lists, whose scores have the largest sum."""
    rows, columns = scores.shape
    total = np.zeros((rows + 1, columns + 1))
    for i in range(rows):
        with_pair = total[i, :-1] + scores[i]
        total[i + 1, 1:] = np.maximum.accumulate(np.maximum(total[i, 1:], with_pair))
    i, j, pairs = rows, columns, []
    while i and j:
        i, j = i - 1, j - 1
        if scores[i, j] and total[i + 1, j + 1] == total[i, j] + scores[i, j]:
            pairs.append((i, j))  # the last ones: what a graph does in several nodes ends there
        elif total[i + 1, j + 1] == total[i + 1, j]:
            i += 1
        else:
            j += 1
    return pairs[::-1]


def relative(error: Discrepancy) -> float:
    """Return the largest error relative to the largest value; infinite for NaN and shapes."""
    if error.n_nan or error.n_inf or not error.same_structure:
        return inf
    if not error.abs:
        return 0.0
    return float(error.abs / error.largest) if error.largest else inf


def _rounding(error: Discrepancy) -> float:
    names = [n for n in (error.dtype_expected, error.dtype_got) if n and not is_integer(n)]
    return max((float(arithmetic(name, name).spacing(1.0)) for name in names), default=1.0)


def _named(pair: Aligned) -> str:
    names = dict.fromkeys((pair.expected.node, pair.got.node))
    operators = dict.fromkeys((pair.expected.op, pair.got.op))
    return f"{' / '.join(names)} ({' / '.join(operators)})"
