"""Run a page over a grid: on this machine, or on the workers of a scheduler of dask."""

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortmeter.child import warn_again
from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.machine.environment import environment
from ortmeter.optional import import_optional
from ortmeter.progress import progress_bar
from ortmeter.runtime.placement import PlacementWarning
from ortmeter.sweep.report import SweepResult
from ortmeter.sweep.store import Store
from ortmeter.sweep.tasks import Task, command_line, configurations, digest, read_script
from ortmeter.sweep.worker import Attempt, Job, code_version, run_job

if TYPE_CHECKING:
    from distributed import Future

_CONNECT_S = 10


def run_sweep(
    page: str | os.PathLike[str],
    grid: Mapping[str, Sequence[str]],
    *,
    repeat_runs: int = 1,
    scheduler: str | None = None,
    output: str | os.PathLike[str] = "sweep",
    resume: bool = False,
    timeout: float | None = None,
    tell: Callable[[str], object] | None = None,
) -> SweepResult:
    """Run a page over a grid of configurations, each in its own process.

    Each record is saved immediately. A machine times one page at a time, even across sweeps.

    Parameters
    ----------
    page : path
        Script of the page, ``plot_x.py``; it is sent to the workers.
    grid : mapping of str to sequence of str
        Values of the options, as the command line of the page accepts them.
    repeat_runs : int
        Number of processes per configuration.
    scheduler : str, optional
        Address of a scheduler of dask, ``tcp://host:8786``; dask's configuration has its
        certificates. By default, runs follow each other on this machine.
    output : path
        Folder of the records.
    resume : bool
        Run only the tasks without record in `output`: those that are missing, failed, or used
        another script or other versions. If false, a folder with a sweep of this page is an error.
    timeout : float, optional
        Seconds after which a run is killed and its task fails. Waiting for another sweep on the
        machine counts.
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
        The page or the grid is not accepted. An option that the page rejects fails its task.
    MissingDependencyError
        A scheduler is given, and dask.distributed is missing.
    OrtMeterError
        The scheduler does not answer, has no worker, or was lost.
    KeyboardInterrupt
        The running task is killed first, except on another machine; records are kept for `resume`.
    """
    script = read_script(page)
    chosen = configurations(grid, repeat_runs)
    # Not a number is not in between.
    if timeout is not None and not 0 < timeout <= threading.TIMEOUT_MAX:
        raise InvalidArgumentError(
            f"got timeout={timeout}. Accepted: positive seconds, at most {threading.TIMEOUT_MAX:g}"
        )
    name, code = Path(page).stem, code_version()
    # Run by run, so that an interruption leaves whole grids.
    tasks = [Task(name, o, run) for run in range(1, repeat_runs + 1) for o in chosen]
    store = Store(output, name, digest(script, code, environment().packages))
    if not resume:
        store.refuse_existing()
    outcomes = store.done(tasks)

    def jobs() -> Iterator[tuple[Task, Job]]:
        store.begin(tasks)
        for task in tasks:
            if task.key not in outcomes:
                line = tuple(command_line(task.options))
                yield task, Job(Path(page).name, script, line, code, timeout)

    here = ((task, run_job(job)) for task, job in jobs())
    attempts = here if scheduler is None else _run_on(scheduler, jobs())
    tell = tell or (lambda _: None)
    if outcomes:
        tell(f"{len(outcomes)} of {len(tasks)} done already")
    with progress_bar("sweep", total=len(tasks)) as bar:
        bar.update(len(outcomes))
        for task, attempt in attempts:
            outcomes[task.key] = outcome = store.keep(task, attempt)
            bar.set_postfix(Counter(known.state for known in outcomes.values()))
            bar.update()
            tell(f"[{len(outcomes)}/{len(tasks)}] {outcome}")
    for outcome in outcomes.values():
        for message in outcome.record.on_cpu if outcome.record else ():
            warn_again(PlacementWarning, message)
    return SweepResult(tuple(outcomes[task.key] for task in tasks), Path(output))


def _run_on(scheduler: str, jobs: Iterator[tuple[Task, Job]]) -> Iterator[tuple[Task, Attempt]]:
    """Keep as many tasks on their way as there are workers: the others are not lost with it."""
    dask = import_optional("distributed", "sweep")
    try:
        client = dask.Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise OrtMeterError(f"no scheduler answers at {scheduler}: {error}") from error
    with client:
        workers = len(client.scheduler_info(n_workers=-1)["workers"])
        if not workers:
            raise OrtMeterError(
                f"the scheduler at {scheduler} has no worker. Start some: dask worker {scheduler} "
                "--nthreads 1 --no-nanny"
            )
        ended, flying = dask.as_completed(), {}

        def send(count: int) -> None:
            for task, job in itertools.islice(jobs, count):
                future = client.submit(run_job, job, pure=False)
                flying[future] = task
                ended.add(future)

        send(workers)
        for future in ended:
            yield flying.pop(future), _attempt(future)
            send(1)


def _attempt(future: "Future[Attempt]") -> Attempt:
    if future.status not in {"finished", "error"}:
        raise OrtMeterError(
            f"the scheduler was lost ({future.status}). Finished tasks are kept: continue with "
            "--resume"
        )
    error = future.exception()
    if error is None:
        return future.result()
    # A worker that dies, or has no ortmeter, fails one task.
    return Attempt("", error=f"{type(error).__name__} on the worker: {error}")
