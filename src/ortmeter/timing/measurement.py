"""Candidates to time, and their measurements."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortmeter.child_main import named
from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Estimate
from ortmeter.timing.statistics import geometric_mean

#: Target of a spawn spec whose function travels as source.
SOURCE = "source"

_NOISY = 0.2


@dataclass(frozen=True)
class SpawnSpec:
    """How a fresh process builds a candidate again.

    Parameters
    ----------
    target : str
        ``module:function``, or ``source``; the function returns a candidate or a callable without
        arguments.
    arguments : mapping
        Keyword arguments of that function, values that JSON accepts; for ``source``, its ``text``,
        ``name`` and ``arguments``.
    """

    target: str
    arguments: Mapping[str, Any]

    def build(self) -> Any:
        """Return what the function returns."""
        if self.target == SOURCE:
            scope: dict[str, Any] = {"__name__": "__ortmeter__"}
            # The parent wrote this text from a function of its own program.
            exec(compile(self.arguments["text"], "<function of a page>", "exec"), scope)  # noqa: S102
            return scope[self.arguments["name"]](**self.arguments["arguments"])
        return named(self.target)(**self.arguments)


@dataclass(frozen=True)
class Candidate:
    """A function to time, and the work that it does.

    Parameters
    ----------
    function : callable without arguments
        Function to time. It returns once its results are ready, unless ``measure(..., sync=...)``
        waits for them. If it has a method ``sample(number, settling)``, this is called instead: it
        makes *settling* calls, then returns the seconds of a call, mean of *number* calls, that
        another process measured.
    flop : float, optional
        Floating-point operations of a call.
    bytes_moved : float, optional
        Bytes that a call must read and write.
    spawn_spec : callable, optional
        Called with a folder, writes the files that a fresh process needs and returns the
        :class:`SpawnSpec`. Required by ``measure(..., processes=...)``.
    """

    function: Callable[[], object]
    flop: float | None = None
    bytes_moved: float | None = None
    spawn_spec: Callable[[Path], SpawnSpec] | None = None


@dataclass(frozen=True, eq=False)
class Measurement:
    """Raw times of one candidate, with statistics as properties.

    Parameters
    ----------
    name : str
        Name of the candidate.
    seconds : array of shape (processes, repeat)
        Seconds per call, one sample per round, in the order of the rounds.
    number : int
        Calls in a sample.
    warmup : tuple of float
        Seconds of each warm-up call in the first process; the first call often includes
        initialization.
    flop, bytes_moved : float, optional
        Work of a call, as declared by the candidate.
    isolated : bool
        Whether the processes measured this candidate only.
    settling : int
        Calls before each sample that were not timed, so that the caches hold what the candidate
        uses; 0 when nothing else ran in between, or when candidates alternate.
    after_switch : tuple of float
        Seconds of the first call after another candidate, the median of each process; empty where
        it is not known.
    sets : int
        How many times each process built the candidates: its samples are those of the first
        sessions, then as many of the next ones.

    Examples
    --------
    >>> Measurement("copy", [[1e-3, 2e-3, 3e-3]], bytes_moved=4e6).gb_per_s
    2.0
    """

    name: str
    seconds: npt.NDArray[np.float64]
    number: int = 1
    warmup: tuple[float, ...] = ()
    flop: float | None = None
    bytes_moved: float | None = None
    isolated: bool = False
    settling: int = 0
    after_switch: tuple[float, ...] = ()
    sets: int = 1
    _median: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        seconds = np.array(self.seconds, dtype=np.float64)
        if seconds.ndim != 2 or seconds.size == 0:  # noqa: PLR2004 - processes and rounds
            raise InvalidArgumentError(
                f"seconds of {self.name!r} has shape {seconds.shape}. "
                "Accepted: (processes, repeat), with at least one sample"
            )
        seconds.flags.writeable = False
        object.__setattr__(self, "seconds", seconds)

    @property
    def processes(self) -> int:
        """Number of processes that measured."""
        return int(self.seconds.shape[0])

    @property
    def repeat(self) -> int:
        """Number of samples in each process."""
        return int(self.seconds.shape[1])

    def beside(self, median: float) -> "Measurement":
        """Return the same with the median that its comparison gives to it."""
        copy = dataclasses.replace(self)
        object.__setattr__(copy, "_median", median)
        return copy

    def cut(self, sets: int, rounds: int) -> npt.NDArray[np.float64]:
        """Return the first rounds of the first sets of sessions, of shape (processes, ...)."""
        whole = self.seconds.reshape(self.processes, self.sets, -1)
        return whole[:, :sets, :rounds].reshape(self.processes, -1)

    @property
    def rows(self) -> npt.NDArray[np.float64]:
        """Samples of each set of sessions in a row, their median alone if isolated."""
        rows = self.seconds.reshape(self.processes * self.sets, -1)
        return np.median(rows, axis=1, keepdims=True) if self.isolated else rows

    @property
    def median(self) -> float:
        """Median latency of a call, in seconds: the geometric mean of those of the processes.

        In a comparison of interleaved candidates, what slowed a round for all is left out, so
        that medians differ as the speedup says.
        """
        if self._median is not None:
            return self._median
        medians = np.median(self.seconds, axis=1)
        if len(medians) == 1 or not medians.all():  # 0: the clock is too coarse
            return float(medians.min())
        return float(np.exp(np.log(medians).mean()))

    @property
    def typical(self) -> Estimate:
        """Geometric mean of the medians of the processes, and its 99% interval, in seconds."""
        return geometric_mean(np.median(self.seconds, axis=1))

    @property
    def means(self) -> "Measurement":
        """The same with the mean of each process in place of its samples.

        A median leaves out what is rare and long, such as the slices of time of another process.
        """
        mean = self.seconds.mean(axis=1, keepdims=True)
        return dataclasses.replace(self, seconds=mean, sets=1)

    @property
    def quartiles(self) -> tuple[float, float]:
        """First and third quartiles of the latency, in seconds; the median is between them."""
        q1, q3 = np.percentile(self.seconds, [25, 75])
        return min(float(q1), self.median), max(float(q3), self.median)

    @property
    def relative_iqr(self) -> float:
        """Interquartile range divided by the median."""
        q1, q3 = self.quartiles
        return (q3 - q1) / self.median if self.median > 0 else math.inf

    @property
    def switch_cost(self) -> float | None:
        """Seconds that the first call after another candidate takes more, None if not known."""
        return float(np.median(self.after_switch)) - self.median if self.after_switch else None

    @property
    def gflop_per_s(self) -> float | None:
        """Throughput in GFLOP/s at the median, None when the work is unknown."""
        return None if self.flop is None else self.flop / self.median / 1e9

    @property
    def gb_per_s(self) -> float | None:
        """Throughput in GB/s at the median, None when the bytes are unknown."""
        return None if self.bytes_moved is None else self.bytes_moved / self.median / 1e9

    def __str__(self) -> str:
        q1, q3 = self.quartiles
        text = (
            f"{self.name}: median {format_seconds(self.median)}, quartiles {format_seconds(q1)} to "
            f"{format_seconds(q3)}, {self.repeat} samples of {self.number} "
            f"call{'s' if self.number > 1 else ''}"
        )
        if self.processes > 1:
            text += f" in each of {self.processes} processes"
        if self.relative_iqr > _NOISY:
            text += f" (noisy: the interquartile range is {self.relative_iqr:.0%} of the median)"
        return text


def format_seconds(seconds: float) -> str:
    """Write a duration with the unit that suits it."""
    return Estimate(seconds).seconds
