"""A page over a grid of configurations, on this machine or on several, with dask.distributed.

``tasks`` combines the values of a grid and asks the page whether it accepts them; ``worker`` waits
for its turn on the machine and runs the page in a process of its own. ``cluster`` starts, reaches
and checks the workers, ``engine`` sends them the tasks and keeps what comes back in the files of
``store``. ``comparison`` and ``report`` compare what the tasks recorded.
"""

from ortmeter.sweep.engine import read_tls, run_sweep
from ortmeter.sweep.report import SweepReport, SweepResult
from ortmeter.sweep.store import load_sweep
from ortmeter.sweep.tasks import Outcome, Task

__all__ = [
    "Outcome",
    "SweepReport",
    "SweepResult",
    "Task",
    "load_sweep",
    "read_tls",
    "run_sweep",
]
