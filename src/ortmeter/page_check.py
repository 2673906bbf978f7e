"""Private protocol: a page tells which command lines it accepts, without running.

A sweep asks a page before it starts anything. The environment variable ``ORTMETER_CHECK`` names a
JSON file, ``{"command_lines": [["--config=small"], ...], "answer": "<file to write>"}``. Then
:func:`~ortmeter.args.get_parsed_args`, the first thing that a page does, reads every command line
as it would its own, writes ``{"page": name, "parameters": [...], "readings": [...]}`` and ends the
process with code 0. A reading is ``{"labels": {name: text}}`` or ``{"error": message}``.
"""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmeter.errors import InvalidArgumentError

__all__ = ["CHECK_VARIABLE", "answer_if_asked"]

CHECK_VARIABLE = "ORTMETER_CHECK"

Read = Callable[[Sequence[str]], Mapping[str, str]]


def answer_if_asked(page: str, parameters: Iterable[str], read: Read) -> None:
    """Answer the question that the environment asks, if any, and leave.

    Parameters
    ----------
    page : str
        Name of the page.
    parameters : iterable of str
        Names that the command line accepts.
    read : callable
        Turns a command line into the label of each parameter, or raises `InvalidArgumentError`.

    Raises
    ------
    SystemExit
        The question was answered.
    """
    question = os.environ.get(CHECK_VARIABLE)
    if not question:
        return
    asked = json.loads(Path(question).read_text(encoding="utf-8"))
    readings = [_reading(read, line) for line in asked["command_lines"]]
    answer = {"page": page, "parameters": list(parameters), "readings": readings}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    raise SystemExit(0)


def _reading(read: Read, command_line: Sequence[str]) -> dict[str, Any]:
    try:
        return {"labels": dict(read(command_line))}
    except InvalidArgumentError as error:
        return {"error": str(error)}
