import pandas as pd
import pytest

from ortmeter.plotting.load import load_plot


def lines(ax):
    return [container.lines[0].get_xydata().tolist() for container in ax.containers]


def test_percentiles_are_drawn_in_their_unit():
    rows = [
        ("p50", 0, 1e-3, 0.9e-3, 1.1e-3),
        ("p50", 0.1, 2e-3, 1.9e-3, 2.1e-3),
        ("_p$9", 0, 3e-3, 2e-3, 4e-3),
    ]
    frame = pd.DataFrame(rows, columns=["series", "gap", "seconds", "low", "high"])
    ax = load_plot(frame, x="gap", title="Latency")
    assert lines(ax) == [
        [[0, pytest.approx(1)], [0.1, pytest.approx(2)]],
        [[0, pytest.approx(3)]],
    ]
    assert ax.get_ylabel() == "latency (ms), lower is better"
    assert ax.get_xlabel() == "pause before the run (s)"
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == ["p50", r"_p\$9"]
    ends = ax.containers[1].lines[2][0].get_segments()[0][:, 1]
    assert ends.tolist() == pytest.approx([2, 4])
    ax.figure.canvas.draw()


def test_a_throughput_without_interval_has_no_whiskers():
    rows = [("a", 1, 10.0, None, None), ("a", 2, 19.0, 18.0, 20.0)]
    frame = pd.DataFrame(rows, columns=["series", "callers", "requests/s", "low", "high"])
    ax = load_plot(frame, x="callers", y="requests/s", title="Throughput")
    assert lines(ax) == [[[1, 10], [2, 19]]]
    segments = ax.containers[0].lines[2][0].get_segments()
    assert [segment[:, 1].tolist() for segment in segments] == [[10, 10], [18, 20]]
    assert ax.get_ylabel() == "requests/s, higher is better"


def test_batches_are_drawn_by_powers_of_two():
    rows = [("a", 1, 1.0, None, None), ("a", 8, 4.0, 3.0, 5.0)]
    frame = pd.DataFrame(rows, columns=["series", "batch", "requests/s", "low", "high"])
    ax = load_plot(frame, x="batch", y="requests/s", title="Batches", caption="float32 on CPU")
    assert (ax.get_xscale(), ax.get_xlabel()) == ("log", "batch (requests in a call)")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1", "8"]
    assert "float32 on CPU, whiskers: 99% intervals" in [text.get_text() for text in ax.texts]
