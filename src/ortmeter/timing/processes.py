"""Repeat a measurement in fresh processes: the parent asks, ``main`` answers in a child."""

import dataclasses
import importlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ortmeter.child import child_command
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.progress import progress_bar
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Candidate, Measurement

__all__ = ["SOURCE", "collect", "main", "measure_in_processes"]

#: Target of a recipe whose function travels as source.
SOURCE = "source"
_MOST_TIMES = 3  # as many processes as asked for, when intervals stay wide
# Level at which an interval is narrow enough to stop: at 99 % it may be so by luck, and each
# process that is added is another chance.
_SURE = 0.999
_Key = TypeVar("_Key")
_Results = Mapping[_Key, Mapping[str, Measurement]]


def measure_in_processes(
    groups: Mapping[_Key, Mapping[str, Candidate]],
    *,
    processes: int,
    precision: float | None = 0.02,
    budget_s: float,
    repeat: int,
    warmup: int | None = None,
    seed: int = 0,
) -> dict[_Key, Comparison]:
    """Measure groups of candidates in processes that build them again from their recipes.

    Parameters
    ----------
    groups : mapping of mappings
        Candidates by group; every one has a recipe.
    processes : int
        Number of processes, one after the other; each one measures all the groups.
    precision : float, optional
        Half-width of the intervals at 99.9 % above which processes are added.
    budget_s : float
        Seconds for everything.
    repeat, warmup : int
        Rounds in each process and calls before them, as in :func:`~ortmeter.timing.measure`.
    seed : int
        Each process shuffles from its own seed, *seed* plus its rank.

    Returns
    -------
    dict of Comparison
        One for each group.

    Raises
    ------
    InvalidArgumentError
        A candidate has no recipe.
    OrtMeterError
        A process failed; the message ends with what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        tasks = {
            key: {
                name: _recipe(name, candidate, folder / f"candidate-{g}-{i}")
                for i, (name, candidate) in enumerate(candidates.items())
            }
            for g, (key, candidates) in enumerate(groups.items())
        }

        def run(rank: int, keys: Sequence[_Key], budget: float) -> _Results[_Key]:
            options = {"repeat": repeat, "warmup": warmup, "seed": seed + rank}
            asked = {"groups": [tasks[key] for key in keys], "budget_s": budget, **options}
            return dict(zip(keys, _ask(asked, folder), strict=True))

        return collect(
            list(groups), run, processes=processes, precision=precision, budget_s=budget_s
        )


def collect(
    keys: Sequence[_Key],
    run: Callable[[int, Sequence[_Key], float], _Results[_Key]],
    *,
    processes: int,
    precision: float | None,
    budget_s: float,
    timer: Callable[[], float] = time.perf_counter,
) -> dict[_Key, Comparison]:
    """Run processes until every interval is narrow enough, or the budget is spent.

    Parameters
    ----------
    keys : sequence
        Names of the groups.
    run : callable
        ``run(rank, keys, budget_s)`` measures these groups in one fresh process.
    processes : int
        Processes, at least, unless the budget is spent before; three times as many at most.
    precision : float, optional
        Half-width above which processes are added to a group; None adds none.
    budget_s : float
        Seconds for everything.
    timer : callable
        Clock, in seconds.

    Returns
    -------
    dict of Comparison
        Every process has as many rounds as the one that had time for the fewest.
    """
    begin = timer()
    parts: dict[_Key, list[Mapping[str, Measurement]]] = {key: [] for key in keys}
    stopped = dict.fromkeys(keys, "budget")
    wanted = list(keys)
    longest = 0.0
    most = processes if precision is None else _MOST_TIMES * processes
    with progress_bar("processes", total=processes) as bar:
        for rank in range(most):
            started = timer()
            left = budget_s - (started - begin)
            # A process that could not end in time is not started, but for the first one.
            if rank and left < longest * (1 if rank >= processes else 0.5):
                break
            share = left / max(processes - rank, 1)
            for key, found in run(rank, wanted, share).items():
                parts[key].append(found)
            longest = max(longest, timer() - started)
            bar.update()
            if rank + 1 >= processes:
                for key in list(wanted):
                    if reason := _why_enough(parts[key], precision):
                        stopped[key] = reason
                        wanted.remove(key)
                if not wanted:
                    break
    return {key: Comparison(_join(found), stopped[key]) for key, found in parts.items()}


def _why_enough(parts: list[Mapping[str, Measurement]], precision: float | None) -> str | None:
    if precision is None:
        return "repeat"
    half = Comparison(_join(parts)).half_width(_SURE)
    return "precision" if half is not None and half <= precision else None


def _join(parts: Sequence[Mapping[str, Measurement]]) -> list[Measurement]:
    joined = []
    for name, first in parts[0].items():
        rows = [part[name].seconds for part in parts]
        shortest = min(row.shape[1] for row in rows)
        seconds = np.concatenate([row[:, :shortest] for row in rows])
        joined.append(dataclasses.replace(first, seconds=seconds))
    return joined


def _recipe(name: str, candidate: Candidate, folder: Path) -> dict[str, Any]:
    if candidate.recipe is None:
        raise InvalidArgumentError(
            f"Candidate {name!r} has no recipe, so that a fresh process cannot build it again. "
            "Accepted with processes > 1: Candidate(..., recipe=...), for example "
            "ortmeter.session_candidate(model, feeds) or ortmeter.function_candidate(build)"
        )
    folder.mkdir()
    recipe = candidate.recipe(folder)
    return {"target": recipe.target, "arguments": dict(recipe.arguments)}


def _ask(task: dict[str, Any], folder: Path) -> list[dict[str, Measurement]]:
    question, answer = folder / "task.json", folder / "answer.json"
    # The time that a child takes to start is part of its budget.
    question.write_text(json.dumps({**task, "asked_at": time.time()}), encoding="utf-8")
    child = subprocess.run(  # noqa: S603 - our own module
        child_command("ortmeter.timing.processes", question, answer),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode:
        tail = "\n".join(child.stderr.splitlines()[-5:])
        raise OrtMeterError(
            f"A measuring process stopped with exit code {child.returncode}:\n{tail}"
        )
    groups = json.loads(answer.read_text(encoding="utf-8"))
    return [{row["name"]: Measurement.from_dict(row) for row in rows} for rows in groups]


def main(question: str, answer: str) -> None:
    """Build the candidates of a task, measure them, write their raw times.

    Parameters
    ----------
    question : path
        JSON that the parent wrote.
    answer : path
        JSON file to write.
    """
    from ortmeter.timing.loop import measure

    task = json.loads(Path(question).read_text(encoding="utf-8"))
    groups, asked_at, budget = (task.pop(name) for name in ("groups", "asked_at", "budget_s"))
    rows = []
    for rank, recipes in enumerate(groups):
        candidates = {name: build(**recipe) for name, recipe in recipes.items()}
        left = budget - max(time.time() - asked_at, 0.0)
        share = max(left, 0.0) / (len(groups) - rank)
        results = measure(candidates, precision=None, budget_s=share, **task)
        rows.append([measured.to_dict() for measured in results.values()])
        del candidates  # the memory of a group is free for the next one
    Path(answer).write_text(json.dumps(rows), encoding="utf-8")


def build(target: str, arguments: dict[str, Any]) -> Any:
    """Build a candidate from its recipe.

    Parameters
    ----------
    target : str
        ``module:function``, or ``source``.
    arguments : dict
        Keyword arguments of the function; for ``source``, its ``text``, ``name`` and
        ``arguments``.

    Returns
    -------
    Candidate or callable
        What the function returned.
    """
    if target == SOURCE:
        scope: dict[str, Any] = {"__name__": "__ortmeter__"}
        # The parent wrote this text from a function of its own program.
        exec(compile(arguments["text"], "<function of a page>", "exec"), scope)  # noqa: S102
        return scope[arguments["name"]](**arguments["arguments"])
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)
