"""Refuse what changes the outputs, before the clock: on all inputs, other draws, edges of sizes.

A candidate that is said to be exact may be as far from float64 as the default is, times a few
roundings. Each one runs in a process that it may kill.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, Self

import ml_dtypes
import msgspec
import numpy as np

from ortmeter.child import Child, ChildError
from ortmeter.discrepancy import max_diff
from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.evaluator.float64 import exact_feeds, to_float64
from ortmeter.evaluator.judges import evaluated, installed_sources
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.inputs import declared_inputs
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.loading import load_model
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.tuning.space import Setup

_Feeds = Mapping[str, Any]

# Two ways to add the same numbers differ by so many roundings of the largest value, and are so many
# times as far from float64 as one another.
_ROUNDINGS, _TIMES = 16, 4
_SAME = 1e-3  # of two runs of one session
_DRAWS = 2


class Examined(msgspec.Struct, frozen=True):
    """What the outputs of a candidate say.

    Parameters
    ----------
    error : float
        Largest error over the largest value of its output.
    reason : str
        Why it is refused, empty if it is not.
    checks : int
        Inputs on which it was compared.
    differs : int, optional
        Rank of the inputs on which it gives other results than roundings explain.
    """

    error: float
    reason: str = ""
    checks: int = 0
    differs: int | None = None


def vary_feeds(model: Any, samples: Sequence[_Feeds]) -> list[dict[str, Any]]:
    """Return other inputs: drawn like the first sample, then of the edges of its free sizes.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    samples : sequence of mapping of str to array
        Inputs.

    Returns
    -------
    list of dict of str to array
        The default may refuse some: each free size is 1, and one more than in the sample.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Y = Abs(X) }'''
    >>> [feeds["X"].size for feeds in vary_feeds(text, [{"X": np.ones(3, np.float32)}])]
    [3, 3, 1, 4]
    """
    first = {name: as_numpy(value) for name, value in samples[0].items()}
    rngs = map(np.random.default_rng, range(_DRAWS))
    found = [{name: _drawn_like(array, rng) for name, array in first.items()} for rng in rngs]
    places: dict[object, list[tuple[str, int]]] = {}
    for declared in declared_inputs(load_model(model)):
        for rank, size in enumerate(declared.sizes):
            if not isinstance(size, int):
                places.setdefault(size or (declared.name, rank), []).append((declared.name, rank))
    for where in places.values():
        name, rank = where[0]
        size = first[name].shape[rank]
        for other in {1, size + 1} - {size}:
            resized = dict(first)
            for at, axis in where:
                shape = [*resized[at].shape]
                shape[axis] = other
                resized[at] = np.resize(resized[at], shape)
            found.append(resized)
    return found


def _drawn_like(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw numbers of the same mean and spread; integers may be indices, and stay."""
    if array.dtype.kind != "f" or not np.isfinite(array).all() or not array.size:
        return array
    spread = float(array.std()) or 1.0
    return np.asarray(rng.normal(float(array.mean()), spread, array.shape)).astype(array.dtype)


class Guard:
    """Compares candidates with the default, each in a process that it may kill.

    Parameters
    ----------
    default : SessionSpec
        The model and its plain session.
    samples : sequence of mapping of str to array
        Inputs, those that calibrated nothing first.
    held_out : int, optional
        How many calibrated nothing, by default all.

    Raises
    ------
    ModelError
        The default does not run, or two runs of it differ: nothing could be compared.
    """

    def __init__(
        self, default: SessionSpec, samples: Sequence[_Feeds], held_out: int | None = None
    ) -> None:
        self._temporary = TemporaryDirectory(prefix="ortmeter-")
        self.folder = Path(self._temporary.name)
        self._child: Child | None = None
        self._given, self._held_out = len(samples), held_out or len(samples)
        self.fed = [*samples, *vary_feeds(default.model, samples)]
        self._default = [self._write(dataclasses.replace(default, feeds=f)) for f in self.fed]
        self._plain, self.checks = Setup(default), 0

    def __enter__(self) -> Self:
        again = self.examine(self._plain)
        self.checks, reason = again.checks, again.reason
        if _SAME < again.error < math.inf:  # draws may be beyond roundings too
            reason = f"two runs differ by {again.error:.2g}"
        if reason:
            self.__exit__()
            raise ModelError(f"the model with its default settings cannot be a reference: {reason}")
        return self

    def __exit__(self, *_error: object) -> None:
        self._end()
        self._temporary.cleanup()

    def examine(self, setup: Setup, most: float | None = None) -> Examined:
        """Compare a candidate with the default.

        Parameters
        ----------
        setup : Setup
            The candidate.
        most : float, optional
            Largest error of a candidate that changes values, none if it may not be chosen.

        Returns
        -------
        Examined
            Its error, and why it is refused.
        """
        self._child = self._child or Child(name="the process that ran it")
        takes_one = any(change.axis == "shapes" for change in setup.changes)
        kept = self._given if takes_one else len(self.fed)
        try:
            found: Examined = self._child.ask(
                examine_here,
                candidate=self._write(setup.spec),
                default=self._default[: kept if setup.is_exact else self._held_out],
                given=self._given,
                is_exact=setup.is_exact,
            )
        except ChildError as error:
            self._end()
            return Examined(math.inf, first_line(error))
        except (OrtMeterError, MemoryError) as error:
            return Examined(math.inf, f"fails: {first_line(error)}")
        if not found.reason and not setup.is_exact and most is not None and found.error > most:
            return msgspec.structs.replace(found, reason=f"error {found.error:.2g}, over {most:g}")
        return found

    def _write(self, spec: SessionSpec) -> SpawnSpec:
        return spec.spawn_spec(Path(mkdtemp(dir=self.folder)))

    def _end(self) -> None:
        if self._child is not None:
            self._child.__exit__(None)
        self._child = None


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:160]


# What the default gave on each of its inputs, in the process of the guard: outputs, and what is
# nearer to the truth, once somebody needed it.
_outputs: dict[int, Mapping[str, Any]] = {}
_truths: dict[int, Mapping[str, Any]] = {}


def examine_here(
    candidate: SpawnSpec, default: list[SpawnSpec], given: int, is_exact: bool
) -> Examined:
    """Run a candidate on the inputs of the default, and compare: the child's part."""
    spec: SessionSpec = candidate.build()
    session, worst, checks = spec.session(), 0.0, 0
    for rank, spawn_spec in enumerate(default):
        plain: SessionSpec = spawn_spec.build()
        feeds = plain.feeds
        if rank not in _outputs:
            try:
                _outputs[rank] = run_session(plain.session(), feeds, bound=plain.bound)
            except OrtMeterError:
                if rank < given:
                    raise
                _outputs[rank] = {}  # an edge that the model does not take
        if not (expected := _outputs[rank]):
            continue
        try:
            got = run_session(session, feeds, spec.run_config, bound=spec.bound)
        except OrtMeterError as error:
            shapes = ", ".join(f"{n} {'x'.join(map(str, np.shape(a)))}" for n, a in feeds.items())
            return Examined(math.inf, f"fails on {shapes}: {first_line(error)}", checks)
        checks += 1
        errors = {name: _error(array, got.get(name)) for name, array in expected.items()}
        worst = max(worst, *errors.values(), 0.0)
        reason = "types, shapes, NaN or infinities differ" if math.isinf(worst) else ""
        allowed = {n: _ROUNDINGS * _rounding(array) for n, array in expected.items()}
        for name in [n for n in allowed if is_exact and errors[n] > allowed[n] and not reason]:
            truth = _truth(rank, plain)[name]
            own, other = (_error(truth, o[name], typed=False) for o in (expected, got))
            if not other <= _TIMES * own + allowed[name]:
                reason = f"error {errors[name]:.2g}, more than roundings explain"
        if reason:
            return Examined(worst, reason, checks, rank if is_exact else None)
    return Examined(worst, "", checks)


def _error(expected: Any, got: Any, *, typed: bool = True) -> float:
    """Return the largest error over the largest value, infinite if they cannot be compared."""
    found = max_diff(expected, got, on_mismatch="report")
    if typed and any(one.kind == "dtype" for one in found.differences):
        return math.inf
    return float(found.ranked("abs")) / (float(found.largest) or 1.0)


def _rounding(array: Any) -> float:
    """Return the relative rounding of a type, none for what is no floating-point number."""
    with suppress(ValueError, AttributeError):
        return float(ml_dtypes.finfo(array.dtype).eps)
    return 0.0


def _truth(rank: int, plain: SessionSpec) -> Mapping[str, Any]:
    """Return the outputs in float64, or those that nothing optimized where that cannot run."""
    if rank not in _truths:
        model = load_model(plain.model)
        try:
            wide = to_float64(model)
            given = exact_feeds(model, wide, plain.feeds)
            _truths[rank] = evaluated(wide, given, (*installed_sources(), "ort")).outputs
        except (OrtMeterError, MemoryError):
            session = make_session(plain.model, **{**plain.settings, "optimization": "none"})
            _truths[rank] = run_session(session, plain.feeds, bound=plain.bound)
    return _truths[rank]
