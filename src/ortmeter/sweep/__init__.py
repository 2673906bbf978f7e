"""A page over a grid of configurations, on this machine or on several, with dask.distributed.

``grid`` combines the values, ``script`` asks the page whether it accepts them, ``engine`` sends
the tasks and keeps what comes back in the files of ``store``. On a worker, ``worker`` waits for
its turn on the machine and ``child`` runs the page in a process of its own. ``machine`` says what a
worker has, ``cluster`` reaches the workers and checks them, ``serving`` starts them. ``report``
compares what the tasks recorded.
"""

from ortmeter.sweep.comparison import RunComparison
from ortmeter.sweep.engine import run_sweep
from ortmeter.sweep.outcome import Outcome, SweepResult, Task
from ortmeter.sweep.report import SweepReport, sweep_report
from ortmeter.sweep.security import Tls, read_tls
from ortmeter.sweep.store import load_sweep
from ortmeter.sweep.watching import BarWatcher, LineWatcher, Watcher

__all__ = [
    "BarWatcher",
    "LineWatcher",
    "Outcome",
    "RunComparison",
    "SweepReport",
    "SweepResult",
    "Task",
    "Tls",
    "Watcher",
    "load_sweep",
    "read_tls",
    "run_sweep",
    "sweep_report",
]
