"""Run a page over a grid of configurations, on one machine or several, with dask.distributed."""

from ortmeter.sweep.comparison import RunComparison
from ortmeter.sweep.engine import read_tls, run_sweep
from ortmeter.sweep.report import SweepReport, SweepResult
from ortmeter.sweep.store import load_sweep
from ortmeter.sweep.tasks import Outcome, Task

__all__ = [
    "Outcome",
    "RunComparison",
    "SweepReport",
    "SweepResult",
    "Task",
    "load_sweep",
    "read_tls",
    "run_sweep",
]
