"""Align the intermediate results of two graphs whose names differ, and find where they part."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ortmeter.attribution.intermediates import results_of, run_exposed
from ortmeter.attribution.matching import Result, Similar, match
from ortmeter.attribution.result import differing
from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff
from ortmeter.discrepancy.arrays import arithmetic, is_integer
from ortmeter.optional import pd
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.loading import ModelLike, load_model


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
        grows = self.size and self.before < inf
        return self.size / max(self.before, _rounding(self.error)) if grows else 0.0

    @property
    def figures(self) -> tuple[float, ...]:
        """Absolute error, `size`, `before` and `jump`."""
        return self.error.ranked("abs"), self.size, self.before, self.jump


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
        where = "there" if jump is first else f"at {_named(jump)}"
        return (
            f"{count}: they part{beyond} at {_named(first)}; the error grows the most {where}, "
            f"from {jump.before:.3g} to {in_words(jump.error)}"
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
    >>> other = text.replace("Y", "V").replace("[e]", "[exp]").replace("[n] Z = Neg", "[m] Z = Abs")
    >>> found = align(text, other, provider="cpu")
    >>> [(pair.expected.node, pair.got.node) for pair in found.pairs], found.first.got.node
    ([('e', 'exp'), ('n', 'm')], 'm')
    """
    models = [load_model(model) for model in (expected, got)]
    given = feeds_of_each([expected, got], feeds)
    first, second = (
        results_of(model, run_exposed(model, arrays, run_config, **session))
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
    placed = []
    for j, result in enumerate(got):
        before = max((sizes[parent] for parent in result.parents), default=0.0)
        sizes[j] = before
        if j in partner:
            error = max_diff(
                expected[partner[j]].value, result.value, tolerance=tolerance, on_mismatch="report"
            )
            sizes[j] = relative(error)
            placed.append((partner[j], Aligned(expected[partner[j]], result, error, before)))
    placed.sort(key=lambda item: item[0])
    return Alignment(tuple(pair for _, pair in placed), len(expected), len(got), tolerance)


def relative(error: Discrepancy) -> float:
    """Return the largest error relative to the largest value; infinite for NaN and shapes."""
    largest = error.ranked("abs")
    if not largest:
        return 0.0
    return float(largest / error.largest) if error.largest else inf


def in_words(error: Discrepancy) -> str:
    """Say the largest error relative to the largest value, or what does not match."""
    return ", ".join(error.mismatches) or f"{relative(error):.3g} of the largest value"


def _rounding(error: Discrepancy) -> float:
    names = [n for n in (error.dtype_expected, error.dtype_got) if n and not is_integer(n)]
    return max((float(arithmetic(name, name).spacing(1.0)) for name in names), default=1.0)


def _named(pair: Aligned) -> str:
    names = dict.fromkeys((pair.expected.node, pair.got.node))
    operators = dict.fromkeys((pair.expected.op, pair.got.op))
    return f"{' / '.join(names)} ({' / '.join(operators)})"
