"""The node that is the furthest from its least time; expected times are computed by hand."""

import numpy as np
import pandas as pd
import pytest

from ortmeter.profiling import find_headroom
from ortmeter.timing.peaks import Peaks

PEAKS = Peaks(gflop_per_s=100, gb_per_s=10)
COLUMNS = ["name", "op", "median", "flop", "bytes"]


def nodes(*rows):
    return pd.DataFrame(rows, columns=COLUMNS)


@pytest.mark.parametrize(
    ("rows", "expected", "values"),
    [
        # the longest one is close to its least time
        (
            [("big", "Conv", 1000.0, 95e6, 0.0), ("lost", "Sqrt", 300.0, 0.0, 1e6)],
            "most headroom: lost (Sqrt), 0.3 ms against 0.1 ms at the peak of copies",
            {"took": 0.3, "least": 0.1},
        ),
        (
            [("big", "Conv", 1000.0, 5e7, 1e6), ("lost", "Sqrt", 300.0, 0.0, 1e6)],
            "most headroom: big (Conv), 1 ms against 0.5 ms at the peak of operations",
            {"took": 1.0, "least": 0.5},
        ),
        # its work is not known
        (
            [("?", "If", 9e9, np.nan, np.nan), ("{x}", "Add", 300.0, 0.0, 1e6)],
            "most headroom: {x} (Add), 0.3 ms against 0.1 ms at the peak of copies",
            {"took": 0.3, "least": 0.1},
        ),
        ([("?", "If", 9e9, np.nan, np.nan)], "most headroom: not known", {}),
        ([], "most headroom: not known", {}),
    ],
)
def test_the_node_with_the_most_headroom_is_told(rows, expected, values):
    found = find_headroom(nodes(*rows), PEAKS)
    assert str(found).startswith(expected)
    assert dict(found.values) == pytest.approx(values)
