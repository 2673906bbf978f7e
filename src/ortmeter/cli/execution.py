"""Run the command line: what it declares, a report, its errors, its exit code."""

import faulthandler
import importlib
import importlib.util
import json
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from ortmeter import __version__
from ortmeter.cli.terminal import open_streams, printable, show, tell, terminal_width
from ortmeter.errors import InvalidArgumentError, OrtMeterError

COMMANDS: Mapping[str, str] = {
    "env": "Show the machine, the versions and the providers: which work, and why others do not.",
    "bench": "Compare latencies of models, providers, and other settings of ONNX Runtime.",
    "tune": "Find the fastest setting of a model that is safe, prove it, and write it.",
    "profile": "Show where the time of a model goes, and what was optimized.",
    "diff": "Compare the outputs of two models, or of two ways to run one, and find the nodes "
    "responsible.",
    "operators": "Compare operators one by one between releases, providers and torch.",
    "reduce": "Cut a model to the smallest one that is still slower, differs, has NaN or fails.",
    "sweep": "Run a page over a grid of configurations, on this machine or on several.",
}
"""What each command does; it is a module of this package."""

_OLDEST = (1, 30)  # release of onnxruntime
_EPILOG = (
    "exit codes: 0 success, 1 results differ beyond the tolerance, a model is slower than "
    "--fail-if allows, or a task of a sweep failed, 2 error, --fail-if cannot judge, or --bisect "
    "finds no release, 130 interrupted, 143 terminated"
)

#: Exit codes: done; what was asked cannot be done; Ctrl-C. A command has 1 for what differs.
SUCCESS, USAGE, INTERRUPTED = 0, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    asked = next((text for text in given if not text.startswith("-")), "")
    program = f"ortmeter {asked}".strip()
    try:
        open_streams()
        faulthandler.enable(2)  # a kernel of ONNX Runtime may kill the process: it is told where
        with _ends_cleanly(), warnings.catch_warnings():
            # A name in letters that the font of the plots lacks is not wrong.
            warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
            warnings.showwarning = lambda message, category, *_, **__: tell(
                f"{program}: {category.__name__}: {message}"  # it quotes names too
            )
            return _run_command(make_parser(asked).parse_args(given))
    except SystemExit as stop:  # argparse told why
        return int(stop.code or SUCCESS)
    except KeyboardInterrupt:
        tell(f"{program}: interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - 1, the code of Python, means something else here
        if "--debug" in given:
            traceback.print_exc()
        name, text = type(error).__name__, str(error)
        if not isinstance(error, OrtMeterError | MemoryError | OSError):
            text = f"{name}: {text} (unexpected error: --debug shows the traceback)"
        tell(f"{program}: {text or name}")
        return USAGE


@contextmanager
def _ends_cleanly() -> Iterator[None]:
    """Let the end that the system asks for remove temporary folders."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    signals = {signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}
    if threading.current_thread() is not threading.main_thread():
        signals = set()
    caught = [number for number in signals if signal.getsignal(number) == signal.SIG_DFL]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, signal.SIG_DFL)


def _refuse_old() -> None:
    """Refuse an older onnxruntime, which may not even be imported: its file says its version."""
    spec = importlib.util.find_spec("onnxruntime")
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    found = re.search(r'^__version__ = "((\d+)\.(\d+)[^"]*)"', text, re.MULTILINE)
    if found and (int(found[2]), int(found[3])) < _OLDEST:
        least = ".".join(map(str, _OLDEST))
        raise InvalidArgumentError(
            f"onnxruntime {found[1]} is installed. Accepted: {least} or newer, pip install "
            f"'onnxruntime>={least}'; then --runtime {found[1]} measures the older release in an "
            "environment of its own"
        )


def _run_command(options: Namespace) -> int:
    from ortmeter.cli.report import PAGE, Report, check_writable

    _refuse_old()
    names = [Path(model).name for model in getattr(options, "models", ())]
    title = " ".join(["ortmeter", options.command, *names])
    report = Report(title, draws=options.html is not None)
    if report.draws:
        os.environ["MPLBACKEND"] = "agg"  # plots are files; matplotlib refuses an unknown name
        check_writable(Path(options.html), PAGE, overwrite=options.force)
        if Path(options.html).resolve() == Path(getattr(options, "output", None) or ".").resolve():
            raise InvalidArgumentError(
                f"--html: got {options.html!r}, which is --output too. Accepted: a file of its own"
            )
    try:
        done = options.run(options, report)
    except KeyboardInterrupt:
        report.interrupted, done = True, INTERRUPTED
    if isinstance(done, str):  # a script, which is no report
        show(done.rstrip())
        return SUCCESS
    if options.html is not None:  # first: the standard output may be closed, or its disk full
        file = report.save(options.html, overwrite=options.force)
        tell(f"report: {file}")
    if options.json:
        show(json.dumps(report.to_dict(), indent=2))
    else:  # GitHub obeys a line that begins so, and names are not trusted
        show(re.sub("^::", " ::", report.to_text(terminal_width()), flags=re.MULTILINE))
    return int(done or SUCCESS)


def make_parser(asked: str = "") -> ArgumentParser:
    """Declare the commands and what all of them accept."""
    parser = _Parser(
        "ortmeter",
        description="How fast, how close: measure ONNX models on ONNX Runtime.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ortmeter {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary, epilog=_EPILOG, allow_abbrev=False
        )
        if name != asked:
            continue
        importlib.import_module("ortmeter.cli.machine")  # first: it looks at the machine meanwhile
        module = importlib.import_module(f"ortmeter.cli.{name}")
        module.register(command)
        command.set_defaults(run=module.run)
        output = command.add_argument_group("output")
        output.add_argument("--json", action="store_true", help="print JSON instead of text")
        output.add_argument("--html", metavar="FILE", help="also write a self-contained HTML page")
        output.add_argument("--force", action="store_true", help="replace an existing FILE")
        output.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))
