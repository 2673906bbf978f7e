"""Declaration of the command line."""

from argparse import ArgumentParser

from ortmeter import __version__
from ortmeter.cli import bench, diff, env, profile, scheduler, sweep, worker

__all__ = ["make_parser"]

_EPILOG = (
    "exit codes: 0 done, 1 results differ beyond the tolerance or a task of a sweep failed, "
    "2 what was asked cannot be done, 130 interrupted"
)


def make_parser() -> ArgumentParser:
    """Declare the commands and what all of them accept."""
    parser = ArgumentParser(
        "ortmeter",
        description="How fast, how close: measure ONNX models on ONNX Runtime.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"ortmeter {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (env, bench, profile, diff, sweep, scheduler, worker):
        name = command.__name__.rpartition(".")[2]
        summary = (command.__doc__ or "").strip()
        own = commands.add_parser(
            name, help=summary, description=summary, epilog=_EPILOG, allow_abbrev=False
        )
        serves = command in (scheduler, worker)
        if not serves:
            _add_report(own)
        own.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.register(own)
        own.set_defaults(run=command.run, serves=serves)
    return parser


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument("--html", metavar="FILE", help="write one self-contained page too")
    parser.add_argument("--force", action="store_true", help="replace an existing FILE")
