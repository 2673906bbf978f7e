"""Outcomes of sweeps whose medians are known."""

import dataclasses
import datetime as dt
import functools
from pathlib import Path

import numpy as np

from ortmeter.machine.environment import environment
from ortmeter.study.records import Record
from ortmeter.sweep import Outcome, SweepResult, Task
from ortmeter.timing import Comparison, Measurement

PAGE = "plot_planted"
here = functools.cache(environment)


def samples(name, median, *, seed=0, noise=0.002, shape=(1, 100)):
    """Samples around a median, enough for an interval."""
    rng = np.random.default_rng([seed, sum(map(ord, name))])
    return Measurement(name, median * np.exp(noise * rng.standard_normal(shape)))


def group(seed=0, noise=0.002, shape=(1, 100), **medians):
    """Candidates measured together, by their medians in seconds."""
    return Comparison(
        samples(name, m, seed=seed, noise=noise, shape=shape) for name, m in medians.items()
    )


def outcome(data, options=None, *, run=1, cpu="A CPU", page=PAGE):
    """Outcome of a task that measured these data."""
    options = options or {}
    record = Record(
        page=page,
        configuration={**options, "provider": "cpu"},
        environment=dataclasses.replace(here(), cpu=cpu, gpus=()),
        date=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
        data=data,
    )
    machine = cpu.lower().replace(" ", "-")
    return Outcome(Task(page, options, run), machine, 1.0, record, Path("x.json"))


def failure(options=None, *, run=1, page=PAGE, error="killed by signal 11", machine="a-cpu"):
    """Outcome of a task that failed, or that did not run when there is no error."""
    task = Task(page, options or {}, run)
    return Outcome(task, machine if error else "", 1.0, error=error, output="last <line>")


def report_of(*outcomes):
    """What a sweep with these outcomes says."""
    return SweepResult(outcomes, Path("results"))
