"""Latency and CPU time of sessions by their threads, beside the neighbours that they meet.

Threads that spin slow whatever runs next: each session is created, measured and closed alone, one
after the other in random order, in fresh processes. The process is the unit of replication.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from ortmeter.child import Child, call
from ortmeter.progress import follow
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.measurement import Measurement, SpawnSpec
from ortmeter.workloads.pauses import measure_pauses

__all__ = [
    "Scenario",
    "ThreadTimings",
    "measure_threads",
]

#: Seconds between two runs of the neighbour of another process: shorter than threads spin.
NEIGHBOUR_PAUSE_S = 1e-2
_MOST_S = 60.0  # of one scenario in one process


@dataclass(frozen=True)
class Scenario:
    """A session, what runs around it, and when it runs.

    Parameters
    ----------
    variant : SessionSpec
        Model, inputs and settings of the session that is measured.
    pauses : tuple of float
        Seconds between the end of a run and the beginning of the one that is timed.
    rounds : int
        Timed runs after each pause, in each process.
    before : SessionSpec, optional
        Session of the same process that runs before each pause, instead of *variant*.
    background : SessionSpec, optional
        Session of another process, which runs every ten milliseconds meanwhile.
    """

    variant: SessionSpec
    pauses: tuple[float, ...] = (0.0,)
    rounds: int = 20
    before: SessionSpec | None = None
    background: SessionSpec | None = None


@dataclass(frozen=True)
class ThreadTimings:
    """What sessions take, by name of scenario and pause, see :func:`measure_threads`.

    Parameters
    ----------
    latency : mapping
        Seconds of a run after a pause, samples of shape (processes, rounds).
    cpu : mapping
        CPU seconds of the pause and the run, all threads of the process together: the mean of each
        process, of shape (processes, 1).
    """

    latency: dict[str, dict[float, Measurement]]
    cpu: dict[str, dict[float, Measurement]]


@dataclass
class _Asked:
    """A scenario as a child reads it: spawn specs in place of session specs."""

    variant: SpawnSpec
    pauses: list[float]
    rounds: int
    before: SpawnSpec | None = None
    background: SpawnSpec | None = None


# Latencies of a process after a pause, and its mean CPU time.
_Row = tuple[list[float], float]


def measure_threads(scenarios: Mapping[str, Scenario], *, processes: int = 5) -> ThreadTimings:
    """Measure the latency and the CPU time of each scenario, alone, in fresh processes.

    Parameters
    ----------
    scenarios : mapping of str to Scenario
        By name.
    processes : int
        Fresh processes, each of which measures every scenario; an interval needs three.

    Returns
    -------
    ThreadTimings
        Latencies and CPU time.

    Raises
    ------
    OrtMeterError
        A process failed, for instance because a model cannot run.

    Examples
    --------
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = model_variants({"one": text}, provider="cpu", threads=1)
    >>> usage = measure_threads({"one": Scenario(found["one"], rounds=3)}, processes=1)
    >>> usage.latency["one"][0.0].seconds.shape, usage.cpu["one"][0.0].seconds.shape
    ((1, 3), (1, 1))
    """
    with _write(scenarios) as asked:
        told = [
            call(_measure_all, {"scenarios": asked, "seed": i})
            for i in follow(range(processes), "processes")
        ]
    found = ThreadTimings({}, {})
    for name, one in scenarios.items():
        found.latency[name], found.cpu[name] = {}, {}
        for pause, *rows in zip(one.pauses, *(rows[name] for rows in told), strict=True):
            seconds, cpu = zip(*rows, strict=True)
            found.latency[name][pause] = Measurement(name, np.array(seconds))
            found.cpu[name][pause] = Measurement(name, np.array(cpu)[:, None])
    return found


@contextmanager
def _write(scenarios: Mapping[str, Scenario]) -> Iterator[dict[str, _Asked]]:
    """Write the files of each variant once: several scenarios share some."""
    used = (v for one in scenarios.values() for v in (one.variant, one.before, one.background))
    with write_specs({id(variant): variant for variant in used if variant}) as specs:
        yield {
            name: _Asked(
                specs[id(one.variant)],
                [*one.pauses],
                one.rounds,
                specs.get(id(one.before)),
                specs.get(id(one.background)),
            )
            for name, one in scenarios.items()
        }


def _measure_all(scenarios: dict[str, _Asked], seed: int) -> dict[str, list[_Row]]:
    """Return the rows of each scenario: the child's part."""
    names = np.random.default_rng(seed).permutation(list(scenarios)).tolist()
    return {name: _measure(scenarios[name], seed) for name in names}


def _measure(asked: _Asked, seed: int) -> list[_Row]:
    """Create the sessions of a scenario, time it, and close them: their threads end."""
    rows: dict[float, _Row] = {}
    with Child() if asked.background else nullcontext() as neighbour:
        if neighbour:
            neighbour.ask(_run_beside, spawn_spec=asked.background)
        call = _open(asked.variant)
        before = _open(asked.before) if asked.before else None
        # One pause after the other: a long one would also slow the runs that follow.
        for pause in np.random.default_rng(seed).permutation(asked.pauses).tolist():
            (found,) = measure_pauses(
                {"": call}, [pause], seconds=_MOST_S, rounds=asked.rounds, before=before
            ).values()
            rows[pause] = found.seconds.round(9).tolist(), found.cpu  # ns: records are short
        del call, before
        gc.collect()
    return [rows[pause] for pause in asked.pauses]


def _open(spawn_spec: SpawnSpec) -> Callable[[], object]:
    variant: SessionSpec = spawn_spec.build()
    return variant.call(variant.session())


def _run_beside(spawn_spec: SpawnSpec) -> None:
    """Run again and again, until the parent ends this process."""
    call = _open(spawn_spec)
    call()

    def run() -> None:
        while True:
            call()
            time.sleep(NEIGHBOUR_PAUSE_S)

    threading.Thread(target=run, daemon=True).start()
