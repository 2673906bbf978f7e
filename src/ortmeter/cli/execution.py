"""Run a command: its report, its errors, its exit code."""

import json
import sys
import traceback
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ortmeter.cli.parser import make_parser
from ortmeter.errors import OrtMeterError
from ortmeter.report import Report
from ortmeter.report.document import check_writable

__all__ = ["INTERRUPTED", "SUCCESS", "USAGE", "main"]

#: Exit codes: done; a comparison is beyond its tolerance; what was asked cannot be done; Ctrl-C.
SUCCESS, DIFFERENT, USAGE, INTERRUPTED = 0, 1, 2, 130


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
        of a sweep failed, 2 when what was asked cannot be done, 130 after Ctrl-C.

    Examples
    --------
    >>> main(["bench", "missing.onnx"])
    2
    """
    try:
        options = make_parser().parse_args(arguments)
    except SystemExit as stop:  # argparse told why
        return int(stop.code or SUCCESS)
    return _guarded(options)


def _guarded(options: Namespace) -> int:
    try:
        return _serve(options) if options.serves else _run(options)
    except (OrtMeterError, MemoryError, OSError) as error:
        if options.debug:
            traceback.print_exc()
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"ortmeter {options.command}: {message}", file=sys.stderr)  # noqa: T201
        return USAGE


def _run(options: Namespace) -> int:
    report = Report(_title(options))
    if options.html:
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


def _publish(options: Namespace, report: Report, code: int) -> int:
    if options.html:  # first: the standard output may be closed, or its disk full
        file = report.save(options.html, overwrite=options.force)
        print(f"report: {file}", file=sys.stderr)  # noqa: T201
    text = json.dumps(report.to_dict(), indent=2) if options.json else report.to_text()
    print(text)  # noqa: T201
    return code


def _title(options: Namespace) -> str:
    names = [Path(model).name for model in getattr(options, "models", ())]
    return " ".join(["ortmeter", options.command, *names])
