import numpy as np

from ortmeter.plotting.cold import cold_plot
from ortmeter.timing.comparison import Comparison, Comparisons
from ortmeter.timing.measurement import Measurement
from ortmeter.workloads.startup import PHASES, ColdStart

SECONDS = {"import": 0.1, "session": 0.02, "first run": 0.03, "first result": 0.15}


def started(processes):
    spread = np.linspace(0.9, 1.1, processes)[:, None] if processes > 1 else np.ones((1, 1))
    scales = {"as it is": 1, "saved, $x$": 2}
    times = {
        phase: Comparison(
            Measurement(name, scale * SECONDS.get(phase, 0.01) * spread)
            for name, scale in scales.items()
        )
        for phase in PHASES
    }
    memory = {name: dict.fromkeys(PHASES, (None, None)) for name in scales}
    return ColdStart(Comparisons(times, "phase"), memory)


def legend(ax):
    return [text.get_text() for found in ax.figure.legends for text in found.get_texts()]


def test_phases_are_end_to_end_in_milliseconds():
    ax = cold_plot(started(1), title="Start")
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    expected = [(0, 100), (0, 200), (100, 20), (200, 40), (120, 30), (240, 60)]
    np.testing.assert_allclose(bars, expected)
    assert ax.get_xlabel() == "time to the first result (ms), lower is better"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["as it is", r"saved, \$x\$"]
    assert legend(ax) == ["import", "session", "first run"]  # one process has no interval


def test_whiskers_are_the_interval_of_the_first_result():
    found = started(5)
    ax = cold_plot(found, title="Start")
    ends = [_ends(line) for line in ax.collections]
    expected = [
        [1e3 * s for s in found.typical(name, "first result").interval] for name in found.names
    ]
    np.testing.assert_allclose(ends[0], expected)
    assert legend(ax)[-1] == "99% interval of the sum"


def _ends(lines):
    return [(segment[0][0], segment[1][0]) for segment in lines.get_segments()]
