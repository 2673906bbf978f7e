"""Show the machine, the versions and the providers: which work, and why others do not."""

from argparse import ArgumentParser, Namespace

from ortmeter.cli.report import Report, Rows
from ortmeter.machine.preflight import preflight

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
    rows = tuple(row for row in report.machine.to_rows() if row[0] != "Providers")
    report.add("Environment", Rows(("what", "value"), rows))
    report.preflight["now"] = preflight()
    report.add("Providers", Rows(("provider", "state"), tuple(report.machine.providers.items())))


def _fill_runtimes(report: Report, *, remove: bool) -> None:
    from ortmeter.releases.environments import kept_releases, releases_folder, remove_releases

    releases = remove_releases() if remove else kept_releases()
    rows = [(folder.name, round(size / _MIB)) for folder, size in releases.items()]
    if rows:
        report.add("Releases", Rows(("environment", "size (MiB)"), tuple(rows)))
    many = f"{len(rows)} environment{'' if len(rows) == 1 else 's'}"
    what = "removed from" if remove else "in"
    report.conclude(f"{many} {what} {releases_folder()}, {sum(row[1] for row in rows)} MiB.")
