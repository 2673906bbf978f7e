"""The setting, the quota and the views of the page *How many threads, and should they spin?*."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from page_runner import parse, run_setting

from ortmeter.timing import Measurement

WORDS = ("spin", "stop", "sleep")
TIMES = {"alone": (1e-3, 2e-3, 4e-3), "after": (9e-3, 3e-3, 6e-3), "beside": (8e-3, 4e-3, 2e-3)}
RUN = {0.0: 1e-3, 0.01: 2e-3, 0.3: 5e-3}  # seconds after a pause
QUOTA = {"host": (60.0, 6.0), "ours": (12.0, 9.0)}  # ms in a row, with pauses


def samples(name, times):
    """Samples of eight processes by pause, whose typical time is known."""
    noise = np.exp(0.01 * np.linspace(-1, 1, 40).reshape(5, 8).T)
    return {pause: Measurement(name, value * noise) for pause, value in times.items()}


def planted():
    """Times of the transformer after pauses, and by neighbour."""
    settings = ["1 thread", *(f"2 threads, {word}" for word in WORDS)]
    times = {f"transformer, {setting}": RUN for setting in settings}
    for scenario, seconds in TIMES.items():
        ways = zip(WORDS, seconds, strict=True)
        times |= {f"{scenario}, 2 threads, {word}": {0.0: value} for word, value in ways}
    used = {name: {p: 3 * t for p, t in RUN.items()} for name in times if "transformer" in name}
    return SimpleNamespace(
        latency={name: samples(name, at) for name, at in times.items()},
        cpu={name: samples(name, at) for name, at in used.items()},
        threads=2,
        legend="planted",
        provider="cpu",
    )


def under_quota(page):
    """Three processes of each number of threads, whose mean is twice the median."""
    rows = [
        {"load": load, "setting": name, "median": ms / 2, "mean": ms, "slowest": 2 * ms}
        for name, times in QUOTA.items()
        for load, ms in zip(page["LOADS"], times, strict=True)
        for _ in range(3)
    ]
    names = {"host": "host", "ours": "ours", "legend": "planted", "provider": "cpu"}
    return SimpleNamespace(rows=pd.DataFrame(rows), **names)


def test_a_run_and_its_pause_are_in_milliseconds(page):
    table = page["after_pauses"](planted())
    assert list(table.index) == ["1 thread", *(f"2 threads, {word}" for word in WORDS)]
    expected = {"run, pause 10 ms": 2, "CPU, pause 10 ms": 6}
    expected |= {"run, pause 300 ms": 5, "CPU, pause 300 ms": 15}
    for name, value in expected.items():
        found = [float(cell.partition(" ")[0]) for cell in table[name]]
        assert found == pytest.approx([value] * 4, rel=0.01)


def test_the_plot_compares_each_way_to_wait_with_spinning_by_neighbour(page):
    ax = page["neighbours"](planted())
    assert [label.get_text() for label in ax.get_xticklabels()] == [*page["SCENARIOS"].values()]
    stop, sleep = (bars.lines[0].get_ydata() for bars in ax.containers)
    assert stop == pytest.approx([1 / 2, 9 / 3, 8 / 4], rel=0.01)
    assert sleep == pytest.approx([1 / 4, 9 / 6, 8 / 2], rel=0.01)


def test_threads_under_a_quota_are_compared_by_load(page):
    table = page["latencies"](under_quota(page))
    assert table.loc[("in a row", "host")].tolist() == [30, 60, 120, 50]
    assert table.loc[("with pauses", "ours")].tolist() == [4.5, 9, 18, 50]
    (found,) = page["compare_threads"](under_quota(page), "with pauses", "mean")
    assert found.ratio == pytest.approx(6 / 9)


def test_the_slowest_twentieth_is_one_run_at_least(page):
    assert page["slowest"](np.arange(1.0, 6.0)) == 5
    assert page["slowest"](np.arange(100.0)[::-1]) == np.mean([95, 96, 97, 98, 99])


def test_each_process_gives_one_row_per_load_and_number_of_threads(page):
    rows = page["measure_quota"](page["make_transformer"](8), quota=1)
    places = [tuple(place) for place in rows[["load", "setting"]].to_numpy()]
    assert sorted(places) == sorted(itertools.product(page["LOADS"], (page["HOST"], page["OURS"])))
    assert (rows[[*page["STATISTICS"]]] > 0).all(axis=None)
    assert (rows["slowest"] >= rows["mean"]).all()


def test_the_setting_stops_spinning_after_a_run_and_changes_nothing_else():
    names = run_setting("stop_spinning", parse("(float[4] X) => (float[4] Y) { Y = Abs(X) }"))
    session = names["session"]
    options = session.get_session_options()
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.intra_op_num_threads == 2
    with pytest.raises(RuntimeError):  # not set
        options.get_session_config_entry("session.intra_op.allow_spinning")
    x = np.array([-1, 2, -3, 0], np.float32)
    assert (session.run(None, {"X": x})[0] == np.abs(x)).all()
