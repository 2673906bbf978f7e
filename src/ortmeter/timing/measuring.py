"""Interleave candidates in this process or in fresh ones, one process after the other."""

import dataclasses
import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from ortmeter.child import call
from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.comparison import Comparison, Comparisons
from ortmeter.timing.loop import as_candidate, measure_here
from ortmeter.timing.measurement import Candidate, Measurement, SpawnSpec
from ortmeter.timing.processes import collect, measure_isolated, share_budget
from ortmeter.timing.statistics import MIN_PROCESSES

if TYPE_CHECKING:
    from ortmeter.timing.candidates import SessionSpec

_Candidate: TypeAlias = "Candidate | SessionSpec | Callable[[], object]"
_Key = TypeVar("_Key")
# Sets of sessions in a process, at least. Rounds of one and the least seconds that they take.
_SETS, _ROUNDS, _SET_S = 6, 12, 0.1
_ROUNDS_APART = 50  # a slow spell of the machine hits one candidate only


def measure(
    candidates: Mapping[str, _Candidate],
    *,
    repeat: int | None = None,
    warmup: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
    processes: int = 1,
    isolated: bool = False,
    sync: str | None = None,
    seed: int = 0,
    reference_workload: bool = False,
    switching: bool = False,
) -> Comparison:
    """Interleave candidates in the same loop, and time them.

    Each round takes one sample of every candidate, in random order: a slow period of the machine
    affects all of them. A sample is the mean of ``number`` calls, enough for the resolution of the
    clock, and the same number for all candidates. Calls are back to back: those that follow another
    candidate, and pay for the caches that it emptied, are made and not timed. The garbage collector
    is off.

    Parameters
    ----------
    candidates : mapping of str to Candidate, SessionSpec or callable
        Candidates by name.
    repeat : int, optional
        Minimum number of rounds, by default 100. With several processes, each process builds the
        candidates six times and takes *repeat* rounds of each of these sets. By default a set has
        12 rounds, or as many as fit in 0.1 s, and 50 when candidates are isolated, and there are
        as many sets as fit in the time that a process took to start. An interval needs 100 rounds
        in one process, or 3 processes.
    warmup : int, optional
        Calls of each candidate before the samples. By default, the warm-up stops when times are
        stable (the medians of the last two groups of 5 calls differ by less than 5%), after 100
        calls, one second, or the candidate's share of 30% of the budget.
    precision : float, optional
        Target for the relative half-width of the 99% interval of a ratio. Rounds are added until
        every interval between two candidates reaches it. With several processes, processes are
        added instead, up to three times *processes*, and the target applies to the 99.9%
        interval. None takes exactly *repeat* rounds.
    budget_s : float
        Seconds for the whole measurement, including warm-up and processes. Sampling then stops,
        even below *repeat* rounds, with at least one sample per candidate. A process measures for
        as long as it took to start, at least: fewer processes then, or more seconds.
    processes : int
        Above 1, the measurement is repeated in this number of fresh processes, with different
        memory layouts, threads and orders of construction. Every candidate needs a ``spawn_spec``.
    isolated : bool
        Measure each candidate alone in this number of processes, one candidate after the other in
        random order: for those that disturb what runs next, such as sessions whose threads spin
        after a run. Needs several processes.
    sync : str, optional
        A provider, ``cuda`` or ``cuda:1``: torch synchronizes that device at the end of each call,
        inside the timed region.
    seed : int
        Seed of the orders in which candidates are built and called.
    reference_workload : bool
        Also time a fixed product of NumPy in each round, as ``Comparison.reference_workload``: it
        says how much the machine itself drifted, see :func:`~ortmeter.timing.drift.drift`.
    switching : bool
        A sample is one call that follows a call of another candidate, and finds its caches, as in a
        server that has several models. By default, this cost is reported as
        ``Measurement.switch_cost``, and left out of the samples.

    Returns
    -------
    Comparison
        Mapping of names to :class:`~ortmeter.timing.Measurement`, in the order of *candidates*,
        all with the same number of samples. ``stopped`` is what ended the measurement.

    Raises
    ------
    InvalidArgumentError
        *candidates* is empty, a number is out of range, a spawn spec is missing, or there is
        nothing to switch to.

    Examples
    --------
    >>> results = measure({"sum": lambda: sum(range(100))}, repeat=3, precision=None)
    >>> results["sum"].repeat, results.stopped
    (3, 'repeat')
    """
    given = dict(locals())
    return measure_each({"": given.pop("candidates")}, axis="", **given)[""]


def measure_each(
    groups: Mapping[Any, Mapping[str, _Candidate]],
    *,
    axis: str,
    repeat: int | None = None,
    warmup: int | None = None,
    precision: float | None = 0.02,
    budget_s: float = 10.0,
    processes: int = 1,
    isolated: bool = False,
    sync: str | None = None,
    seed: int = 0,
    reference_workload: bool = False,
    switching: bool = False,
) -> Comparisons:
    """Time groups of candidates, one group after the other, such as one group per size.

    Parameters
    ----------
    groups : mapping of mappings
        For each value of the axis, candidates as in :func:`measure`.
    axis : str
        Name of the axis: ``size``.
    repeat, warmup, precision, budget_s, processes, isolated
        As in :func:`measure`.
    sync, seed, reference_workload, switching
        As in :func:`measure`. The groups share the budget. Each fresh process measures all groups,
        unless candidates are measured apart.

    Returns
    -------
    Comparisons
        One comparison per group.

    Examples
    --------
    >>> groups = {n: {"sum": lambda n=n: sum(range(n))} for n in (10, 100)}
    >>> found = measure_each(groups, axis="n", repeat=3, precision=None)
    >>> found[100]["sum"].repeat
    3
    """
    options: dict[str, Any] = {"repeat": repeat, "warmup": warmup}
    limits: dict[str, Any] = {"processes": processes, "precision": precision, "budget_s": budget_s}
    _check_groups(groups, **options, **limits)
    if isolated and processes == 1:
        raise InvalidArgumentError(
            "processes=1 with isolated=True. Accepted: processes from 2; an interval needs "
            f"{MIN_PROCESSES}"
        )
    if switching and (isolated or min(map(len, groups.values())) == 1):
        raise InvalidArgumentError(
            "switching=True with a candidate that is measured alone. Accepted: two candidates or "
            "more, in one process"
        )
    options |= {"sync": sync, "reference_workload": reference_workload, "switching": switching}
    if processes > 1:
        limits |= {"isolated": isolated, "seed": seed}
        return Comparisons(_measure_in_processes(groups, options, **limits), axis)
    options |= {"precision": precision, "seed": seed}
    prepared = {k: {n: as_candidate(c) for n, c in g.items()} for k, g in groups.items()}
    results = share_budget(
        list(groups), budget_s, lambda key, s: measure_here(prepared[key], budget_s=s, **options)
    )
    return Comparisons(results, axis)


def _check_groups(groups: Mapping[Any, Mapping[str, object]], **numbers: Any) -> None:
    if not groups or not all(groups.values()):
        raise InvalidArgumentError("candidates is empty. Accepted: a mapping of names to functions")
    for group in groups.values():
        for name, candidate in group.items():
            made_of = getattr(candidate, "candidate", candidate)
            if not callable(getattr(candidate, "function", made_of)):
                raise InvalidArgumentError(
                    f"candidate {name!r} is a {type(candidate).__name__}. Accepted: a function "
                    "without arguments, a Candidate, or a SessionSpec"
                )
    for name, least in {"repeat": 1, "processes": 1, "warmup": 0}.items():
        given = numbers[name]
        if given is not None and (not isinstance(given, int) or given < least):
            raise InvalidArgumentError(f"{name}={given!r}. Accepted: an integer from {least}")
    for name in ("precision", "budget_s"):
        given = numbers[name]
        if given is not None and not (isinstance(given, Real) and 0 <= float(given) < math.inf):
            raise InvalidArgumentError(f"{name}={given!r}. Accepted: a finite number from 0")


def _measure_in_processes(
    groups: Mapping[_Key, Mapping[str, _Candidate]],
    options: Mapping[str, Any],
    *,
    isolated: bool,
    seed: int,
    **limits: Any,
) -> dict[_Key, Comparison]:
    """Measure groups of candidates in processes that build them again from their spawn specs."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        tasks = {
            key: {
                name: _spawn_spec(name, candidate, folder / f"candidate-{g}-{i}")
                for i, (name, candidate) in enumerate(candidates.items())
            }
            for g, (key, candidates) in enumerate(groups.items())
        }
        rounds = {**options, "isolated": isolated}

        def ask(i: int, asked: list[dict[str, SpawnSpec]], budget: float) -> list[Comparison]:
            # The time that a child takes to start is part of its budget.
            task = {"groups": asked, "budget_s": budget, "asked_at": time.time(), "seed": seed + i}
            measured = call(measure_task, {**task, **rounds}, name="a process that measures")
            return [Comparison(group, reference_workload=other) for group, other in measured]

        def alone(i: int, spawn_specs: dict[str, SpawnSpec], budget: float) -> Comparison:
            return ask(i, [spawn_specs], budget)[0]

        def apart(i: int, key: _Key, budget: float) -> Comparison:
            each = {n: functools.partial(alone, i, {n: r}) for n, r in tasks[key].items()}
            return measure_isolated(each, budget_s=budget, seed=seed + i)

        def run(i: int, keys: Sequence[_Key], budget: float) -> Mapping[_Key, Comparison]:
            if not isolated:
                return dict(zip(keys, ask(i, [tasks[key] for key in keys], budget), strict=True))
            return share_budget(keys, budget, functools.partial(apart, i))

        return collect(list(groups), run, **limits)


def _spawn_spec(name: str, candidate: _Candidate, folder: Path) -> SpawnSpec:
    if (write := getattr(candidate, "spawn_spec", None)) is None:
        raise InvalidArgumentError(
            f"Candidate {name!r} has no spawn_spec: a fresh process cannot build it. "
            "Accepted with processes > 1: Candidate(..., spawn_spec=...), for example "
            "ortmeter.session_candidate(model, feeds) or ortmeter.function_candidate(build)"
        )
    folder.mkdir()
    found: SpawnSpec = write(folder)
    return found


def measure_task(
    groups: list[dict[str, SpawnSpec]],
    asked_at: float,
    budget_s: float,
    seed: int,
    **options: Any,
) -> list[tuple[list[Measurement], Measurement | None]]:
    """Build and measure the candidates of each group several times: theirs, their reference.

    For as long as it took to start: ratios differ between sets of sessions as they do between
    processes, which cost more.
    """
    measured = []
    for i, spawn_specs in enumerate(groups):
        spent = max(time.time() - asked_at, 0.0)
        if i == 0:  # as long as it took to start, at least: cold calls say nothing
            budget_s = max(budget_s, 2 * spent)
        share = max(budget_s - spent, 0.0) / (len(groups) - i)
        rng = np.random.default_rng(seed)
        sets = measure_sets(spawn_specs, share, spent / len(groups), rng, **options)
        joined = [join_sets([each[name] for each in sets]) for name in spawn_specs]
        references = [each.reference_workload for each in sets if each.reference_workload]
        measured.append((joined, join_sets(references) if references else None))
    return measured


def measure_sets(
    spawn_specs: Mapping[str, SpawnSpec],
    budget_s: float,
    least_s: float,
    rng: np.random.Generator,
    *,
    repeat: int | None = None,
    isolated: bool = False,
    **options: Any,
) -> list[Comparison]:
    """Build the candidates and measure them six times, *repeat* rounds each.

    By default they go on until the least time is over, with 12 rounds or more, as many as fit in
    0.1 s, and 50 when candidates are isolated.
    """
    usual = _ROUNDS_APART if isolated else _ROUNDS
    options |= {"precision": None, "repeat": repeat or usual, "least_s": 0.0 if repeat else _SET_S}
    sets: list[Comparison] = []
    first = rng.permutation(list(spawn_specs)).tolist()
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        # The order gives each one its place in memory; each is first as often as the others.
        order = np.roll(first, len(sets)).tolist()
        candidates = {name: as_candidate(spawn_specs[name].build()) for name in order}
        left = max(budget_s - (time.perf_counter() - begin), 0.0)
        before = sets[0] if sets else None
        seed = int(rng.integers(2**31))
        sets.append(measure_here(candidates, budget_s=left, seed=seed, before=before, **options))
        del candidates  # its memory is free for the next one
        if "torch._dynamo" in sys.modules:  # it stops after eight compilations of one function
            sys.modules["torch"].compiler.reset()
        now = time.perf_counter()
        enough = len(sets) >= _SETS and (repeat or now - begin >= least_s)
        if enough or 2 * now - begin - start > budget_s:
            return sets


def join_sets(measured: Sequence[Measurement]) -> Measurement:
    """Put the samples of sets of sessions after each other."""
    rounds = min(each.repeat for each in measured)
    seconds = np.concatenate([each.cut(1, rounds) for each in measured], axis=1)
    switches = [cost for each in measured for cost in each.after_switch]
    after = (float(np.median(switches)),) if switches else ()
    return dataclasses.replace(measured[0], seconds=seconds, after_switch=after, sets=len(measured))
