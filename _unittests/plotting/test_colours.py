import itertools

import numpy as np
import pandas as pd
import pytest
from claim_samples import compare_ratio
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from ortmeter.plotting import bar_plot, latency_plot, speedup_plot
from ortmeter.plotting.axes import COLORS, series_styles
from ortmeter.plotting.load import load_plot
from ortmeter.timing import Comparison, Measurement

# What reports and pages compare most, as they write it.
FIGURES = [
    ["onnxruntime", "torch", "numpy", "oneDNN", "8 bits dynamic"],
    ["ONNX Runtime", "torch", "onnx-diagnostic", "numpy"],
    ["CPU", "OpenVINO", "CUDA"],
    ["default", "no arena", "neither"],
    ["float32", "float16", "dynamic U8S8", "QDQ U8S8", "QDQ channels"],
    ["threads=1", "threads=2", "threads=4"],
    ["optimization=none", "optimization=basic", "optimization=extended", "optimization=all"],
    ["eager", "inductor", "default+onnxruntime"],
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


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def colours(ax):
    """Return the colour of each container: of its point, or of its first bar."""
    first = (box.lines[0] if hasattr(box, "lines") else box[0] for box in ax.containers)
    return [plt.getp(one, "color" if hasattr(one, "get_marker") else "facecolor") for one in first]


def drawn(names):
    """Draw the candidates with each function, and return the colours that each one shows."""
    measured = Comparison(Measurement(name, [[1.0, 1.1]]) for name in names)
    yield dict(zip(names, colours(latency_plot(measured, title="t")), strict=True))
    frame = pd.DataFrame({"series": names, "batch": 1, "requests/s": 1.0, "low": 1.0, "high": 1.0})
    yield dict(
        zip(names, colours(load_plot(frame, x="batch", y="requests/s", title="t")), strict=True)
    )
    bars = pd.DataFrame([range(len(names))], columns=names)
    yield dict(zip(names, colours(bar_plot(bars, title="t", what="ms")), strict=True))
    claims = [compare_ratio(name, names[0], 1.5, (1.2, 1.9)) for name in names[1:]]
    yield dict(zip(names[1:], colours(speedup_plot(claims, title="t")), strict=True))


@pytest.mark.parametrize("names", FIGURES, ids=lambda names: names[0])
def test_a_candidate_has_one_colour_whatever_draws_it_and_whatever_is_beside_it(names):
    alone = {name: series_styles([name])[0]["color"] for name in names}
    known = {name for name in names if name not in {"no arena", "neither"}}
    for found in drawn(names):
        assert len({map_to_hex(colour) for colour in found.values()}) == len(found)
        for name in known & {*found}:
            assert map_to_hex(found[name]) == alone[name], name


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
