import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import speedup_plot
from ortmeter.timing.claims import compare_ratio

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
