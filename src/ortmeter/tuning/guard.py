"""Refuse what changes the outputs, before the clock: on all inputs, other draws, edges of sizes.

A candidate that is said to be exact may be as far from float64 as the default is, times a few
roundings. Each one runs in a process that it may kill.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import ml_dtypes
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
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.tuning.space import Setup

_Feeds = Mapping[str, Any]

# Two ways to add the same numbers differ by so many roundings of the largest value, and are so many
# times as far from float64 as one another.
_ROUNDINGS, _TIMES = 16, 4
_SAME = 1e-3  # of two runs of one session
_DRAWS = 2
_NO_REFERENCE = "the model with its default settings cannot be a reference: "


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


class Guard(ExitStack):
    """Compares candidates with the default, each in a process that it may kill.

    Parameters
    ----------
    default : SessionSpec
        The model and its plain session.
    samples : sequence of mapping of str to array
        Inputs, those that calibrated nothing first.
    held_out : int
        How many calibrated nothing.
    """

    def __init__(self, default: SessionSpec, samples: Sequence[_Feeds], held_out: int) -> None:
        super().__init__()
        self.folder = Path(self.enter_context(TemporaryDirectory(prefix="ortmeter-")))
        self._plain, self._samples, self._held_out = default, samples, held_out
        self._child: Child | None = None
        #: The default on each of the inputs that it takes: the samples, then others.
        self.references: list[SpawnSpec] = []

    def refer(self) -> None:
        """Run the default on each of the inputs, before a candidate is examined.

        Raises
        ------
        ModelError
            It does not run on a sample, or two runs differ: nothing could be compared.
        """
        for feeds in [*self._samples, *vary_feeds(self._plain.model, self._samples)]:
            reference = self._write(replace(self._plain, feeds=feeds))
            try:
                self._ask(refer_here, default=reference)
            except OrtMeterError as error:
                if len(self.references) < len(self._samples):
                    raise ModelError(_NO_REFERENCE + first_line(error)) from error
                continue  # an edge that the model does not take
            self.references.append(reference)

    def examine(self, setup: Setup) -> Setup:
        """Compare a candidate with the default.

        Parameters
        ----------
        setup : Setup
            The candidate.

        Returns
        -------
        Setup
            The same with its error, and why it is refused, if it is.
        """
        count = len(self.references) if setup.is_exact else self._held_out
        if any(change.axis == "shapes" for change in setup.changes):  # it takes no others
            count = min(count, len(self._samples))
        try:
            asked = {"candidate": self._write(setup.spec), "default": self.references[:count]}
            error, reason, rank = self._ask(examine_here, **asked, is_exact=setup.is_exact)
        except (OrtMeterError, MemoryError) as failure:
            return replace(setup, outcome=f"fails: {first_line(failure)}", error=math.inf)
        feeds = None if rank is None else self.references[rank].build().feeds
        return replace(setup, outcome=reason, error=error, feeds=feeds)

    def _write(self, spec: SessionSpec) -> SpawnSpec:
        return spec.spawn_spec(Path(mkdtemp(dir=self.folder)))

    def _ask(self, what: Any, **arguments: Any) -> Any:
        """Ask the process, another one if it died."""
        self._child = self._child or self.enter_context(Child(name="the process that ran it"))
        try:
            return self._child.ask(what, **arguments)
        except ChildError:
            self._child = None
            raise


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:160]


class _Reference:
    """The default on one of its inputs: what it gives, and what is nearer to the truth."""

    def __init__(self, spec: SessionSpec) -> None:
        self.spec, session = spec, spec.session()
        self.outputs, again = (run_session(session, spec.feeds, bound=False) for _ in range(2))
        differ = max((_error(array, again[n]) for n, array in self.outputs.items()), default=0.0)
        if differ > _SAME:
            raise ModelError(f"two runs differ by {differ:.2g}")

    @cached_property
    def truth(self) -> Mapping[str, Any]:
        """The outputs in float64, or those that nothing optimized where that cannot run."""
        model, feeds = load_model(self.spec.model), self.spec.feeds
        try:
            wide = to_float64(model)
            given = exact_feeds(model, wide, feeds)
            return evaluated(wide, given, (*installed_sources(), "ort")).outputs
        except (OrtMeterError, MemoryError):
            settings = {**self.spec.settings, "optimization": "none"}
            return replace(self.spec, settings=settings).outputs()


# Those of the process of the guard, by the files of their inputs.
_references: dict[str, _Reference] = {}


def refer_here(default: SpawnSpec) -> None:
    """Run the default on one of its inputs, if it was not run: the child's part."""
    key = repr(default.arguments["feeds"])
    if key not in _references:
        _references[key] = _Reference(default.build())


def examine_here(
    candidate: SpawnSpec, default: list[SpawnSpec], is_exact: bool
) -> tuple[float, str, int | None]:
    """Compare a candidate with the default on each input: the child's part.

    The answer is the largest error, why it is refused, and the rank of the inputs that show it.
    """
    spec: SessionSpec = candidate.build()
    session, worst = spec.session(), 0.0
    for rank, plain in enumerate(default):
        refer_here(plain)
        reference = _references[repr(plain.arguments["feeds"])]
        expected, feeds = reference.outputs, reference.spec.feeds
        try:
            got = run_session(session, feeds, bound=spec.bound)
        except OrtMeterError as error:
            shapes = ", ".join(f"{n} {'x'.join(map(str, np.shape(a)))}" for n, a in feeds.items())
            return math.inf, f"fails on {shapes}: {first_line(error)}", None
        errors = {name: _error(array, got.get(name)) for name, array in expected.items()}
        worst = max(worst, *errors.values(), 0.0)
        reason = "types, shapes, NaN or infinities differ" if math.isinf(worst) else ""
        allowed = {n: _ROUNDINGS * _rounding(array) for n, array in expected.items()}
        for name in [n for n in allowed if is_exact and errors[n] > allowed[n] and not reason]:
            truth = reference.truth[name]
            own, other = (_error(truth, o[name], typed=False) for o in (expected, got))
            if not other <= _TIMES * own + allowed[name]:
                reason = f"error {errors[name]:.2g}, more than roundings explain"
        if reason:
            return worst, reason, rank if is_exact else None
    return worst, "", None


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
