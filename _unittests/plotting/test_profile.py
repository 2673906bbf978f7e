import numpy as np
import onnx.parser
import pandas as pd
import pytest

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import (
    bar_plot,
    comparison_plot,
    draw_model,
    operator_plot,
    profile_notes,
)

MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
g (float[4] X) => (float[4] Y) {
    [first] A = Abs(X)  [second] B = Exp(A)  [third] C = Exp(B)  [last] Y = Neg(C)
}""")


class Ran:
    """A profile whose summaries are known: medians in µs."""

    model = MODEL

    def by_operator(self):
        return pd.DataFrame(
            {
                "op": pd.Categorical(["Exp", "Abs", "Neg", "Not"]),
                "provider": "CPUExecutionProvider",
                "calls": [2.0, 1.0, 1.0, 0.5],
                "median": [900.0, 95.0, 3.0, 2.0],
                "q1": [800.0, 90.0, 3.0, 1.0],
                "q3": [950.0, 99.0, 4.0, 2.0],
                "share": [0.9, 0.095, 0.003, 0.002],
            }
        )

    def by_node(self, cost=None):
        return pd.DataFrame(
            {
                "name": ["first", "second", "third", "last", "gone"],
                "op": ["Abs", "Exp", "Exp", "Neg", "Not"],
                "provider": ["CPUExecutionProvider"] * 5,
                "signature": ["(f32 4) -> f32 4"] * 5,
                "median": [95.0, 600.0, 300.0, 3.0, 2.0],
                "q1": [90.0, 500.0, 300.0, 3.0, 1.0],
                "q3": [99.0, 650.0, 301.0, 4.0, 2.0],
                "share": [0.095, 0.6, 0.3, 0.003, 0.002],
                "gflop_per_s": [1.5, np.nan, 2.0, None, None],
                "gb_per_s": [np.nan, np.nan, 3.0, None, None],
            }
        )


def rows(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def lengths(ax, container=0):
    return [bar.get_width() for bar in ax.containers[container]]


def test_the_operators_are_sorted_and_the_small_ones_are_grouped():
    ax = operator_plot(Ran(), title="times", caption="CPU")
    assert rows(ax) == ["Exp (2)", "Abs (1)", "other (2)"]
    assert lengths(ax) == [900.0, 95.0, 5.0]
    assert ax.get_xlabel() == "median time per run (µs), lower is better"
    assert ax.get_ylabel() == "operator (kernels per run)"
    assert ax.get_title(loc="left") == "times"
    bottom, top = ax.get_ylim()
    assert bottom > top  # the slowest is at the top
    (whiskers,) = (c for c in ax.containers if hasattr(c, "has_xerr"))
    exp, abs_, _ = whiskers.lines[2][0].get_segments()  # the group has none
    assert [exp[:, 0].tolist(), abs_[:, 0].tolist()] == [[800.0, 950.0], [90.0, 99.0]]


def test_a_group_of_one_would_hide_a_name_for_nothing():
    class Wide(Ran):
        def by_operator(self):
            medians = [900.0, 95.0, 30.0, 2.0]
            return super().by_operator().assign(median=medians, q1=medians, q3=medians)

    assert rows(operator_plot(Wide(), title="t"))[-1] == "Not (0.5)"


def test_long_times_are_in_milliseconds():
    class Slow(Ran):
        def by_operator(self):
            frame = super().by_operator()
            return frame.assign(**{name: 100 * frame[name] for name in ("median", "q1", "q3")})

    ax = operator_plot(Slow(), title="t")
    assert ax.get_xlabel() == "median time per run (ms), lower is better"
    assert lengths(ax)[0] == pytest.approx(90.0)


def test_launches_are_times_of_the_host():
    class Device(Ran):
        def by_operator(self):
            return super().by_operator().assign(provider=["CUDAExecutionProvider", *3 * ["CPU"]])

    label = "median time per run on the host (µs), lower is better"
    assert operator_plot(Device(), title="t").get_xlabel() == label
    mixed = MERGED.assign(provider=["CPUExecutionProvider"] * 5 + ["CUDAExecutionProvider"])
    assert comparison_plot(mixed, title="t").get_xlabel() == label


MERGED = pd.DataFrame(
    {
        "op": ["Conv", "Conv", "Add", "Reorder", "Abs", "Neg"],
        "provider": "CPUExecutionProvider",
        "name_baseline": ["stem", None, "sum", None, "a", "b"],
        "name_candidate": [None, "c0_nchwc", None, "Reorder_1", "a", "b"],
        "median_baseline": [700.0, np.nan, 200.0, np.nan, 4.0, 4.0],
        "median_candidate": [np.nan, 500.0, np.nan, 100.0, 3.0, 3.0],
    }
)


def test_the_two_sides_have_a_bar_each():
    ax = comparison_plot(MERGED, title="t", names=("written", "fused"))
    assert rows(ax) == ["Conv stem", "Conv c0_nchwc", "Add sum", "Reorder_1", "other (2)"]
    np.testing.assert_array_equal(lengths(ax, 0), [700, np.nan, 200, np.nan, 8])
    np.testing.assert_array_equal(lengths(ax, 1), [np.nan, 500, np.nan, 100, 6])
    assert [c.get_label() for c in ax.containers] == ["written", "fused"]
    assert np.nansum(lengths(ax, 0)) == MERGED["median_baseline"].sum()


def test_a_bar_plot_has_the_columns_side_by_side():
    frame = pd.DataFrame(
        {"before": [2.0, np.nan], "after": [1.0, 3.0]}, index=pd.Index(["Conv", "Add"], name="op")
    )
    ax = bar_plot(frame, title="t", what="nodes", caption="c")
    assert rows(ax) == ["Conv", "Add"]
    np.testing.assert_array_equal(lengths(ax, 0), [2, np.nan])
    np.testing.assert_array_equal(lengths(ax, 1), [1, 3])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("nodes", "op")
    assert [c.get_label() for c in ax.containers] == ["before", "after"]


def test_notes_tell_what_was_measured():
    notes = profile_notes(Ran())
    assert set(notes) == {"first", "second", "third", "last"}  # "gone" is not in the graph
    assert notes["second"].share == 0.6
    assert notes["third"].text.splitlines() == [
        "time: 300 µs per run",
        "provider: CPUExecutionProvider",
        "(f32 4) -> f32 4",
        "2 GFLOP/s",
        "3 GB/s",
    ]
    assert notes["second"].text.endswith("-> f32 4")
    drawing = draw_model(MODEL, notes=notes)
    assert "60.0%" in drawing.svg
    assert "time: 600 µs per run" in drawing.svg


def test_a_profile_without_graph_or_without_run_is_refused():
    class Unknown(Ran):
        model = None

        def by_operator(self):
            return super().by_operator().iloc[:0]

    with pytest.raises(InvalidArgumentError, match="graph of this profile is unknown"):
        profile_notes(Unknown())
    with pytest.raises(InvalidArgumentError, match="No node ran"):
        operator_plot(Unknown(), title="t")
