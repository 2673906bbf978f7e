import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.sweep import sweep_plot

POINTS = [
    ("one", "float", 8, 1.2, 1.1, 1.3, (1.1, 1.3)),
    ("one", "float", 64, 1.5, 1.4, 1.6, ()),
    ("one", "double", 8, 0.9, 0.95, 1.0, ()),  # the interval leaves the ratio out
    ("two", "float", 64, 2.0, 1.8, 2.1, ()),
]
FRAME = pd.DataFrame(POINTS, columns=["panel", "line", "size", "ratio", "low", "high", "runs"])
TITLES = {"title": "Speedup", "baseline": "none", "caption": "CPU"}


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def whiskers(container):
    (_, _, (bars,)) = container
    return bars.get_segments()


def test_each_candidate_has_a_panel_and_each_line_its_points():
    one, two = sweep_plot(FRAME, x="size", **TITLES).axes
    assert (one.get_ylabel(), two.get_ylabel()) == ("one", "two")
    assert [c[0].get_ydata().tolist() for c in one.containers] == [[1.2, 1.5], [0.9]]
    assert [c[0].get_ydata().tolist() for c in two.containers] == [[2.0], []]


def test_whiskers_are_the_intervals_and_never_negative():
    one, _ = sweep_plot(FRAME, x="size", **TITLES).axes
    ends = [segment[:, 1].tolist() for segment in whiskers(one.containers[0])]
    assert ends == [pytest.approx([1.1, 1.3]), pytest.approx([1.4, 1.6])]
    ((low, high),) = (segment[:, 1].tolist() for segment in whiskers(one.containers[1]))
    assert (low, high) == pytest.approx((0.9, 1.0))


def test_sizes_are_evenly_spaced_and_lines_do_not_overlap():
    figure = sweep_plot(FRAME, x="size", **TITLES)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["8", "64"]
    first, second = (c[0].get_xdata()[0] for c in figure.axes[0].containers)
    assert 0.1 < abs(first - second) < 0.5


def test_runs_are_dots():
    one, _ = sweep_plot(FRAME, x="size", **TITLES).axes
    dots = [line for line in one.get_lines() if line.get_marker() == "." and len(line.get_ydata())]
    assert [list(line.get_ydata()) for line in dots] == [[1.1, 1.3]]


def test_the_minimum_effect_is_a_band_around_1():
    ax = sweep_plot(FRAME, x="size", min_effect=0.1, **TITLES).axes[0]
    (band,) = ax.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((1 / 1.1, 1.1))


def test_without_sizes_lines_are_rows():
    figure = sweep_plot(FRAME.drop(columns="size"), x=None, **TITLES)
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["float", "double"]
    assert figure.axes[-1].get_xlabel() == "speedup over none, higher is better"
    assert figure.axes[0].containers[0][0].get_xdata().tolist() == [1.2, 1.5]


def test_the_page_behind_is_seen():
    figure = sweep_plot(FRAME, x="size", **TITLES)
    assert figure.patch.get_alpha() == 0
    assert figure.axes[0].patch.get_alpha() == 0


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns=["low", "size"]), r"columns \['low', 'size'\] are missing"),
        (FRAME.iloc[:0], "nothing to plot"),
    ],
)
def test_incomplete_frames_are_refused(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sweep_plot(frame, x="size", **TITLES)
