import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting._axes import GREY
from ortmeter.plotting.spread import spread_plot

FRAME = pd.DataFrame(
    {
        "candidate": ["naive", "naive", "naive", "exact", "exact", "exact"],
        "size": [1024, 16, 2, 2, 16, 1024],
        "spread": [np.nan, 8.0, 0.5, 0.0, 0.0, 0.0],
        "bound": [2000.0, 30.0, 2.0, 1.0, 1.0, np.inf],
    }
)


@pytest.fixture
def ax():
    yield spread_plot(FRAME, x="size", title="Spread", caption="float16")
    plt.close("all")


def test_the_lines_are_the_spreads_and_the_bounds(ax):
    spread, bound, crosses = ax.lines[:3]
    assert spread.get_xdata().tolist() == bound.get_xdata().tolist() == [2, 16, 1024]
    np.testing.assert_array_equal(spread.get_ydata().astype(float), [0.5, 8, np.nan])
    assert bound.get_ydata().tolist() == [2, 30, 2000]
    assert (spread.get_linestyle(), bound.get_linestyle()) == ("-", "--")
    assert spread.get_color() == bound.get_color() == crosses.get_color()


def test_a_missing_spread_is_a_cross(ax):
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert [line.get_xdata().tolist() for line in crosses] == [[1024]]
    assert "crosses: a result overflows" in ax.texts[0].get_text()
    complete = spread_plot(FRAME.dropna(), x="size", title="Spread")
    assert "crosses" not in complete.texts[0].get_text()


def test_a_bound_in_common_has_no_colour_of_a_candidate():
    shared = spread_plot(FRAME.assign(bound=FRAME["size"]), x="size", title="Spread")
    bounds = [line for line in shared.lines if line.get_linestyle() == "--"]
    assert {line.get_color() for line in bounds} == {GREY}
    plt.close("all")


def test_zero_and_large_spreads_are_visible(ax):
    low, high = ax.get_ylim()
    assert low < 0
    assert high >= 2000
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "16", "1024"]


def test_texts(ax):
    assert ax.get_ylabel() == "max - min (ulp), lower is better"
    assert ax.get_xlabel() == "size"
    assert ax.get_title(loc="left") == "Spread"
    assert ax.texts[0].get_text().startswith("float16, dashed: bound")
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["naive", "exact"]


def test_many_sizes_have_few_ticks():
    sizes = 2 ** np.arange(1, 20)
    frame = pd.DataFrame({"candidate": "a", "size": sizes, "spread": 1.0, "bound": 2.0})
    own = plt.figure().subplots()
    assert spread_plot(frame, x="size", title="", ax=own) is own
    labels = [label.get_text() for label in own.get_xticklabels()]
    assert len(labels) <= 8
    assert labels[-1] == str(2**19)
    plt.close("all")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="bound"), "candidate, size, spread and bound are expected"),
        (FRAME[:0], "0 rows"),
        (FRAME.assign(size=0), "positive numbers"),
        (FRAME.assign(spread=-1.0), "positive numbers or zero"),
        (FRAME.assign(bound=np.nan), "positive numbers or zero"),
    ],
)
def test_refused_frames(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        spread_plot(frame, x="size", title="")
