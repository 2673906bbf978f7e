"""Planted times and errors of releases, for tests: what changed is known."""

import numpy as np
import pandas as pd

from ortmeter.observatory.accuracy import COLUMNS
from ortmeter.observatory.history import History
from ortmeter.observatory.matrix import AGAIN, ROWS

ORDER = ("1.0", "1.1", "1.2")


def planted(times, errors=None, *, threads=(1, 2), sets=6, noise=0.01, absent=None):
    """Make a history: the times (µs) and the errors (ulp) of each case, by release."""
    rng = np.random.default_rng(0)
    columns = [*ORDER, ORDER[-1] + AGAIN]
    index = pd.MultiIndex.from_product([threads, range(2), range(sets), list(times)], names=ROWS)
    known = np.array([[*times[case], times[case][-1]] for case in index.get_level_values("case")])
    drawn = known * np.exp(rng.normal(0, noise, known.shape))
    errors = {case: (1.0,) * len(ORDER) for case in times} | (errors or {})
    rows = [
        dict.fromkeys(COLUMNS, 0.0)
        | {"case": case, "contender": release, "ulp": ulp, "largest": ulp, "bound": ulp / 4}
        | {"bits": f"{ulp:g}", "reference": "float64"}
        for case, ulps in errors.items()
        for release, ulp in zip(ORDER, ulps, strict=True)
        if not np.isnan(ulp)
    ]
    return History(
        ORDER,
        (ORDER[-1], ORDER[-1] + AGAIN),
        {case: f"Y = {case}(X)\nf32[4] X (opset 13)" for case in times},
        pd.DataFrame(drawn, index=index, columns=columns),
        pd.DataFrame(rows).set_index(["case", "contender"]),
        absent or {},
        {release: {"onnxruntime": release} for release in ORDER},
    )
