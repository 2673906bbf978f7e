import ortmeter
from ortmeter.pages import record
from ortmeter.runtime.providers import Provider
from ortmeter.sweep import BarWatcher, Outcome, Task

TASKS = [Task("plot_x", {"n": str(i)}) for i in range(4)]


def test_a_bar_counts_by_machine():
    args = ortmeter.get_parsed_args("plot_x", args=[], n=0)
    done = record("plot_x", args, Provider.parse("cpu"), {})
    bar = BarWatcher()
    bar.begin(4, 0)
    bar.started(TASKS[0], "a")
    bar.started(TASKS[1], "b")
    assert bar.text == "a: 1 running; b: 1 running"
    bar.ended(Outcome(TASKS[0], "a", record=done))
    bar.started(TASKS[2], "a")
    assert bar.text == "a: 1 done, 1 running; b: 1 running"
    bar.ended(Outcome(TASKS[2], "a", error="no"))
    bar.ended(Outcome(TASKS[1], "", error="its worker died"))
    assert bar.text == "a: 1 done, 1 failed; b: 1 failed"
    bar.started(TASKS[3], "a")
    bar.started(TASKS[3], "b")  # after its first worker died
    assert bar.text == "a: 1 done, 1 failed; b: 1 failed, 1 running"
    bar.ended(Outcome(TASKS[3], "b", record=done))
    assert bar.text == "a: 1 done, 1 failed; b: 1 done, 1 failed"
    bar.close()
