"""Run a page over a grid: connect to workers, submit tasks, save and show the results."""

import hashlib
import ipaddress
import logging
import os
import queue
import re
import threading
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ortmeter.child import warn_again
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.placement import PlacementWarning
from ortmeter.runtime.providers import Provider
from ortmeter.sweep.report import SweepResult
from ortmeter.sweep.store import Store
from ortmeter.sweep.tasks import (
    MAX_TASKS,
    Outcome,
    Task,
    check_page,
    command_line,
    configurations,
    read_script,
)
from ortmeter.sweep.worker import (
    Attempt,
    Job,
    Machine,
    code_version,
    fits,
    run_job,
    stop_jobs,
)

if TYPE_CHECKING:
    from distributed import Client, Future, Security

# Resources of dask that a task takes.
_Needs: TypeAlias = tuple[tuple[str, float], ...]

_logger = logging.getLogger(__name__)

#: What a port is at most; libraries of the system take the remainder of a larger one.
MAX_PORT = 65535

#: How often workers that joined are looked for, when nothing ends.
_LOOK_S = 2.0


def run_sweep(
    page: str | os.PathLike[str],
    grid: Mapping[str, Sequence[str]],
    *,
    repeat_runs: int = 1,
    scheduler: str | None = None,
    output: str | os.PathLike[str] = "sweep",
    resume: bool = False,
    timeout: float | None = None,
    tls: "Security | None" = None,
    tell: Callable[[str], object] | None = None,
) -> SweepResult:
    """Run a page over a grid of configurations, each in its own process.

    The page, its options and their values, and the code and devices of the workers are checked
    first. Each record is saved immediately. A machine times one page at a time.

    Parameters
    ----------
    page : path
        Script of the page; it is sent to the workers.
    grid : mapping of str to sequence of str
        Values of the options, as the command line of the page accepts them.
    repeat_runs : int
        Number of processes per configuration.
    scheduler : str, optional
        Address, ``tcp://host:8786``. By default, one worker in this process, without port.
    output : path
        Folder of the records.
    resume : bool
        Run only the tasks without record in `output`. If false, a folder with a sweep of this page
        is an error.
    timeout : float, optional
        Seconds after which a run is killed and its task fails.
    tls : distributed.Security, optional
        What :func:`~ortmeter.sweep.read_tls` returns.
    tell : callable, optional
        Called with one line per finished task. A terminal or a notebook also shows a bar.

    Returns
    -------
    SweepResult
        Outcome of every task. A failed task does not stop the others. What a task was warned of,
        nodes of CUDA on the CPU, is warned of again.

    Raises
    ------
    InvalidArgumentError
        The page, an option, a value or the grid is not accepted.
    MissingDependencyError
        dask.distributed is missing.
    OrtMeterError
        No worker can run a task, or the connection to the scheduler was lost.
    KeyboardInterrupt
        Running tasks are killed first; records are kept for `resume`.
    """
    script = read_script(page)
    chosen = configurations(grid)
    _check_numbers(len(chosen), repeat_runs, timeout)
    if scheduler is not None:
        check_address(scheduler, tls)
    name = check_page(script, chosen)
    # Run by run, so that an interruption leaves whole grids.
    tasks = [Task(name, o, run) for run in range(1, repeat_runs + 1) for o in chosen]
    text, code = hashlib.sha256(script.text.encode()).hexdigest(), code_version()
    store = Store(output, name, script=text, code=code)
    if not resume:
        store.refuse_existing()
    import_optional("distributed", "sweep")
    from ortmeter.sweep.cluster import connect, describe_workers

    with connect(scheduler, tls) as client:
        machines = describe_workers(client, code)
        _check_needs(tasks, machines)
        outcomes = store.done(tasks, machines.values())
        store.begin(tasks)
        job = Job(uuid.uuid4().hex, script, (), code, timeout)
        _Run(client, store, job, tell or (lambda _: None)).drive(tasks, outcomes)
    for outcome in outcomes.values():
        for message in outcome.record.on_cpu if outcome.record else ():
            warn_again(PlacementWarning, message)
    return SweepResult(tuple(outcomes[task.key] for task in tasks), Path(output))


def _check_numbers(count: int, repeat_runs: int, timeout: float | None) -> None:
    if not 1 <= repeat_runs <= MAX_TASKS // count:
        raise InvalidArgumentError(
            f"got repeat_runs={repeat_runs} of {count} configurations. "
            f"Accepted: at least one run, at most {MAX_TASKS} in all"
        )
    # Not a number is not in between.
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError(
            f"got timeout={timeout}. Accepted: positive seconds, at most {threading.TIMEOUT_MAX:g}"
        )


def needs(task: Task) -> dict[str, float]:
    """Return what a task takes of its worker, as resources of dask: its device, its threads.

    >>> needs(Task("plot_x", {"provider": "cuda", "threads": "1,4"}))
    {'cuda:0': 1.0, 'cores': 4.0}
    """
    provider = task.options.get("provider", "auto")
    device = Provider.parse("cpu" if provider == "auto" else provider)
    name = "cpu" if device.is_cpu else f"{device.name}:{device.index}"
    counts = [float(n) for n in task.options.get("threads", "").split(",") if n.strip().isdecimal()]
    return {name: 1.0, "cores": max(counts, default=1.0) or 1.0}


def _check_needs(tasks: Iterable[Task], machines: Mapping[str, Machine]) -> None:
    """Refuse a task that no worker can run."""
    for task in tasks:
        wanted = needs(task)
        if not any(fits(wanted, machine.resources) for machine in machines.values()):
            have = "; ".join(f"{name}: {machine}" for name, machine in machines.items())
            asked = ", ".join(n for n in wanted if n != "cores")
            raise InvalidArgumentError(
                f"no worker can run {task}: it needs {asked} and {wanted['cores']:.0f} cores. "
                f"Workers: {have}"
            )


@dataclass
class _Run:
    """Tasks on their way to the workers and back; *job* is what they share."""

    client: "Client"
    store: Store
    job: Job
    tell: Callable[[str], object]
    ended: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)
    flying: "dict[str, tuple[Task, Future[Attempt]]]" = field(default_factory=dict)

    def drive(self, tasks: Sequence[Task], outcomes: dict[str, Outcome]) -> None:
        """Run the tasks that have no outcome, add what becomes of each one by its key."""
        # By what they take of a worker.
        waiting: defaultdict[_Needs, deque[Task]] = defaultdict(deque)
        for task in tasks:
            if task.key not in outcomes:
                waiting[tuple(needs(task).items())].append(task)
        if outcomes:
            self.tell(f"{len(outcomes)} of {len(tasks)} done already")
        try:
            with progress_bar("sweep", total=len(tasks)) as bar:
                bar.update(len(outcomes))
                while (left := sum(map(len, waiting.values()))) or self.flying:
                    self._submit(waiting)
                    if not self.flying:
                        _logger.warning(
                            "no worker is left for %d tasks; waiting for another one", left
                        )
                    if outcome := self._next_outcome():
                        outcomes[outcome.task.key] = outcome
                        bar.set_postfix(Counter(known.state for known in outcomes.values()))
                        bar.update()
                        self.tell(f"[{len(outcomes)}/{len(tasks)}] {outcome}")
        except BaseException:
            self._cancel()
            raise

    def _submit(self, waiting: Mapping[_Needs, deque[Task]]) -> None:
        """Send each worker one task at a time: when it dies, no other task is suspected."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        flying = Counter(tuple(needs(task).items()) for task, _ in self.flying.values())
        for taken, tasks in waiting.items():
            able = sum(fits(dict(taken), worker["resources"]) for worker in workers)
            for _ in range(min(able - flying[taken], len(tasks))):
                self._send(tasks.popleft(), dict(taken))

    def _send(self, task: Task, resources: Mapping[str, float]) -> None:
        job = replace(self.job, arguments=tuple(command_line(task.options)))
        key = f"{task.page}-{task.key}-{job.sweep}"
        future = self.client.submit(run_job, job, key=key, pure=False, resources=resources)
        self.flying[task.key] = (task, future)
        future.add_done_callback(lambda _: self.ended.put(task.key))

    def _next_outcome(self) -> Outcome | None:
        """Wait for a task to end; None when it is time to look for workers that joined."""
        try:
            task, future = self.flying.pop(self.ended.get(timeout=_LOOK_S))
        except queue.Empty:
            if self.client.status != "running":
                raise _lost(self.client) from None
            return None
        return self.store.keep(task, self._attempt(future))

    def _attempt(self, future: "Future[Attempt]") -> Attempt:
        from distributed import KilledWorker

        if future.status not in {"finished", "error"}:
            raise _lost(self.client)
        try:
            return future.result()
        except KilledWorker as error:
            times = error.allowed_failures + 1
            return Attempt("", error=f"its worker died during the run, {times} times")
        except Exception as error:  # noqa: BLE001 - a fault of one worker fails one task
            return Attempt("", error=f"{type(error).__name__} on the worker: {error}")

    def _cancel(self) -> None:
        """Kill what runs, forget what waits."""
        if self.client.status != "running":
            return
        self.client.cancel([future for _, future in self.flying.values()])
        self.client.run(stop_jobs, self.job.sweep, on_error="ignore")


def _lost(client: "Client") -> OrtMeterError:
    return OrtMeterError(
        f"the scheduler was lost ({client.status}). Finished tasks are kept: continue with --resume"
    )


def read_tls(
    ca: str | os.PathLike[str] | None,
    cert: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> "Security | None":
    """Check the files of TLS. Anyone who has them can run code on the workers.

    Parameters
    ----------
    ca, cert, key : path, optional
        Certificate of the signing authority, certificate of this process and its private key, in
        PEM format; all three or none.

    Returns
    -------
    distributed.Security or None
        Settings with which dask rejects unencrypted connections; None without files.

    Raises
    ------
    InvalidArgumentError
        A file is missing.
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
    own = {"require_encryption": True, "tls_ca_file": str(ca)}
    for side in ("client", "scheduler", "worker"):
        own |= {f"tls_{side}_cert": str(cert), f"tls_{side}_key": str(key)}
    security: Security = import_optional("distributed", "sweep").Security(**own)
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


def check_host(host: str, tls: "Security | None", *, insecure: bool) -> None:
    """Refuse an interface that others reach without TLS, which runs what anyone sends."""
    try:
        is_own = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may be that of any interface
        is_own = False
    if not (is_own or tls or insecure):
        raise InvalidArgumentError(
            f"--host {host}: without TLS, who reaches its port can run code on the workers. "
            "Accepted: --tls-ca, --tls-cert and --tls-key; 127.0.0.1; or --insecure, on a network "
            "where every machine and every user is trusted"
        )
