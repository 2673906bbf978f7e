"""The process of a page: what it leaves, and how it ends."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sweep_pages import is_alive

from ortmeter.sweep.child import Stop, run_page
from ortmeter.sweep.machine import machine_lock
from ortmeter.sweep.process import MAX_OUTPUT
from ortmeter.sweep.script import read_script

NEVER = threading.Event()


def run(page, *arguments, timeout=30, cores=None, stop=None):
    with machine_lock(NEVER) as lock:
        return run_page(
            read_script(page.path),
            arguments,
            "here",
            timeout=timeout,
            cores=cores,
            lock=lock,
            stop=stop or Stop(),
        )


def test_both_streams_are_kept_in_order_and_bounded(make_page):
    body = "print('out'); print('err', file=sys.stderr); print('x' * 100_000); print('last')"
    attempt = run(make_page(f"{body}; sys.exit(3)"))
    assert attempt.error == "exit code 3: last"
    assert len(attempt.output) == MAX_OUTPUT
    short = run(make_page("print('out'); print('err', file=sys.stderr)"))
    assert (short.error, short.output) == ("", "out\nerr\n")
    assert short.record.startswith(b"{")


def test_output_that_is_not_text_is_kept(make_page):
    attempt = run(make_page("sys.stdout.buffer.write(b'\\xff\\xfe')"))
    assert attempt.output == "��"


# What a page starts ends with it, also when it is in a hurry.
CHILDREN = """
import subprocess
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(child.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "time.sleep(60)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_nothing_of_the_page_survives(make_page, end):
    page = make_page(CHILDREN + end)
    attempt = run(page, timeout=2)
    began = time.monotonic()
    child = int(attempt.output.split()[0])
    while is_alive(child) and time.monotonic() < began + 5:
        time.sleep(0.01)
    assert not is_alive(child)
    assert not is_alive(page.runs[0][1])


def test_a_stop_kills_what_runs_and_what_would_start(make_page):
    page, stop = make_page("time.sleep(60)"), Stop()

    def ask():
        while not page.runs:
            time.sleep(0.01)
        stop.ask()

    thread = threading.Thread(target=ask)
    thread.start()
    assert run(page, stop=stop).error == "cancelled while it ran"
    thread.join()
    assert not is_alive(page.runs[0][1])
    assert run(page, stop=stop).error == "cancelled while it ran"


def test_the_page_dies_with_the_process_that_runs_it(make_page):
    page = make_page("time.sleep(60)")
    code = (
        "import sys, threading\n"
        "from ortmeter.sweep.child import Stop, run_page\n"
        "from ortmeter.sweep.machine import machine_lock\n"
        "from ortmeter.sweep.script import read_script\n"
        "with machine_lock(threading.Event()) as lock:\n"
        "    run_page(read_script(sys.argv[1]), [], 'here', timeout=None, cores=None, lock=lock,"
        " stop=Stop())\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(page.path)])
    while not page.runs:
        time.sleep(0.01)
    (_, pid, _), *_ = page.runs
    assert is_alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    began = time.monotonic()
    while is_alive(pid) and time.monotonic() < began + 5:
        time.sleep(0.01)
    assert not is_alive(pid)


def test_two_runs_never_overlap_on_a_machine(make_page):
    page = make_page("print(time.monotonic()); time.sleep(0.2); print(time.monotonic())")
    spans = []

    def one():
        spans.append(tuple(map(float, run(page).output.split())))

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ordered = sorted(spans)
    assert len(ordered) == 3
    for (_, end), (begin, _) in itertools.pairwise(ordered):
        assert end <= begin


def test_the_page_holds_the_lock_of_the_machine(make_page):
    # As long as it lives, even if its worker dies.
    page = make_page("print([os.path.realpath(f) for f in Path('/proc/self/fd').iterdir()])")
    assert os.environ["ORTMETER_MACHINE_LOCK"] in run(page).output


def test_a_run_keeps_to_its_cores_and_leaves_those_of_the_worker(make_page):
    before = os.sched_getaffinity(0)
    core = min(before)
    attempt = run(make_page("print(os.sched_getaffinity(0))"), cores=frozenset({core}))
    assert attempt.output == f"{{{core}}}\n"
    assert os.sched_getaffinity(0) == before


def test_the_folder_of_a_run_is_removed(make_page):
    attempt = run(make_page("print(Path.cwd()); Path('left').write_text('x')"))
    assert not Path(attempt.output.strip()).exists()
