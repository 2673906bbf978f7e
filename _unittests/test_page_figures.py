"""The figures of the pages, drawn from their records: labels that are read, in order, inside."""

import itertools
import re
from pathlib import Path

import pytest
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from page_runner import EXAMPLES, define_page

from ortmeter.study.records import load_records

RESULTS = Path(__file__).parent.parent / "_doc" / "results"
PAGES = sorted(page.stem for page in EXAMPLES.rglob("plot_*.py"))
#: Names of axes in the code of a page that tell a reader nothing.
OPAQUE = {"case", "past", "name", "over", "value", "key"}


def shown_ticks(axis):
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return [tick.label1 for tick in ticks if tick.label1.get_text().strip()]


def overlaps(labels):
    """Pairs of labels that cover each other; the boxes of turned labels always do."""
    boxes = [(label.get_text(), label.get_window_extent()) for label in labels]
    if any(label.get_rotation() % 90 for label in labels):
        return []
    return [
        f"{a!r} covers {b!r}"
        for (a, one), (b, other) in itertools.combinations(boxes, 2)
        if one.overlaps(other)
    ]


def numbers(labels):
    found = [re.fullmatch(r"(\d[\d,]*(?:\.\d+)?)(?: \w+)?", label.get_text()) for label in labels]
    return [float(match[1].replace(",", "")) for match in found] if all(found) else []


def faults(figure):
    """List what a reader would stumble on."""
    figure.canvas.draw()
    found, box = [], figure.get_tightbbox()
    if box.width > figure.get_figwidth() + 0.2 or box.height > figure.get_figheight() + 0.2:
        found.append(f"{box.width:.1f} x {box.height:.1f} inches leave the figure")
    for ax in figure.axes:
        frame = ax.get_window_extent()
        found += ["the legend covers data" for one in figure.legends if _covers(one, frame)]
        for axis in (ax.xaxis, ax.yaxis):
            labels = shown_ticks(axis)
            found += overlaps(labels)
            told = numbers(labels)
            is_bar = hasattr(ax, "_colorbar")  # two scales, on both sides of 1
            if not is_bar and told not in (sorted(told), sorted(told, reverse=True)):
                found.append(f"ticks in the order {told}")
            if axis.get_label_text() in OPAQUE:
                found.append(f"an axis is called {axis.get_label_text()!r}")
        found += overlaps([text for text in ax.texts if text.get_text().strip()])
    return found


def _covers(legend, frame):
    return legend.get_window_extent().overlaps(frame)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_figures_are_read(page, monkeypatch):
    monkeypatch.setenv("ORTMETER_RESULTS", str(RESULTS))
    study = define_page(page)["study"]
    for record in load_records(page)[-1:]:
        for view in study.replay(record):
            figure = view.figure if isinstance(view, Axes) else view
            if isinstance(figure, Figure):
                assert faults(figure) == []
    plt.close("all")


def test_each_fault_is_seen():
    figure = plt.figure(figsize=(6.4, 3))
    ax = figure.subplots()
    ax.set_xticks(range(3), ["16", "4", "64"])
    ax.set_xlabel("case")
    ax.bar([0, 1, 2], [1, 2, 3], label="one")
    figure.legend(loc="center")
    ax.text(1, 1, "a long text")
    ax.text(1.01, 1, "another")
    ax.text(2, 1, "x" * 90)
    told = "\n".join(faults(figure))
    plt.close(figure)
    expected = ("leave the figure", "covers data", "[16.0, 4.0, 64.0]", "called 'case'")
    assert all(text in told for text in (*expected, "'a long text' covers 'another'"))
