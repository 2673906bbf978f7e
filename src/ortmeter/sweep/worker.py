"""What runs on a worker: one page at a time, in a child process."""

import threading
from dataclasses import dataclass

from ortmeter.sweep.child import Attempt, Stop, run_page
from ortmeter.sweep.machine import describe_machine, machine_lock, read_cores
from ortmeter.sweep.script import Script

__all__ = ["Job", "run_job", "stop_jobs", "topic"]


@dataclass(frozen=True)
class Job:
    """A page to run once.

    Parameters
    ----------
    sweep : str
        Identifier of the sweep.
    key : str
        Identifier of the task.
    script : Script
        Script of the page.
    arguments : tuple of str
        Its command line.
    code : str
        Version of the package that the client has.
    timeout : float or None
        Seconds after which it is killed.
    cores : str or None
        Cores of a run, as :func:`~ortmeter.sweep.machine.read_cores` takes them.
    """

    sweep: str
    key: str
    script: Script
    arguments: tuple[str, ...]
    code: str
    timeout: float | None
    cores: str | None


#: One for each sweep; a worker may serve several clients.
_stops: dict[str, Stop] = {}
_stops_lock = threading.Lock()


def run_job(job: Job) -> Attempt:
    """Run a page when nothing else is timed on this machine.

    Parameters
    ----------
    job : Job
        The page.

    Returns
    -------
    Attempt
        What the process left.
    """
    machine = describe_machine()
    if job.code != machine.code:
        # A worker that joined after the others were checked, or sources that changed since.
        error = f"the worker has ortmeter {machine.code}, expected {job.code}"
        return Attempt(machine.name, error=error)
    stop = _stop(job.sweep)
    cores = read_cores(job.cores) if job.cores else None
    with machine_lock(stop.asked) as lock:
        _tell_started(job, machine.name)
        return run_page(
            job.script,
            job.arguments,
            machine.name,
            timeout=job.timeout,
            cores=cores,
            lock=lock,
            stop=stop,
        )


def stop_jobs(sweep: str) -> None:
    """Kill what this worker runs for a sweep, and refuse what would start.

    Parameters
    ----------
    sweep : str
        Identifier of the sweep.
    """
    _stop(sweep).ask()


def topic(sweep: str) -> str:
    """Name the events that the workers send while a sweep runs."""
    return f"ortmeter-sweep-{sweep}"


def _stop(sweep: str) -> Stop:
    """Find the one of a sweep; the thread that runs and the thread that kills share it."""
    with _stops_lock:
        return _stops.setdefault(sweep, Stop())


def _tell_started(job: Job, machine: str) -> None:
    from distributed import get_worker

    get_worker().log_event(topic(job.sweep), {"key": job.key, "machine": machine})
