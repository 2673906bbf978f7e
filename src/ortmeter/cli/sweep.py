"""Run a page over a grid of configurations, on this machine or on several."""

import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress

from ortmeter.cli.options import number
from ortmeter.cli.report import Report
from ortmeter.cli.terminal import tell
from ortmeter.errors import InvalidArgumentError
from ortmeter.sweep import SweepResult, load_sweep, run_sweep
from ortmeter.sweep.tasks import read_grid


def register(parser: ArgumentParser) -> None:
    parser.add_argument("models", metavar="PAGE", nargs=1, help="script of a page, plot_x.py")
    parser.add_argument(
        "--grid",
        metavar="NAME=VALUE,VALUE",
        nargs="+",
        action="extend",
        default=[],
        help='options of the page and their values; separate lists by semicolons: "batch=1,32;64"',
    )
    parser.add_argument(
        "--repeat-runs", type=number(1), default=1, help="processes per configuration (1)"
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="scheduler of dask, tcp://host:8786 (default: this machine, no port is opened)",
    )
    parser.add_argument(
        "--output", metavar="DIR", default="sweep", help="folder of records (sweep)"
    )
    parser.add_argument("--resume", action="store_true", help="run only the runs missing in DIR")
    parser.add_argument(
        "--timeout",
        type=number(0, kind=float),
        metavar="SECONDS",
        help="time limit of a run, with its wait for other sweeps; a run that exceeds it fails",
    )


def run(options: Namespace, report: Report) -> int:
    """Fill the report with what became of the tasks; 1 when one failed."""
    try:
        result = run_sweep(
            options.models[0],
            read_grid(options.grid),
            repeat_runs=options.repeat_runs,
            scheduler=options.scheduler,
            output=options.output,
            resume=options.resume,
            timeout=options.timeout,
            tell=None if sys.stderr.isatty() else tell,
        )
    except KeyboardInterrupt:
        with suppress(InvalidArgumentError):  # interrupted before anything was written
            _fill(report, load_sweep(options.output))
            report.conclude("run the same command with --resume to finish.")
        raise
    _fill(report, result)
    return 1 if result.failed else 0


def _fill(report: Report, result: SweepResult) -> None:
    for title, items in result.parts():
        report.add(title, *items)
    report.conclude(*result.conclusion, f"records are in {result.output}.")
