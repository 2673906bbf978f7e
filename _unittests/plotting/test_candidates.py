import json

import pandas as pd
import pytest
from matplotlib import pyplot as plt

from ortmeter.errors import InvalidArgumentError
from ortmeter.plotting import candidates_figure

FRAME = pd.DataFrame(
    {
        "candidate": ["slow <one>", "fast"],
        "median": [4e-3, 1e-3],
        "q1": [3e-3, 0.5e-3],
        "q3": [6e-3, 2e-3],
        "steps": [5, 3],
    }
)


def test_rows_are_sorted_and_tell_what_they_are():
    found = candidates_figure(FRAME, title="All & more", details=["steps"], caption="one thread")
    assert plt.get_fignums() == []
    figure = json.loads(json.dumps(found.figure))
    (bars,) = figure["data"]
    assert bars["x"] == [1.0, 4.0]
    assert bars["error_x"]["array"] == pytest.approx([1.0, 2.0])
    assert bars["error_x"]["arrayminus"] == pytest.approx([0.5, 1.0])
    assert bars["hovertext"] == [
        "fast<br>1 ms (0.5 to 2)<br>steps: 3",
        "slow &lt;one&gt;<br>4 ms (3 to 6)<br>steps: 5",
    ]
    assert figure["layout"]["yaxis"]["ticktext"] == ["fast", "slow &lt;one&gt;"]
    assert figure["layout"]["title"]["text"] == "All &amp; more"
    assert "ms" in figure["layout"]["xaxis"]["title"]["text"]
    assert found.picture.startswith(b"\x89PNG")
    assert "2 candidates" in found.alt


@pytest.mark.parametrize(
    ("frame", "details", "message"),
    [
        (FRAME.drop(columns="q1"), (), r"columns \['q1'\] are missing"),
        (FRAME, ("flop",), r"columns \['flop'\] are missing"),
        (FRAME.head(0), (), "empty|no row"),
    ],
)
def test_a_frame_that_cannot_be_plotted_is_refused(frame, details, message):
    with pytest.raises(InvalidArgumentError, match=message):
        candidates_figure(frame, title="x", details=details)
