"""Repeat a measurement in fresh processes."""

import dataclasses
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.progress import progress_bar
from ortmeter.timing.measurement import Candidate, Measurement

__all__ = ["measure_in_fresh_processes"]

_Results = dict[str, Measurement]


def measure_in_fresh_processes(
    candidates: Mapping[str, Candidate],
    *,
    processes: int,
    precision: float | None,
    options: Mapping[str, Any],
    seed: int,
) -> _Results:
    """Measure in processes that build the candidates again from their recipes.

    The first process decides how many rounds are needed, the others take as many.

    Parameters
    ----------
    candidates : mapping of str to Candidate
        Every one has a recipe.
    processes : int
        Number of processes, one after the other.
    precision : float, optional
        Precision wanted over all processes.
    options : mapping
        Other options of :func:`~ortmeter.timing.measure`, values that JSON accepts.
    seed : int
        Each process shuffles from its own seed, *seed* plus its rank.

    Raises
    ------
    InvalidArgumentError
        A candidate has no recipe.
    OrtMeterError
        A process failed; the message ends with what it wrote.
    """
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        recipes = {
            name: _recipe(name, candidate, folder / f"candidate-{i}")
            for i, (name, candidate) in enumerate(candidates.items())
        }
        first_precision = None if precision is None else precision * math.sqrt(processes)
        results: list[_Results] = []
        with progress_bar("processes", total=processes) as bar:
            for rank in range(processes):
                sampling = {"precision": first_precision}
                if results:
                    rounds = next(iter(results[0].values())).repeat
                    sampling = {"precision": None, "repeat": rounds}
                task = {"candidates": recipes, **options, **sampling, "seed": seed + rank}
                results.append(_run(task, folder))
                bar.update()
    return {name: _join([result[name] for result in results]) for name in candidates}


def _recipe(name: str, candidate: Candidate, folder: Path) -> dict[str, Any]:
    if candidate.recipe is None:
        raise InvalidArgumentError(
            f"Candidate {name!r} has no recipe, so that a fresh process cannot build it again. "
            "Accepted with processes > 1: Candidate(..., recipe=...), for example "
            "ortmeter.session_candidate(model, feeds)"
        )
    folder.mkdir()
    recipe = candidate.recipe(folder)
    return {"target": recipe.target, "arguments": dict(recipe.arguments)}


def _run(task: dict[str, Any], folder: Path) -> _Results:
    question, answer = folder / "task.json", folder / "answer.json"
    question.write_text(json.dumps(task), encoding="utf-8")
    child = subprocess.run(  # noqa: S603 - our own module
        [sys.executable, "-m", "ortmeter.timing.worker", str(question), str(answer)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    if child.returncode:
        tail = "\n".join(child.stderr.splitlines()[-5:])
        raise OrtMeterError(
            f"A measuring process stopped with exit code {child.returncode}:\n{tail}"
        )
    rows = json.loads(answer.read_text(encoding="utf-8"))
    return {row["name"]: Measurement.from_dict(row) for row in rows}


def _join(parts: list[Measurement]) -> Measurement:
    return dataclasses.replace(parts[0], seconds=np.concatenate([p.seconds for p in parts]))
