import pytest
from claim_samples import compare_ratio
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.sweep import sweep_plot


def claim(name, ratio, interval, **where):
    return compare_ratio(name, "none", ratio, interval, where=where)


CLAIMS = [
    claim("one", 1.2, (1.1, 1.3), type="float", size=8),
    claim("one", 1.5, (1.4, 1.6), type="float", size=64),
    claim("one", 0.9, None, type="double", size=8),  # too few samples
    claim("two", 2.0, (1.8, 2.1), type="float", size=64),
]
RUNS = [(1.1, 1.3), (), (), ()]
TITLES = {"title": "Speedup", "caption": "CPU"}


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def drawn(ax):
    return [list(container[0].get_ydata()) for container in ax.containers]


def whiskers(container):
    (_, _, (bars,)) = container
    return [segment[:, 1].tolist() for segment in bars.get_segments()]


def test_each_candidate_has_a_panel_and_each_line_its_points():
    one, two = sweep_plot(CLAIMS, x="size", **TITLES).axes
    assert (one.get_ylabel(), two.get_ylabel()) == ("one", "two")
    assert drawn(one) == [[1.2, 1.5], [0.9]]
    assert drawn(two) == [[2.0], []]


def test_whiskers_are_the_intervals_where_there_is_one():
    one, _ = sweep_plot(CLAIMS, x="size", **TITLES).axes
    ends = whiskers(one.containers[0])
    assert ends == [pytest.approx([1.1, 1.3]), pytest.approx([1.4, 1.6])]
    ((low, high),) = whiskers(one.containers[1])
    assert (low, high) == pytest.approx((0.9, 0.9))


def test_sizes_are_evenly_spaced_and_lines_do_not_overlap():
    figure = sweep_plot(CLAIMS, x="size", **TITLES)
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["8", "64"]
    first, second = (c[0].get_xdata()[0] for c in figure.axes[0].containers)
    assert 0.1 < abs(first - second) < 0.5


def test_runs_are_dots():
    one, _ = sweep_plot(CLAIMS, x="size", runs=RUNS, **TITLES).axes
    dots = [line for line in one.get_lines() if line.get_marker() == "." and len(line.get_ydata())]
    assert [list(line.get_ydata()) for line in dots] == [[1.1, 1.3]]


def test_the_minimum_effect_is_a_band_around_1():
    strict = compare_ratio("one", "none", 1.5, (1.4, 1.6), min_effect=0.1, where={"size": 8})
    (ax,) = sweep_plot([strict], x="size", **TITLES).axes
    (band,) = ax.patches
    assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((1 / 1.1, 1.1))


def test_without_sizes_lines_are_rows():
    rows = [claim("one", 1.2, (1.1, 1.3), type="float"), claim("one", 0.9, None, type="double")]
    (ax,) = sweep_plot(rows, x=None, **TITLES).axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["float", "double"]
    assert ax.get_xlabel() == "speedup over none, higher is better"
    assert [list(c[0].get_xdata()) for c in ax.containers] == [[1.2], [0.9]]


def test_candidates_are_the_lines_when_only_the_size_varies():
    claims = [claim(n, 1.2, (1.1, 1.3), size=s) for n in ("one", "two") for s in (8, 64)]
    figure = sweep_plot(claims, x="size", **TITLES)
    assert len(figure.axes) == 1
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", "two"]


def test_what_is_left_out_is_said():
    claims = [
        claim(f"c{i}", 1.2, None, size=size, mode=mode)
        for i in range(7)
        for size in (1, 2)
        for mode in "ab"
    ]
    figure = sweep_plot(claims, x="size", **TITLES)
    assert len(figure.axes) == 4
    assert [t.get_text() for t in figure.axes[0].texts] == ["CPU; 12 points are not shown"]


def test_the_page_behind_is_seen():
    figure = sweep_plot(CLAIMS, x="size", **TITLES)
    assert figure.patch.get_alpha() == 0
    assert figure.axes[0].patch.get_alpha() == 0


@pytest.mark.parametrize(
    ("claims", "x", "message"),
    [
        ([], "size", r"claims have the baselines \[\]"),
        ([*CLAIMS, compare_ratio("one", "other", 2.0, None)], None, "'none', 'other'"),
        (CLAIMS, "type", "x is 'type', which is not a number everywhere"),
        (CLAIMS, "n", "x is 'n', which is not a number everywhere"),
    ],
)
def test_what_cannot_be_plotted_is_refused(claims, x, message):
    with pytest.raises(InvalidArgumentError, match=message):
        sweep_plot(claims, x=x, **TITLES)
