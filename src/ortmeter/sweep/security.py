"""TLS between the client, the scheduler and the workers of a sweep."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError

if TYPE_CHECKING:
    from distributed import Security

__all__ = ["MAX_PORT", "Tls", "check_address", "read_tls"]

#: What a port is at most; libraries of the system take the remainder of a larger one.
MAX_PORT = 65535


@dataclass(frozen=True)
class Tls:
    """Files in PEM format; whoever has them may run code on the workers.

    Parameters
    ----------
    ca : Path
        Certificate of the authority that signed the others.
    cert : Path
        Certificate of this side.
    key : Path
        Its private key.
    """

    ca: Path
    cert: Path
    key: Path

    def security(self) -> "Security":
        """Return the same files for dask, which then refuses what is not encrypted."""
        from distributed import Security

        sides = ("client", "scheduler", "worker")
        files = {f"tls_{side}_cert": str(self.cert) for side in sides}
        files |= {f"tls_{side}_key": str(self.key) for side in sides}
        return Security(tls_ca_file=str(self.ca), require_encryption=True, **files)


def read_tls(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> Tls | None:
    """Check the files of TLS.

    Parameters
    ----------
    ca, cert, key : path, optional
        All three or none.

    Returns
    -------
    Tls or None
        None without files.

    Raises
    ------
    InvalidArgumentError
        Some are missing.

    Examples
    --------
    >>> read_tls(None, None, None) is None
    True
    """
    files = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    given = {option: Path(file) for option, file in files.items() if file}
    if not given:
        return None
    if absent := [option for option in files if option not in given]:
        raise InvalidArgumentError(f"{', '.join(absent)} is missing: TLS needs all three files")
    if unread := [str(file) for file in given.values() if not os.access(file, os.R_OK)]:
        raise InvalidArgumentError(f"{', '.join(unread)} cannot be read")
    return Tls(*given.values())


def check_address(address: str, tls: Tls | None) -> str:
    """Check the address of a scheduler.

    Parameters
    ----------
    address : str
        ``tcp://host:port``, or ``tls://host:port`` with the files.
    tls : Tls, optional
        The files.

    Returns
    -------
    str
        The address.

    Raises
    ------
    InvalidArgumentError
        It is something else.

    Examples
    --------
    >>> check_address("tcp://127.0.0.1:8786", None)
    'tcp://127.0.0.1:8786'
    """
    scheme = "tls" if tls else "tcp"
    host, colon, port = address.removeprefix(f"{scheme}://").rpartition(":")
    known = re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= MAX_PORT
    if not (address.startswith(f"{scheme}://") and host and colon and known):
        files = "with --tls-ca, --tls-cert and --tls-key" if tls else "without TLS files"
        raise InvalidArgumentError(
            f"got scheduler {address!r}, expected {scheme}://host:port {files}, "
            f"a port from 1 to {MAX_PORT}"
        )
    return address
