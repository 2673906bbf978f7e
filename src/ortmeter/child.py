"""Ask a child process, which executes no file of the folder where it happens to be.

``python -m module`` puts the current folder before the standard library, ``python script.py`` the
folder of the script, ``PYTHONPATH`` whatever it names: a ``json.py`` beside a model would run.
A child starts isolated (``-I``: no current folder, no ``PYTHON*`` variable, no ``-W`` of its
parent), takes this very package, then the standard library, the folders where packages are
installed, as its parent ranks them, and what else its parent can import after everything else.

:func:`call` runs one function in a fresh process, a :class:`Child` answers several questions.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from ortmeter import child_main
from ortmeter.errors import OrtMeterError

_BOOT = """\
import importlib.util, site, sys
package, module, installed, count, *rest = sys.argv[1:]
paths, arguments = rest[: int(count)], rest[int(count) :]
own, folders, installed = sys.path, site.getsitepackages(), int(installed)
at = next((i for i, path in enumerate(own) if path in folders), len(own))
own[:] = dict.fromkeys([*own[:at], *paths[:installed], *own[at:], *paths[installed:]])
spec = importlib.util.spec_from_file_location("ortmeter", package)
sys.modules["ortmeter"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["ortmeter"])
sys.argv[:] = [module, *arguments]
importlib.import_module(module).main(*arguments)
"""
_PACKAGE = Path(__file__).resolve().with_name("__init__.py")

_Result = TypeVar("_Result")

#: What this process was warned of, here or by children: :func:`warn_again` does not repeat it.
told_warnings: set[tuple[type[Warning], str]] = set()


class ChildError(OrtMeterError):
    """A child process died, or did not answer in time.

    Parameters
    ----------
    message : str
        What it was asked, how it ended, and the last lines of its errors.
    code : int, optional
        Its exit code, negative for a signal; None when it did not start or was killed for its time.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Child:
    """A process that answers questions, one at a time; it is killed at the end of a ``with``.

    Its temporary folder is its own, and goes with it.

    Parameters
    ----------
    command : sequence of str, optional
        What starts it, by default a process that calls functions of importable modules.
    name : str, optional
        How errors call it, by default as the first function that it calls.
    patience_s : float, optional
        Seconds for a question, and for its answer, after which the process is killed.
    environment : mapping of str to str, optional
        Variables that it has beside those of this process.

    Raises
    ------
    ChildError
        It cannot start.
    """

    _lines = 5  # of its errors, which tell how it died

    def __init__(
        self,
        command: Sequence[str] | None = None,
        *,
        name: str = "",
        patience_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._patience_s = name, patience_s
        self._is_late, self._kind = False, Any
        # A pipe that nobody reads would block.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed on exit
        # What it leaves there when it dies goes with it.
        self._folder = tempfile.TemporaryDirectory(prefix="ortmeter-", ignore_cleanup_errors=True)
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own modules
                command or child_command(child_main.__name__),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                encoding="utf-8",
                env={**os.environ, "TMPDIR": self._folder.name, **(environment or {})},
            )
        except OSError as error:
            self._errors.close()
            self._folder.cleanup()
            raise ChildError(f"{name or 'a child process'} cannot start: {error}") from error

    @property
    def is_dead(self) -> bool:
        """Whether the process ended."""
        return self._process.poll() is not None

    def ask(self, what: str | Callable[..., Any], **arguments: Any) -> Any:
        """Return the answer to a question: what a function returns, or what a script tells."""
        self.start(what, **arguments)
        return self.answer()

    def start(self, what: str | Callable[..., Any], **arguments: Any) -> None:
        """Ask, and let :meth:`answer` wait: several processes work side by side."""
        self._kind = Any
        if not isinstance(what, str):
            self._kind = get_type_hints(what).get("return", Any)
            what = child_main.name_of(what)
            self._name = self._name or what
        asked = json.dumps({"do": what, "arguments": arguments}, default=child_main.to_plain)
        assert self._process.stdin is not None
        with suppress(OSError), self._patient():  # it may be dead, and does not answer
            self._process.stdin.write(asked + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to the last question.

        Raises
        ------
        OrtMeterError
            The error of the function, of the same class.
        ChildError
            The process died, or its time is over.
        """
        assert self._process.stdout is not None
        with self._patient():
            # What is printed before the streams are ours is no answer.
            while (line := self._process.stdout.readline()) and not line.startswith("{"):
                pass
        if not line.endswith("\n"):
            raise self._end()
        told = json.loads(line)
        for category, message in told.get("warnings", ()):
            warn_again(child_main.named(category), message)
        if "error" in told:
            raise self._error(told)
        return child_main.from_plain(told["answer"], self._kind)

    def errors(self) -> str:
        """Return what it wrote on its standard error so far, libraries included."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def close(self) -> None:
        """Let the process end by itself."""
        assert self._process.stdin is not None
        with suppress(OSError), self._patient():
            self._process.stdin.close()
            self._process.wait()  # with a limit, it would look from time to time

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                with suppress(OSError):  # what was left to write has no reader
                    stream.close()
        self._folder.cleanup()

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Kill the process when its time is over."""

        def give_up() -> None:
            self._is_late = True
            self._process.kill()

        patience = threading.Timer(self._patience_s or 0.0, give_up)
        if self._patience_s is not None:
            patience.start()
        try:
            yield
        finally:
            patience.cancel()

    def _error(self, told: Mapping[str, Any]) -> OrtMeterError:
        """Make the error that the child had, whatever its constructor takes."""
        kind = child_main.named(told["kind"])
        error: OrtMeterError = kind.__new__(kind, told["error"])
        for note in told["notes"]:
            error.add_note(note)
        return error

    def _end(self) -> ChildError:
        """Say how the process ended."""
        code = self._process.wait()
        if self._is_late:
            late = f"did not answer within {self._patience_s:g} s and was killed"
            return ChildError(f"{self._name} {late}")
        how = f"was {killed_by(code)}" if code < 0 else f"stopped with exit code {code}"
        tail = "\n".join(self.errors().strip().splitlines()[-self._lines :])
        return ChildError(f"{self._name} {how}{': ' if tail else ''}{tail}", code)


def call(
    function: Callable[..., _Result],
    arguments: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> _Result:
    """Call a function in a fresh process.

    Parameters
    ----------
    function : callable
        Function of a module that the process imports. Its annotations are the types of its
        arguments and of its result: what JSON accepts, arrays, and what msgspec makes of these.
    arguments : mapping of str to object, optional
        Keyword arguments.
    name : str, optional
        How errors call the process, by default as the function.
    timeout_s : float, optional
        Seconds after which the process is killed.
    environment : mapping of str to str, optional
        Variables that it has beside those of this process.

    Returns
    -------
    object
        What the function returns. The warnings of this package that it gave are given again, once
        each.

    Raises
    ------
    OrtMeterError
        The function raised an error of this package, which has the same class here.
    ChildError
        Another error, a crash, or no result in time.

    Examples
    --------
    >>> from ortmeter.runtime.cpu import usable_cores
    >>> call(usable_cores) == usable_cores()
    True
    """
    with Child(name=name, patience_s=timeout_s, environment=environment) as child:
        result: _Result = child.ask(function, **(arguments or {}))
        child.close()
    return result


def killed_by(code: int) -> str:
    """Name the signal of a negative exit code; those for real time have no name."""
    known = -code in {*signal.Signals}
    return f"killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def warn_again(category: type[Warning], message: str) -> None:
    """Warn of what another process was warned of, once."""
    warning = category(message)
    if (category, message) not in told_warnings:
        told_warnings.add((category, message))
        warnings.warn(warning, stacklevel=2)


def child_command(module: str, *arguments: str | os.PathLike[str]) -> list[str]:
    """Write the command of a child process that runs the function ``main`` of a module."""
    paths = [path for path in sys.path if Path(path).is_absolute()]
    # Packages of two versions, the first of which a folder of PYTHONPATH has: a child takes it too.
    installed = [path for path in paths if any(Path(path).glob("*.dist-info"))]
    ranked = [*installed, *(path for path in paths if path not in installed)]
    texts = [os.fspath(argument) for argument in arguments]
    boot = [_BOOT, str(_PACKAGE), module, str(len(installed)), str(len(ranked)), *ranked]
    return [sys.executable, "-I", "-c", *boot, *texts]


def script_command(script: Path, python: Path | None = None) -> list[str]:
    """Write the command of a child process that runs a script, in another environment if asked.

    It imports what needs no other package: :mod:`ortmeter.child_main`, and what stands on it.
    """
    if python is None:
        return child_command(child_main.__name__, script)
    return [str(python), "-I", child_main.__file__, str(script)]


@contextmanager
def process_group(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a program that reads nothing; it is killed at the end, with all that it started."""
    options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
    with subprocess.Popen(command, **options) as process:  # noqa: S603 - no shell
        try:
            yield process
        finally:
            kill_group(process)


def kill_group(process: "subprocess.Popen[Any]") -> None:
    """Kill a process of :func:`process_group`, and what it started."""
    with suppress(OSError, AttributeError):  # all have ended; Windows has no groups
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def output_of(*command: str) -> str | None:
    """Run a program of the system, return what it printed, None when it failed or is missing."""
    try:
        child = subprocess.run(  # noqa: S603 - fixed commands, no shell
            command, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return child.stdout
