"""Time cases with several releases of ONNX Runtime, interleaved in fresh processes."""

import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.errors import InvalidArgumentError, OrtMeterError, ProviderUnavailableError
from ortmeter.evidence import rounded
from ortmeter.profiling.read import read_profile
from ortmeter.progress import progress_bar
from ortmeter.releases.environments import Release
from ortmeter.releases.process import ReleaseProcess, write_questions
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.comparison import Comparison, Comparisons
from ortmeter.timing.loop import settling_calls
from ortmeter.timing.measurement import Measurement

__all__ = ["Matrix", "RuntimeCandidate", "examine_cases", "measure_cases"]

#: Suffix of the control: the last candidate again, in a process of its own.
AGAIN = ", again"
#: What one row of the times stands for.
ROWS = ("threads", "pass", "process", "case")

_ROUNDS, _FEW_ROUNDS, _LONG_S = 4, 2, 5e-3
_SAMPLE_S, _SHORTEST_S, _DIGITS = 5e-4, 1e-7, 4
_PATIENCE_S = 60.0
_EXAMINED_S = 0.02


@dataclass(frozen=True)
class RuntimeCandidate:
    """What runs the cases: a release of ONNX Runtime.

    Parameters
    ----------
    name : str
        How tables name it.
    release : Release
        Its environment exists.
    script : Path, optional
        What its processes run, by default ``releases/child.py``.
    provider : Provider, optional
        By default the one of each case.
    """

    name: str
    release: Release
    script: Path | None = None
    provider: Provider | None = None

    def start(self) -> ReleaseProcess:
        """Start a process."""
        release = replace(self.release, provider=self.release.provider or self.provider)
        return ReleaseProcess(release, self.script, patience_s=_PATIENCE_S)


class Processes(ExitStack):
    """A process for each candidate, by name; one that dies is started again when it is asked."""

    def __init__(self, candidates: Mapping[str, RuntimeCandidate]) -> None:
        super().__init__()
        self.candidates = candidates
        self._children: dict[str, ReleaseProcess] = {}

    def child(self, name: str) -> ReleaseProcess:
        """Return a process that lives."""
        if name not in self._children or self._children[name].is_dead:
            self._children[name] = self.enter_context(self.candidates[name].start())
        return self._children[name]

    def outputs(
        self, variant: SessionSpec, names: Iterable[str] | None = None
    ) -> dict[str, dict[str, np.ndarray] | OrtMeterError]:
        """Run a variant once in all processes, or some: what each returns, or why it does not."""
        asked = self.candidates if names is None else names
        with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
            question = write_questions({"": variant}, Path(folder))[""]
            found: dict[str, dict[str, np.ndarray] | OrtMeterError] = {}
            for name in asked:
                child = self.child(name)
                try:
                    child.open(question)
                    found[name] = child.outputs(Path(folder))
                except OrtMeterError as error:
                    found[name] = error
            return found


@dataclass(frozen=True)
class Matrix:
    """Times of cases by candidate.

    Parameters
    ----------
    times : pandas.DataFrame
        Median time of a run (µs) in a process, index ``threads``, ``pass``, ``process``, ``case``,
        one column per candidate, and the control. NaN where a candidate does not run the case.
    absent : mapping
        For a case and a candidate, why it does not run.
    versions : mapping of str to mapping
        For each candidate, the versions in its environment.
    """

    times: pd.DataFrame
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def comparisons(self, threads: int, baseline: str, *, axis: str = "case") -> Comparisons:
        """Put the times of the sets together, case by case, those of the baseline first."""
        times = 1e-6 * self.times.xs(threads, level="threads")
        names = [baseline, *times.columns.drop(baseline)]
        groups = {}
        for case, rows in times.groupby("case", sort=False):
            ran = [name for name in names if rows[name].notna().all()]
            groups[case] = Comparison(Measurement(name, rows[[name]].to_numpy()) for name in ran)
        return Comparisons(groups, axis)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, with the matrix of what was measured before it.

    Parameters
    ----------
    matrix : Matrix
        NaN where nothing was measured.
    """

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix


def examine_cases(
    candidates: Sequence[RuntimeCandidate], cases: Mapping[str, SessionSpec]
) -> pd.DataFrame:
    """Look at what each candidate does with each case: outputs, cores, nodes on the CPU provider.

    Parameters
    ----------
    candidates, cases
        As in :func:`measure_cases`.

    Returns
    -------
    pandas.DataFrame
        Index ``candidate``, ``case``. Columns: ``outputs``, arrays by name; ``cores`` that runs
        keep busy, and ``cores in a pause`` after them; ``left to CPU``, the nodes that a session
        left to the CPU provider, missing where there is no session.

    Raises
    ------
    ModelError
        A candidate does not run a case.
    ProviderUnavailableError
        A provider takes no node of a case.
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        questions = write_questions(cases, folder)
        for candidate in candidates:
            with candidate.start() as child:
                for case, question in questions.items():
                    child.open(question)
                    row: dict[str, Any] = {"candidate": candidate.name, "case": case}
                    row["outputs"] = child.outputs(folder)
                    row["cores"], row["cores in a pause"] = child.ask("cores", seconds=_EXAMINED_S)
                    if candidate.script is None:
                        row["left to CPU"] = _left_to_cpu(candidate, child, folder)
                    rows.append(row)
    return pd.DataFrame(rows).set_index(["candidate", "case"])


def _left_to_cpu(candidate: RuntimeCandidate, child: ReleaseProcess, folder: Path) -> int:
    """Count nodes in a profile: a session lists its provider first even if it takes none."""
    child.ask("record", prefix=str(folder / "profile"), optimized="")
    child.sample(1)
    ran_on = read_profile(child.ask("end")).by_node()["provider"]
    left = int((ran_on == Provider("cpu").execution_provider).sum())
    provider = candidate.release.provider or candidate.provider
    if provider and not provider.is_cpu and left == len(ran_on):
        raise ProviderUnavailableError(f"{candidate.name}: {provider} takes no node")
    return left


def measure_cases(
    candidates: Sequence[RuntimeCandidate],
    cases: Mapping[str, SessionSpec],
    *,
    threads: Sequence[int] = (1,),
    passes: int = 2,
    processes: int = 10,
    control: bool = True,
    seed: int = 0,
) -> Matrix:
    """Measure each case with each candidate, interleaved in several sets of fresh processes.

    Parameters
    ----------
    candidates : sequence of RuntimeCandidate
        In the order in which they are compared, the oldest release first.
    cases : mapping of str to SessionSpec
        Models with their inputs, see :meth:`~ortmeter.observatory.case.Case.prepared`.
    threads : sequence of int
        Numbers of threads.
    passes : int
        Independent repetitions: a difference is claimed when all of them show it.
    processes : int
        Sets of fresh processes in each pass, one process per candidate in each.
    control : bool
        Also measure the last candidate against itself, in another process.
    seed : int
        Seed of the orders.

    Returns
    -------
    Matrix
        A row per number of threads, pass, set of processes and case.

    Raises
    ------
    InvalidArgumentError
        There is no case, two candidates share a name, or a number is below 1.
    Interrupted
        By Ctrl-C, once something is measured.
    """
    names = [candidate.name for candidate in candidates]
    _check_cases(names, list(cases), threads, passes, processes)
    runners = dict(zip(names, candidates, strict=True))
    if control:
        runners[names[-1] + AGAIN] = candidates[-1]
    rows: list[dict[str, Any]] = []
    absent: dict[tuple[str, str], str] = {}
    versions: dict[str, Any] = {}

    def found() -> Matrix:
        axes = [list(threads), range(passes), range(processes), list(cases)]
        times = pd.DataFrame(rows, columns=[*ROWS, *runners]).set_index(list(ROWS))
        times = times.reindex(pd.MultiIndex.from_product(axes, names=ROWS))
        for case, name in absent:  # it may have run before it failed
            times.loc[times.index.get_level_values("case") == case, name] = np.nan
        return Matrix(times, {key: why for key, why in absent.items() if key[1] in names}, versions)

    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary,
        progress_bar("cases", total=passes * processes * len(cases)) as bar,
    ):
        questions = write_questions(cases, Path(temporary))
        try:
            for rank in range(passes * processes):
                rng = np.random.default_rng([seed, rank])
                with Processes(runners) as children:
                    for name in rng.permutation(list(runners)).tolist():
                        children.child(name)
                    versions |= {name: children.child(name).ask("describe") for name in runners}
                    for name in rng.permutation(list(questions)).tolist():
                        for count in threads:
                            question = questions[name]
                            question["attributes"]["intra_op_num_threads"] = count
                            place = (count, rank // processes, rank % processes, name)
                            row = _measure(children, rng, name, question, absent)
                            rows.append(dict(zip(ROWS, place, strict=True)) | row)
                        bar.update()
        except KeyboardInterrupt as stop:
            if rows:
                raise Interrupted(found()) from stop
            raise
    return found()


def _check_cases(
    names: list[str], cases: list[str], threads: Sequence[int], passes: int, processes: int
) -> None:
    if not cases or not names or len({*names}) < len(names):
        raise InvalidArgumentError(
            f"{len(cases)} cases for {', '.join(names) or '(nothing)'}. Accepted: one case or "
            "more, for distinct candidates"
        )
    if min(passes, processes, len(threads)) < 1 or len({*threads}) < len(threads):
        raise InvalidArgumentError(
            f"threads={list(threads)}, passes={passes}, processes={processes}. Accepted: distinct "
            "numbers of threads, passes and processes from 1"
        )


def _measure(
    processes: Processes,
    rng: np.random.Generator,
    case: str,
    question: Mapping[str, Any],
    absent: dict[tuple[str, str], str],
) -> dict[str, float]:
    """Return the median time of a run (µs) of each process that runs the case."""
    names = [name for name in processes.candidates if (case, name) not in absent]
    children = {name: processes.child(name) for name in names}
    samples: dict[str, list[float]] = {name: [] for name in children}

    def in_turn(step: Callable[[str, ReleaseProcess], None]) -> None:
        for name in rng.permutation(list(samples)).tolist():
            try:
                step(name, children[name])
            except OrtMeterError as error:
                absent[case, name] = str(error)
                del samples[name]

    # Sessions are opened side by side: that is not what is timed.
    in_turn(lambda _name, child: child.start_open(question))
    in_turn(lambda _name, child: child.answer())
    warm: dict[str, float] = {}
    in_turn(lambda name, child: warm.update({name: _warm_seconds(child)}))
    counts = {name: (_calls_of_sample(s), settling_calls(s)) for name, s in warm.items()}
    for _ in range(_FEW_ROUNDS if max(warm.values(), default=0) > _LONG_S else _ROUNDS):
        in_turn(lambda name, child: samples[name].append(child.sample(*counts[name])))
    return {
        name: rounded(1e6 * float(np.median(found)), _DIGITS) or math.nan
        for name, found in samples.items()
    }


def _warm_seconds(child: ReleaseProcess) -> float:
    """Return the seconds of a call, once the first ones are over."""
    seconds = child.sample(1)
    return seconds if seconds > _SAMPLE_S else child.sample(_calls_of_sample(8 * seconds))


def _calls_of_sample(seconds: float) -> int:
    """Return the number of calls of a sample."""
    return math.ceil(_SAMPLE_S / max(seconds, _SHORTEST_S))
