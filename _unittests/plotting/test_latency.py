import numpy as np
import pytest
from claim_samples import compare_ratio
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import latency_plot, speedup_plot
from ortmeter.timing import Comparison, Measurement

CANDIDATES = ["one Gemm", "two Gemm", "_numpy", "torch, $TF32$ off"]


@pytest.mark.parametrize(
    ("scale", "unit", "factor"),
    [(1e-5, "µs", 1e6), (1e-3, "ms", 1e3), (1.0, "s", 1.0), (1e-9, "µs", 1e6)],
)
def test_medians_and_quartiles_are_drawn_in_the_unit_that_is_told(scale, unit, factor):
    drawn = np.random.default_rng(0).uniform(1, 2, (1, 9))
    samples = [scale * rank * drawn for rank in range(1, len(CANDIDATES) + 1)]
    results = Comparison(map(Measurement, CANDIDATES, samples))
    ax = latency_plot(results, title="t")
    assert ax.get_xlabel() == f"median latency ({unit}), lower is better"
    for rank, (container, ran) in enumerate(zip(ax.containers, samples, strict=True)):
        point, _, (bars,) = container.lines
        low, median, high = factor * np.quantile(ran, [0.25, 0.5, 0.75])
        assert point.get_ydata() == [rank]
        assert list(point.get_xdata()) == pytest.approx([median])
        assert bars.get_segments()[0][:, 0].tolist() == pytest.approx([low, high])
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == CANDIDATES[:2]
    assert ax.get_xlim()[0] == 0


CLAIMS = [
    compare_ratio("b", "a", 1.5, (1.2, 1.9)).at(size=256),
    compare_ratio("c", "a", 0.9, (0.8, 1.0)).at(size=256),
    compare_ratio("b", "a", 2.0, (1.8, 2.1)).at(size=512),
]
ONE = compare_ratio("b", "a", 1.0, (1.0, 1.0))


@pytest.fixture
def ax():
    return speedup_plot(CLAIMS, title="Speedup", caption="CPU")


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


def test_candidates_differ_in_place_color_marker_and_legend(ax):
    first = [container[0].get_xdata()[0] for container in ax.containers]
    assert 0.1 < abs(first[0] - first[1]) < 1
    lines = [container.lines[0] for container in ax.containers]
    for style in ("color", "marker"):
        assert len({str(plt.getp(line, style)) for line in lines}) == len(lines), style
    ax.figure.draw_without_rendering()
    assert not ax.get_window_extent().overlaps(ax.figure.legends[0].get_window_extent())


def test_texts_are_readable_on_light_and_dark(ax):
    assert ax.figure.patch.get_alpha() == ax.patch.get_alpha() == 0
    texts = [ax.xaxis.label, ax.yaxis.label, *ax.texts, *ax.get_xticklabels(), ax._left_title]
    shown = [text for text in texts + ax.figure.legends[0].get_texts() if text.get_text()]
    assert len(shown) == 8
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


def test_dollars_in_names_are_no_formulas():
    ax = speedup_plot([compare_ratio("$TF32$ off", "$x$", 1.5, (1.2, 1.9))], title="")
    (name,) = ax.figure.legends[0].get_texts()
    assert (name.get_text(), ax.get_ylabel()) == (
        r"\$TF32\$ off",
        r"speedup over \$x\$, higher is better",
    )


def test_long_places_do_not_overlap():
    names = [f"a model whose name is long, {rank}" for rank in range(9)]
    claims = [compare_ratio("b", "a", 1.0, (0.9, 1.1)).at(model=name) for name in names]
    ax = speedup_plot(claims, title="t")
    ax.figure.draw_without_rendering()
    labels = ax.get_xticklabels()
    assert [label.get_text() for label in labels] == names
    ends = [label.get_window_extent().x1 for label in labels]
    angle = np.radians(labels[0].get_rotation())
    height = labels[0].get_fontsize() * ax.figure.dpi / 72
    assert np.diff(ends).min() * np.sin(angle) > height


def test_the_axes_say_what_is_better_and_over_what(ax):
    assert ax.get_ylabel() == "speedup over a, higher is better"
    assert ax.get_xlabel() == "size"
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["256", "512"]
    assert ax.get_title(loc="left") == "Speedup"


def test_too_few_samples_have_no_whisker():
    ax = speedup_plot([compare_ratio("b", "a", 1.5, None)], title="")
    _, _, (bars,) = ax.containers[0]
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[1.5, 1.5]]


@pytest.mark.parametrize(
    "claims",
    [[], [ONE, compare_ratio("b", "c", 1.0, (1.0, 1.0))], [ONE.at(size=1), ONE.at(threads=1)]],
)
def test_one_baseline_and_one_axis_are_needed(claims):
    with pytest.raises(InvalidArgumentError, match="Accepted: speedups over one baseline"):
        speedup_plot(claims, title="")
