"""Run the scheduler of the sweeps, until it is interrupted."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.options import number
from ortmeter.cli.terminal import tell
from ortmeter.cli.tls import add_tls, tls_files
from ortmeter.sweep.security import MAX_PORT
from ortmeter.sweep.serving import LOCALHOST, serve_scheduler

__all__ = ["register", "run"]


def register(parser: ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    """
    parser.add_argument(
        "--host",
        default=LOCALHOST,
        help=f"interface ({LOCALHOST}); without TLS, whoever reaches it runs code on the workers",
    )
    parser.add_argument(
        "--port", type=number(0, MAX_PORT), default=8786, help="port, 0 for any (8786)"
    )
    parser.add_argument(
        "--retries",
        type=number(0),
        default=3,
        help="times a task runs again when its worker dies (3)",
    )
    add_tls(parser)


def run(options: Namespace) -> None:
    """Serve.

    Parameters
    ----------
    options : Namespace
        Options of the command.
    """
    serve_scheduler(
        host=options.host,
        port=options.port,
        retries=options.retries,
        tls=tls_files(options),
        announce=lambda address: tell(f"scheduler at {address}"),
    )
