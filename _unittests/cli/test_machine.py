"""Tests of ortmeter.cli.machine: what is looked at, before a measurement and after."""

import pytest

from ortmeter.cli import machine
from ortmeter.cli.report import Report
from ortmeter.machine.preflight import Counters, Preflight
from ortmeter.runtime.providers import Provider


@pytest.mark.parametrize(
    ("threads", "expected"),
    [([1], 1), ([1, 4, 2], 4), ([0], 0), ([0, 1], 0), ([0, 9], 9)],  # 0: those of the machine
)
def test_the_largest_number_of_threads_is_looked_at(monkeypatch, threads, expected):
    asked = []

    def preflight(threads, provider, *, since):
        asked.append((threads, since))
        return Preflight((), (), (), Counters(*[None] * 7))

    monkeypatch.setattr(machine, "preflight", preflight)
    monkeypatch.setattr(machine, "core_numbers", lambda: range(2))
    report = Report("bench")
    with machine.watched(report, threads, [Provider("cpu")], strict=True):
        assert list(report.preflight) == ["before"]
    assert asked == [(expected, machine._BEGUN), (expected, report.preflight["before"])]
    assert list(report.preflight) == ["before", "during"]
