"""A measuring process: ``python -m ortmeter.timing.worker task.json answer.json``."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from ortmeter.timing.loop import measure

__all__ = ["main"]


def main(question: str, answer: str) -> None:
    """Build the candidates of a task, measure them, write their raw times.

    Parameters
    ----------
    question : path
        JSON written by :func:`~ortmeter.timing.fresh.measure_in_fresh_processes`.
    answer : path
        JSON file to write.
    """
    task = json.loads(Path(question).read_text(encoding="utf-8"))
    recipes = task.pop("candidates")
    results = measure({name: _build(**recipe) for name, recipe in recipes.items()}, **task)
    rows = [measurement.to_dict() for measurement in results.values()]
    Path(answer).write_text(json.dumps(rows), encoding="utf-8")


def _build(target: str, arguments: dict[str, Any]) -> Any:
    module, _, function = target.partition(":")
    return getattr(importlib.import_module(module), function)(**arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
