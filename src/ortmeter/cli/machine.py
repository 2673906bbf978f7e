"""Whether this machine is fit to measure: looked at before, and again after."""

from argparse import ArgumentParser
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ortmeter.cli.report import Report
from ortmeter.machine.preflight import preflight, refuse_noisy
from ortmeter.runtime.cpu import core_numbers
from ortmeter.runtime.providers import Provider

# The load of others is counted from here, while a command imports what it needs: nothing waits.
_BEGUN = preflight(pause=lambda _: None)


def add_options(parser: ArgumentParser) -> None:
    """Declare the option of a strict check."""
    parser.add_argument_group("machine").add_argument(
        "--strict",
        action="store_true",
        help="refuse to measure on a machine that is busy, throttled or smaller than asked for",
    )


@contextmanager
def watched(
    report: Report, threads: Iterable[int], providers: Iterable[Provider], *, strict: bool
) -> Iterator[None]:
    """Look at the machine before a measurement, then at what happened meanwhile."""
    most = max(threads, key=lambda count: count or len(core_numbers()))
    provider = max(providers, key=lambda p: p.on_cuda)
    before = preflight(most, provider, since=_BEGUN)
    if strict:
        refuse_noisy(before)
    report.preflight["before"] = before
    try:
        yield
    finally:
        report.preflight["during"] = preflight(most, provider, since=before)
