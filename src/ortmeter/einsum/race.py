"""Run models in turn within a budget, and choose the fastest one."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx.shape_inference

from ortmeter.einsum.candidates import EinsumCandidate
from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Measurement, measure
from ortmeter.timing.statistics import wins

_Run: TypeAlias = Callable[[], None]

_START_SHARE = 0.4  # of the budget, after which no model is started
_RUNS_AROUND = 3  # warm-up and calibration of measure
_WARM_RUNS, _WARM_S = 8, 0.05
_HOPELESS = 2.0  # times the best
_SAMPLE_S = 2e-4  # a sample of measure lasts as long, at least


@dataclass(frozen=True)
class Race:
    """Times of the models that ran, a single sample for those that were left early.

    The finalists were compared until the end; those without a kernel were refused for a reason.
    """

    measured: Mapping[str, Measurement]
    finalists: tuple[str, ...]
    refused: Mapping[str, str]
    baseline: str

    @property
    def winner(self) -> str:
        """Finalist that :func:`fastest` chooses."""
        seconds = {name: self.measured[name].seconds for name in self.finalists}
        return fastest(seconds, self.baseline)


def fastest(seconds: Mapping[str, "np.ndarray[Any, Any]"], baseline: str) -> str:
    """Choose the lowest first quartile, since what disturbs a machine only adds time.

    The baseline is preferred to one that does not win more rounds than luck would give it, unless
    it takes twice the time.
    """
    quartile = {name: float(np.quantile(taken, 0.25)) for name, taken in seconds.items()}
    best = min(quartile, key=lambda name: quartile[name])
    if baseline not in seconds or quartile[baseline] > _HOPELESS * quartile[best]:
        return best
    return best if wins(seconds[best], seconds[baseline]) else baseline


class _Stage(NamedTuple):
    """A comparison of the fastest models."""

    most: int  # models
    rounds: int
    share: float  # of the budget, at its end
    precision: float | None  # half-width of the intervals at which it may end before


_STAGES = (_Stage(24, 7, 0.6, None), _Stage(6, 30, 0.9, 0.02))


def race(
    candidates: Mapping[str, EinsumCandidate],
    operands: Sequence[Any],
    *,
    baseline: str,
    provider: Provider,
    budget_s: float,
    seed: int,
) -> Race:
    """Run models, most promising first, and compare the fastest ones more and more precisely.

    The first one runs whatever the budget; the baseline is compared until the end, unless it takes
    twice the time of another one.
    """
    import_optional("onnxruntime", "cpu", "gpu")
    begin = time.perf_counter()
    runs: dict[str, _Run] = {}
    measured: dict[str, Measurement] = {}
    refused: dict[str, str] = {}
    with progress_bar("models", total=len(candidates)) as bar:
        for name, candidate in candidates.items():
            # The next one may be as fast as the fastest so far.
            next_s = 2 * min((found.median for found in measured.values()), default=0.0)
            if runs and time.perf_counter() - begin + next_s > _START_SHARE * budget_s:
                break
            bar.update()
            try:
                session = make_session(
                    candidate.model, provider=provider, threads=candidate.threads
                )
                names = [node.name for node in session.get_inputs()]
                run = BoundSession(session, dict(zip(names, operands, strict=True))).run
                measured[name] = Measurement(name, np.array([[_shortest(run)]]))
            except (OrtMeterError, onnx.shape_inference.InferenceError) as error:
                refused[name] = str(error)
                continue
            runs[name] = run
    if not runs:
        raise ModelError("; ".join(refused.values()))
    finalists = tuple(runs)
    for stage in _STAGES:
        left = begin + stage.share * budget_s - time.perf_counter()
        chosen = _promising(measured, finalists, baseline, stage, left)
        if len(chosen) < 2:  # noqa: PLR2004 - nothing to compare
            break
        finalists = chosen
        measured |= measure(
            {name: runs[name] for name in chosen},
            repeat=stage.rounds,
            warmup=1,
            precision=stage.precision,
            budget_s=left,
            seed=seed,
        )
    return Race(measured, finalists, refused, baseline)


def _shortest(run: _Run) -> float:
    """Time of the shortest of a few runs, of one when it is long: the first ones are cold."""
    best, spent = math.inf, 0.0
    for _ in range(_WARM_RUNS):
        begin = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begin)
        spent += best
        if spent > _WARM_S:
            break
    return best


def _promising(
    measured: Mapping[str, Measurement],
    names: Sequence[str],
    baseline: str,
    stage: _Stage,
    left_s: float,
) -> tuple[str, ...]:
    """Choose the baseline and the fastest, as many as can be compared in the time left."""
    quartile = {name: measured[name].quartiles[0] for name in names}
    hopeful = [x for x in names if quartile[x] <= _HOPELESS * min(quartile.values())]
    chosen: list[str] = []
    spent = 0.0
    for name in sorted(hopeful, key=lambda name: (name != baseline, quartile[name])):
        spent += (stage.rounds + _RUNS_AROUND) * max(quartile[name], _SAMPLE_S)
        if len(chosen) == stage.most or spent > left_s:
            break
        chosen.append(name)
    return tuple(chosen)
