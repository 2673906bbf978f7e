"""Find the graph optimizations that make the outputs of a session differ from the unoptimized."""

import functools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ortmeter.attribution.reduction import minimal
from ortmeter.attribution.result import differing
from ortmeter.discrepancy import Discrepancy, Tolerance, max_diff
from ortmeter.discrepancy.models import ModelDiff, compare_outputs
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.progress import progress_bar
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import ModelLike
from ortmeter.runtime.optimizers import Optimizer, optimizers_of, rewriting_rules, without
from ortmeter.runtime.placement import enumerate_some
from ortmeter.runtime.sessions import make_session

_LEVELS = ("basic", "extended", "layout", "all")


@dataclass(frozen=True)
class OptimizerExplanation:
    """Graph optimizations responsible for a discrepancy.

    Parameters
    ----------
    levels : mapping of str to ModelDiff
        Outputs at each level up to the requested one, compared with the unoptimized ones.
    level : str or None
        First level whose outputs differ, None if all give the same.
    optimizers : mapping of str to str
        Minimal set, each one with the level that enables it: without them the outputs are the
        unoptimized ones, and with any of them they are not. Empty when the levels do not differ, or
        when the search had no time to end. ``optimization.disable_specified_optimizers`` takes
        their names.
    remaining : Discrepancy
        Outputs without them, compared with the unoptimized ones.
    repeated : Discrepancy
        Outputs of the unoptimized session created and run twice: 0 if it is deterministic.
    n_candidates : int
        Optimizers that ran.
    undecided : tuple of str
        Optimizers among which some are responsible, when the search had no time to tell which.
    """

    levels: Mapping[str, ModelDiff]
    level: str | None
    optimizers: Mapping[str, str]
    remaining: Discrepancy
    repeated: Discrepancy
    n_candidates: int
    undecided: tuple[str, ...] = ()

    @property
    def outputs(self) -> ModelDiff:
        """Outputs at the requested level, the last one, compared with the unoptimized ones."""
        return list(self.levels.values())[-1]

    def __str__(self) -> str:
        if differing(self.repeated):
            return "the unoptimized session differs from itself: nothing can be concluded"
        if self.level is None:
            return "no optimization changes the outputs"
        since = f"the outputs change from level {self.level} on"
        if not self.n_candidates:
            return f"{since}; optimizers are not searched"
        if self.undecided:
            return (
                f"{since}; the time was up when {len(self.undecided)} of {self.n_candidates} "
                f"optimizers were left: {enumerate_some(self.undecided)}"
            )
        if not self.optimizers:
            return (
                f"{since}, but none of the {self.n_candidates} optimizers that can be disabled is "
                "responsible"
            )
        named = ", ".join(f"{name} ({level})" for name, level in self.optimizers.items())
        told, rest = ("changes", "it") if len(self.optimizers) == 1 else ("change", "them")
        unoptimized = "the outputs are the same as without optimization"
        left = str(self.remaining) if differing(self.remaining) else unoptimized
        return f"{named} {told} the outputs: without {rest}, {left}"


def explain_optimization(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    optimization: str = "all",
    tolerance: Tolerance | None = None,
    budget_s: float = 20.0,
    **session: Any,
) -> OptimizerExplanation:
    """Find the graph optimizations that make the outputs differ from the unoptimized ones.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs of the model.
    optimization : {"basic", "extended", "layout", "all"}
        Level that is compared with the unoptimized graph.
    tolerance : Tolerance, optional
        Outputs within it are the same. By default, all values must be equal.
    budget_s : float
        Seconds for the search of the optimizers at most, once each level has run; 0 for none.
    **session
        Other settings of both sessions, see :func:`~ortmeter.runtime.sessions.make_session`.

    Returns
    -------
    OptimizerExplanation
        Each level compared with none, and the optimizers responsible.

    Raises
    ------
    InvalidArgumentError
        The level, or *budget_s*, is not accepted.
    ModelError, FeedError, ProviderUnavailableError
        As for :func:`~ortmeter.runtime.sessions.make_session`.

    Notes
    -----
    The optimizers that ran are read in the log of ONNX Runtime. Those that can be enabled again
    without a difference are removed, by halves, then quarters [1]_: the set that is left is
    minimal. When it has the optimizer of small rules, the search goes on among its rules.

    References
    ----------
    .. [1] Zeller and Hildebrandt, *Simplifying and isolating failure-inducing input*, IEEE
       Transactions on Software Engineering 28(2), 2002.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Abs(Z) }'''
    >>> found = explain_optimization(text, {"X": np.float32([1])}, provider="cpu")
    >>> found.level is None, print(found)
    no optimization changes the outputs
    (True, None)
    """
    if optimization not in _LEVELS:
        raise InvalidArgumentError(
            f"optimization={optimization!r} is compared with none. Accepted: {', '.join(_LEVELS)}"
        )
    if not 0 <= budget_s < math.inf:
        raise InvalidArgumentError(f"budget_s={budget_s!r}. Accepted: a finite number >= 0")
    search = _OptimizerSearch(model, feeds, optimization, tolerance or Tolerance(), session)
    reached = _LEVELS[: _LEVELS.index(optimization) + 1]
    outputs = {name: search.run(level=name) for name in reached}
    levels = {
        name: compare_outputs(search.expected, got, tolerance) for name, got in outputs.items()
    }
    level = next((name for name, got in outputs.items() if not search.same(got)), None)
    repeated = search.apart(search.run(level="none"))
    responsible: dict[str, str] = {}
    undecided: tuple[str, ...] = ()
    remaining = search.apart(outputs[optimization])
    candidates: Sequence[Optimizer] = ()
    if not search.same(outputs[optimization]) and not differing(repeated) and budget_s > 0:
        candidates = optimizers_of(model, optimization=optimization, **session)
        responsible = search.responsible(candidates, budget_s)
        names = list(responsible)
        remaining = search.apart(search.run(names))
        if search.is_late:
            undecided, responsible = tuple(names), {}
    return OptimizerExplanation(
        levels, level, responsible, remaining, repeated, len(candidates), undecided
    )


def find_failing(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    optimization: str = "all",
    **session: Any,
) -> list[str]:
    """Find optimizers without which a model runs that fails with them, as few as possible.

    None if it runs, or if it fails without optimization too. Settings are those of
    :func:`explain_optimization`.
    """

    def runs(names: Collection[str], level: str = optimization) -> bool:
        settings = without({**session, "optimization": level}, names)
        with suppress(ModelError):
            run_session(make_session(model, **settings), feeds)
            return True
        return False

    if optimization == "none" or runs(()) or not runs((), "none"):
        return []
    suspects: list[str] = []
    while not runs(suspects):  # without some, others run that did not
        ran = optimizers_of(
            model, refused=True, optimization=optimization, **without(session, suspects)
        )
        left = {one.name: one.changed for one in ran if one.name not in suspects}
        if not left:
            return []
        suspects += [name for name, changed in left.items() if changed] or left
    return minimal(suspects, runs)


@dataclass
class _OptimizerSearch:
    """Outputs of sessions without some optimizers, compared with the unoptimized ones."""

    model: ModelLike
    feeds: Mapping[str, Any]
    optimization: str
    tolerance: Tolerance
    session: Mapping[str, Any]
    is_late: bool = False

    @functools.cached_property
    def expected(self) -> dict[str, Any]:
        return self.run(level="none")

    def run(self, disabled: Collection[str] = (), level: str = "") -> dict[str, Any]:
        asked = {**self.session, "optimization": level or self.optimization}
        return run_session(make_session(self.model, **without(asked, disabled)), self.feeds)

    def same(self, outputs: Mapping[str, Any]) -> bool:
        return self.tolerance.check(self.apart(outputs)).passed

    def apart(self, outputs: Mapping[str, Any]) -> Discrepancy:
        expected, got = [self.expected[name] for name in outputs], list(outputs.values())
        return max_diff(expected, got, tolerance=self.tolerance, on_mismatch="report")

    def responsible(self, candidates: Sequence[Optimizer], budget_s: float) -> dict[str, str]:
        """Find a set of optimizers without which the outputs are the unoptimized ones.

        It is minimal, unless the time is up before.
        """
        end = time.perf_counter() + budget_s
        levels = {optimizer.name: optimizer.level for optimizer in candidates}

        def restores(names: Sequence[str]) -> bool:
            bar.update()
            return self.same(self.run(names))

        def still_restores(names: Sequence[str], kept: Sequence[str] = ()) -> bool:
            self.is_late = self.is_late or time.perf_counter() >= end
            return not self.is_late and restores([*kept, *names])

        with progress_bar("optimizers", total=0) as bar:
            changed = [optimizer.name for optimizer in candidates if optimizer.changed]
            # With those that changed the graph disabled, others may change it.
            suspects = next((names for names in (changed, list(levels)) if restores(names)), [])
            needed = minimal(suspects, still_restores)
            for group in [o.name for o in candidates if o.has_rules and o.name in needed]:
                others = [name for name in needed if name != group]
                rules = [rule for rule in rewriting_rules() if rule not in levels]
                if still_restores([*others, *rules]):
                    rules = minimal(rules, functools.partial(still_restores, kept=others))
                    levels |= dict.fromkeys(rules, levels[group])
                    needed = [*others, *rules]
        return {name: levels[name] for name in needed}
