import io
import logging
import sys
from types import SimpleNamespace

import pytest

from ortmeter import progress
from ortmeter.progress import follow, progress_bar


def run_bar(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", 0)
    with progress_bar("rounds", total=3) as bar:
        for _ in range(3):
            bar.update()
    return stream.getvalue()


def test_a_terminal_shows_the_bar_and_then_clears_it(monkeypatch):
    shown = run_bar(monkeypatch, type("Terminal", (io.StringIO,), {"isatty": lambda _: True})())
    assert "rounds" in shown
    assert not shown.rsplit("\r", 2)[-2].strip()


@pytest.mark.parametrize(("level", "logger"), [("INFO", None), ("WARNING", progress.logger.name)])
def test_only_a_level_of_its_own_asks_for_lines(monkeypatch, caplog, level, logger):
    """A library that is imported may set that of the root: a page would print the lines."""
    caplog.set_level(level, logger)
    assert run_bar(monkeypatch, io.StringIO()) == ""
    assert not caplog.records


def test_a_notebook_shows_the_bar(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert "rounds" in run_bar(monkeypatch, stream)


@pytest.fixture
def clock(monkeypatch, caplog):
    """Seconds that a test decides, and a log that is read."""
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(progress._Lines, "_last_s", 0.0)
    caplog.set_level(logging.INFO, progress.logger.name)
    return now


def test_a_log_gets_a_line_at_most_every_few_seconds(monkeypatch, clock, caplog):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress_bar("processes", total=10) as outer:
        outer.update()  # the first line is not late
        with progress_bar("rounds", total=400) as inner:  # one pace for all of them
            for _ in range(120):
                clock[0] += 0.1
                inner.update()
        clock[0] += 10
        outer.update(11)  # more than was foreseen
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "1 of 10 processes"
    assert [int(line.split()[0]) for line in lines[1:-1]] == pytest.approx([50, 100], abs=2)
    assert all(line.endswith(" of 400 rounds") for line in lines[1:-1])
    assert lines[-1] == "12 of 12 processes"
    assert stream.getvalue() == ""


def test_a_loop_is_followed_until_it_stops(clock, caplog):
    seen = []
    for item in follow({"a": 1, "b": 2, "c": 3}.items(), "cases"):
        seen.append(item)
        clock[0] += 6
        if item == ("b", 2):
            break
    assert seen == [("a", 1), ("b", 2)]
    assert [record.getMessage() for record in caplog.records] == ["1 of 3 cases"]
