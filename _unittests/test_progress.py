import io
import sys

from ortmeter import progress
from ortmeter.progress import progress_bar


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_bar(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_SHOW_AFTER_S", 0)
    with progress_bar("rounds", total=3) as bar:
        for _ in range(3):
            bar.update()
    return stream.getvalue()


def test_a_terminal_shows_the_bar(monkeypatch):
    assert "rounds" in run_bar(monkeypatch, Terminal())


def test_a_page_or_a_log_shows_nothing(monkeypatch):
    assert run_bar(monkeypatch, io.StringIO()) == ""


def test_a_notebook_shows_the_bar(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert "rounds" in run_bar(monkeypatch, stream)
