"""A page over a grid of configurations, on this machine or on several, with dask.distributed.

``tasks`` combines the values of a grid, ``script`` asks the page whether it accepts them and runs
it in a process of its own, ``worker`` waits for its turn on the machine. ``cluster`` starts,
reaches and checks the workers, ``engine`` sends them the tasks and keeps what comes back in the
files of ``store``. ``comparison``, ``claims`` and ``report`` compare what the tasks recorded.
"""

from ortmeter.sweep.comparison import RunComparison
from ortmeter.sweep.engine import BarWatcher, LineWatcher, Watcher, run_sweep
from ortmeter.sweep.report import SweepReport, SweepResult
from ortmeter.sweep.security import read_tls
from ortmeter.sweep.store import load_sweep
from ortmeter.sweep.tasks import Outcome, Task

__all__ = [
    "BarWatcher",
    "LineWatcher",
    "Outcome",
    "RunComparison",
    "SweepReport",
    "SweepResult",
    "Task",
    "Watcher",
    "load_sweep",
    "read_tls",
    "run_sweep",
]
