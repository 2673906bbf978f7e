"""The process of a page: its script runs as a program, or tells which command lines it accepts.

A sweep asks a page before it starts anything. The environment variable ``ORTMETER_CHECK`` names a
JSON file, ``{"command_lines": [["--config=small"], ...], "answer": "<file to write>"}``. Then
:func:`~ortmeter.study.args.get_parsed_args`, the first thing that a page does, reads every command
line as it would its own, writes ``{"page": name, "readings": [...]}`` and ends
the process with code 0. A reading is ``{"labels": {name: text}}`` or ``{"error": message}``.

Nothing heavy is imported here: it is part of the time that every page takes to start.
"""

import faulthandler
import io
import json
import os
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ortmeter.errors import InvalidArgumentError

CHECK_VARIABLE = "ORTMETER_CHECK"

Read = Callable[[Sequence[str]], Mapping[str, str]]


def main(script: str, *arguments: str) -> None:
    """Run the script of a page; its folder is not searched for modules."""
    # What was written before a crash is kept, and a crash says where.
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.argv[:] = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def answer_if_asked(page: str, read: Read) -> None:
    """Answer the question that the environment asks, if any, and leave.

    *read* turns a command line into the label of each parameter, or raises `InvalidArgumentError`.
    """
    question = os.environ.get(CHECK_VARIABLE)
    if not question:
        return
    asked = json.loads(Path(question).read_text(encoding="utf-8"))
    readings = [_reading(read, line) for line in asked["command_lines"]]
    answer = {"page": page, "readings": readings}
    Path(asked["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    raise SystemExit(0)


def _reading(read: Read, command_line: Sequence[str]) -> dict[str, Any]:
    try:
        return {"labels": dict(read(command_line))}
    except InvalidArgumentError as error:
        return {"error": str(error)}
