"""Show the machine, the versions and the providers: which work, and why others do not."""

from argparse import ArgumentParser, Namespace

import pandas as pd

from ortmeter.report import Report
from ortmeter.runtime.fitness import fitness

_MIB = 1 << 20


def register(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--runtimes",
        action="store_true",
        help="list the environments that ortmeter bench --runtime keeps in the cache",
    )
    parser.add_argument("--remove-runtimes", action="store_true", help="remove them")


def run(options: Namespace, report: Report) -> None:
    """Fill the report with the environment, or with the releases in the cache."""
    if options.runtimes or options.remove_runtimes:
        _fill_runtimes(report, remove=options.remove_runtimes)
        return
    rows = [row for row in report.machine.to_rows() if row[0] != "Providers"]
    report.add("Environment", pd.DataFrame(rows, columns=["what", "value"]).set_index("what"))
    report.fitness["now"] = fitness()
    providers = report.machine.providers.items()
    report.add(
        "Providers", pd.DataFrame(providers, columns=["provider", "state"]).set_index("provider")
    )


def _fill_runtimes(report: Report, *, remove: bool) -> None:
    from ortmeter.runtime.releases import kept_releases, releases_folder, remove_releases

    found = remove_releases() if remove else kept_releases()
    rows = [(kept.name, round(kept.size / _MIB), kept.folder.name) for kept in found]
    columns = ["release", "size (MiB)", "folder"]
    if rows:
        report.add("Releases", pd.DataFrame(rows, columns=columns).set_index("release"))
    many = f"{len(rows)} environment{'' if len(rows) == 1 else 's'}"
    what = "removed from" if remove else "in"
    report.conclude(f"{many} {what} {releases_folder()}, {sum(row[1] for row in rows)} MiB.")
