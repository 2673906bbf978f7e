"""Time the start of a model in fresh processes: import, session, first runs, and their memory.

The parent starts processes, one at a time; each builds one candidate and measures its phases. Feeds
and all that is not ONNX Runtime are loaded before the clock starts. Files are in the page cache.
"""

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ortmeter.child import call
from ortmeter.errors import ModelError, OrtMeterError
from ortmeter.evidence import Estimate, rounded
from ortmeter.optional import import_optional, pd
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.comparison import Comparison, Comparisons
from ortmeter.timing.measurement import Measurement, SpawnSpec
from ortmeter.timing.processes import collect
from ortmeter.timing.statistics import estimate_ratio

__all__ = ["ColdStart", "cold_start"]


IMPORT, SESSION = "import", "session"
FIRST, SECOND, STEADY = "first run", "second run", "steady run"
#: What a user waits for: the first three phases.
RESULT = "first result"
PHASES = (IMPORT, SESSION, FIRST, RESULT, SECOND, STEADY)

_STEADY_RUNS, _STEADY_S = 20, 0.5
_KIB_PER_MIB = 1024
_MEMORY = Path("/proc/self")
_RESET_PEAK = "5"
_LONGEST = 600  # letters kept of an error
_NEAR = 1.0  # MiB: the system counts approximately


class Phase(msgspec.Struct, frozen=True):
    """What a phase took: seconds; growth and peak of the memory, in MiB, None if unknown."""

    seconds: float
    growth: float | None
    peak: float | None


@dataclass(frozen=True)
class ColdStart:
    """Starts of candidates in fresh processes, see :func:`cold_start`.

    Parameters
    ----------
    times : Comparisons
        Seconds of each phase, along the axis ``phase``.
    memory : mapping
        By candidate and phase, median over processes of the growth of the resident memory during
        the phase, and of its peak above what it was before (MiB); None where the system does not
        tell.
    """

    times: Comparisons
    memory: Mapping[str, Mapping[str, tuple[float | None, float | None]]]

    @property
    def names(self) -> list[str]:
        """Names of the candidates."""
        return list(self.memory)

    def select(self, names: Mapping[str, str]) -> "ColdStart":
        """Return some of the candidates: their new names, by name."""
        times = {
            phase: Comparison(
                [dataclasses.replace(group[old], name=new) for old, new in names.items()],
                group.stopped,
            )
            for phase, group in self.times.items()
        }
        memory = {new: self.memory[old] for old, new in names.items()}
        return ColdStart(Comparisons(times, self.times.axis), memory)

    def share(self, name: str, phase: str) -> Estimate:
        """Share of the first result that a phase takes, and its 99% interval."""
        part, whole = (self.times[key][name].seconds for key in (phase, RESULT))
        share = estimate_ratio(part, whole, 0.99)
        return dataclasses.replace(share, high=share.high and min(share.high, 1.0))

    def typical(self, name: str, phase: str) -> Estimate:
        """Geometric mean over processes of the seconds of a phase, and its 99% interval."""
        return self.times[phase][name].typical

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per phase and candidate.

        Returns
        -------
        pandas.DataFrame
            Index ``phase`` and ``candidate``. Columns ``time (ms)``, the geometric mean over
            processes, ``low`` and ``high``, its 99% interval, ``growth (MiB)`` and ``peak (MiB)``
            of the resident memory during the phase.
        """
        rows = []
        for phase, (name, memory) in itertools.product(PHASES, self.memory.items()):
            found = self.typical(name, phase)
            times = (rounded(s and 1e3 * s) for s in (found.value, found.low, found.high))
            sizes = (math.nan if mib is None else round(mib, 1) for mib in memory[phase])
            rows.append((phase, name, *times, *sizes))
        columns = ["time (ms)", "low", "high", "growth (MiB)", "peak (MiB)"]
        frame = pd.DataFrame(rows, columns=["phase", "candidate", *columns])
        return frame.set_index(["phase", "candidate"])


def cold_start(
    variants: Mapping[str, SessionSpec],
    *,
    processes: int = 10,
    budget_s: float = 60.0,
) -> ColdStart:
    """Time each phase of the start of candidates, each time in a fresh process.

    Candidates take turns, in a random order in each round. One round is not counted: it fills the
    page cache, and fails early when a candidate cannot run.

    Parameters
    ----------
    variants : mapping of str to SessionSpec
        Candidates by name.
    processes : int
        Fresh processes of each candidate; an interval needs three.
    budget_s : float
        Seconds for all of them, after which none is started.

    Returns
    -------
    ColdStart
        Phases ``import`` (of onnxruntime, NumPy being loaded), ``session`` (its creation),
        ``first run`` (with the binding of its inputs), ``first result`` (all of these),
        ``second run`` and ``steady run`` (median of the next ones).

    Raises
    ------
    ModelError
        A candidate cannot run.

    Examples
    --------
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[4] X) => (float[4] Y) { Y = Abs(X) }'''
    >>> found = cold_start(model_variants({"abs": text}, provider="cpu"), processes=1)
    >>> list(found.times)
    ['import', 'session', 'first run', 'first result', 'second run', 'steady run']
    """
    begin = time.perf_counter()
    rng = np.random.default_rng(0)
    starts: dict[str, list[dict[str, Phase]]] = {name: [] for name in variants}
    with write_specs(variants) as tasks:
        for name, task in tasks.items():
            _start(name, task)

        def run(*_: object) -> dict[str, dict[str, Measurement]]:
            for name in rng.permutation(list(tasks)).tolist():
                starts[name].append(_start(name, tasks[name]))
            return {
                phase: {
                    n: Measurement(n, np.array([[s[-1][phase].seconds]])) for n, s in starts.items()
                }
                for phase in PHASES
            }

        left = max(budget_s - (time.perf_counter() - begin), 0.0)
        times = collect(PHASES, run, processes=processes, precision=None, budget_s=left)
    memory = {
        name: {p: (_median(s, p, "growth"), _median(s, p, "peak")) for p in PHASES}
        for name, s in starts.items()
    }
    return ColdStart(Comparisons(times, "phase"), memory)


def start_once(variant: SessionSpec) -> dict[str, Phase]:
    """Measure one fresh process, until its first result."""
    with write_specs({"the model": variant}) as specs:
        return _start("the model", specs["the model"], phases=PHASES.index(RESULT))


def peak_memory(variant: SessionSpec) -> float | None:
    """Return by how many MiB a fresh process grows at most to create a session and run it once.

    None where the system does not tell.
    """
    found = start_once(variant)
    return _together([found[SESSION], found[FIRST]]).peak


def call_candidate(name: str, function: Callable[..., Any], **arguments: Any) -> Any:
    """Call a function in a fresh process; an error names the candidate, on one line."""
    try:
        return call(function, arguments)
    except OrtMeterError as error:
        reason = " ".join(str(error).split())[-_LONGEST:]
        raise ModelError(f"{name!r} failed in a fresh process: {reason}") from error


def _start(name: str, spawn_spec: SpawnSpec, phases: int | None = None) -> dict[str, Phase]:
    """Measure one fresh process."""
    found: dict[str, Phase] = call_candidate(name, _measure, spawn_spec=spawn_spec, phases=phases)
    return {**found, RESULT: _together([found[phase] for phase in (IMPORT, SESSION, FIRST)])}


def _together(phases: list[Phase]) -> Phase:
    """Add phases that follow one another: the peak is above what was there before the first."""
    seconds = sum(phase.seconds for phase in phases)
    growth, peak = 0.0, 0.0
    for phase in phases:
        if phase.growth is None or phase.peak is None:
            return Phase(seconds, None, None)
        peak = max(peak, growth + phase.peak)
        growth += phase.growth
    return Phase(seconds, growth, peak)


def _median(starts: list[dict[str, Phase]], phase: str, field: str) -> float | None:
    values = [getattr(start[phase], field) for start in starts]
    return None if None in values else statistics.median(values)


def _measure(spawn_spec: SpawnSpec, phases: int | None) -> dict[str, Phase]:
    """Measure the first phases of one candidate in this process: the child's part."""
    return dict(itertools.islice(_phases(spawn_spec.build()), phases))


def _phases(variant: SessionSpec) -> Iterator[tuple[str, Phase]]:
    from ortmeter.runtime.providers import load_cuda_libraries
    from ortmeter.runtime.settings import run_keys, session_keys

    with _watched() as seen:
        import_optional("onnxruntime", "cpu", "gpu")  # what is timed

        if variant.settings["provider"].on_cuda:
            load_cuda_libraries()
    yield IMPORT, seen[0]
    if "session_config" in variant.settings or variant.run_config:
        session_keys(), run_keys()  # our own checks read the libraries: not part of a session
    with _watched() as seen:
        session = variant.session()
    yield SESSION, seen[0]
    with _watched() as seen:
        call = variant.call(session)
        call()
    yield FIRST, seen[0]
    with _watched() as seen:
        call()
    yield SECOND, seen[0]
    seconds: list[float] = []
    with _watched() as seen:
        while len(seconds) < _STEADY_RUNS and sum(seconds) < _STEADY_S:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    yield STEADY, msgspec.structs.replace(seen[0], seconds=statistics.median(seconds))


@contextmanager
def _watched() -> Iterator[list[Phase]]:
    """Time what follows, and watch the memory of this process."""
    seen: list[Phase] = []
    with suppress(OSError):
        (_MEMORY / "clear_refs").write_text(_RESET_PEAK, encoding="ascii")
    before = resident_memory()
    start = time.perf_counter()
    yield seen
    seconds = time.perf_counter() - start
    after = resident_memory()
    if before is None or after is None:
        seen.append(Phase(seconds, None, None))
        return
    growth, peak = after[0] - before[0], after[1] - before[0]
    # Where the peak cannot be reset, one that did not move is that of an earlier phase.
    own = after[1] > before[1] or before[1] <= before[0] + _NEAR
    seen.append(Phase(seconds, growth, max(peak, growth, 0.0) if own else None))


def resident_memory() -> tuple[float, float] | None:
    """Read the resident memory of this process and its peak, in MiB, None if not told."""
    try:
        text = (_MEMORY / "status").read_text(encoding="ascii", errors="replace")
        fields = dict(line.split(":", 1) for line in text.splitlines())
        resident, peak = (int(fields[name].split()[0]) for name in ("VmRSS", "VmHWM"))
    except (OSError, ValueError, LookupError):
        return None
    return resident / _KIB_PER_MIB, peak / _KIB_PER_MIB
