"""Show the machine, the versions and the providers: which work, and why others do not."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from ortmeter.report import Report


def register(parser: ArgumentParser) -> None:
    """Declare nothing more than what all commands accept."""


def run(options: Namespace, report: Report) -> None:  # noqa: ARG001 - all commands look alike
    """Fill the report with the environment."""
    rows = [row for row in report.machine.to_rows() if row[0] != "Providers"]
    report.add("Environment", pd.DataFrame(rows, columns=["what", "value"]).set_index("what"))
    providers = report.machine.providers.items()
    report.add(
        "Providers", pd.DataFrame(providers, columns=["provider", "state"]).set_index("provider")
    )
