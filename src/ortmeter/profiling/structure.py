"""Find the run of each event, and the node whose body a kernel belongs to."""

import numpy as np

from ortmeter.profiling.columns import Columns, Ints

__all__ = ["NO_RUN", "iterations", "parents"]

#: Iteration of what happens outside of the runs.
NO_RUN = -1

#: Operators that execute a graph of their own.
_WITH_BODY = {
    "If",
    "Loop",
    "Scan",
    "BeamSearch",
    "GreedySearch",
    "Sampling",
    "WhisperBeamSearch",
}


def iterations(events: Columns, runs: Columns) -> Ints:
    """Find the run of each event.

    Parameters
    ----------
    events : Columns
        Any events.
    runs : Columns
        Those named ``model_run``, sorted by start; their ranks are the iterations.

    Returns
    -------
    array of int64, shape (events,)
        The run whose interval holds the start of the event, :data:`NO_RUN` when there is none.

    Notes
    -----
    Runs of several threads may overlap. A run that happens in the thread of the event is then
    preferred; an event of another thread (a pool shared by the runs) goes to the run that started
    last.
    """
    if not len(runs):
        return np.full(len(events), NO_RUN, np.int64)
    found = _latest(events, runs)
    if not np.any(runs.start[1:] < _end(runs)[:-1]):
        return found
    for thread in np.unique(runs.thread):
        own = np.flatnonzero(runs.thread == thread)
        mine = np.flatnonzero(events.thread == thread)
        rank = _latest(events.select(mine), runs.select(own))
        found[mine[rank != NO_RUN]] = own[rank[rank != NO_RUN]]
    return found


def _latest(events: Columns, runs: Columns) -> Ints:
    """Rank of the last run that started before each event and was not over."""
    rank = np.searchsorted(runs.start, events.start, side="right") - 1
    before, end = np.maximum(rank - 1, 0), _end(runs)
    # The last kernel of a run may start in the microsecond where the next run starts; it was
    # recorded before its own run was.
    tied = (events.start == runs.start[rank]) & (events.position < runs.position[before])
    touches = events.start <= end[before]
    rank = np.where((rank > 0) & tied & touches, before, rank)
    inside = (rank >= 0) & (events.start <= end[rank])
    return np.where(inside, rank, NO_RUN)


def _end(events: Columns) -> Ints:
    # Start and duration are both rounded down to a microsecond.
    return events.start + events.duration + 1


def parents(kernels: Columns, iteration: Ints) -> Ints:
    """Find the kernel whose body each kernel belongs to.

    Parameters
    ----------
    kernels : Columns
        Executions of kernels, in the order of the file.
    iteration : array of int64, shape (kernels,)
        Run of each one.

    Returns
    -------
    array of int64, shape (kernels,)
        Position of the kernel of the If, Loop or Scan that encloses it, -1 in the main graph.

    Notes
    -----
    An event is recorded when it ends: a kernel comes after those of its body, which started after
    it, in the same thread.
    """
    found = np.full(len(kernels), -1, np.int64)
    operators = [str(description[2]) for description in kernels.descriptions]
    encloses = np.array([op in _WITH_BODY for op in operators], bool)[kernels.row]
    if not encloses.any():
        return found
    # Only kernels recorded before an enclosing one, in its thread and run, may be in its body.
    pending: dict[tuple[int, int], list[int]] = {}
    places = zip(kernels.thread.tolist(), iteration.tolist(), strict=True)
    starts = kernels.start.tolist()
    for i, (place, is_parent) in enumerate(zip(places, encloses.tolist(), strict=True)):
        before = pending.setdefault(place, [])
        while is_parent and before and starts[before[-1]] >= starts[i]:
            found[before.pop()] = i
        before.append(i)
    return found
