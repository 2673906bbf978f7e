import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import effect_plot, error_plot
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


EFFECTS = pd.DataFrame(
    {
        "name": ["exp", "$a$\x1b", "3 nodes", "idle", "bad", "b", "c"],
        "first": [0, 1, 2, 5, 6, 7, 8],
        "last": [0, 1, 4, 5, 6, 7, 8],
        "effect": [1e-9, 1e-6, 1e-8, 0.0, np.nan, 3e-7, 2e-9],
    }
)


def test_effects_of_nodes_and_of_groups():
    ax = effect_plot(EFFECTS, title="Effects", caption="CPU", what="effect (mean)")
    (dots,) = ax.lines
    assert dots.get_xdata().tolist() == [0, 1, 7, 8]
    assert dots.get_ydata().tolist() == [1e-9, 1e-6, 3e-7, 2e-9]
    (lines,) = ax.collections
    assert [path.vertices.tolist() for path in lines.get_paths()] == [[[1.5, 1e-8], [4.5, 1e-8]]]
    assert ax.get_yscale() == "log"
    named = [text.get_text() for text in ax.texts[:3]]
    assert named == ["\\$a\\$\N{REPLACEMENT CHARACTER}", "b", "c"]
    assert ax.texts[3].get_text() == "CPU, dots: nodes; lines: groups that are not told apart"
    assert ax.get_ylabel() == "effect (mean), lower is better"
    plt.close(ax.figure)


def test_effects_that_are_not_drawn():
    ax = effect_plot(EFFECTS[3:5], title="Effects")
    assert not ax.lines[0].get_xdata().size
    ax.figure.canvas.draw()
    plt.close(ax.figure)
    with pytest.raises(InvalidArgumentError, match="Columns name, first, last and effect"):
        effect_plot(EFFECTS.drop(columns="last"), title="Effects")
