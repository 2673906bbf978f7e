"""The workers of a sweep: reached, described, and refused when their code is not the same."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.runtime.providers import Provider
from ortmeter.sweep.machine import Machine, describe_machine
from ortmeter.sweep.outcome import Task
from ortmeter.sweep.security import Tls, check_address

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["check_needs", "connect", "describe_workers", "needs"]

_CONNECT_S = 10


@contextmanager
def connect(scheduler: str | None, tls: Tls | None) -> "Iterator[Client]":
    """Open a client of dask.

    Parameters
    ----------
    scheduler : str, optional
        Address of a scheduler; by default, one worker in this process and no port.
    tls : Tls, optional
        Files of TLS, for an address ``tls://``.

    Raises
    ------
    InvalidArgumentError
        The address is not one, or comes without its TLS files.
    MissingDependencyError
        dask.distributed is missing.
    OrtMeterError
        No scheduler answers.
    """
    distributed = import_optional("distributed", "sweep")
    if scheduler is None:
        from ortmeter.sweep._servers import local_client

        with local_client(describe_machine()) as client:
            yield client
        return
    check_address(scheduler, tls)
    security = {"security": tls.security()} if tls else {}
    try:
        client = distributed.Client(scheduler, timeout=_CONNECT_S, **security)
    except OSError as error:
        raise OrtMeterError(f"no scheduler answers at {scheduler}: {error}") from error
    with client:
        yield client


def describe_workers(client: "Client", code: str) -> dict[str, Machine]:
    """Ask every worker what it has.

    Parameters
    ----------
    client : distributed.Client
        Client.
    code : str
        Version of the code that all of them must have.

    Returns
    -------
    dict of str to Machine
        By name of the worker.

    Raises
    ------
    OrtMeterError
        There is no worker, or one has another version of the code.
    """
    found = client.run(describe_machine, on_error="return")
    if not found:
        raise OrtMeterError(
            "the scheduler has no worker. Start some: ortmeter worker tcp://host:8786"
        )
    listed = client.scheduler_info(n_workers=-1)["workers"]
    names = {address: f"{listed[address]['name']} ({address})" for address in found}
    if other := [f"{names[a]} has {_code(m)}" for a, m in found.items() if _code(m) != code]:
        raise OrtMeterError(
            f"workers have other code than this client, ortmeter {code}: {'; '.join(other)}. "
            "Install the same sources everywhere"
        )
    if bare := [
        names[a] for a, m in found.items() if not fits(m.resources, listed[a]["resources"])
    ]:
        raise OrtMeterError(
            f"workers announce no device: {', '.join(bare)}. Start them with ortmeter worker"
        )
    return {names[address]: found[address] for address in sorted(found, key=names.__getitem__)}


def _code(answer: Machine | BaseException) -> str:
    if isinstance(answer, BaseException):
        return f"no ortmeter that can run a sweep: {answer}"
    return str(answer.code)


def needs(task: Task) -> dict[str, float]:
    """Return what a task takes of its worker, as resources of dask.

    Parameters
    ----------
    task : Task
        The task: its provider tells the device, its threads the cores.

    Examples
    --------
    >>> needs(Task("plot_x", {"provider": "cuda", "threads": "1,4"}))
    {'cuda:0': 1.0, 'cores': 4.0}
    """
    provider = task.options.get("provider", "auto")
    device = Provider.parse("cpu" if provider == "auto" else provider)
    name = "cpu" if device.name == "cpu" else f"{device.name}:{device.index}"
    counts = [float(n) for n in task.options.get("threads", "").split(",") if n.strip().isdecimal()]
    return {name: 1.0, "cores": max(counts, default=1.0) or 1.0}


def check_needs(tasks: Iterable[Task], machines: Mapping[str, Machine]) -> None:
    """Refuse a task that no worker can run.

    Parameters
    ----------
    tasks : iterable of Task
        The tasks.
    machines : mapping of str to Machine
        What each worker has.

    Raises
    ------
    InvalidArgumentError
        A device, or a number of threads, that no worker has.
    """
    for task in tasks:
        wanted = needs(task)
        if not any(fits(wanted, machine.resources) for machine in machines.values()):
            have = "; ".join(f"{name}: {machine}" for name, machine in machines.items())
            asked = ", ".join(n for n in wanted if n != "cores")
            raise InvalidArgumentError(
                f"no worker can run {task}: it takes {asked} and {wanted['cores']:.0f} cores. "
                f"Workers: {have}"
            )


def fits(wanted: Mapping[str, float], resources: Mapping[str, float]) -> bool:
    """Tell whether a worker has what a task takes."""
    return all(resources.get(name, 0) >= amount for name, amount in wanted.items())
