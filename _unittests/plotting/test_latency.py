import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from claim_samples import compare_ratio
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.latency import latency_plot, speedup_plot

SIZES = [256, 512, 1024]
CANDIDATES = ["one Gemm", "two Gemm", "_numpy", "torch, $TF32$ off"]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def make_frame(scale=1e-5, sizes=SIZES):
    rows = [
        (name, size, (m := scale * (i + 1) * size / 256), 0.9 * m, 1.5 * m, "ignored")
        for i, name in enumerate(CANDIDATES)
        for size in sizes
    ]
    return pd.DataFrame(rows, columns=["candidate", "size", "median", "q1", "q3", "more"])


def plotted(ax):
    """Data of every candidate: sizes, medians, quartiles, as they are on the axes."""
    result = []
    for container in ax.containers:
        line, _, (whiskers,) = container.lines
        segments = np.array(whiskers.get_segments())
        result.append((line.get_xdata(), line.get_ydata(), segments))
    return result


def assert_plot_shows(ax, frame, factor):
    data = plotted(ax)
    assert len(data) == frame["candidate"].nunique()
    for (x, y, segments), name in zip(data, frame["candidate"].unique(), strict=True):
        rows = frame[frame["candidate"] == name].sort_values("size")
        np.testing.assert_array_equal(x, rows["size"])
        np.testing.assert_allclose(y, rows["median"] * factor)
        np.testing.assert_allclose(segments[:, :, 1], rows[["q1", "q3"]] * factor)


@pytest.mark.parametrize(
    ("scale", "shown", "factor"),
    [(1e-5, "µs", 1e6), (1e-3, "ms", 1e3), (1.0, "s", 1.0), (1e-9, "µs", 1e6)],
)
def test_data_and_unit(scale, shown, factor):
    frame = make_frame(scale)
    ax = latency_plot(frame.sample(frac=1, random_state=0), x="size", title="t")
    ax_sorted = latency_plot(frame, x="size", title="t")
    assert_plot_shows(ax_sorted, frame, factor)
    assert sum(map(len, (x for x, _, _ in plotted(ax)))) == len(frame)
    assert ax.get_ylabel() == f"median latency ({shown}), lower is better"
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


@pytest.mark.parametrize("column", ["median", "q1", "q3"])
def test_the_check_of_the_data_can_fail(column):
    frame = make_frame()
    ax = latency_plot(frame, x="size", title="t")
    frame.loc[4, column] *= 1.01
    with pytest.raises(AssertionError):
        assert_plot_shows(ax, frame, 1e6)


def test_texts():
    ax = latency_plot(make_frame(), x="size", title="One or two?", caption="CPU, 1 thread")
    assert ax.get_title(loc="left") == "One or two?"
    assert ax.get_xlabel() == "size"
    assert [text.get_text() for text in ax.texts] == ["CPU, 1 thread"]
    assert list(ax.get_xticks()) == SIZES
    assert [label.get_text() for label in ax.get_xticklabels()] == ["256", "512", "1024"]
    (legend,) = ax.figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [name.replace("$", r"\$") for name in CANDIDATES]


def test_candidates_differ_in_color_marker_and_line():
    ax = latency_plot(make_frame(), x="size", title="t")
    lines = [container.lines[0] for container in ax.containers]
    for style in ("color", "marker", "linestyle"):
        assert len({str(plt.getp(line, style)) for line in lines}) == len(CANDIDATES), style


def test_legend_covers_no_data():
    ax = latency_plot(make_frame(), x="size", title="t")
    ax.figure.draw_without_rendering()
    assert not ax.get_window_extent().overlaps(ax.figure.legends[0].get_window_extent())


def test_readable_on_light_and_dark():
    ax = latency_plot(make_frame(), x="size", title="t", caption="c")
    assert ax.figure.patch.get_alpha() == ax.patch.get_alpha() == 0
    texts = [ax.title, ax.xaxis.label, ax.yaxis.label, *ax.texts, *ax.get_xticklabels()]
    texts += [ax._left_title, *ax.figure.legends[0].get_texts()]
    shown = [text for text in texts if text.get_text()]
    assert len(shown) == 11
    for background in ("#ffffff", "#14181e"):
        for text in shown:
            assert contrast(to_hex(text.get_color()), background) > 3.5


def contrast(one, other):
    """Contrast of two colours, from 1 to 21 (WCAG 2)."""

    def luminance(color):
        rgb = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_one_size():
    frame = make_frame(sizes=[512])
    ax = latency_plot(frame, x="size", title="t")
    for (x, y, segments), (row, expected) in zip(plotted(ax), frame.iterrows(), strict=True):
        assert y == [row]
        np.testing.assert_allclose(x, expected["median"] * 1e6)
        np.testing.assert_allclose(segments[0, :, 0], [expected["q1"] * 1e6, expected["q3"] * 1e6])
    assert ax.get_xlabel() == "median latency (µs), lower is better"
    assert ax.get_ylabel() == "candidate, size = 512"
    assert ax.get_xscale() == "linear"
    assert ax.get_xlim()[0] == 0
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == CANDIDATES[:2]


def test_labels_of_close_sizes_do_not_overlap():
    sizes = [1, 2, 100, 101, 102, 100000]
    ax = latency_plot(make_frame(sizes=sizes), x="size", title="t")
    assert list(ax.get_xticks()) == sizes
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["1", "2", "100", "", "", "100000"]


def test_candidates_with_other_sizes():
    frame = make_frame().drop(index=[0, 4])
    assert_plot_shows(latency_plot(frame, x="size", title="t"), frame, 1e6)


def test_nothing_global_changes():
    before = dict(mpl.rcParams)
    frame = make_frame()
    copy = frame.copy()
    latency_plot(frame, x="size", title="t")
    assert dict(mpl.rcParams) == before
    pd.testing.assert_frame_equal(frame, copy)


def change(column, value):
    frame = make_frame().astype({"size": object} if column == "size" else {})
    frame.loc[3, column] = value
    return frame


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            make_frame().drop(columns=["q1", "size"]),
            "candidate, size, q1, median and q3 are",
        ),
        (make_frame().iloc[:0], "0 rows"),
        (change("median", -1.0), "'median'.*-1"),
        (change("q1", float("nan")), "'q1'.*nan"),
        (change("q3", float("inf")), "'q3'.*inf"),
        (change("q1", 0.0), "'q1'.*0"),
        (change("size", -5), "'size'.*-5"),
        (change("size", "big"), "'size'.*'big'"),
        (change("candidate", None), "'candidate'"),
        (change("q1", 1.0), "q1 <= median <= q3"),
        (change("q3", 1e-9), "q1 <= median <= q3"),
        (pd.concat([make_frame(), make_frame()[:1]]), "'one Gemm' has several for 256"),
    ],
)
def test_bad_frames(frame, message):
    with pytest.raises(InvalidArgumentError, match=message):
        latency_plot(frame, x="size", title="t")
    assert not plt.get_fignums()


CLAIMS = [
    compare_ratio("b", "a", 1.5, (1.2, 1.9)).at(size=256),
    compare_ratio("c", "a", 0.9, (0.8, 1.0)).at(size=256),
    compare_ratio("b", "a", 2.0, (1.8, 2.1)).at(size=512),
]
ONE = compare_ratio("b", "a", 1.0, (1.0, 1.0))


@pytest.fixture
def ax():
    yield speedup_plot(CLAIMS, title="Speedup", caption="CPU")
    plt.close("all")


def test_points_and_whiskers_are_the_ratios_and_their_intervals(ax):
    drawn = {}
    for name, container in zip("bc", ax.containers, strict=True):
        points, _, (bars,) = container
        ends = [segment[:, 1].tolist() for segment in bars.get_segments()]
        drawn[name] = list(zip(points.get_ydata().tolist(), ends, strict=True))
    assert drawn["b"] == [
        (1.5, pytest.approx([1.2, 1.9])),
        (2.0, pytest.approx([1.8, 2.1])),
    ]
    assert drawn["c"] == [(0.9, pytest.approx([0.8, 1.0]))]


def test_candidates_of_one_size_do_not_overlap(ax):
    first = [container[0].get_xdata()[0] for container in ax.containers]
    assert abs(first[0] - first[1]) > 0.1
    assert all(abs(x) < 0.5 for x in first)


def test_the_axes_say_what_is_better_and_over_what(ax):
    assert ax.get_ylabel() == "speedup over a, higher is better"
    assert ax.get_xlabel() == "size"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["256", "512"]
    assert ax.get_title(loc="left") == "Speedup"


def test_too_few_samples_have_no_whisker():
    ax = speedup_plot([compare_ratio("b", "a", 1.5, None)], title="")
    _, _, (bars,) = ax.containers[0]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[1.5, 1.5]]
    plt.close("all")


@pytest.mark.parametrize(
    "claims",
    [[], [ONE, compare_ratio("b", "c", 1.0, (1.0, 1.0))], [ONE.at(size=1), ONE.at(threads=1)]],
)
def test_one_baseline_and_one_axis_are_needed(claims):
    with pytest.raises(InvalidArgumentError, match="Accepted: speedups over one baseline"):
        speedup_plot(claims, title="")
