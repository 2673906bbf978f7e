"""Run models and record their profiles."""

import itertools
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import onnx

from ortmeter.child import call
from ortmeter.errors import InvalidArgumentError
from ortmeter.profiling.graph import name_nodes
from ortmeter.profiling.read import keep_runs, read_frames
from ortmeter.profiling.record import Profile
from ortmeter.progress import progress_bar
from ortmeter.runtime.iobinding import BoundSession, HostSession, open_session
from ortmeter.runtime.loading import ModelLike, has_external_data, is_path, load_model
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.runtime.settings import spins
from ortmeter.timing import Comparison, Comparisons, Measurement, speedup
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.loop import collector_off, settling_calls
from ortmeter.timing.measurement import SpawnSpec

# Rounds without and with recording: what fits in a second, within these bounds.
_ROUNDS_S = 1.0
_ROUNDS = (10, 100)
_RECORDED, _OPTIMIZED = "profile", "optimized.onnx"


class Settings(TypedDict, total=False):
    """Settings of a session, those of :func:`~ortmeter.runtime.sessions.make_session`.

    ``run_config`` is that of :class:`~ortmeter.runtime.iobinding.BoundSession`.
    """

    provider: str | Provider
    optimization: str
    threads: int
    tf32: bool
    custom_ops: Sequence[str | os.PathLike[str]]
    spinning: str
    session_options: Mapping[str, Any]
    session_config: Mapping[str, Any]
    provider_options: Mapping[str, Any]
    run_config: Mapping[str, Any]


_REQUIRED = ("model", "feeds")
_ARGUMENTS = (*_REQUIRED, *Settings.__annotations__)


def profile(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    repeat: int = 10,
    warmup: int = 1,
    overhead: bool = True,
    **settings: Unpack[Settings],
) -> Profile:
    """Run a model and record its kernels: start, duration, types, shapes and memory.

    Two sessions with the same settings are interleaved. One records its runs, in a temporary
    folder, and saves its optimized graph. The other one measures the latency without recording. To
    compare two models, or two settings, use :func:`profile_together`.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`. Nodes without a name get one, operator
        and rank, unless the model has external data.
    feeds : mapping of str to array
        Inputs, bound once on the device, see :class:`~ortmeter.runtime.iobinding.BoundSession`;
        texts and sequences, which cannot be bound, stay on the host.
    repeat : int
        Number of runs in the statistics.
    warmup : int
        Number of runs before them, also recorded.
    overhead : bool
        Measure the latency with and without recording, in the same rounds. Rounds are added to
        *repeat* while they fit in a second, up to 100 (the minimum for a verdict), with at least
        10 rounds.
    **settings
        Arguments of :func:`~ortmeter.runtime.sessions.make_session`: ``provider``,
        ``optimization``, ``threads``, ``tf32``, ``custom_ops``, ``spinning``, ``session_options``,
        ``session_config``, ``provider_options``; and ``run_config``, see
        :class:`~ortmeter.runtime.iobinding.BoundSession`.

    Returns
    -------
    Profile
        ``warmup + repeat`` runs, with the graph that ran and the original model.

    Raises
    ------
    FeedError
        The feeds do not match the model.
    ModelError
        The model cannot be read, or a kernel failed; no file is left on the disk.
    InvalidArgumentError
        A setting has a value that is not accepted.
    ProviderUnavailableError
        The provider does not work on this machine.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Abs(X)  Y = Exp(Z) }'''
    >>> found = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=3)
    >>> found.by_node()["name"].tolist(), len(found.by_iteration())
    (['Abs_0', 'Exp_1'], 4)
    """
    variant = {"model": model, "feeds": feeds, **settings}
    return _profile({"the model": variant}, repeat, warmup, overhead=overhead)["the model"]


def profile_together(
    variants: Mapping[str, Mapping[str, Any]],
    *,
    repeat: int = 100,
    warmup: int = 1,
    **common: Any,
) -> dict[str, Profile]:
    """Profile several models, or one model with several settings, interleaved, to compare them.

    The speed of a machine varies from one second to the next, so two profiles taken one after the
    other may differ for that reason alone. Here, every round runs each variant once with the
    profiler and once without, in random order.

    Parameters
    ----------
    variants : mapping of str to mapping
        By name, the arguments of :func:`profile` for this variant: ``model``, ``feeds``,
        ``provider``, ``optimization``...
    repeat : int
        Number of rounds, which is the number of runs in the statistics. Below 100, the agreement of
        profiles and latencies is undecided.
    warmup : int
        Runs of each model before the rounds, also recorded.
    **common
        The same arguments, shared by all variants.

    Returns
    -------
    dict of str to Profile
        In the order of *variants*. :meth:`Profile.compare` checks that two of them can be compared
        node by node; :func:`~ortmeter.profiling.merge_profiles` compares the nodes.

    Raises
    ------
    InvalidArgumentError
        There is no variant, an argument is unknown or missing, or has a value that is not accepted.
    FeedError, ModelError, ProviderUnavailableError
        As in :func:`profile`. Every session is created before the first run.

    Notes
    -----
    All sessions, two per variant, are in memory at the same time. Before a run shorter than a
    millisecond, three extra runs, not counted, warm the caches after the previous model.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Exp(Z) }'''
    >>> levels = {"as written": {"optimization": "none"}, "optimized": {"optimization": "all"}}
    >>> feeds = {"X": np.float32([1, 2])}
    >>> found = profile_together(levels, model=text, feeds=feeds, provider="cpu", repeat=3)
    >>> {name: len(ran.by_node()) for name, ran in found.items()}
    {'as written': 2, 'optimized': 1}
    """
    asked = {name: {**common, **own} for name, own in variants.items()}
    if not asked:
        raise InvalidArgumentError("variants is empty. Accepted: a mapping of names to arguments")
    return _profile(asked, repeat, warmup, overhead=True)


def measure_operators(
    variants: Mapping[Any, SessionSpec], *, axis: str, processes: int, repeat: int = 100
) -> Comparisons:
    """Time the kernels of each operator of models, in fresh processes which record their runs.

    Parameters
    ----------
    variants : mapping of SessionSpec
        By value of the axis, models with their inputs and settings, on CPU: a device has launches.
    axis : str
        Name of the axis.
    processes : int
        Fresh processes, each of which records all the models; an interval needs 3.
    repeat : int
        Runs in each process, the first one apart.

    Returns
    -------
    Comparisons
        By value of the axis, a measurement per operator: the sum of its kernels in a run. A time is
        rounded down: less than a microsecond counts as one.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Abs(X)  Y = Exp(Z) }'''
    >>> spec = SessionSpec(text, {"X": np.float32([1, 2])}, {"provider": "cpu"})
    >>> found = measure_operators({2: spec}, axis="size", processes=1, repeat=3)
    >>> list(found[2]), found[2]["Abs"].seconds.shape
    (['Abs', 'Exp'], (1, 3))
    """
    with write_specs(variants) as specs:
        task = {"variants": list(specs.values()), "repeat": repeat}
        found = [call(_operator_times, task) for _ in range(processes)]
    groups = {}
    for key, *own in zip(variants, *found, strict=True):
        times = {op: np.array([turn[op] for turn in own]) for op in own[0]}
        groups[key] = Comparison(itertools.starmap(Measurement, times.items()))
    return Comparisons(groups, axis)


def _operator_times(variants: list[SpawnSpec], repeat: int) -> list[dict[str, list[float]]]:
    """Profile each model: the part of the child."""
    asked = (spec.build() for spec in variants)
    ran = (profile(x.model, x.feeds, repeat=repeat, overhead=False, **x.settings) for x in asked)
    tables = (own.steady.pivot_table("self_duration", "iteration", "op", "sum") for own in ran)
    return [{str(op): t.tolist() for op, t in (1e-6 * x.clip(lower=1)).items()} for x in tables]


def _profile(
    variants: Mapping[str, Mapping[str, Any]], repeat: int, warmup: int, *, overhead: bool
) -> dict[str, Profile]:
    accepted = f"Accepted: {', '.join(_ARGUMENTS)}"
    for name, arguments in variants.items():
        if unknown := [key for key in arguments if key not in _ARGUMENTS]:
            raise InvalidArgumentError(f"{name!r} is given {', '.join(unknown)}. {accepted}")
        if missing := [key for key in _REQUIRED if key not in arguments]:
            raise InvalidArgumentError(f"{name!r} has no {' and no '.join(missing)}. {accepted}")
    if repeat < 1 or warmup < 0:
        raise InvalidArgumentError(
            f"repeat={repeat}, warmup={warmup}. Accepted: repeat from 1, warmup from 0"
        )
    spinning = next((name for name, arguments in variants.items() if spins(arguments)), None)
    if spinning is not None and (overhead or len(variants) > 1):
        raise InvalidArgumentError(
            f"threads of {spinning!r} spin after a run, and profiled sessions are "
            "interleaved: they would slow down the next one. Accepted: spinning='during-run' or "
            "'off', threads=1, or overhead=False for one profile; ortmeter bench compares spinning"
        )
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        with ExitStack() as stack:
            # The session that is created first is a little slower: none is always the first.
            order = np.random.default_rng().permutation(list(variants)).tolist()
            opened = {
                name: stack.enter_context(_open(Path(folder, str(rank)), **variants[name]))
                for rank, name in enumerate(order)
            }
            pairs = {name: opened[name] for name in variants}
            _take_turns(pairs.values(), repeat, warmup, overhead=overhead)
        latencies = None
        if overhead:
            latencies = Comparison(pair.plain.measurement(name) for name, pair in pairs.items())
        return {
            name: pair.read(name, warmup + repeat, warmup, latencies)
            for name, pair in pairs.items()
        }


class _Runner:
    """A bound session, with the seconds of its samples and the ranks of these among its runs."""

    def __init__(self, bound: BoundSession | HostSession) -> None:
        self.seconds: list[float] = []
        self.ranks: list[int] = []
        self._bound, self._runs, self._least_s = bound, 0, math.inf

    def warm_up(self, count: int) -> None:
        for _ in range(count):
            self.sample(settles=False)
        self.seconds.clear()

    def sample(self, *, settles: bool) -> None:
        """Time one run, after others that bring what it uses into the caches again."""
        settling = settling_calls(self._least_s) if settles else 0
        for _ in range(settling):
            self._bound.run()
        self.ranks.append(self._runs + settling)
        self._runs += settling + 1
        start = time.perf_counter()
        self._bound.run()
        self.seconds.append(time.perf_counter() - start)
        self._least_s = min(self._least_s, self.seconds[-1])

    def measurement(self, name: str) -> Measurement:
        return Measurement(name, np.array([self.seconds]))


@dataclass
class _Pair:
    """Two sessions of a model: one records its runs, one does not."""

    plain: _Runner
    recorded: _Runner
    folder: Path
    external_folder: Path | None
    original: onnx.ModelProto

    def read(self, name: str, runs: int, warmup: int, latencies: Comparison | None) -> Profile:
        """Read what was recorded, once the sessions are closed."""
        ran = load_model(self.folder / _OPTIMIZED, external_folder=self.external_folder)
        (file,) = self.folder.glob(f"{_RECORDED}*")
        found = read_frames(file, ran)
        events, others = (keep_runs(frame, self.recorded.ranks[:runs]) for frame in found)
        overhead = None
        if latencies is not None:
            sides = {"an unprofiled run": self.plain, "a profiled run": self.recorded}
            overhead = speedup(*(side.measurement(what) for what, side in sides.items()))
        return Profile(events, others, ran, self.original, overhead, warmup, name, latencies)


@contextmanager
def _open(
    folder: Path,
    *,
    model: ModelLike,
    feeds: Mapping[str, Any],
    run_config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[_Pair]:
    """Create the two sessions of a model; the file of the runs is complete on exit."""
    folder.mkdir()
    path = Path(model) if is_path(model) else None
    loaded = load_model(model)
    original = name_nodes(loaded)
    # A file elsewhere would not find the external data.
    keeps_file = original is loaded or (path and has_external_data(path))
    source = model if keeps_file else original
    with open_session(make_session(source, **settings), feeds, run_config) as bound:
        # Another session may name inserted nodes otherwise: the graph is that of this one.
        settings |= {"profile": folder / _RECORDED, "optimized_path": folder / _OPTIMIZED}
        session = make_session(source, **settings)
        try:
            with open_session(session, feeds, run_config) as recorded:
                sides = _Runner(bound), _Runner(recorded)
                yield _Pair(*sides, folder, path and path.parent, original)
        finally:
            # This closes the file, which some systems cannot delete otherwise.
            session.end_profiling()


def _take_turns(pairs: Iterable[_Pair], repeat: int, warmup: int, *, overhead: bool) -> None:
    """Take rounds of one sample of each session, in an order that is drawn again."""
    runners = []
    for pair in pairs:
        pair.recorded.warm_up(warmup)
        runners.append(pair.recorded)
        if overhead:
            pair.plain.warm_up(max(warmup, 1))
            runners.append(pair.plain)
    rng = np.random.default_rng()
    rounds, start = repeat, time.perf_counter()
    with collector_off(), progress_bar("profiled rounds", total=repeat) as bar:
        for done in itertools.count(1):
            for rank in rng.permutation(len(runners)).tolist():
                runners[rank].sample(settles=len(runners) > 1)
            bar.update()
            if done == repeat and overhead:
                round_s = (time.perf_counter() - start) / done
                least, most = _ROUNDS
                rounds = max(repeat, min(max(int(_ROUNDS_S / round_s), least), most))
            if done >= rounds:
                return
