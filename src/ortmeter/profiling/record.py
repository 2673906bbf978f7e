"""Profiles: their events, their tables, and how far they can be trusted."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.evidence import Speedup
from ortmeter.profiling import tables
from ortmeter.timing import Comparison, Measurement, speedup
from ortmeter.timing.measurement import format_seconds

_US_PER_S = 1e6
_S_PER_US = 1e-6  # a factor: claims that were recorded are rounded as it does
#: Verdicts that know which side is faster; a difference that is too small to be claimed is none.
_DIRECTIONS = {"faster": 1, "slower": -1, "negligible": 0}
_ENDS = {
    "agree": "the kernels and the latency say the same",
    "opposed": "the kernels and the latency disagree: nothing can be concluded about nodes",
    "undecided": "the kernels and the latency do not both reach a verdict: differences between "
    "nodes are not confirmed",
    "launches": "the profile times the launch of each kernel, not its work on the device: "
    "nothing can be concluded about nodes",
}
#: Verdict -> why nodes are left out.
_OBSTACLES = {
    "opposed": "the profiles and the latencies are opposed",
    "launches": "a profile has the launches of the kernels of a device, not their times",
}
_SHORT_US = 10
_SHORT_SHARE = 0.1
_PARALLEL = 1.05
_LAUNCHES = (
    "The times of {devices} only cover the launch of a kernel, which runs later on the device: "
    "compare latencies of whole runs. To time kernels on the device, build ONNX Runtime with "
    "--enable_cuda_profiling (kernels are then in session_events, category Kernel) or use a "
    "profiler such as Nsight Systems"
)


@dataclass(frozen=True, eq=False, repr=False)
class Profile:
    """Profile of a model: one row per execution of a kernel, and its runs.

    Parameters
    ----------
    events : pandas.DataFrame
        One row per execution of a kernel, in the order of their start. Columns, always all of
        them, in this order:

        ==================== ========= =========================================================
        column               dtype     meaning
        ==================== ========= =========================================================
        ``iteration``        int64     run that executed it, from 0; -1 outside of any run
        ``name``             category  name of the node, or operator and index when it has none
        ``op``               category  operator
        ``domain``           category  domain of the operator, ``ai.onnx`` for the standard one;
                                       missing when the graph is not known
        ``node_index``       Int64     index of the node in its graph
        ``provider``         category  execution provider, ``CPUExecutionProvider``...
        ``parent``           category  name of the If, Loop or Scan whose body it belongs to;
                                       missing for the main graph
        ``thread``           int64     thread that executed it
        ``start``            int64     µs since the profiler started
        ``duration``         int64     µs, the body of an If, Loop or Scan included
        ``self_duration``    int64     µs, without the kernels of the body: these add up
        ``input_types``      object    tuple of short names (``f32``) of the inputs that are
                                       present tensors
        ``input_shapes``     object    tuple of their shapes, each one a tuple of int
        ``output_types``     object    the same for the outputs
        ``output_shapes``    object    the same for the outputs
        ``signature``        category  the four above as a text,
                                       ``(f32 1x3, i64 scalar) -> f32 1x3``
        ``parameter_size``   Int64     bytes of the inputs that are initializers
        ``activation_size``  Int64     bytes of the other inputs
        ``output_size``      Int64     bytes of the outputs
        ``in_use``           Int64     bytes that the allocator of the node gave out, after it
        ``in_use_peak``      Int64     largest ``in_use`` since the session exists
        ``arena_held``       Int64     bytes that the arena took from the system, after it
        ==================== ========= =========================================================

        Sizes that were not recorded are missing: the three memory columns in files written before
        they existed.
    session_events : pandas.DataFrame
        All other events: runs (``model_run``), executors, kernels timed by a device, and in a file
        the start-up (``model_loading...``, ``session_initialization``).
        Columns ``name``, ``category`` (category), ``thread``, ``start``, ``duration`` (int64, µs),
        ``iteration`` (int64, -1 outside of the runs).
    model : onnx.ModelProto, optional
        Graph that ran, optimized, when it is known.
    original : onnx.ModelProto, optional
        Model before optimization, when it is known.
    overhead : Speedup, optional
        Speedup of a profiled run (candidate) over an unprofiled one (baseline): 0.8 means that
        profiling makes a run 1.25 times longer. None for a profile read from a file.
    warmup : int
        Number of first runs that statistics exclude: they allocate memory and warm caches.
    name : str
        Name of this profile among the interleaved ones.
    latencies : Comparison, optional
        Unprofiled latencies of all the interleaved profiles, by name, one sample per round. None
        for a profile read from a file.

    Notes
    -----
    Statistics use *steady* runs: complete runs after the first *warmup*, at least the last one.

    For a kernel on a device such as CUDA, ONNX Runtime records the time that the host takes to
    launch it, and to wait if it blocks, as a copy to the host does. These durations do not add up
    to the time of the device, and no throughput is computed from them.

    Examples
    --------
    >>> import numpy as np
    >>> from ortmeter.profiling import profile
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Abs(X)  Y = Exp(Z) }'''
    >>> found = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=3)
    >>> found.by_operator()["op"].sort_values().tolist()
    ['Abs', 'Exp']
    """

    events: pd.DataFrame
    session_events: pd.DataFrame
    model: onnx.ModelProto | None = None
    original: onnx.ModelProto | None = None
    overhead: Speedup | None = None
    warmup: int = 1
    name: str = ""
    latencies: Comparison | None = None

    def __repr__(self) -> str:
        median = self.steady_runs["duration"].median() / _US_PER_S
        plain = ""
        if self.latencies is not None:
            plain = f" ({format_seconds(self.latencies[self.name].median)} unprofiled)"
        return (
            f"profile of {len(self._runs)} runs, {self.by_operator()['nodes'].sum()} nodes: a "
            f"profiled run takes {format_seconds(median)}{plain}, {self.unexplained:.0%} of it "
            "outside of any kernel"
        )

    @property
    def steady(self) -> pd.DataFrame:
        """Rows of ``events`` that belong to steady runs."""
        return self.events[self.events["iteration"].isin(self.steady_runs["iteration"])]

    @property
    def steady_runs(self) -> pd.DataFrame:
        """Rows of :meth:`by_iteration` that are steady."""
        runs = self.by_iteration()
        return runs[runs["steady"]]

    @property
    def devices(self) -> tuple[str, ...]:
        """Providers whose kernels run on a device; their times are launch times."""
        return tuple(sorted(set(self.steady["provider"].dropna().astype(str)) - {tables.CPU}))

    def by_operator(self) -> pd.DataFrame:
        """Sum the time of each operator.

        Returns
        -------
        pandas.DataFrame
            One row per operator, domain and provider, slowest first: ``op``, ``domain``,
            ``provider``, ``nodes`` (distinct nodes), ``calls`` (kernels per run), ``median``,
            ``q1``, ``q3`` (µs per run, bodies not counted twice), ``mean`` (µs per run),
            ``total`` (µs, all steady runs), ``first`` (µs in the first run), ``share`` (of
            the sum of the medians, from 0 to 1).
        """
        return tables.by_operator(self._kernels, self.by_iteration())

    def by_node(self) -> pd.DataFrame:
        """Sum the time of each node.

        Returns
        -------
        pandas.DataFrame
            One row per node, in the order of the first execution: ``name``, ``op``, ``domain``,
            ``node_index``, ``provider``, ``parent``, ``signature``, the columns of
            :meth:`by_operator` from ``calls`` to ``share``, ``inclusive`` (median µs per run, body
            included), ``origin`` (tuple of the names of the original nodes, empty if unknown),
            ``flop``, ``bytes`` (of one run, see :func:`~ortmeter.operators.costs.node_cost`),
            ``gflop_per_s``, ``gb_per_s`` (on the CPU). Values that need the graph are missing
            without it.
        """
        graphs = {"model": self.model, "original": self.original}
        return tables.by_node(self._kernels, self.by_iteration(), **graphs)

    def by_iteration(self) -> pd.DataFrame:
        """Describe each complete run.

        Returns
        -------
        pandas.DataFrame
            One row per run: ``iteration``, ``start``, ``duration`` (µs, ``model_run``),
            ``kernels`` (number of them), ``kernel_time`` (µs, sum of ``self_duration``),
            ``covered`` (µs during which a kernel runs, once even if several run), ``unexplained``
            (share of the duration outside of any kernel, from 0 to 1), ``steady`` (bool).
        """
        return tables.by_iteration(self._kernels, self._runs, self.warmup)

    def memory(self) -> pd.DataFrame:
        """Describe the memory of each node.

        Returns
        -------
        pandas.DataFrame
            One row per node, in the order of the first execution: ``name``, ``op``, ``parent``, and
            the largest (bytes) ``parameter_size``, ``activation_size``, ``output_size``,
            ``in_use``, ``in_use_peak``, ``arena_held``. Values that the file lacks are missing.
        """
        return tables.memory(self._kernels)

    @property
    def unexplained(self) -> float:
        """Share of the steady runs during which no kernel runs, from 0 to 1."""
        steady = self.steady_runs
        return float(1 - steady["covered"].sum() / max(steady["duration"].sum(), 1))

    @property
    def caveats(self) -> tuple[Speedup | str, ...]:
        """Warnings about this profile; often empty."""
        return tuple(self._find_caveats())

    @property
    def trust(self) -> tuple[Speedup | str, ...]:
        """Time outside of kernels, cost of profiling, and caveats."""
        what = "launch" if self.devices else "kernel"
        known = f"{self.unexplained:.1%} of a run is outside of any {what}"
        cost = () if self.overhead is None else (self.overhead,)
        return (known, *cost, *(caveat for caveat in self.caveats if caveat not in cost))

    def compare(self, candidate: "Profile") -> "ProfileCheck":
        """Check that two profiles can be compared node by node; this one is the baseline.

        Kernel times are measured with the profiler on. If their total and the unprofiled latency
        point in opposite directions, the times of the nodes explain nothing. Use
        :func:`~ortmeter.profiling.merge_profiles` to compare the nodes. Both profiles must come
        from one call of :func:`~ortmeter.profiling.profile_together`, else
        :class:`~ortmeter.errors.InvalidArgumentError` is raised.

        Examples
        --------
        >>> import numpy as np
        >>> from ortmeter.profiling import profile_together
        >>> text = '''<ir_version: 10, opset_import: ["": 21]>
        ... g (float[n] X) => (float[n] Y) { Z = Identity(X)  Y = Exp(Z) }'''
        >>> found = profile_together(
        ...     {level: {"optimization": level} for level in ("none", "all")},
        ...     model=text, feeds={"X": np.float32([1, 2])}, provider="cpu", repeat=3)
        >>> found["none"].compare(found["all"]).latency_speedup.subject
        'all'
        """
        taken = self.latencies
        if taken is None or taken is not candidate.latencies:
            raise InvalidArgumentError(
                f"{self!r} and {candidate!r} were not taken together: the speed of the machine may "
                "have changed. Accepted: two profiles of one call of profile_together"
            )
        on_host = not (self.devices or candidate.devices)
        return ProfileCheck(
            (_kernel_times(self), _kernel_times(candidate)) if on_host else (),
            (taken[self.name], taken[candidate.name]),
        )

    @property
    def _runs(self) -> pd.DataFrame:
        """Complete runs, in order."""
        runs = self.session_events[self.session_events["name"] == "model_run"]
        return runs.sort_values("iteration")[["iteration", "start", "duration"]]

    @property
    def _kernels(self) -> pd.DataFrame:
        """Kernels of the complete runs."""
        return self.events[self.events["iteration"] >= 0].reset_index(drop=True)

    def _find_caveats(self) -> Iterator[Speedup | str]:
        steady, runs = self.steady, self.by_iteration()
        if self.devices:
            yield _LAUNCHES.format(devices=", ".join(self.devices))
        if len(runs) == 1:
            yield "There is only one run: its times include memory allocation and cold caches"
        counted = self.steady_runs
        if counted["kernel_time"].sum() > _PARALLEL * counted["covered"].sum():
            yield "Kernels ran at the same time: their times add up to more than a run takes"
        if (runs["start"].diff() < runs["duration"].shift()).any():
            yield "Runs overlap: a kernel of a pool thread is counted in the run that started last"
        total = steady["self_duration"].sum()
        short = steady["self_duration"][steady["duration"] < _SHORT_US].sum()
        if short > _SHORT_SHARE * total and not self.devices:
            yield (
                f"Kernels below {_SHORT_US} µs take {float(short / total):.0%} of kernel time, and "
                "the profiler rounds each of them down to a microsecond"
            )
        if self.overhead is not None and self.overhead.is_difference:
            yield self.overhead


@dataclass(frozen=True)
class ProfileCheck:
    """Comparison of the total kernel times of two profiles with their unprofiled latencies.

    Parameters
    ----------
    kernels : tuple of two Measurement
        Total kernel time of the baseline and of the candidate in seconds, one sample per round.
        Empty if kernels run on a device.
    latencies : tuple of two Measurement
        Latencies of both without the profiler, taken in the same rounds.

    Examples
    --------
    >>> def times(ms):
    ...     return Measurement("slow", [[2 * ms] * 100]), Measurement("fast", [[ms] * 100])
    >>> ProfileCheck(times(1e-3), times(2e-3)).verdict
    'agree'
    >>> ProfileCheck(times(1e-3), times(2e-3)[::-1]).verdict
    'opposed'
    """

    kernels: tuple[Measurement, ...]
    latencies: tuple[Measurement, Measurement]

    @property
    def kernel_speedup(self) -> Speedup | None:
        """Speedup of the kernels of the candidate, None if unknown."""
        if not self.kernels or any(kernels.seconds.min() <= 0 for kernels in self.kernels):
            return None
        return speedup(*self.kernels)

    @property
    def latency_speedup(self) -> Speedup:
        """Speedup of the candidate without the profiler."""
        return speedup(*self.latencies)

    @property
    def verdict(self) -> str:
        """``agree``, ``opposed``, ``undecided``, or ``launches`` if kernels run on a device.

        They are opposed if one is faster and the other slower. They agree if both have the same
        verdict, other than undecided, or ratios closer than the minimum effect. Fewer than 100
        rounds are undecided.
        """
        if not self.kernels:
            return "launches"
        claims = [c for c in (self.kernel_speedup, self.latency_speedup) if c is not None]
        match [_DIRECTIONS[c.verdict] for c in claims if c.verdict in _DIRECTIONS]:
            case (1, -1) | (-1, 1):
                return "opposed"
            case (one, other):
                gap = math.log((claims[0].ratio or 1) / (claims[1].ratio or 1))
                if one == other or abs(gap) <= math.log1p(claims[0].min_effect):
                    return "agree"
        return "undecided"

    @property
    def claims(self) -> tuple[Speedup | str, ...]:
        """Speedup of the kernels, speedup of the latency, and whether they agree."""
        said = _ENDS[self.verdict]
        latency = self.latency_speedup.at(latency="without the profiler")
        if not self.kernels:
            return latency, said
        kernels = self.kernel_speedup
        none = "kernels in total: less than a microsecond in a run"
        return (kernels.at(kernels="in total") if kernels else none), latency, said

    @property
    def obstacle(self) -> str:
        """Reason why nodes cannot be compared, empty if they can."""
        return _OBSTACLES.get(self.verdict, "")

    def __str__(self) -> str:
        return "; ".join(map(str, self.claims))


def _kernel_times(profile: Profile) -> Measurement:
    microseconds = profile.steady_runs["kernel_time"].to_numpy(np.float64)
    return Measurement(profile.name, _S_PER_US * microseconds[None])
