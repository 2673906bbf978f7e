import itertools
import math

import pandas as pd
import pytest
from matplotlib.colors import rgb_to_hsv

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import change_map

PANELS, COLUMNS = ("1 thread", "2 threads"), ("1.30", "1.31")


def cells(speedups, verdicts=None):
    """One row per name, the same cells in each panel and column."""
    verdicts = verdicts or {}
    rows = [
        {
            "panel": panel,
            "row": name,
            "column": column,
            "speedup": speedup,
            "verdict": verdicts.get(name, "faster" if speedup > 1 else "slower"),
        }
        for panel, (name, speedup), column in itertools.product(PANELS, speedups.items(), COLUMNS)
    ]
    return pd.DataFrame(rows)


@pytest.fixture
def draw():
    return lambda frame, **options: change_map(frame, **{"title": "Changes", **options})


def rows_of(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_the_place_of_a_row_is_that_of_its_latest_claim(draw):
    frame = cells({"a": 0.5, "b": 2.0, "c": 8.0})
    assert rows_of(draw(frame)) == ["a", "b", "c"]
    lost_again = (frame["row"] == "c") & (frame["column"] == COLUMNS[-1])
    frame.loc[lost_again, ["speedup", "verdict"]] = [0.25, "slower"]
    assert rows_of(draw(frame)) == ["c", "a", "b"]


def test_the_largest_changes_stay_and_the_others_are_counted(draw):
    speedups = {"a": 1.1, "b": 8.0, "c": 0.2, "none": 1.0, "gone": math.nan}
    found = draw(cells(speedups, {"none": "undecided", "gone": "absent"}), rows=2, caption="CPU")
    assert rows_of(found) == ["c", "b"]
    told = "CPU; not drawn: 1 more with a smaller claim and 2 without a claim"
    assert found._supxlabel.get_text() == told


def test_panels_and_columns_keep_their_order(draw):
    found = draw(cells({"a": 2.0}).iloc[::-1])
    assert [ax.get_title() for ax in found.axes[:2]] == list(PANELS[::-1])
    labels = [label.get_text() for label in found.axes[0].get_xticklabels()]
    assert labels == list(COLUMNS[::-1])


def colors(ax):
    """Colours of the first column, from the top."""
    return [tuple(color) for color in ax.collections[0].get_array()[:, 0]]


def test_a_slower_cell_is_orange_a_faster_one_purple_and_both_are_stronger_when_larger(draw):
    found = colors(draw(cells({"a": 1 / 8, "b": 1 / 1.1, "c": 1.1, "d": 8.0})).axes[0])
    hues = [rgb_to_hsv(color[:3])[0] for color in found]
    assert all(0.05 < hue < 0.15 for hue in hues[:2])
    assert all(0.65 < hue < 0.8 for hue in hues[2:])
    strength = [rgb_to_hsv(color[:3])[1] for color in found]
    assert strength[0] > strength[1]
    assert strength[3] > strength[2]
    found = colors(draw(cells({"a": 1 / 1000, "b": 1 / 15, "c": 15.0, "d": 1000.0})).axes[0])
    assert (found[0], found[3]) == (found[1], found[2])  # beyond the scale, its last colour


def test_undecided_is_light_grey_absent_is_dark_grey_and_the_first_has_nothing(draw):
    frame = cells({"a": 2.0})
    frame.loc[frame.index[:3], "verdict"] = ["", "undecided", "absent"]
    (first, undecided), (absent, _) = (
        ax.collections[0].get_array()[0] for ax in draw(frame).axes[:2]
    )
    assert first[3] == 0
    assert 0.1 < undecided[3] < absent[3] - 0.3
    assert len({*undecided[:3], *absent[:3]}) == 1


def test_names_are_not_read_as_formulas(draw):
    figure = draw(cells({r"$\frac$": 2.0}), title="$x^$", caption="$")
    figure.canvas.draw()
    assert rows_of(figure) == [r"\$\frac\$"]


def test_what_cannot_be_drawn_is_refused(draw):
    with pytest.raises(InvalidArgumentError, match="no cell is faster or slower"):
        draw(cells({"a": 1.0}, {"a": "undecided"}))
