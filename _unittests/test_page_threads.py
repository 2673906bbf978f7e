"""The setting, the sessions and the views of the page *How many threads, and should they spin?*."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from matplotlib import pyplot as plt
from page_runner import define_page, run_setting

from ortmeter.timing import Measurement

WORDS, PAUSES = ("spin", "stop", "sleep"), (0.0, 0.01, 0.3)
CASES = {"Mul 64": 1e-5, "Mul 256": 1e-4, "MatMul 64": 4e-4, "MatMul 256": 2e-3}  # seconds
GAINS = {"spin": 1.6, "stop": 1.25, "sleep": 0.8}  # of a second thread
TIMES = {"alone": (1e-3, 2e-3, 4e-3), "after": (9e-3, 3e-3, 6e-3), "beside": (8e-3, 4e-3, 2e-3)}
RUN = {0.0: 1e-3, 0.01: 2e-3, 0.3: 5e-3}  # seconds after a pause


@pytest.fixture(scope="module")
def page():
    """What the page defines, without running it."""
    return define_page("plot_threads")


def samples(name, times):
    """Samples of eight processes by pause, whose typical time is known."""
    noise = np.exp(0.01 * np.linspace(-1, 1, 40).reshape(5, 8).T)
    return {pause: Measurement(name, value * noise) for pause, value in times.items()}


def planted():
    """Times of operators, of the transformer after pauses, and of the transformer by neighbour."""
    times = {}
    for case, work in CASES.items():
        times[f"{case}, 1 thread"] = {0.0: work}
        times |= {f"{case}, 2 threads, {w}": {0.0: work / GAINS[w]} for w in WORDS}
    settings = ["1 thread", *(f"2 threads, {word}" for word in WORDS)]
    times |= {f"transformer, {setting}": RUN for setting in settings}
    for scenario, seconds in TIMES.items():
        ways = zip(WORDS, seconds, strict=True)
        times |= {f"{scenario}, 2 threads, {word}": {0.0: value} for word, value in ways}
    used = {name: {p: 3 * t for p, t in RUN.items()} for name in times if "transformer" in name}
    return SimpleNamespace(
        latency={name: samples(name, at) for name, at in times.items()},
        cpu={name: samples(name, at) for name, at in used.items()},
        wake=samples("wake", {0.0: 1e-4})[0.0],
        shared_from={"Mul": 128, "MatMul": 1},
        threads=2,
        pauses=PAUSES,
        legend="planted",
    )


def test_only_shared_sizes_are_compared_by_the_time_of_one_thread(page):
    table = page["second_threads"](planted())
    assert table.index.tolist() == [("Mul", 256), ("MatMul", 64), ("MatMul", 256)]
    assert table["1 thread (µs)"].tolist() == pytest.approx([100, 400, 2000], rel=0.01)
    for word, gain in GAINS.items():
        assert all(cell.startswith(f"{gain:.2f} [") for cell in table[word])


def test_the_plot_is_in_the_order_of_work_and_marks_two_wakes(page):
    ax = page["second_thread_plot"](planted())
    works = [float(label.get_text()) for label in ax.get_xticklabels()]
    assert works == pytest.approx([100, 400, 2000], rel=0.01)
    assert ax.lines[-1].get_xdata()[0] == 0.5  # two wakes are 200 µs
    mul, matmul = (bars.lines[0].get_xydata() for bars in ax.containers)
    assert [mul[:, 0].round().tolist(), matmul[:, 0].round().tolist()] == [[0], [1, 2]]
    assert [*mul[:, 1], *matmul[:, 1]] == pytest.approx([GAINS["sleep"]] * 3, rel=0.01)
    plt.close(ax.figure)


def test_a_run_and_its_pause_are_in_milliseconds(page):
    table = page["after_pauses"](planted())
    assert list(table.index) == ["1 thread", *(f"2 threads, {word}" for word in WORDS)]
    expected = {"run, pause 10 ms": 2, "CPU, pause 10 ms": 6}
    expected |= {"run, pause 300 ms": 5, "CPU, pause 300 ms": 15}
    for name, value in expected.items():
        found = [float(cell.partition(" ")[0]) for cell in table[name]]
        assert found == pytest.approx([value] * 4, rel=0.01)


def test_each_neighbour_has_its_columns(page):
    table, told = page["neighbours"](planted()), page["SCENARIOS"]
    for scenario, seconds in TIMES.items():
        found = table[f"{told[scenario]} (ms)"].tolist()
        assert found == pytest.approx([1e3 * value for value in seconds], rel=0.01)
        ratios = [float(x.partition(" ")[0]) for x in table[f"{told[scenario]}, speedup"]]
        assert ratios == pytest.approx([seconds[0] / value for value in seconds], abs=0.01)


def test_a_session_is_made_for_each_number_of_threads_and_each_way_to_wait(page):
    made = page["make_variants"]("model", {}, [2, 4, 4])
    settings = {n: (v.settings["threads"], v.settings["spinning"]) for n, v in made.items()}
    assert settings["1 thread"] == (1, "off")
    for n in (2, 4):
        ways = [settings[f"{n} threads, {word}"] for word in WORDS]
        assert ways == [(n, "on"), (n, "during-run"), (n, "off")]
    assert len(settings) == 7


def test_the_setting_stops_spinning_after_a_run_and_changes_nothing_else():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4] X) => (float[4] Y) { Y = Abs(X) }'
    )
    session = run_setting("stop_spinning", model)["session"]
    options = session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.intra_op_num_threads == 0
    with pytest.raises(RuntimeError):  # not set
        options.get_session_config_entry("session.intra_op.allow_spinning")
    x = np.array([-1, 2, -3, 0], np.float32)
    assert (session.run(None, {"X": x})[0] == np.abs(x)).all()
