"""Shared by the tests of commands."""

import pytest

from ortmeter.cli import cold


@pytest.fixture(autouse=True)
def no_process_for_the_memory(monkeypatch):
    """Give a memory to each candidate of bench: a process would take a second."""
    monkeypatch.setattr(cold, "peak_memory", lambda _: 2.0)
