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


def labels(ax):
    return [tick.get_text() for tick in ax.get_yticklabels()]


def whiskers(container):
    (_, _, (bars,)) = container
    return [segment[:, 0].tolist() for segment in bars.get_segments()]


def test_each_claim_has_a_row_candidate_by_candidate():
    mixed = [CLAIMS[0], CLAIMS[3], CLAIMS[1], CLAIMS[2]]
    ax = sweep_plot(mixed, **TITLES)
    assert [c[0].get_xdata().tolist() for c in ax.containers] == [[1.2], [1.5], [0.9], [2.0]]
    assert labels(ax) == [
        *("one, float, size 8", "one, float, size 64", "one, double, size 8"),
        "two, float, size 64",
    ]
    assert ax.get_xlabel() == "speedup over none, higher is better"
    colors = [container[0].get_color() for container in ax.containers]
    assert colors[0] == colors[2] != colors[3]


def test_whiskers_are_the_intervals_where_there_is_one():
    ax = sweep_plot(CLAIMS, **TITLES)
    ends = [whiskers(container)[0] for container in ax.containers]
    assert ends[:2] == [pytest.approx([1.1, 1.3]), pytest.approx([1.4, 1.6])]
    assert ends[2] == pytest.approx([0.9, 0.9])


def test_runs_are_dots():
    ax = sweep_plot(CLAIMS, runs=RUNS, **TITLES)
    dots = [line for line in ax.get_lines() if line.get_marker() == "." and len(line.get_xdata())]
    assert [list(line.get_xdata()) for line in dots] == [[1.1, 1.3]]


def test_the_minimum_effect_is_a_band_around_1():
    strict = compare_ratio("one", "none", 1.5, (1.4, 1.6), min_effect=0.1, where={"size": 8})
    ax = sweep_plot([strict], **TITLES)
    (band,) = ax.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx((1 / 1.1, 1.1))
    assert labels(ax) == ["one"]


def test_what_is_left_out_is_said():
    claims = [claim(f"c{i}", 1.2, None, size=size) for i in range(10) for size in range(6)]
    ax = sweep_plot(claims, **TITLES)
    assert len(labels(ax)) == 48
    assert [t.get_text() for t in ax.texts] == ["CPU; 12 rows are not shown"]


def test_the_page_behind_is_seen():
    ax = sweep_plot(CLAIMS, **TITLES)
    assert ax.figure.patch.get_alpha() == ax.patch.get_alpha() == 0


def test_one_baseline_is_plotted():
    for claims in ([], [*CLAIMS, compare_ratio("one", "other", 2.0, None)]):
        with pytest.raises(InvalidArgumentError, match="claims have the baselines"):
            sweep_plot(claims, **TITLES)
