"""Find the fastest of many models within a time budget."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx
import onnx.shape_inference

from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.progress import progress_bar
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing import Measurement, measure

__all__ = ["Race", "race"]

_START_SHARE = 0.4  # of the budget, after which no model is started


class _Stage(NamedTuple):
    """A comparison of the fastest models."""

    most: int  # models
    rounds: int
    share: float  # of the budget, at its end
    precision: float | None  # half-width of the intervals at which it may end before


_STAGES = (_Stage(24, 5, 0.6, None), _Stage(6, 30, 0.9, 0.02))
_RUNS_AROUND = 3  # warm-up and calibration of measure
_WARM_RUNS, _WARM_S = 8, 0.05
_HOPELESS = 2.0  # times the best
_SAMPLE_S = 2e-4  # a sample of measure lasts as long, at least

_Run = Callable[[], None]


class HasModel(Protocol):
    """What runs in a race."""

    @property
    def model(self) -> onnx.ModelProto:
        """The model, made when it is needed."""


@dataclass(frozen=True)
class Race:
    """Times of the models that ran.

    Parameters
    ----------
    measured : mapping of str to Measurement
        Every model that ran, a single sample for those that were left early.
    finalists : tuple of str
        Those that were compared until the end.
    refused : mapping of str to str
        Models without a kernel on the provider, with the reason.
    """

    measured: Mapping[str, Measurement]
    finalists: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def winner(self) -> str:
        """Finalist of lowest first quartile: what disturbs a machine only adds time."""
        return min(self.finalists, key=lambda name: self.measured[name].quartiles[0])


def race(
    models: Mapping[str, HasModel],
    operands: Sequence[Any],
    *,
    baseline: str,
    provider: Provider,
    threads: int,
    budget_s: float,
    seed: int,
) -> Race:
    """Run models, most promising first, and compare the fastest ones more and more precisely.

    Parameters
    ----------
    models : mapping of str to object
        What has a ``model``, most promising first. The first one runs whatever the budget.
    operands : sequence of array
        Inputs of every model, in their order.
    baseline : str
        Model that is compared until the end, unless it takes twice the time of another one.
    provider, threads
        Settings of the sessions.
    budget_s : float
        Seconds for everything. What a single run takes may exceed it.
    seed : int
        Seed of the order in each round.

    Raises
    ------
    ModelError
        No model can run.
    """
    begin = time.perf_counter()
    runs, first, refused = _start(
        models, operands, provider, threads, begin + _START_SHARE * budget_s
    )
    if not runs:
        raise ModelError("; ".join(refused.values()))
    measured = {name: Measurement(name, np.array([[seconds]])) for name, seconds in first.items()}
    finalists = tuple(runs)
    for stage in _STAGES:
        left = begin + stage.share * budget_s - time.perf_counter()
        chosen = _promising(measured, finalists, baseline, stage.most, stage.rounds, left)
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
    return Race(measured, finalists, refused)


def _start(
    models: Mapping[str, HasModel],
    operands: Sequence[Any],
    provider: Provider,
    threads: int,
    deadline: float,
) -> tuple[dict[str, _Run], dict[str, float], dict[str, str]]:
    """Run every model a few times, until the deadline."""
    runs: dict[str, _Run] = {}
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    with progress_bar("models", total=len(models)) as bar:
        for name, candidate in models.items():
            # The next one may be as fast as the fastest so far.
            if runs and time.perf_counter() + 2 * min(seconds.values()) > deadline:
                break
            bar.update()
            try:
                run = _bind(candidate.model, operands, provider, threads)
                seconds[name] = _shortest(run)
            except (OrtMeterError, onnx.shape_inference.InferenceError) as error:
                refused[name] = str(error)
                continue
            runs[name] = run
    return runs, seconds, refused


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


def _bind(
    model: onnx.ModelProto, operands: Sequence[Any], provider: Provider, threads: int
) -> _Run:
    session = make_session(model, provider=provider, threads=threads)
    names = [node.name for node in session.get_inputs()]
    return BoundSession(session, dict(zip(names, operands, strict=True))).run


def _promising(  # noqa: PLR0917 - private
    measured: Mapping[str, Measurement],
    names: Sequence[str],
    baseline: str,
    most: int,
    rounds: int,
    left_s: float,
) -> tuple[str, ...]:
    """Choose the baseline and the fastest, as many as can be compared in the time left."""
    fastest = sorted(names, key=lambda name: measured[name].quartiles[0])
    best = measured[fastest[0]].quartiles[0]
    hopeful = [name for name in fastest if measured[name].quartiles[0] <= _HOPELESS * best]
    chosen: list[str] = []
    spent = 0.0
    for name in sorted(hopeful, key=lambda name: name != baseline):  # the others stay sorted
        latency = measured[name].quartiles[0]
        spent += (rounds + _RUNS_AROUND) * max(latency, _SAMPLE_S)
        if len(chosen) == most or spent > left_s:
            break
        chosen.append(name)
    return tuple(chosen)
