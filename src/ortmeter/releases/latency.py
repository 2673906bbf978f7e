"""Interleave several releases of ONNX Runtime on models, and find the one that changed."""

import functools
import itertools
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ortmeter.errors import InvalidArgumentError, ModelError, OrtMeterError
from ortmeter.evidence import Speedup, Speedups
from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess, write_questions
from ortmeter.runtime.settings import spins
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.loop import measure_here
from ortmeter.timing.measurement import Candidate
from ortmeter.timing.processes import collect, measure_isolated, share_budget
from ortmeter.timing.statistics import PROCESSES

__all__ = ["ReleaseClaims", "ReleaseResults", "compare_releases", "measure_releases"]

_ROUNDS = 12
_LEAST_S = 0.2  # for rounds, when processes took long to start


@dataclass(frozen=True)
class ReleaseResults:
    """What releases measured.

    Parameters
    ----------
    comparisons : mapping of str to Comparison
        For each variant, the latency of each release that runs it.
    versions : mapping of str to mapping
        For each release, the versions of ``onnxruntime`` and ``numpy`` in its environment.
    left_out : mapping
        For a variant and a release, why it was not measured.
    outputs : mapping
        For a variant and a release that runs it, the outputs that are arrays of numbers, by name.
    """

    comparisons: Mapping[str, Comparison]
    versions: Mapping[str, Mapping[str, str]]
    left_out: Mapping[tuple[str, str], str]
    outputs: Mapping[tuple[str, str], Mapping[str, np.ndarray]]


def measure_releases(
    releases: Sequence[Release],
    variants: Mapping[str, SessionSpec],
    *,
    processes: int = PROCESSES,
    repeat: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
) -> ReleaseResults:
    """Interleave each variant with each release, and a reference workload, in one loop.

    Where the threads of a variant spin after a run, its releases are measured apart.

    Parameters
    ----------
    releases : sequence of Release
        Their environments exist, see ``ortmeter.releases.environments.prepare``.
    variants : mapping of str to SessionSpec
        Models with their inputs and settings.
    processes : int
        Sets of fresh processes, one process per release in each, for Student's intervals.
    repeat, precision, budget_s
        As in :func:`~ortmeter.timing.measure`.

    Returns
    -------
    ReleaseResults
        One comparison per variant that a release runs.

    Raises
    ------
    InvalidArgumentError
        A setting or an input cannot be given to another process, or two releases share a name.
    ModelError
        No release runs any variant.
    OrtMeterError
        A process died while it was measured, or hung.
    """
    if len({release.name for release in releases}) < len(releases) or not releases:
        raise InvalidArgumentError(
            f"releases {', '.join(r.name for r in releases) or '(none)'}. Accepted: distinct ones"
        )
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        questions = write_questions(variants, Path(temporary))
        tried = _try_each(releases, questions, Path(temporary))
        able = {n: [r for r in releases if (n, r.name) in tried.outputs] for n in questions}
        able = {name: found for name, found in able.items() if found}
        if not able:
            raise ModelError("no release runs this model. " + ". ".join(tried.left_out.values()))

        def measure(i: int, name: str, budget: float) -> Comparison:
            ask = functools.partial(_measure_once, question=questions[name], repeat=repeat, seed=i)
            if len(able[name]) == 1 or not spins(variants[name].settings):
                return ask(able[name], budget)
            alone = {one.name: functools.partial(ask, [one]) for one in able[name]}
            return measure_isolated(alone, budget_s=budget, seed=i)

        def run(i: int, names: Sequence[str], budget: float) -> Mapping[str, Comparison]:
            return share_budget(names, budget, functools.partial(measure, i))

        comparisons = collect(
            list(able),
            run,
            processes=processes,
            precision=precision,
            budget_s=max(begin + budget_s - time.perf_counter(), 0.0),
        )
    return replace(tried, comparisons=comparisons)


def _measure_once(
    releases: Sequence[Release],
    budget_s: float,
    *,
    question: Mapping[str, Any],
    repeat: int | None,
    seed: int,
) -> Comparison:
    """Interleave releases, each in a fresh process."""
    ends = time.perf_counter() + budget_s
    with ExitStack() as stack:
        candidates = {}
        for release in releases:
            child = stack.enter_context(ReleaseProcess(release))
            child.open(question)
            candidates[release.name] = Candidate(child)
        return measure_here(
            candidates,
            repeat=repeat or _ROUNDS,
            precision=None,
            budget_s=max(ends - time.perf_counter(), _LEAST_S),
            seed=seed,
            reference_workload=True,
        )


def _try_each(
    releases: Sequence[Release], questions: Mapping[str, Mapping[str, Any]], folder: Path
) -> ReleaseResults:
    """Run each variant once with each release: what fails is left out, the others go on."""
    versions, left_out, outputs = {}, {}, {}
    for release, (name, question) in itertools.product(releases, questions.items()):
        # A model that kills its process does not keep the others from running.
        with ReleaseProcess(release) as child:
            versions[release.name] = child.ask("describe")
            try:
                child.open(question)
                outputs[name, release.name] = child.outputs(folder)
            except OrtMeterError as error:
                left_out[name, release.name] = str(error)
    return ReleaseResults({}, versions, left_out, outputs)


@dataclass(frozen=True)
class ReleaseClaims:
    """The last release beside the first one, and each one beside the one before it.

    Their intervals hold together at the level that was asked for.

    Parameters
    ----------
    overall : Speedup
        The last release over the first.
    steps : Speedups
        Each release over the one before it, empty for two releases.

    Examples
    --------
    >>> from ortmeter.timing.measurement import Measurement
    >>> times = {"1.24.1": 1.0, "1.27.0": 1.5, "1.31.1": 1.5}
    >>> found = Comparison(Measurement(n, np.full((5, 9), t)) for n, t in times.items())
    >>> compare_releases(found).largest.effect
    '1.50 times slower [1.50, 1.50] (99.67% CI)'
    """

    overall: Speedup
    steps: Speedups

    @property
    def largest(self) -> Speedup:
        """The difference that is surest and largest; the overall comparison when there is none."""
        found = Speedups(one for one in (self.overall, *self.steps) if one.is_difference)
        return found.largest if found else self.overall


def compare_releases(found: Comparison) -> ReleaseClaims | None:
    """Compare releases in the order in which they were given.

    Parameters
    ----------
    found : Comparison
        Latencies of one model by release, see :func:`measure_releases`.

    Returns
    -------
    ReleaseClaims or None
        All intervals hold together at 99%; None when there is one release only.

    Examples
    --------
    >>> from ortmeter.timing import Measurement
    >>> seconds = {"1.24.1": 2e-3, "1.30.0": 1e-3, "1.31.1": 1e-3}
    >>> samples = [Measurement(name, np.full((5, 8), each)) for name, each in seconds.items()]
    >>> compare_releases(Comparison(samples)).overall.effect
    '2.00 times faster [2.00, 2.00] (99.67% CI)'
    """
    names = list(found)
    if len(names) == 1:
        return None
    pairs = list(itertools.pairwise(names)) if len(names) > 2 else []  # noqa: PLR2004 - a pair
    each = 1 - 0.01 / (len(pairs) + 1)
    overall = found.speedup(names[0], names[-1], confidence=each)
    steps = Speedups(found.speedup(*pair, confidence=each) for pair in pairs)
    return ReleaseClaims(overall, steps)
