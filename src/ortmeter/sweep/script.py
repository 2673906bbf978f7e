"""The page of a sweep: its script, and whether it accepts what it will be given."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortmeter._child import child_command
from ortmeter._page_check import CHECK_VARIABLE
from ortmeter.errors import InvalidArgumentError

__all__ = ["Script", "how_it_ended", "page_environment", "read_script"]

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
            The page does not declare its parameters, does not know an option, does not accept a
            value, or two configurations are the same.
        """
        lines = [[f"--{n.replace('_', '-')}={v}" for n, v in o.items()] for o in options]
        answer = _ask(self, lines)
        self._check_parameters(answer["parameters"], options)
        _check_readings(answer["readings"], lines)
        return str(answer["page"])

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
        if file.suffix != ".py" or file.stat().st_size > _MAX_BYTES:
            raise InvalidArgumentError(f"{file} is not the script of a page (plot_x.py)")
        text = file.read_text(encoding="utf-8")
        compile(text, file.name, "exec", dont_inherit=True)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
        if isinstance(error, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"the page {file} cannot be read: {error}") from None
    return Script(file.name, text)


def page_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that runs a page, without what changes its defaults.

    Parameters
    ----------
    variables : mapping of str to str
        Variables to add.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ORTMETER_")}
    return {**kept, "MPLBACKEND": "agg", **variables}


def how_it_ended(code: int, output: str) -> str:
    r"""Say on one line how a process ended.

    Parameters
    ----------
    code : int
        Its exit code, or minus the signal that killed it.
    output : str
        What it wrote.

    Examples
    --------
    >>> how_it_ended(1, "Traceback\nValueError: no\n")
    'exit code 1: ValueError: no'
    """
    if code < 0:
        name = signal.Signals(-code).name
        memory = " (the system does this when memory runs out)" if name == "SIGKILL" else ""
        return f"killed by {name}{memory}"
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "no output")
    return f"exit code {code}: {last.strip()[:300]}"


def _ask(script: Script, lines: Sequence[Sequence[str]]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        question, answer = folder / "question.json", folder / "answer.json"
        asked = {"command_lines": lines, "answer": str(answer)}
        question.write_text(json.dumps(asked), encoding="utf-8")
        try:
            child = subprocess.run(  # noqa: S603 - the page that is asked for
                child_command("ortmeter._page_run", script.write(folder)),
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                cwd=folder,
                env=page_environment({CHECK_VARIABLE: str(question)}),
                timeout=_CHECK_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise InvalidArgumentError(
                f"{script.file_name} did not declare its parameters in {_CHECK_TIMEOUT_S} s: "
                "a page starts with get_parsed_args"
            ) from None
        if answer.exists():
            return dict(json.loads(answer.read_text(encoding="utf-8")))
    ended = how_it_ended(child.returncode, child.stderr)
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
