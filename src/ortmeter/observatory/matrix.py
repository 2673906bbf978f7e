"""Run cases with several releases of ONNX Runtime, in turn, in fresh processes: their times."""

import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.progress import progress_bar
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.releases import Release
from ortmeter.timing.candidates import Variant
from ortmeter.timing.measurement import rounded
from ortmeter.timing.release_process import ReleaseProcess, write_questions

#: Suffix of the control: the last contender again, in a process of its own.
AGAIN = ", again"
#: What one row of the times stands for.
ROWS = ("threads", "pass", "process", "case")

_ROUNDS, _SAMPLE_S, _DIGITS = 5, 1e-3, 4


@dataclass(frozen=True)
class Contender:
    """What runs the cases: a release of ONNX Runtime.

    Parameters
    ----------
    name : str
        How tables name it.
    release : Release
        Its environment exists.
    script : Path, optional
        What its processes run, by default ``release_child.py``.
    provider : Provider, optional
        By default the one of each case.
    """

    name: str
    release: Release
    script: Path | None = None
    provider: Provider | None = None

    def start(self) -> ReleaseProcess:
        """Start a process."""
        return ReleaseProcess(self.release, self.script)

    def question(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return what its process is asked to open."""
        if self.provider is None:
            return dict(question)
        device = {} if self.provider.name == "cpu" else {"device_id": str(self.provider.index)}
        return {**question, "provider": [self.provider.execution_provider, device]}


@dataclass(frozen=True)
class Matrix:
    """Times of cases by contender.

    Parameters
    ----------
    times : pandas.DataFrame
        Median time of a run (µs) in a process, index ``threads``, ``pass``, ``process``, ``case``,
        one column per contender, and the control. NaN where a contender does not run the case.
    absent : mapping
        For a case and a contender, why it does not run.
    versions : mapping of str to mapping
        For each contender, the versions in its environment.
    """

    times: pd.DataFrame
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def measure_cases(
    contenders: Sequence[Contender],
    cases: Mapping[str, Variant],
    *,
    threads: Sequence[int] = (1,),
    passes: int = 2,
    processes: int = 10,
    control: bool = True,
    seed: int = 0,
) -> Matrix:
    """Measure each case with each contender, in turn, in several sets of fresh processes.

    Parameters
    ----------
    contenders : sequence of Contender
        In the order in which they are compared, the oldest release first.
    cases : mapping of str to Variant
        Models with their inputs, see :meth:`Case.prepared`.
    threads : sequence of int
        Numbers of threads.
    passes : int
        Independent repetitions: a difference is claimed when all of them show it.
    processes : int
        Sets of fresh processes in each pass, one process per contender in each.
    control : bool
        Also measure the last contender against itself, in another process.
    seed : int
        Seed of the orders.

    Returns
    -------
    Matrix
        A row per number of threads, pass, set of processes and case.

    Raises
    ------
    InvalidArgumentError
        There is no case, or two contenders share a name.
    """
    names = [contender.name for contender in contenders]
    if not cases or not contenders or len({*names}) < len(names):
        raise InvalidArgumentError(
            f"{len(cases)} cases for {', '.join(names) or '(nothing)'}. Accepted: one case or "
            "more, for distinct contenders"
        )
    runners = dict(zip(names, contenders, strict=True))
    if control:
        runners[names[-1] + AGAIN] = contenders[-1]
    rows = []
    absent: dict[tuple[str, str], str] = {}
    total = passes * processes * len(threads) * len(cases)
    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary,
        progress_bar("cases", total=total) as bar,
    ):
        questions = write_questions(cases, Path(temporary))
        for rank in range(passes * processes):
            rng = np.random.default_rng([seed, rank])
            with _Set(runners) as children:
                for count in threads:
                    for name in rng.permutation(list(questions)).tolist():
                        question = with_threads(questions[name], count)
                        found = children.measure(name, question, absent, rng)
                        place = (count, rank // processes, rank % processes, name)
                        rows.append(dict(zip(ROWS, place, strict=True)) | found)
                        bar.update()
                versions = children.versions
    times = pd.DataFrame(rows, columns=[*ROWS, *runners]).set_index(list(ROWS))
    return Matrix(times, {key: why for key, why in absent.items() if key[1] in names}, versions)


def with_threads(question: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return a question for another number of threads."""
    attributes = {**question["attributes"], "intra_op_num_threads": count}
    return {**question, "attributes": attributes}


class _Set(ExitStack):
    """A process for each contender; one that dies is started again."""

    def __init__(self, contenders: Mapping[str, Contender]) -> None:
        super().__init__()
        self.contenders = contenders
        self.children = {name: self._start(name) for name in contenders}
        self.versions = {name: child.ask("describe") for name, child in self.children.items()}

    def _start(self, name: str) -> ReleaseProcess:
        return self.enter_context(self.contenders[name].start())

    def measure(
        self,
        case: str,
        question: Mapping[str, Any],
        absent: dict[tuple[str, str], str],
        rng: np.random.Generator,
    ) -> dict[str, float]:
        """Return the median time of a run (µs) of each process that runs the case."""
        numbers = {}
        for name in rng.permutation(list(self.children)).tolist():
            if (case, name) in absent:
                continue
            try:
                self.children[name].open(self.contenders[name].question(question))
                self.children[name].sample(1)
                first = self.children[name].sample(1)
            except OrtMeterError as error:
                absent[case, name] = str(error)
                if self.children[name].is_dead:
                    self.children[name] = self._start(name)
            else:
                numbers[name] = max(1, math.ceil(_SAMPLE_S / max(first, 1e-7)))
        samples: dict[str, list[float]] = {name: [] for name in numbers}
        for _ in range(_ROUNDS):
            for name in rng.permutation(list(numbers)).tolist():
                samples[name].append(self.children[name].sample(numbers[name]))
        return {
            name: rounded(1e6 * float(np.median(found)), _DIGITS) or math.nan
            for name, found in samples.items()
        }
