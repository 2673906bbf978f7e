"""Measurements taken together, and the claims that follow from them."""

import dataclasses
import itertools
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import LEVEL, UNITS, Estimate, Speedup, Speedups, common_unit, rounded
from ortmeter.optional import pd
from ortmeter.timing import statistics
from ortmeter.timing.builds import TYPICAL, between_builds, over_builds
from ortmeter.timing.measurement import Measurement
from ortmeter.timing.statistics import MIN_PROCESSES, SESSIONS, exponential, student


def is_uneven(measured: Sequence[Measurement]) -> bool:
    """Say whether the share of calls that follow a switch differs from one to another."""
    if any(m.isolated or m.settling for m in measured):
        return False
    return len({m.number for m in measured}) > 1


def speedup(baseline: Measurement, candidate: Measurement, *, confidence: float = 0.99) -> Speedup:
    """Compare two measurements taken by the same call of :func:`~ortmeter.timing.measure`.

    Parameters
    ----------
    baseline, candidate : Measurement
        Both have the same rounds and processes.
    confidence : float
        Level of the interval. The default is high, 0.99, because a page has many intervals.

    Returns
    -------
    Speedup
        The ratio, its interval and the verdict. Over 3 processes or more, the interval is that of
        Hodges and Lehmann where each has several sets of sessions, and Student's where it has one.
        In one process of 100 rounds or more, it is Student's over batches of rounds, widened by how
        far two sessions of one model differ: 1.1%, one standard deviation. With fewer samples, or
        if the interval contains 1 and is wider than ten times the ratio, there is no interval and
        the verdict is undecided. The same holds for samples of different numbers of calls, taken in
        turn without settling calls: records from before November 28, 2026 have such samples.

    Raises
    ------
    InvalidArgumentError
        The measurements were not taken together, or a median is zero.

    Examples
    --------
    >>> slow = Measurement("slow", [[2.0, 2.1], [2.2, 2.1], [2.1, 2.0]])
    >>> fast = Measurement("fast", [[1.0, 1.1], [1.1, 1.1], [1.0, 1.0]])
    >>> print(speedup(slow, fast))
    fast is 1.99 times faster than slow [1.62, 2.43] (99% CI, 3 processes)
    """
    if (baseline.seconds.shape, baseline.sets) != (candidate.seconds.shape, candidate.sets):
        raise InvalidArgumentError(
            f"{baseline.name!r} has {baseline.seconds.shape} samples and {candidate.name!r} "
            f"{candidate.seconds.shape}. Accepted: two measurements of one call of measure"
        )
    if min(baseline.seconds.min(), candidate.seconds.min()) <= 0:
        raise InvalidArgumentError("A sample of zero seconds: the clock is too coarse to compare")
    processes, isolated = baseline.processes, baseline.isolated
    how = f"{processes} processes" if processes > 1 else "in one process"
    how = f"{how} each" if isolated else how
    log, half = log_ratio(baseline, candidate, confidence)
    if half is not None and processes == 1:  # rounds of one process are not those of another
        half = None if isolated else math.hypot(half, student(math.inf, confidence) * SESSIONS)
    return Speedup(candidate.name, baseline.name, exponential(log, half, confidence, how))


class _Measured:
    """Methods of a comparison and of comparisons along an axis."""

    axis: str = ""

    def speedups(self, baseline: str | None = None, *, together: float = 0.0) -> Speedups:
        """Compare all candidates with one of them, at every value of the axis.

        Parameters
        ----------
        baseline : str, optional
            The first one by default.
        together : float
            Level at which the intervals of a group hold simultaneously, when the best one is looked
            for. By default each one has its own, 99%.

        Returns
        -------
        Speedups
            One per other candidate, in their order, with its place on the axis.
        """
        claims: list[Speedup] = []
        for key, group in self._comparisons().items():
            first = next(iter(group)) if baseline is None else baseline
            level = 1 - (1 - together) / max(len(group) - 1, 1) if together else 0.99
            others = (name for name in group if name != first)
            there = [group.speedup(first, name, confidence=level) for name in others]
            claims += [claim.at(**{self.axis: key}) for claim in there] if self.axis else there
        return Speedups(claims)

    def to_frame(self, unit: str = "ms") -> "pd.DataFrame":
        """Return a table with one row per candidate and value of the axis.

        Parameters
        ----------
        unit : {"s", "ms", "µs"}
            Unit of the latencies.

        Returns
        -------
        pandas.DataFrame
            Index ``candidate``, after the axis if there is one. Columns ``median (ms)``,
            ``q1 (ms)``, ``q3 (ms)``, ``GFLOP/s``, ``GB/s`` (if the work is known), ``processes``,
            ``rounds`` and ``calls`` (per sample). Numbers are rounded to four significant digits,
            except seconds.
        """
        frames = {}
        for key, group in self._comparisons().items():
            rows = pd.DataFrame([_row(measured, unit) for measured in group.values()])
            frames[key] = rows.dropna(axis="columns", how="all").set_index("candidate")
        return self._along_axis(frames)

    def _along_axis(self, frames: "Mapping[Any, pd.DataFrame]") -> "pd.DataFrame":
        table: pd.DataFrame = pd.concat(frames, names=[self.axis])
        return table if self.axis else table.droplevel(0)

    def summary(self, baseline: str | None = None, unit: str | None = None) -> "pd.DataFrame":
        """Return the table of a page: latencies, and speedups with their 99% interval.

        Parameters
        ----------
        baseline : str, optional
            Candidate of speedup 1, the first one by default.
        unit : {"s", "ms", "µs"}, optional
            Unit of the latencies, by default :attr:`unit`.

        Returns
        -------
        pandas.DataFrame
            Index ``candidate``, after the axis if there is one. Columns ``median (ms)``,
            ``q1 (ms)``, ``q3 (ms)``, ``speedup`` and ``99% interval``, a text in brackets, empty
            for the baseline and for candidates with too few samples.
        """
        unit = unit or self.unit
        table = self.to_frame("s").iloc[:, :3] * UNITS[unit]  # rounded once, when it is shown
        table.columns = [f"{name} ({unit})" for name in ("median", "q1", "q3")]
        by_place = {(*map(str, c.where.values()), c.subject): c for c in self.speedups(baseline)}
        places = [key if isinstance(key, tuple) else (key,) for key in table.index]
        claims = [by_place.get(tuple(map(str, place))) for place in places]
        table["speedup"] = [1.0 if c is None else c.ratio for c in claims]
        table["99% interval"] = ["" if c is None else c.brackets for c in claims]
        return table

    def break_even(self, baseline: str, setup_seconds: Mapping[str, float]) -> "pd.DataFrame":
        """Count the calls after which a candidate saved what its preparation took.

        Parameters
        ----------
        baseline : str
            Candidate that needs no preparation.
        setup_seconds : mapping of str to float
            What a preparation takes, by name of candidate: a compilation, an export, a search.

        Returns
        -------
        pandas.DataFrame
            Index ``candidate``, after the axis if there is one. Columns ``preparation (s)``,
            ``calls``, a whole number of three digits, ``never`` if no time is saved or
            ``undecided``, and ``99% given the preparation``, a text in brackets: the interval of
            the speedup alone, what the preparation took is taken as known.

        Examples
        --------
        >>> times = {"eager": [[0.003] * 9] * 3, "compiled": [[0.001] * 9] * 3}
        >>> found = Comparison([Measurement(name, t) for name, t in times.items()])
        >>> found.break_even("eager", {"compiled": 2.5})  # doctest: +NORMALIZE_WHITESPACE
                   preparation (s)  calls 99% given the preparation
        candidate
        compiled               2.5   1250              [1250, 1250]
        """
        frames = {}
        for key, group in self._comparisons().items():
            names = [name for name in group if name in setup_seconds]
            counts = [_calls(setup_seconds[name], group.saved(baseline, name)) for name in names]
            rows = pd.DataFrame(counts, columns=["calls", "99% given the preparation"])
            rows.insert(0, "preparation (s)", [setup_seconds[name] for name in names])
            frames[key] = rows.set_index(pd.Index(names, name="candidate"))
        return self._along_axis(frames)

    @property
    def unit(self) -> str:
        """The unit in which half of the medians are at least 1, for a table and a plot."""
        return common_unit(m.median for g in self._comparisons().values() for m in g.values())

    @abstractmethod
    def _comparisons(self) -> "Mapping[Any, Comparison]":
        """By value of the axis."""

    @property
    def how(self) -> str:
        """Processes, rounds, caches, end: ``in one process, 100 rounds, back to back``.

        ``each alone in 10 processes of 12 rounds`` when candidates were isolated.
        """
        measured = [next(iter(group.values())) for group in self._comparisons().values()]
        processes, sets = ({getattr(m, n) for m in measured} for n in ("processes", "sets"))
        rounds = {m.repeat // m.sets for m in measured}
        several = "in one process," if processes == {1} else f"{_range(processes)} processes of"
        if any(candidate.isolated for candidate in measured):
            several = f"each alone in {several.removeprefix('in ')}"
        # A budget that was spent anywhere is said.
        reason = min(group.stopped for group in self._comparisons().values())
        why = {"precision": ", precision reached", "budget": ", budget spent"}.get(reason, "")
        several += f" {_range(sets)} times" if sets != {1} else ""
        unit = "round" if rounds == {1} else "rounds"
        near = ", back to back" if all(candidate.settling for candidate in measured) else ""
        return f"{several} {_range(rounds)} {unit}{near}{why}"

    def _repr_html_(self) -> str:
        return str(self.to_frame().to_html())


class Comparison(_Measured, Mapping[str, Measurement]):
    """Measurements of one call of :func:`~ortmeter.timing.measure`, by name.

    Parameters
    ----------
    measurements : iterable of Measurement
        Taken in the same rounds; their names are distinct.
    stopped : str
        What ended the measurement: ``precision`` was reached, ``budget`` was spent, or all the
        requested ``repeat`` rounds were taken.
    reference_workload : Measurement, optional
        A fixed product timed in the same rounds, which says how much the machine itself drifted. It
        is not one of the candidates.

    Attributes
    ----------
    before : sequence of Comparison
        Measurements of the same candidates in other builds, which speedups count, see
        ``timing.comparison.join_builds``.
    between : float
        Variance of the logarithm of a ratio between these builds.

    Examples
    --------
    >>> found = Comparison([Measurement("a", [[2.0, 2.0]]), Measurement("b", [[1.0, 1.0]])])
    >>> found.speedup("a", "b").ratio, found["a"].median
    (2.0, 2.0)
    """

    before: "Sequence[Comparison]"
    between: float

    def __init__(
        self,
        measurements: Iterable[Measurement],
        stopped: str = "repeat",
        *,
        reference_workload: Measurement | None = None,
    ) -> None:
        given = list(measurements)
        self._by_name = {measured.name: measured for measured in _beside(given)}
        if len(self._by_name) < len(given):
            raise InvalidArgumentError("two measurements share a name. Accepted: distinct names")
        self.stopped = stopped
        self.reference_workload = reference_workload
        self.before, self.between = (), 0.0

    def __getitem__(self, name: str) -> Measurement:
        try:
            return self._by_name[name]
        except KeyError:
            raise KeyError(f"{name!r} was not measured. Measured: {', '.join(self)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def select(self, names: Iterable[str]) -> "Comparison":
        """Return some of the measurements, in this order, with their builds."""
        chosen = Comparison([self[name] for name in names], self.stopped)
        chosen.reference_workload = self.reference_workload
        chosen.before, chosen.between = self.before, self.between
        return chosen

    def speedup(self, baseline: str, candidate: str, *, confidence: float = 0.99) -> Speedup:
        """Compare two candidates, given by name, see :func:`speedup`.

        The interval is that of all the builds that measured both, if there are several.
        """
        here = speedup(self[baseline], self[candidate], confidence=confidence)
        before = (build for build in self.before if baseline in build and candidate in build)
        builds = [here, *(b.speedup(baseline, candidate, confidence=confidence) for b in before)]
        known = [build.estimate for build in builds if build.has_interval]
        if len(builds) == 1 or not known:
            return here
        found = msgspec.structs.replace(here, estimate=over_builds(known, self.between))
        alike = sum(build.verdict == found.verdict for build in builds)
        how = f"reproduced in {alike} of {len(builds)} builds"
        return msgspec.structs.replace(found, estimate=dataclasses.replace(found.estimate, how=how))

    def saved(self, baseline: str, candidate: str) -> Estimate:
        """Estimate the seconds that a call of the candidate saves, below zero if it is slower.

        The latency of the baseline is its median; the interval is that of the speedup.

        Examples
        --------
        >>> found = Comparison([Measurement("a", [[2.0, 2.0]]), Measurement("b", [[1.0, 1.0]])])
        >>> print(found.saved("a", "b"), found.saved("b", "a"), sep=", ")
        1 s, -1 s
        """
        gain, latency = self.speedup(baseline, candidate).estimate, self[baseline].median
        low, high = (x and latency * (1 - 1 / x) for x in (gain.low, gain.high))
        value = latency * (1 - 1 / gain.value)
        return Estimate(value, low, high, gain.confidence, gain.how, "s")

    def ranking(self) -> Speedups:
        """Compare every other candidate with the one of lowest median.

        Returns
        -------
        Speedups
            Over the fastest, which was chosen from the same samples: the intervals hold together
            at 99%.

        Examples
        --------
        >>> times = {"a": np.full((3, 9), 1.0), "b": np.full((3, 9), 2.0)}
        >>> found = Comparison([Measurement(name, t) for name, t in times.items()]).ranking()
        >>> found[0].baseline, found[0].verdict
        ('a', 'slower')
        """
        fastest = min(self.values(), key=lambda measured: measured.median).name
        # Any pair may be the one that is looked at: each has its share of the error (Bonferroni).
        each = 1 - (1 - LEVEL) / max(math.comb(len(self), 2), 1)
        others = [name for name in self if name != fastest]
        return Speedups(self.speedup(fastest, name, confidence=each) for name in others)

    def half_width(self, confidence: float = 0.99) -> float | None:
        """Return the largest relative half-width of the intervals, 0.02 for 2%.

        All pairs of candidates are compared; a single candidate is compared with itself. None with
        too few samples.
        """
        pairs = (
            itertools.combinations(self.values(), 2) if len(self) > 1 else [[*self.values()] * 2]
        )
        halves = [log_ratio(a, b, confidence)[1] for a, b in pairs]
        known = [half for half in halves if half is not None]
        return math.expm1(max(known)) if len(known) == len(halves) else None

    def _comparisons(self) -> "Mapping[Any, Comparison]":
        return {"": self}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.values()), *(f"{s}." for s in self.speedups())])

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self)}; {self.how})"


class Comparisons(_Measured, Mapping[Any, Comparison]):
    """Comparisons of the same candidates along an axis: a size, a type, a number of threads.

    Parameters
    ----------
    groups : mapping of Comparison
        By value of the axis.
    axis : str
        Name of the axis.

    Examples
    --------
    >>> pair = [Measurement("a", [[2.0, 2.0]]), Measurement("b", [[1.0, 1.0]])]
    >>> found = Comparisons({8: Comparison(pair), 16: Comparison(pair)}, "size")
    >>> [claim.where for claim in found.speedup("a", "b")]
    [{'size': 8}, {'size': 16}]
    """

    def __init__(self, groups: Mapping[Any, Comparison], axis: str) -> None:
        self._groups: Mapping[Any, Comparison] = dict(groups)
        self.axis = axis

    def __getitem__(self, key: Any) -> Comparison:
        return self._groups[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def speedup(self, baseline: str, candidate: str, *, confidence: float = 0.99) -> Speedups:
        """Compare two candidates, given by name, wherever both were measured."""
        return Speedups(
            group.speedup(baseline, candidate, confidence=confidence).at(**{self.axis: key})
            for key, group in self.items()
            if baseline in group and candidate in group
        )

    def _comparisons(self) -> Mapping[Any, Comparison]:
        return self

    def __str__(self) -> str:
        return "\n".join(f"{self.axis} {key}\n{group}" for key, group in self.items())

    def __repr__(self) -> str:
        return f"Comparisons({self.axis}: {', '.join(map(str, self))})"


def join_builds(groups: Sequence[tuple[Comparison, Sequence[Comparison]]]) -> None:
    """Let the speedups of comparisons hold over the builds that measured the same before.

    Samples, medians and quartiles stay those of each comparison.

    Parameters
    ----------
    groups : sequence of (Comparison, sequence of Comparison)
        A comparison, and those of other builds. How far builds differ is estimated from all.
    """
    between = between_builds(
        [build.speedup(*pair, confidence=TYPICAL).estimate for build in builds]
        for here, before in groups
        for pair in itertools.pairwise(here)
        if (builds := [build for build in (here, *before) if {*pair} <= {*build}])
    )
    for here, before in groups:
        here.before, here.between = before, between


def log_ratio(
    baseline: Measurement, candidate: Measurement, confidence: float
) -> tuple[float, float | None]:
    """Estimate the logarithm of the ratio, and the half-width of its interval, if there is one."""
    rows, by_ranks = (baseline.rows, candidate.rows), baseline.sets > 1
    log, half = statistics.log_ratio(*rows, confidence, by_ranks=by_ranks)
    too_few = by_ranks and baseline.processes < MIN_PROCESSES
    return log, None if too_few or is_uneven([baseline, candidate]) else half


def _beside(measured: list[Measurement]) -> list[Measurement]:
    """Give interleaved candidates medians whose ratios are the speedups.

    So they do for two candidates; of more, each one is compared with the median of its rounds. The
    geometric mean of all stays.
    """
    shapes = {(*each.seconds.shape, each.sets) for each in measured}
    if len(measured) == 1 or len(shapes) > 1 or any(each.isolated for each in measured):
        return measured
    seconds = np.array([each.seconds for each in measured])
    if seconds.min() <= 0:
        return measured
    alone = [dataclasses.replace(each) for each in measured]
    shared = dataclasses.replace(alone[0], seconds=np.exp(np.median(np.log(seconds), axis=0)))
    apart = np.array([log_ratio(each, shared, LEVEL)[0] for each in alone])
    medians = np.exp(apart - apart.mean() + np.log([each.median for each in alone]).mean())
    return [each.beside(own) for each, own in zip(alone, medians.tolist(), strict=True)]


def _calls(seconds: float, saved: Estimate) -> tuple[int | str, str]:
    """Count the calls that save so many seconds, with the interval."""
    if saved.low is None or saved.high is None or saved.low <= 0:
        return "never" if saved.high is not None and saved.high <= 0 else "undecided", ""
    counts = (seconds / each for each in (saved.value, saved.high, saved.low))
    calls, *interval = (math.ceil(rounded(count, 3)) for count in counts)
    return calls, str(interval)


def _range(numbers: set[int]) -> str:
    least, most = min(numbers), max(numbers)
    return str(least) if least == most else f"{least} to {most}"


def latency_row(measured: Measurement, unit: str) -> dict[str, Any]:
    """Write the latencies of a candidate, to four significant digits except in seconds."""
    q1, q3 = measured.quartiles
    times = {"median": measured.median, "q1": q1, "q3": q3}
    cells = {f"{name} ({unit})": value * UNITS[unit] for name, value in times.items()}
    return {"candidate": measured.name, **_shown(cells, unit)}


def _row(measured: Measurement, unit: str) -> dict[str, Any]:
    work = {"GFLOP/s": measured.gflop_per_s, "GB/s": measured.gb_per_s}
    return {
        **latency_row(measured, unit),
        **_shown(work, unit),
        "processes": measured.processes,
        "rounds": measured.repeat,
        "calls": measured.number,
    }


def _shown(cells: dict[str, Any], unit: str) -> dict[str, Any]:
    return cells if unit == "s" else {name: rounded(value) for name, value in cells.items()}
