"""Start a scheduler, or a worker that announces what its machine has."""

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.sweep.machine import describe_machine, read_cores
from ortmeter.sweep.security import MAX_PORT, Tls, check_address

__all__ = ["LOCALHOST", "serve_scheduler", "serve_worker"]

LOCALHOST = "127.0.0.1"

#: Seconds that a worker waits for its scheduler, before it gives up.
_PATIENCE_S = 60

Announce = Callable[[str], object]


def serve_scheduler(
    *,
    host: str = LOCALHOST,
    port: int = 8786,
    tls: Tls | None = None,
    retries: int = 3,
    announce: Announce = lambda _: None,
) -> None:
    """Run a scheduler until it is interrupted.

    Parameters
    ----------
    host : str
        Interface. Whoever reaches it runs code on the workers, unless TLS is asked for.
    port : int
        Port, 0 for any that is free.
    tls : Tls, optional
        Files of TLS.
    retries : int
        How many times a task runs again after its worker died.
    announce : callable
        Takes the address, once it listens.

    Raises
    ------
    InvalidArgumentError
        The port, or the number of retries, is not one.
    MissingDependencyError
        dask.distributed is missing.
    OrtMeterError
        It cannot listen there.
    """
    if not (0 <= port <= MAX_PORT and retries >= 0):
        raise InvalidArgumentError(
            f"got port={port}, retries={retries}. Accepted: a port from 0 to {MAX_PORT}, at least "
            "0 retries"
        )
    import_optional("distributed", "sweep")
    from ortmeter.sweep._servers import SweepScheduler

    options = {"host": host, "port": port, "allowed_failures": retries, **_secured(tls)}
    _serve(lambda: SweepScheduler(**options), announce)


def serve_worker(
    scheduler: str,
    *,
    host: str = LOCALHOST,
    name: str | None = None,
    cores: str | None = None,
    tls: Tls | None = None,
    announce: Announce = lambda _: None,
) -> None:
    """Run a worker until it is interrupted; a process that dies is replaced.

    Parameters
    ----------
    scheduler : str
        Address of the scheduler.
    host : str
        Interface of this machine that the scheduler and the client reach.
    name : str, optional
        Name of the worker, its address by default.
    cores : str, optional
        Cores that its runs may use, such as ``0-3``; all that this process has by default.
    tls : Tls, optional
        Files of TLS.
    announce : callable
        Takes the address, once it works.

    Raises
    ------
    InvalidArgumentError
        The address, or the cores, are not accepted.
    MissingDependencyError
        dask.distributed is missing.
    OrtMeterError
        No scheduler answers.
    """
    distributed = import_optional("distributed", "sweep")
    from ortmeter.sweep._servers import SweepWorker

    check_address(scheduler, tls)
    if cores is not None:
        os.sched_setaffinity(0, read_cores(cores))
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        options: dict[str, Any] = {
            "nthreads": 1,
            "resources": describe_machine().resources,
            "memory_limit": 0,
            "host": host,
            "name": name,
            "worker_class": SweepWorker,
            "local_directory": folder,
            "death_timeout": _PATIENCE_S,
            **_secured(tls),
        }
        _serve(lambda: distributed.Nanny(scheduler, **options), announce)


def _serve(make: Callable[[], Awaitable[Any]], announce: Announce) -> None:
    from ortmeter.sweep._servers import quiet

    async def serve() -> None:
        # What schedulers of jobs send when the time is over.
        main: Any = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        server: Any = make()
        async with server:
            announce(server.worker_address if hasattr(server, "worker_address") else server.address)
            await server.finished()

    try:
        with quiet(), suppress(asyncio.CancelledError):
            asyncio.run(serve())
    except (OSError, RuntimeError) as error:
        raise OrtMeterError(f"it cannot start: {error.__cause__ or error}") from error


def _secured(tls: Tls | None) -> dict[str, Any]:
    return {"security": tls.security()} if tls else {}
