import threading
import time
from contextlib import contextmanager

from ortmeter.sweep import worker
from ortmeter.sweep.child import Attempt, Stop
from ortmeter.sweep.machine import code_version
from ortmeter.sweep.script import Script


def test_what_starts_while_it_is_stopped_is_stopped(monkeypatch):
    """The thread that runs and the thread that kills arrive together, before there is a Stop."""
    together, events, make = threading.Barrier(2), [], Stop.__init__

    def slow(self):
        make(self)
        time.sleep(0.2)

    @contextmanager
    def lock(asked):
        events.append(asked)
        yield 0

    monkeypatch.setattr(Stop, "__init__", slow)
    monkeypatch.setattr(worker, "machine_lock", lock)
    monkeypatch.setattr(worker, "_tell_started", lambda job, machine: None)
    monkeypatch.setattr(worker, "run_page", lambda *a, **k: Attempt("here"))
    job = worker.Job("a-sweep", "key", Script("plot_x.py", ""), (), code_version(), None, None)

    def run():
        together.wait()
        worker.run_job(job)

    def stop():
        together.wait()
        worker.stop_jobs("a-sweep")

    worker.describe_machine()  # slow the first time
    threads = [threading.Thread(target=target) for target in (run, stop)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [event.is_set() for event in events] == [True]
