import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import error_plot

FRAME = pd.DataFrame(
    {
        "case": ["float32", "float32", "float16", "float16"],
        "candidate": ["torch", "onnxruntime", "torch", "onnxruntime"],
        "error": [4.0, 6.0, 0.0, np.nan],
    }
)


@pytest.fixture
def ax():
    yield error_plot(FRAME, title="Errors", unit="ulp")
    plt.close("all")


def test_a_candidate_has_a_marker_in_each_row(ax):
    torch, onnxruntime = ax.lines
    assert torch.get_xdata().tolist() == [4, 0]
    np.testing.assert_array_equal(np.array(onnxruntime.get_xdata(), float), [6, np.nan])
    for row, (first, second) in enumerate(
        zip(torch.get_ydata(), onnxruntime.get_ydata(), strict=True)
    ):
        assert row - 0.5 < first < row < second < row + 0.5
    assert torch.get_color() != onnxruntime.get_color()
    assert torch.get_marker() != onnxruntime.get_marker()
    assert torch.get_linestyle() == "None"


def test_zero_and_the_largest_error_are_visible(ax):
    low, high = ax.get_xlim()
    assert low < 0
    assert high > 6


def test_texts(ax):
    assert ax.get_xlabel() == "error (ulp), lower is better"
    assert ax.get_ylabel() == "case"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["float32", "float16"]
    assert ax.get_title(loc="left") == "Errors"
    (legend,) = ax.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["torch", "onnxruntime"]


def test_errors_that_are_all_zero_can_be_drawn():
    ax = error_plot(FRAME.assign(error=0.0), title="", unit="1")
    assert ax.get_xlabel() == "error (1), lower is better"
    plt.close("all")


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="error"), "case, candidate and error are expected"),
        (FRAME[:0], "0 rows"),
    ],
)
def test_refused_frames(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        error_plot(frame, title="", unit="ulp")
