import numpy as np
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting.releases import release_plot
from ortmeter.timing.comparison import Comparison
from ortmeter.timing.measurement import Measurement


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def comparison(*seconds):
    names = ["1.24.1", "$1.27$", "1.31.1"]
    return Comparison(
        Measurement(name, value * np.linspace(0.99, 1.01, 45).reshape(5, 9))
        for name, value in zip(names, seconds, strict=False)
    )


def test_latencies_are_over_that_of_the_first_release():
    ax = release_plot(comparison(1.0, 2.0, 1.5), title="cnn.onnx", caption="CPU")
    (container,) = ax.containers
    line, _, (whiskers,) = container.lines
    np.testing.assert_allclose(np.array(line.get_ydata(), float), [1, 2, 1.5])
    for (x, low), (_, high) in whiskers.get_segments():
        assert low <= line.get_ydata()[int(x)] <= high
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1.24.1", r"\$1.27\$", "1.31.1"]
    assert "lower is better" in ax.get_ylabel()


def test_one_release_has_no_plot():
    with pytest.raises(InvalidArgumentError, match="got one release"):
        release_plot(comparison(1.0), title="cnn.onnx")
