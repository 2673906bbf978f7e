"""The scheduler and the workers of a sweep: started without HTTP port, reached, described."""

import asyncio
import logging
import signal
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, Nanny, Scheduler, Security, SpecCluster, Worker

from ortmeter.errors import OrtMeterError
from ortmeter.sweep.worker import Machine, describe_machine, fits

#: Seconds that a worker waits for its scheduler, before it gives up.
_PATIENCE_S = 60

_CONNECT_S = 10

Announce = Callable[[str], object]


class _Quiet:
    """A server of dask without HTTP port, on all interfaces even without dashboard."""

    http_server: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Sampling its threads would take time from what is measured.
        with dask.config.set({"distributed.worker.profile.enabled": False}):
            super().__init__(*args, **kwargs)

    def start_http_server(self, *_args: Any, **_kwargs: Any) -> None:
        """Open nothing."""


class SweepScheduler(_Quiet, Scheduler):
    """Scheduler of a sweep, or of anything else."""


class SweepWorker(_Quiet, Worker):
    """Worker that announces what its machine has, for ``dask worker --worker-class`` too."""

    def __init__(self, *args: Any, resources: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, resources=resources or describe_machine().resources, **kwargs)


def serve_scheduler(announce: Announce, *, host: str, **options: Any) -> None:
    """Run a scheduler until it is interrupted; *announce* takes the address, once it listens."""
    _serve(lambda: SweepScheduler(host=host, **options), announce)


def serve_worker(announce: Announce, scheduler: str, *, host: str, **options: Any) -> None:
    """Run a worker until it is interrupted; a process that dies is replaced."""
    options |= {**_worker_options(), "worker_class": SweepWorker, "death_timeout": _PATIENCE_S}
    _serve(lambda: Nanny(scheduler, host=host, **options), announce)


def _worker_options() -> dict[str, Any]:
    """What dask would choose for a worker."""
    # Before it starts: a driver that is slow to answer is not taken for a worker that is dead.
    return {"nthreads": 1, "memory_limit": 0, "resources": describe_machine().resources}


@contextmanager
def _settings() -> Iterator[None]:
    """What dask would choose for its servers; their files live as long as this block."""
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        # Threads of its workers, and of the pages that they would run.
        threads: dict[str, Any] = {"distributed.nanny.pre-spawn-environ": {}}
        with dask.config.set({**threads, "temporary-directory": folder}):
            yield


def _serve(make: Callable[[], Awaitable[Any]], announce: Announce) -> None:
    async def serve() -> None:
        # What schedulers of jobs send when the time is over.
        main: Any = asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
        server: Any = make()
        async with server:
            announce(getattr(server, "worker_address", server.address))
            await server.finished()

    try:
        with _settings(), suppress(asyncio.CancelledError):
            asyncio.run(serve())
    except (OSError, RuntimeError) as error:
        raise OrtMeterError(f"it cannot start: {error.__cause__ or error}") from error


@contextmanager
def connect(scheduler: str | None, tls: Security | None) -> Iterator[Client]:
    """Open a client of a scheduler, by default of one worker in this process, without any port."""
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=_CONNECT_S, security=tls)
        except OSError as error:
            raise OrtMeterError(f"no scheduler answers at {scheduler}: {error}") from error
        with client:
            yield client
        return
    inside = {"protocol": "inproc"}
    with _settings():
        cluster = SpecCluster(
            scheduler={"cls": SweepScheduler, "options": inside},
            workers={0: {"cls": SweepWorker, "options": {**_worker_options(), **inside}}},
            silence_logs=logging.ERROR,
        )
        with cluster, Client(cluster) as client:
            yield client


def describe_workers(client: Client, code: str) -> dict[str, Machine]:
    """Ask every worker what it has, refuse them when one has another version of the code."""
    answers = client.run(describe_machine, on_error="return")
    if not answers:
        raise OrtMeterError(
            "the scheduler has no worker. Start some: ortmeter worker tcp://host:8786"
        )
    listed = client.scheduler_info(n_workers=-1)["workers"]
    names = {address: f"{listed[address]['name']} ({address})" for address in answers}
    if other := [f"{names[a]} has {_code(m)}" for a, m in answers.items() if _code(m) != code]:
        raise OrtMeterError(
            f"workers have other code than this client, ortmeter {code}: {'; '.join(other)}. "
            "Install the same sources everywhere"
        )
    announced = {address: listed[address]["resources"] for address in answers}
    if bare := [names[a] for a, m in answers.items() if not fits(m.resources, announced[a])]:
        raise OrtMeterError(
            f"workers announce no device: {', '.join(bare)}. Start them with ortmeter worker"
        )
    return {names[address]: answers[address] for address in sorted(answers, key=names.__getitem__)}


def _code(answer: Machine | BaseException) -> str:
    if isinstance(answer, BaseException):
        return f"no ortmeter that can run a sweep: {answer}"
    return str(answer.code)
