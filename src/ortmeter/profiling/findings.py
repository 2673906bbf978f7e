"""Pieces of advice, what the checks that give them read, and trials of what they advise."""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import pandas as pd

from ortmeter.errors import OrtMeterError
from ortmeter.evidence import Speedup
from ortmeter.profiling.record import Profile
from ortmeter.profiling.run import Settings
from ortmeter.timing import measure
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.statistics import MIN_ROUNDS

_TRIAL_S = 4.0
_FIRST_LOOK = 10


@dataclass(frozen=True)
class Advice:
    """Something to try, with the nodes concerned and the evidence.

    Parameters
    ----------
    topic : str
        What it is about: ``copies between providers``.
    nodes : tuple of str
        Nodes of the graph that ran, longest first; empty when all are concerned.
    evidence : str
        What was measured or read, one or more sentences without the last period.
    advice : str
        What to try, in the same form.
    share : float or None
        Time that it could save at most, as a part of *of*, from 0 to 1; None when it is not known,
        or not that of a steady run.
    of : str
        What the share is a part of: ``kernel time``, ``a run``.
    """

    topic: str
    nodes: tuple[str, ...]
    evidence: str
    advice: str
    share: float | None
    of: str = "kernel time"

    @property
    def bound(self) -> str:
        """The share in words: ``at most 12% of kernel time``."""
        return "unknown" if self.share is None else f"at most {self.share:.0%} of {self.of}"

    def __str__(self) -> str:
        bound = "" if self.share is None else f" ({self.bound})"
        return f"{self.topic}{bound}: {self.evidence}. Try: {self.advice}"


@dataclass(frozen=True)
class Facts:
    """What the checks read."""

    profile: Profile
    feeds: Mapping[str, Any] | None
    settings: Settings = field(default_factory=Settings)

    @functools.cached_property
    def nodes(self) -> pd.DataFrame:
        return self.profile.by_node().sort_values("median", ascending=False)

    @property
    def ran(self) -> Sequence[onnx.NodeProto]:
        return self.profile.model.graph.node if self.profile.model else ()

    @functools.cached_property
    def written(self) -> Mapping[str, onnx.NodeProto]:
        """Nodes of the original model."""
        original = self.profile.original
        return {node.name: node for node in original.graph.node} if original else {}

    @property
    def of(self) -> str:
        return "launch time" if self.profile.devices else "kernel time"

    @property
    def run_us(self) -> float:
        """Latency of a run without the profiler, or with it when it is all that is known."""
        if taken := self.profile.latencies:
            return taken[self.profile.name].median * 1e6
        return float(self.profile.steady_runs["duration"].median())

    def named(self, names: Collection[str]) -> pd.DataFrame:
        return self.nodes[self.nodes["name"].astype(str).isin(set(names))]

    def ops(self, ops: Collection[str]) -> pd.DataFrame:
        return self.nodes[self.nodes["op"].astype(str).isin(set(ops))]

    def finding(self, topic: str, rows: pd.DataFrame, evidence: str, advice: str) -> Advice:
        names = tuple(rows["name"].astype(str))
        return Advice(topic, names, evidence, advice, float(rows["share"].sum()), self.of)


def trial(facts: Facts, how: str, changed: onnx.ModelProto) -> str | None:
    """Say what a change brings: empty when it cannot be measured, None when it is no gain."""
    if (claim := gain(facts, changed)) is None:
        return ""
    helps = claim.verdict == "faster" or (claim.verdict == "undecided" and (claim.ratio or 0) > 1)
    return f". With {how}: {claim.effect}" if helps else None


def gain(facts: Facts, changed: onnx.ModelProto) -> Speedup | None:
    """Measure the changed model beside what it is, on the CPU.

    None without inputs, or when the model cannot run so.
    """
    model, feeds = facts.profile.original, facts.feeds
    if model is None or feeds is None:
        return None
    common: dict[str, Any] = {**facts.settings, "provider": "cpu"}
    run_config = common.pop("run_config", {})
    plain = SessionSpec(model, feeds, common, run_config)
    other = SessionSpec(changed, feeds, common, run_config)
    try:
        calls = {"as it is": plain.candidate(), "changed": other.candidate()}
        # A few rounds show that most changes bring nothing.
        for repeat in (_FIRST_LOOK, MIN_ROUNDS):
            measured = measure(calls, repeat=repeat, precision=None, budget_s=_TRIAL_S)
            if (measured.speedups()[-1].ratio or 0) <= 1:
                break
    except OrtMeterError:
        return None
    return measured.speedups()[-1]


def count(rows: pd.DataFrame) -> str:
    """Write how many nodes of each operator: ``3 Cast, 1 Mul``."""
    return ", ".join(f"{n} {op}" for op, n in rows["op"].astype(str).value_counts().items())
