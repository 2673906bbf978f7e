"""What a fresh process does: build the candidates several times, and measure each set of them."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortmeter.timing.comparison import Comparison
from ortmeter.timing.loop import as_candidate, measure_here
from ortmeter.timing.measurement import Measurement, SpawnSpec

# Sets of sessions in a process, at least. Rounds of one and the least seconds that they take.
_SETS, _ROUNDS, _SET_S = 6, 12, 0.1
_ROUNDS_APART = 50  # a slow spell of the machine hits one candidate only


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
