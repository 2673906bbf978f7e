import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import error_plot
from ortmeter.plotting.axes import GREY

FRAME = pd.DataFrame(
    {
        "case": ["float32", "float32", "float16", "float16"],
        "candidate": ["torch", "onnxruntime", "torch", "onnxruntime"],
        "error": [4.0, 6.0, 0.0, np.nan],
        "bound": [2000.0, 2000.0, 3.0, 3.0],
    }
)


@pytest.fixture
def ax():
    yield error_plot(FRAME, title="Errors", caption="CPU")
    plt.close("all")


def test_a_candidate_has_a_marker_in_each_row(ax):
    torch, onnxruntime, _ = ax.lines
    assert torch.get_xdata().tolist() == [4, 0]
    np.testing.assert_array_equal(np.array(onnxruntime.get_xdata(), float), [6, np.nan])
    for row, (first, second) in enumerate(
        zip(torch.get_ydata(), onnxruntime.get_ydata(), strict=True)
    ):
        assert row - 0.5 < first < row < second < row + 0.5
    assert torch.get_color() != onnxruntime.get_color()
    assert torch.get_marker() != onnxruntime.get_marker()
    assert torch.get_linestyle() == "None"


def test_the_bound_of_a_row_is_grey(ax):
    bounds = ax.lines[-1]
    assert dict(zip(bounds.get_ydata(), bounds.get_xdata(), strict=True)) == {0: 2000, 1: 3}
    assert bounds.get_color() == GREY
    assert ax.texts[0].get_text() == "CPU, grey bars: bound"
    without = error_plot(FRAME.drop(columns="bound"), title="Errors", caption="CPU")
    assert len(without.lines) == 2
    assert without.texts[0].get_text() == "CPU"


def test_zero_and_the_largest_bound_are_visible(ax):
    low, high = ax.get_xlim()
    assert low < 0
    assert high >= 2000


def test_texts(ax):
    assert ax.get_xlabel() == "error (ulp), lower is better"
    assert ax.get_ylabel() == "case"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["float32", "float16"]
    assert ax.get_title(loc="left") == "Errors"
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["torch", "onnxruntime"]


def test_errors_that_are_all_zero_can_be_drawn():
    frame = FRAME.drop(columns="bound").assign(error=0.0)
    ax = error_plot(frame, title="", what="change", unit="1")
    assert ax.get_xlabel() == "change (1), lower is better"
    plt.close("all")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="error"), "case, candidate and error are expected"),
        (FRAME[:0], "0 rows"),
        (FRAME.assign(error=-1.0), "positive numbers or zero"),
        (FRAME.assign(bound=-1.0), "positive numbers or zero"),
    ],
)
def test_refused_frames(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        error_plot(frame, title="")
