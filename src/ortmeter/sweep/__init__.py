"""Run a page over a grid of configurations, here or on the workers of a scheduler of dask."""

from ortmeter.sweep.engine import run_sweep
from ortmeter.sweep.report import RunComparison, SweepResult
from ortmeter.sweep.store import load_sweep
from ortmeter.sweep.tasks import Outcome, Task

__all__ = ["Outcome", "RunComparison", "SweepResult", "Task", "load_sweep", "run_sweep"]
