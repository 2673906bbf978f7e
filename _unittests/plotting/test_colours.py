import itertools

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from ortmeter.plotting import bar_plot, latency_plot
from ortmeter.plotting.axes import COLORS, series_styles
from ortmeter.timing import Comparison, Measurement

# What reports and pages compare, as they write it.
FIGURES = [
    ["onnxruntime", "torch", "numpy", "oneDNN", "8 bits dynamic"],
    ["optimization=none", "optimization=basic", "optimization=extended", "optimization=all"],
    ["default", "no arena", "neither"],
]
# Machado, Oliveira and Fernandes (2009), severity 1, for linear light: protanopia, deuteranopia.
BLINDNESS = [
    [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
]


def colours(ax):
    """Return the colour of each container: of its point, or of its first bar."""
    first = (box.lines[0] if hasattr(box, "lines") else box[0] for box in ax.containers)
    return [plt.getp(one, "color" if hasattr(one, "get_marker") else "facecolor") for one in first]


@pytest.mark.parametrize("names", FIGURES, ids=lambda names: names[0])
def test_a_candidate_has_one_colour_whatever_draws_it_and_whatever_is_beside_it(names):
    alone = {name: series_styles([name])[0]["color"] for name in names}
    measured = Comparison(Measurement(name, [[1.0, 1.1]]) for name in names)
    bars = pd.DataFrame([range(len(names))], columns=names)
    for ax in (latency_plot(measured, title="t"), bar_plot(bars, title="t", what="ms")):
        found = dict(zip(names, map(map_to_hex, colours(ax)), strict=True))
        assert len({*found.values()}) == len(names)
        for name in {*names} - {"no arena", "neither"}:
            assert found[name] == alone[name], name


def map_to_hex(colour):
    return "#{:02X}{:02X}{:02X}".format(*(round(255 * part) for part in to_rgb(colour)))


def test_the_order_of_the_candidates_does_not_change_the_known_ones():
    names = ["torch", "onnxruntime", "mine", "numpy"]
    for order in itertools.permutations(names):
        found = dict(zip(order, [s["color"] for s in series_styles(order)], strict=True))
        assert (found["onnxruntime"], found["torch"]) == (COLORS[0], COLORS[1])
        assert found["mine"] == COLORS[3], "the first colour that is left"


def test_many_candidates_differ_in_colour_or_in_marker():
    styles = series_styles([f"model {rank}" for rank in range(20)] + ["torch", "eager"])
    assert len({(style["color"], style["marker"]) for style in styles}) == 22


def test_colour_blind_readers_tell_the_colours_apart():
    linear = np.array([to_rgb(colour) for colour in COLORS])
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    for matrix in BLINDNESS:
        seen = np.clip(linear @ np.array(matrix).T, 0, 1) ** (1 / 2.2)
        far = [np.abs(a - b).max() for a, b in itertools.combinations(seen, 2)]
        assert min(far) > 0.15
