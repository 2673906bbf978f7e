"""Show the machine, the versions and the providers: which work, and why others do not."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.report import Report, Rows
from ortmeter.machine.preflight import preflight


def register(_parser: ArgumentParser) -> None:
    """Declare nothing: the options of all the commands are enough."""


def run(_options: Namespace, report: Report) -> None:
    """Fill the report with the environment."""
    rows = tuple(row for row in report.machine.to_rows() if row[0] != "Providers")
    report.add("Environment", Rows(("what", "value"), rows))
    report.preflight["now"] = preflight()
    report.add("Providers", Rows(("provider", "state"), tuple(report.machine.providers.items())))
