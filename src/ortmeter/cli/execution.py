"""Run a command: its report, its errors, its exit code."""

import json
import signal
import sys
import threading
import traceback
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ortmeter.cli.parser import make_parser
from ortmeter.cli.terminal import show, tell
from ortmeter.errors import OrtMeterError

if TYPE_CHECKING:
    from ortmeter.report import Report

__all__ = ["INTERRUPTED", "SUCCESS", "USAGE", "main"]

#: Exit codes: done; what was asked cannot be done; Ctrl-C. A command has 1 for what differs.
SUCCESS, USAGE, INTERRUPTED = 0, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments, those of the program by default.

    Returns
    -------
    int
        0 when it is done, 1 when two results differ beyond the tolerance asked for or when a task
        of a sweep failed, 2 when what was asked cannot be done, 130 after Ctrl-C, 143 when the
        system ended it.

    Examples
    --------
    >>> main(["bench", "missing.onnx"])
    2
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = next((text for text in given if not text.startswith("-")), "")
    program = f"ortmeter {asked}".strip()
    try:
        with _ends_cleanly(), _tells_warnings(program):
            options = make_parser(asked).parse_args(given)
            return _serve(options) if options.serves else _run(options)
    except SystemExit as stop:  # argparse told why
        return int(stop.code or SUCCESS)
    except KeyboardInterrupt:
        tell(f"{program}: interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - 1, the code of Python, means something else here
        if "--debug" in given:
            traceback.print_exc()
        tell(f"{program}: {_message(error)}")
        return USAGE


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    """Let the end that the system asks for remove temporary folders."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signals = [getattr(signal, name, None) for name in ("SIGTERM", "SIGHUP")]
    caught = [number for number in signals if number and signal.getsignal(number) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        caught = []
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def _tells_warnings(program: str) -> Iterator[None]:
    """Show warnings as other messages are: they quote names too."""
    with warnings.catch_warnings():
        # A name in letters that the font of the plots lacks is not wrong.
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        warnings.showwarning = lambda message, category, *_, **__: tell(
            f"{program}: {category.__name__}: {message}"
        )
        yield


def _message(error: Exception) -> str:
    name, text = type(error).__name__, str(error)
    if isinstance(error, (OrtMeterError, MemoryError, OSError)):
        return text or name
    return f"{name}: {text} (nobody expected this: --debug shows where)"


def _run(options: Namespace) -> int:
    from ortmeter.report import Report, check_writable

    report = Report(_title(options))
    if options.html is not None:
        check_writable(Path(options.html), overwrite=options.force)
    try:
        code = int(options.run(options, report) or SUCCESS)
    except KeyboardInterrupt:
        report.interrupted, code = True, INTERRUPTED
    return _publish(options, report, code)


def _serve(options: Namespace) -> int:
    """Run a server, which has no end of its own and nothing to report."""
    with suppress(KeyboardInterrupt):
        options.run(options)
    return SUCCESS


def _publish(options: Namespace, report: "Report", code: int) -> int:
    if options.html is not None:  # first: the standard output may be closed, or its disk full
        file = report.save(options.html, overwrite=options.force)
        tell(f"report: {file}")
    show(json.dumps(report.to_dict(), indent=2) if options.json else report.to_text())
    return code


def _title(options: Namespace) -> str:
    names = [Path(model).name for model in getattr(options, "models", ())]
    return " ".join(["ortmeter", options.command, *names])
