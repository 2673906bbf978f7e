"""Align the intermediate results of two graphs whose names differ, and find where they part."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from ortmeter.attribution.changes import find_changes
from ortmeter.attribution.entering import enter_bodies
from ortmeter.attribution.intermediates import really_computed, results_of, run_exposed
from ortmeter.attribution.matching import Result, match
from ortmeter.attribution.result import differing
from ortmeter.discrepancy import Discrepancy, ModelDiff, Tolerance, max_diff
from ortmeter.discrepancy.arrays import arithmetic, is_integer
from ortmeter.discrepancy.models import compare_outputs
from ortmeter.optional import pd
from ortmeter.runtime.feeds import feeds_of_each
from ortmeter.runtime.loading import ModelLike, load_model
from ortmeter.runtime.placement import enumerate_some

_HEALED = 8  # times what came before, or a rounding
_FAR = 1e-2  # relative error of a result that only its operator or its name pairs


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
    reordered : tuple of Aligned
        Results that are far apart while all that is computed from them agrees: a product in another
        order. They are not in `pairs`.
    changes : tuple of str
        Initializers and attributes that differ, one sentence each, the largest change first.
    outputs : ModelDiff or None
        Outputs of the sessions whose intermediate results are read.
    """

    pairs: tuple[Aligned, ...]
    n_expected: int
    n_got: int
    tolerance: Tolerance
    reordered: tuple[Aligned, ...] = ()
    changes: tuple[str, ...] = ()
    outputs: ModelDiff | None = None

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
        if self.reordered:
            named = enumerate_some([_named(pair) for pair in self.reordered])
            count += f", others are computed in another order ({named})"
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
    their nodes, and are in memory at once. Those that overflow only because they are read are left
    out: where it has no kernel in 16 bits, ONNX Runtime computes in float32. Two results may be the
    same if they have one shape, and close values or the same operator. Among the matchings that
    follow the order of both graphs, the one whose values, operators and names agree the most is
    taken, by dynamic programming: branches of the second graph are first put in the order of the
    first.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Z) { [e] Y = Exp(X)  [n] Z = Neg(Y) }'''
    >>> other = text.replace("Y", "V").replace("[e]", "[exp]").replace("[n] Z = Neg", "[m] Z = Abs")
    >>> found = align(text, other, provider="cpu")
    >>> [(pair.expected.node, pair.got.node) for pair in found.pairs], found.first.got.node
    ([('e', 'exp'), ('n', 'm')], 'm')
    """
    given = feeds_of_each([expected, got], feeds)

    def ran(model: ModelLike, arrays: Mapping[str, Any]) -> tuple[Any, Any, list[Result]]:
        entered = enter_bodies(load_model(model), arrays, **session)
        values = run_exposed(entered, arrays, **session)
        return entered, values, results_of(entered, really_computed(entered, values, **session))

    sides = map(ran, (expected, got), given)
    models, runs, (first, second) = zip(*sides, strict=True)
    names = [[output.name for output in model.graph.output] for model in models]
    if len(names[0]) == len(names[1]):  # outputs go together by rank
        same = dict(zip(names[1], names[0], strict=True))
        second = [replace(result, alias=same.get(result.name, "")) for result in second]
    found = _aligned(first, second, tolerance or Tolerance(), {*names[1]})
    first_run, second_run = (
        {name: run[name] for name in own} for run, own in zip(runs, names, strict=True)
    )
    results = [(pair.expected.name, pair.got.name) for pair in found.pairs]
    return replace(
        found,
        changes=find_changes(models[0], models[1], results),
        outputs=compare_outputs(first_run, second_run, tolerance),
    )


def _aligned(
    expected: Sequence[Result], got: Sequence[Result], tolerance: Tolerance, ends: Collection[str]
) -> Alignment:
    """Align two lists of results, each one in the order of its graph.

    Results of the second that are only reordered are left out, but for its outputs, the *ends*.
    """
    partner = {j: i for i, j in match(expected, got)}
    errors = {
        j: max_diff(expected[i].value, got[j].value, tolerance=tolerance, on_mismatch="report")
        for j, i in partner.items()
    }
    before = _before(got, errors)
    pairs = {j: Aligned(expected[partner[j]], got[j], errors[j], before[j]) for j in errors}
    healed = _healed(got, pairs, ends)
    before = _before(got, {j: error for j, error in errors.items() if j not in healed})
    pairs = {j: replace(pair, before=before[j]) for j, pair in pairs.items()}
    ordered = sorted(pairs, key=lambda j: partner[j])
    kept, left = ([pairs[j] for j in ordered if (j in healed) is out] for out in (False, True))
    return Alignment(tuple(kept), len(expected), len(got), tolerance, tuple(left))


def _before(got: Sequence[Result], errors: Mapping[int, Discrepancy]) -> list[float]:
    """Largest error of what each result is computed from; those not aligned pass theirs on."""
    sizes: list[float] = []
    before = []
    for j, result in enumerate(got):
        before.append(max((sizes[parent] for parent in result.parents), default=0.0))
        sizes.append(relative(errors[j]) if j in errors else before[j])
    return before


def _healed(got: Sequence[Result], pairs: Mapping[int, Aligned], ends: Collection[str]) -> set[int]:
    """Find results that are far apart, while all that is computed from them agrees."""
    healed = set[int]()
    after = [0.0] * len(got)  # largest error of the nearest results that agree or not
    for j in reversed(range(len(got))):
        pair, worst = pairs.get(j), after[j]
        if pair is not None and got[j].name not in ends and pair.size > _FAR:
            least = max(pair.before, _rounding(pair.error))
            if worst <= min(_HEALED * least, _FAR * pair.size):
                healed.add(j)
        size = worst if pair is None or j in healed else pair.size
        for parent in got[j].parents:
            after[parent] = max(after[parent], size)
    return healed


def relative(error: Discrepancy) -> float:
    """Return the largest error relative to the largest value; infinite for NaN and shapes."""
    largest = error.ranked("abs")
    if not largest:
        return 0.0
    return float(largest / error.largest) if error.largest else inf


def in_words(error: Discrepancy) -> str:
    """Say the largest error relative to the largest value, or what does not match."""
    return ", ".join(error.mismatches) or f"{relative(error):.3g} times the largest value"


def _rounding(error: Discrepancy) -> float:
    names = [n for n in (error.dtype_expected, error.dtype_got) if n and not is_integer(n)]
    return max((float(arithmetic(name, name).spacing(1.0)) for name in names), default=1.0)


def _named(pair: Aligned) -> str:
    names = dict.fromkeys((pair.expected.node, pair.got.node))
    operators = dict.fromkeys((pair.expected.op, pair.got.op))
    return f"{' / '.join(names)} ({' / '.join(operators)})"
