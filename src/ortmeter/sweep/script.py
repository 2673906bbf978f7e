"""The page of a sweep: its script, and whether it accepts what it will be given."""

import json
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmeter.child import child_command
from ortmeter.errors import InvalidArgumentError
from ortmeter.page_check import CHECK_VARIABLE
from ortmeter.sweep.process import Tail, how_it_ended, kill_group, page_environment

__all__ = ["Script", "read_script"]

_CHECK_TIMEOUT_S = 120
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Script:
    """The script of a page; it travels as text.

    Parameters
    ----------
    file_name : str
        Name of the file.
    text : str
        Python code.
    """

    file_name: str
    text: str

    def write(self, folder: Path) -> Path:
        """Write the script in *folder* and return its path."""
        path = folder / self.file_name
        path.write_text(self.text, encoding="utf-8")
        return path

    def check(self, options: Sequence[Mapping[str, str]]) -> str:
        """Ask the page, in a child process, whether it accepts every configuration.

        Parameters
        ----------
        options : sequence of mapping
            Options of each configuration.

        Returns
        -------
        str
            Name of the page.

        Raises
        ------
        InvalidArgumentError
            The page does not declare its parameters, has a name that is not one, does not know an
            option, does not accept a value, or two configurations are the same.
        """
        lines = [[f"--{n.replace('_', '-')}={v}" for n, v in o.items()] for o in options]
        answer = _ask(self, lines)
        self._check_name(answer["page"])
        self._check_parameters(answer["parameters"], options)
        _check_readings(answer["readings"], lines)
        return str(answer["page"])

    def _check_name(self, name: str) -> None:
        """Refuse what records refuse; a name is also that of a folder."""
        if not re.fullmatch(r"plot_\w{1,100}", name):
            raise InvalidArgumentError(
                f"{self.file_name} calls itself {name!r}. "
                "Accepted: plot_ and at most 100 letters, digits and underscores"
            )

    def _check_parameters(
        self, parameters: Sequence[str], options: Sequence[Mapping[str, str]]
    ) -> None:
        if "record" not in parameters:
            raise InvalidArgumentError(
                f"{self.file_name} declares no parameter 'record': it keeps nothing to compare"
            )
        accepted = ", ".join(name for name in parameters if name != "record") or "no option"
        if unknown := sorted({name for o in options for name in o} - set(parameters)):
            raise InvalidArgumentError(
                f"{self.file_name} has no option {', '.join(unknown)}. Accepted: {accepted}"
            )


def read_script(path: str | os.PathLike[str]) -> Script:
    """Read the script of a page.

    Parameters
    ----------
    path : path
        File, such as ``_doc/examples/numerics/plot_x.py``.

    Returns
    -------
    Script
        Its text.

    Raises
    ------
    InvalidArgumentError
        It cannot be read, or is no Python script.
    """
    file = Path(path)
    try:
        found = file.stat()
        if file.suffix != ".py" or not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise InvalidArgumentError(f"{file} is not the script of a page (plot_x.py)")
        text = file.read_text(encoding="utf-8")
        compile(text, file.name, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"the page {file} cannot be read: {error}") from None
    return Script(file.name, text)


def _ask(script: Script, lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        question, answer = folder / "question.json", folder / "answer.json"
        asked = {"command_lines": lines, "answer": str(answer)}
        question.write_text(json.dumps(asked), encoding="utf-8")
        child = subprocess.Popen(  # noqa: S603 - the page that is asked for
            child_command("ortmeter.sweep.page_run", script.write(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=page_environment({CHECK_VARIABLE: str(question)}),
            start_new_session=True,
        )
        tail = Tail(child)
        try:
            code = child.wait(_CHECK_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise InvalidArgumentError(
                f"{script.file_name} did not declare its parameters in {_CHECK_TIMEOUT_S} s: "
                "a page starts with get_parsed_args"
            ) from None
        finally:
            kill_group(child.pid)  # what the page started goes with it
            child.wait()
        if answer.exists():
            return dict(json.loads(answer.read_text(encoding="utf-8")))
        ended = how_it_ended(code, tail.read())
    raise InvalidArgumentError(
        f"{script.file_name} does not declare its parameters with get_parsed_args ({ended})"
    )


def _check_readings(readings: Sequence[Mapping[str, Any]], lines: Sequence[Sequence[str]]) -> None:
    errors = dict.fromkeys(reading["error"] for reading in readings if "error" in reading)
    if errors:
        raise InvalidArgumentError("; ".join(errors))
    seen: dict[str, Sequence[str]] = {}
    for reading, line in zip(readings, lines, strict=True):
        other = seen.setdefault(json.dumps(reading["labels"], sort_keys=True), line)
        if other is not line:
            raise InvalidArgumentError(
                f"{' '.join(other)} and {' '.join(line)} are the same configuration"
            )
