"""Results of attributions: nodes that make a session and its reference differ."""

import math
from dataclasses import dataclass, field
from typing import Any

import onnx

from ortmeter.attribution.nonfinite import NonFinite
from ortmeter.discrepancy import Discrepancy, ModelDiff, max_diff
from ortmeter.optional import pd

#: The error that ranks nodes: the mean finds those that change all outputs. In 16 bits, the largest
#: error is one or two roundings for every node.
RANKED_BY = "mean absolute error"


@dataclass(frozen=True)
class SessionNode:
    """Contribution of a node of a session to the discrepancy of the outputs.

    Parameters
    ----------
    name : str
        Name of the node, that of its first output when it has none.
    op : str
        Operator, with its domain unless it is the standard one.
    fused : tuple of str
        Nodes fused with it, whose results do not exist in the session.
    own : Discrepancy
        Own error: its outputs in the session, compared with the expected kernel on the same inputs.
    total : Discrepancy
        Total error: its outputs in the session, compared with the expected ones; includes the
        errors of its inputs.
    effect : Discrepancy or None
        Effect on the outputs of the model of its own error alone, in ulp of the types of the
        session. The nodes before it have the results of the session, those after it are computed
        by the expected kernels. None if the search ended before.
    """

    name: str
    op: str
    fused: tuple[str, ...]
    own: Discrepancy
    total: Discrepancy
    effect: Discrepancy | None

    def to_row(self) -> dict[str, Any]:
        """Return the figures for a table.

        Returns
        -------
        dict
            *node*, *op*, *fused*, then the mean absolute error of *own*, *total* and *effect*; NaN
            for what is not known, infinite where NaN, infinities or shapes do not match.
        """
        row = {"node": self.name, "op": self.op, "fused": ", ".join(self.fused)}
        errors = {"own": self.own, "total": self.total, "effect": self.effect}
        return row | {k: math.nan if x is None else x.ranked("mean_abs") for k, x in errors.items()}


@dataclass(frozen=True)
class SessionGroup:
    """Nodes that follow each other, whose effects on the outputs are not told apart.

    Parameters
    ----------
    nodes : tuple of str
        Their names, in the order of the graph.
    effect : Discrepancy
        Effect on the outputs of the model of all their own errors together.
    """

    nodes: tuple[str, ...]
    effect: Discrepancy

    def to_row(self) -> dict[str, Any]:
        """Return the figures for a table.

        Returns
        -------
        dict
            *first* and *last* node, their number, and *effect* as in :meth:`SessionNode.to_row`.
        """
        ends = {"first": self.nodes[0], "last": self.nodes[-1], "nodes": len(self.nodes)}
        return ends | {"effect": self.effect.ranked("mean_abs")}


@dataclass(frozen=True)
class SessionExplanation:
    """Origin of the discrepancy of a session.

    Parameters
    ----------
    nodes : tuple of SessionNode
        One per node whose results exist in the session, in the order of the graph.
    outputs : ModelDiff
        Outputs of the session, compared one by one with the expected ones.
    session : Discrepancy
        The same for all of them together.
    exposed : Discrepancy
        The same for the session whose intermediate results are outputs, which `nodes` explains.
    same_outputs : bool
        Whether both sessions give equal outputs. Reading an intermediate result may disable an
        optimization of ONNX Runtime.
    expected : str
        ``float64``, ``torch`` or ``reference``.
    remaining : tuple of SessionGroup
        Nodes that the search had no time to tell apart, in the order of the graph. With the effects
        of the nodes, theirs add up to the discrepancy of the exposed session, element by element.
    non_finite : tuple of NonFinite
        First nodes that make a value that is not finite from finite inputs, and NaN from
        infinities, when outputs have one or where another value is expected.
    graph : onnx.ModelProto or None
        The nodes that are explained: those of the model, and what its If and Loop run
        instead.
    """

    nodes: tuple[SessionNode, ...]
    outputs: ModelDiff
    session: Discrepancy
    exposed: Discrepancy
    same_outputs: bool
    expected: str
    remaining: tuple[SessionGroup, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    graph: onnx.ModelProto | None = field(default=None, repr=False, compare=False)

    def ranking(self) -> tuple[SessionNode, ...]:
        """Sort the nodes by mean absolute effect on the outputs, the most responsible first.

        Returns
        -------
        tuple of SessionNode
            Nodes that add NaN or infinities to the outputs come first. Ties are sorted by their own
            error, then by order in the graph. Nodes whose effect is not known come last.
        """

        def rank(node: SessionNode) -> tuple[float, ...]:
            effect = (-1, 0) if node.effect is None else severity(node.effect)
            return (*effect, node.own.mean_abs)

        return tuple(sorted(self.nodes, key=rank, reverse=True))

    def to_frame(self) -> "pd.DataFrame":
        """Return one row per node, in the order of the graph.

        Returns
        -------
        pandas.DataFrame
            See :meth:`SessionNode.to_row`.
        """
        return pd.DataFrame([node.to_row() for node in self.nodes])

    @property
    def searched(self) -> int:
        """Number of nodes whose effect on the outputs is known."""
        return sum(node.effect is not None for node in self.nodes)

    @property
    def progress(self) -> str:
        """How far the search went, in one sentence."""
        if not self.remaining:
            return f"all {len(self.nodes)} nodes are searched"
        left, groups = len(self.nodes) - self.searched, len(self.remaining)
        return (
            f"{self.searched} of {len(self.nodes)} nodes are searched; {left} are not, in "
            f"{groups} group{'s' if groups > 1 else ''}"
        )

    def __str__(self) -> str:
        asked = self.session.apart("the session", self.expected)
        if self.same_outputs:
            what = "reading its intermediate results does not change its outputs"
        else:
            what = "reading its intermediate results changes its outputs: " + self.exposed.apart(
                "the session explained here", self.expected
            )
        if not self.nodes or not differing(self.exposed):
            return f"{asked}; {what}"
        first = self.ranking()[0]
        if first.effect is None or (self.remaining and not differing(first.effect)):
            return f"{asked}; {what}; {self.progress}"
        fused = f", fused with {', '.join(first.fused)}" if first.fused else ""
        amounts = map(_amount, (first.effect, self.exposed))
        unit = "" if first.effect.mismatches else f" ({RANKED_BY})"
        effect = f"{' alone of '.join(amounts)}{unit}"
        is_beaten = any(severity(left.effect) > severity(first.effect) for left in self.remaining)
        largest = "largest effect of a node that is searched" if is_beaten else "largest effect"
        told = f"{asked}; {what}; {largest}: {first.name} ({first.op}{fused}), {effect}"
        return f"{told}; {self.progress}" if self.remaining else told


def severity(diff: Discrepancy) -> tuple[float, float]:
    """Sort effects: NaN, infinities and shapes that do not match first, then the mean error."""
    return _mismatches(diff), diff.mean_abs


def _amount(diff: Discrepancy) -> str:
    return ", ".join(diff.mismatches) or f"{diff.mean_abs:.3g}"


def compare(expected: Any, got: Any) -> Discrepancy:
    """Compare outputs; a shape that differs is a discrepancy like another."""
    return max_diff(expected, got, on_mismatch="report")


def differing(diff: Discrepancy) -> int:
    """Return the number of elements that differ, a shape that does counting as one."""
    return diff.histogram[0.0] + _mismatches(diff)


def _mismatches(diff: Discrepancy) -> int:
    """Return the number of NaN and infinities that do not match, and of other shapes."""
    return diff.n_nan + diff.n_inf + int(not diff.same_structure)
