"""TLS between the client, the scheduler and the workers of a sweep, and addresses."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError
from ortmeter.optional import import_optional

if TYPE_CHECKING:
    from distributed import Security

LOCALHOST = "127.0.0.1"

#: What a port is at most; libraries of the system take the remainder of a larger one.
MAX_PORT = 65535


def read_tls(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> "Security | None":
    """Check the files of TLS; whoever has them may run code on the workers.

    Parameters
    ----------
    ca, cert, key : path, optional
        Certificate of the authority that signed the others, certificate of this side, its private
        key, in PEM format; all three or none.

    Returns
    -------
    distributed.Security or None
        What dask takes, which then refuses what is not encrypted; None without files.

    Raises
    ------
    InvalidArgumentError
        Some are missing.
    MissingDependencyError
        dask.distributed is missing.

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
    authority, own_cert, own_key = map(str, given.values())
    own: dict[str, str] = {}
    for side in ("client", "scheduler", "worker"):
        own |= {f"tls_{side}_cert": own_cert, f"tls_{side}_key": own_key}
    distributed = import_optional("distributed", "sweep")
    security: Security = distributed.Security(tls_ca_file=authority, require_encryption=True, **own)
    return security


def check_address(address: str, tls: "Security | None") -> None:
    """Refuse what is no address of a scheduler: ``tls://`` with the files, ``tcp://`` without."""
    scheme = "tls" if tls else "tcp"
    host, colon, port = address.removeprefix(f"{scheme}://").rpartition(":")
    known = re.fullmatch(r"[0-9]{1,5}", port) and 0 < int(port) <= MAX_PORT
    if not (address.startswith(f"{scheme}://") and host and colon and known):
        files = "with --tls-ca, --tls-cert and --tls-key" if tls else "without TLS files"
        raise InvalidArgumentError(
            f"got scheduler {address!r}, expected {scheme}://host:port {files}, "
            f"a port from 1 to {MAX_PORT}"
        )
