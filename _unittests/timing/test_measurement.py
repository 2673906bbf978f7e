import numpy as np
import pytest
import scipy.stats

from ortmeter.errors import InvalidArgumentError
from ortmeter.timing.measurement import Measurement, format_seconds

SECONDS = np.array([[3.0, 1.0, 2.0], [5.0, 4.0, 6.0]])


def test_statistics_are_those_of_numpy():
    m = Measurement("a", SECONDS, number=7)
    assert m.median == pytest.approx(scipy.stats.gmean([2, 5]))  # of the processes
    assert m.quartiles == tuple(np.percentile(SECONDS, [25, 75]))
    assert (m.processes, m.repeat) == (2, 3)
    assert m.relative_iqr == pytest.approx(2.5 / 10**0.5)


def test_a_process_counts_once():
    m = Measurement("a", [[3.0, 1.0, 2.0], [2.4, 2.2, 7.4], [2.0, 1.9, 2.1]])
    assert m.typical.value == pytest.approx((2 * 2.4 * 2) ** (1 / 3))
    assert m.typical.low < m.typical.value < m.typical.high
    assert Measurement("a", SECONDS).typical.interval is None  # two processes
    assert m.means.name == "a"
    np.testing.assert_allclose(m.means.seconds, [[2], [4], [2]])


def test_throughput_needs_declared_work():
    m, alone = Measurement("a", [[2.0]], flop=6e9, bytes_moved=8e9), Measurement("a", [[2.0]])
    assert (m.gflop_per_s, m.gb_per_s) == (3.0, 4.0)
    assert (alone.gflop_per_s, alone.gb_per_s) == (None, None)


def test_the_text_warns_when_the_samples_are_noisy():
    assert "noisy: the interquartile range is 79% of the median" in str(Measurement("a", SECONDS))
    assert "noisy" not in str(Measurement("a", [[1.0, 1.01, 1.02]]))
    assert "in each of 2 processes" in str(Measurement("a", SECONDS))


def test_samples_cannot_be_changed():
    source = SECONDS.copy()
    m = Measurement("a", source)
    source[:] = 0
    assert m.quartiles == (2.25, 4.75)
    with pytest.raises(ValueError, match="read-only"):
        m.seconds[0, 0] = 1


@pytest.mark.parametrize("seconds", [[], [[]], [1.0], [[[1.0]]]])
def test_other_shapes_are_refused(seconds):
    with pytest.raises(InvalidArgumentError, match=r"Accepted: \(processes, repeat\)"):
        Measurement("a", seconds)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (2.5, "2.5 s"),
        (0.01234, "12.3 ms"),
        (2e-6, "2 µs"),
        (0, "0 µs"),
    ],
)
def test_durations_are_written_with_their_unit(seconds, expected):
    assert format_seconds(seconds) == expected
