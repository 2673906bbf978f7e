import numpy as np
import pandas as pd

from ortmeter.plotting import timeline_plot


class Ran:
    """Three runs of three kernels; the second steady run is the longest."""

    def __init__(self, events=None):
        kernel = pd.DataFrame(
            {
                "name": ["a", "b", "c"],
                "op": pd.Categorical(["Conv", "Add", "Conv"]),
                "start": [110, 420, 640],
                "duration": [300, 200, 50],
                "self_duration": [300, 200, 50],
                "provider": pd.Categorical(["CPUExecutionProvider", None, "<b>"]),
                "signature": ["(f32 1) -> f32 1", "", None],
            }
        )
        shifts = {0: 0, 1: 1000, 2: 2000, 3: 3000}
        runs = [kernel.assign(start=kernel["start"] + s, iteration=i) for i, s in shifts.items()]
        self.events = pd.concat(runs, ignore_index=True) if events is None else events

    @property
    def steady_runs(self):
        return pd.DataFrame(
            {"iteration": [1, 2, 3], "start": [1100, 2100, 3100], "duration": [650, 800, 610]}
        )


def plot(ran):
    return timeline_plot(ran, title="one run")


def bars(ax):
    return {
        container.get_label(): [
            (round(bar.get_x(), 6), round(bar.get_width(), 6), round(bar.get_y() + 0.4))
            for bar in container
        ]
        for container in ax.containers
    }


def test_each_kernel_is_where_it_ran():
    ax = plot(Ran())
    assert bars(ax) == {
        "Conv": [(0.01, 0.3, 0), (0.54, 0.05, 2)],
        "Add": [(0.32, 0.2, 1)],
    }
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Conv a", "Add b", "Conv c"]
    # the steady run of median duration
    assert ax.get_xlabel() == "time since the start of run 1 (ms)"
    assert ax.get_xlim() == (0, 0.65)


def test_many_nodes_have_a_row_per_operator():
    events = pd.DataFrame(
        {
            "iteration": 1,
            "name": [f"n{i}" for i in range(60)],
            "op": [f"Op{i % 9}" for i in range(60)],
            "start": 1100 + 10 * np.arange(60),
            "duration": 5,
            "self_duration": [100 if i % 9 < 3 else 1 for i in range(60)],
        }
    )
    ax = plot(Ran(events))
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"Op{i}" for i in range(9)]
    assert sum(len(container) for container in ax.containers) == 60
    # six operators have a colour, the others share one
    assert len(ax.containers) == 7
    assert {"Op0", "Op1", "Op2", "other"} <= set(bars(ax))
