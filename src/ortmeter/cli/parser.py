"""Declaration of the command line."""

import importlib
from argparse import ArgumentParser
from collections.abc import Mapping
from typing import NoReturn

from ortmeter import __version__
from ortmeter.cli.terminal import printable

__all__ = ["COMMANDS", "make_parser"]

COMMANDS: Mapping[str, str] = {
    "env": "Tell the machine, the versions, which providers work and why the others do not.",
    "bench": "Compare latencies of models, providers, optimization levels and numbers of threads.",
    "profile": "Tell where the time of a model goes, and what was optimized.",
    "diff": "Tell how close two models, or two ways to run one, are and which nodes are "
    "responsible.",
    "sweep": "Run a page over a grid of configurations, on this machine or on several.",
    "scheduler": "Run the scheduler of the sweeps, until it is interrupted.",
    "worker": "Run a worker of the sweeps on this machine, until it is interrupted.",
}
"""What each command does; it is a module of this package."""

_SERVERS = {"scheduler", "worker"}
_EPILOG = (
    "exit codes: 0 done, 1 results differ beyond the tolerance or a task of a sweep failed, "
    "2 what was asked cannot be done, 130 interrupted, 143 ended by the system"
)


def make_parser(asked: str = "") -> ArgumentParser:
    """Declare the commands and what all of them accept.

    Parameters
    ----------
    asked : str, optional
        The command that is asked for: its module is imported, those of the others are heavy.
    """
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
        if name == asked:
            _declare(name, command)
    return parser


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _declare(name: str, parser: ArgumentParser) -> None:
    command = importlib.import_module(f"ortmeter.cli.{name}")
    if name not in _SERVERS:
        _add_report(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    command.register(parser)
    parser.set_defaults(run=command.run, serves=name in _SERVERS)


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page too")
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")
