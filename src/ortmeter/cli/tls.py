"""Options of TLS."""

from argparse import ArgumentParser, Namespace

from ortmeter.sweep import Tls, read_tls

__all__ = ["add_tls", "tls_files"]


def add_tls(parser: ArgumentParser) -> None:
    """Declare the options.

    Parameters
    ----------
    parser : ArgumentParser
        Parser of the command.
    """
    parser.add_argument("--tls-ca", metavar="FILE", help="certificate of the authority, PEM")
    parser.add_argument("--tls-cert", metavar="FILE", help="certificate of this side, PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM")


def tls_files(options: Namespace) -> Tls | None:
    """Read the options.

    Parameters
    ----------
    options : Namespace
        Values of :func:`add_tls`.

    Raises
    ------
    InvalidArgumentError
        Some files are missing.
    """
    return read_tls(options.tls_ca, options.tls_cert, options.tls_key)
