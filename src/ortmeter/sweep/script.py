"""The page of a sweep: its script, whether it accepts what it will be given, and its process."""

import json
import math
import os
import re
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ortmeter.child import child_command
from ortmeter.errors import InvalidArgumentError
from ortmeter.page_check import CHECK_VARIABLE
from ortmeter.sweep.tasks import command_line

#: Bytes of output that are kept.
MAX_OUTPUT = 16 * 1024

_CHECK_TIMEOUT_S = 120
_JOIN_S = 5.0
_MAX_BYTES = 2**20
_POLL_S = 0.1


@dataclass(frozen=True)
class Script:
    """The script of a page; it travels as text."""

    file_name: str
    text: str

    def write(self, folder: Path) -> Path:
        path = folder / self.file_name
        path.write_text(self.text, encoding="utf-8")
        return path

    def check(self, options: Sequence[Mapping[str, str]]) -> str:
        """Ask the page whether it accepts every configuration, return its name."""
        lines = [command_line(o) for o in options]
        answer = self._ask(lines)
        name, parameters = answer["page"], answer["parameters"]
        # What records refuse; a name is also that of a folder.
        if not re.fullmatch(r"plot_\w{1,100}", name):
            raise InvalidArgumentError(
                f"{self.file_name} calls itself {name!r}. "
                "Accepted: plot_ and at most 100 letters, digits and underscores"
            )
        if "record" not in parameters:
            raise InvalidArgumentError(
                f"{self.file_name} declares no parameter 'record': it keeps nothing to compare"
            )
        accepted = ", ".join(name for name in parameters if name != "record") or "no option"
        if unknown := sorted({name for o in options for name in o} - set(parameters)):
            raise InvalidArgumentError(
                f"{self.file_name} has no option {', '.join(unknown)}. Accepted: {accepted}"
            )
        _check_readings(answer["readings"], lines)
        return str(name)

    def _ask(self, lines: Sequence[Sequence[str]]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
            folder = Path(temporary)
            question, answer = folder / "question.json", folder / "answer.json"
            asked = {"command_lines": lines, "answer": str(answer)}
            question.write_text(json.dumps(asked), encoding="utf-8")
            variables = {CHECK_VARIABLE: str(question)}
            ended = run_script(
                self.write(folder), [], variables, folder=folder, timeout=_CHECK_TIMEOUT_S
            )
            if ended.code is not None and answer.exists():
                return dict(json.loads(answer.read_text(encoding="utf-8")))
        if ended.code is None:
            raise InvalidArgumentError(
                f"{self.file_name} did not declare its parameters in {_CHECK_TIMEOUT_S} s: "
                "a page starts with get_parsed_args"
            )
        raise InvalidArgumentError(
            f"{self.file_name} does not declare its parameters with get_parsed_args ({ended})"
        )


def read_script(path: str | os.PathLike[str]) -> Script:
    """Read the script of a page, refuse what is no Python."""
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


@dataclass(frozen=True)
class Ended:
    """How the process of a page ended: its code, None when it was stopped, and what it wrote."""

    code: int | None
    output: str

    def __str__(self) -> str:
        if self.code is None:
            return "stopped"
        if self.code < 0:
            name = _signal_name(-self.code)
            memory = " (the system does this when memory runs out)" if name == "SIGKILL" else ""
            return f"killed by {name}{memory}"
        written = reversed(self.output.splitlines())
        last = next((line for line in written if line.strip()), "no output")
        return f"exit code {self.code}: {last.strip()[:300]}"


def run_script(
    script: Path,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: Path,
    timeout: float | None = None,
    stopped: threading.Event | None = None,
    cores: frozenset[int] | None = None,
    lock: int | None = None,
) -> Ended:
    """Run a script until it ends, its time is over or *stopped* is set, with all that it starts.

    It may crash, hang or be killed; *lock* is a file descriptor that it holds as long as it lives.
    """
    # What changes the defaults of a page stays here.
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ORTMETER_")}
    own_cores = ",".join(map(str, sorted(cores or ())))
    process = subprocess.Popen(  # noqa: S603 - the page that is asked for
        child_command("ortmeter.page_check", own_cores, script, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env={**kept, "MPLBACKEND": "agg", **variables},
        pass_fds=() if lock is None else (lock,),
        start_new_session=True,
    )
    assert process.stdout is not None
    tail = _Tail(process.stdout)
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    stopped = stopped or threading.Event()
    try:
        with _guard(process.pid):
            # Ten times a second: Popen.wait with a timeout wakes up more often.
            while (code := process.poll()) is None and time.monotonic() < deadline:
                if stopped.wait(_POLL_S):
                    break
    finally:
        _kill_group(process.pid)  # what the page started goes with it
        process.wait()
    return Ended(code, tail.read())


class _Tail(threading.Thread):
    """Reads what a process writes and keeps the end of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._kept = b""
        self.start()

    def run(self) -> None:
        with self._stream, suppress(ValueError, OSError):
            while chunk := os.read(self._stream.fileno(), 2**16):
                self._kept = (self._kept + chunk)[-MAX_OUTPUT:]

    def read(self) -> str:
        # A process that left its group may keep the stream open for ever.
        self.join(_JOIN_S)
        return self._kept.decode(errors="replace")


@contextmanager
def _guard(group: int) -> Iterator[None]:
    """Kill a process group when this process dies, however it dies.

    A shell waits for the end of a pipe, which the system closes with this process.
    """
    watch = subprocess.Popen(  # noqa: S603 - fixed command
        ["/bin/sh", "-c", 'read -r _; kill -9 "-$1"', "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        watch.kill()
        watch.communicate()


def _kill_group(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # those for real time have no name
        return f"signal {number}"
