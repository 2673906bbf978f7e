"""Run a worker of the sweeps on this machine, until it is interrupted."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.terminal import tell
from ortmeter.cli.tls import add_tls, tls_files
from ortmeter.sweep.serving import LOCALHOST, serve_worker

__all__ = ["register", "run"]


def register(parser: ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    """
    parser.add_argument("scheduler", metavar="tcp://HOST:PORT", help="address of the scheduler")
    parser.add_argument(
        "--host", default=LOCALHOST, help=f"interface that the others reach ({LOCALHOST})"
    )
    parser.add_argument("--name", help="name of the worker, its address by default")
    parser.add_argument("--cores", help="cores that its runs may use, such as 0-3 (all)")
    add_tls(parser)


def run(options: Namespace) -> None:
    """Serve.

    Parameters
    ----------
    options : Namespace
        Options of the command.
    """
    serve_worker(
        options.scheduler,
        host=options.host,
        name=options.name,
        cores=options.cores,
        tls=tls_files(options),
        announce=lambda address: tell(f"worker at {address}"),
    )
