"""Where to look next: the node that is the furthest from what the machine can do."""

from typing import TYPE_CHECKING

from ortmeter.timing.claims import Claim, fact
from ortmeter.timing.peaks import Peaks

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["find_headroom"]

_S_PER_US = 1e-6
_MS_PER_S = 1e3


def find_headroom(nodes: "pd.DataFrame", peaks: Peaks) -> Claim:
    """Find the node that would save the most time if it ran at the peaks of the machine.

    Parameters
    ----------
    nodes : pandas.DataFrame
        Columns ``name``, ``op``, ``median`` (µs), ``flop`` and ``bytes`` of
        :meth:`~ortmeter.profiling.Profile.by_node`.
    peaks : Peaks
        Peaks of the same provider, type and number of threads.

    Returns
    -------
    Claim
        The node, its time, the least time of its work, and which peak sets that time. Nodes whose
        work is not known are left out.

    Examples
    --------
    >>> import pandas as pd
    >>> nodes = pd.DataFrame({
    ...     "name": ["a", "b"], "op": ["Conv", "Add"], "median": [900.0, 500.0],
    ...     "flop": [8e7, 1e3], "bytes": [1e3, 1e6]})
    >>> print(find_headroom(nodes, Peaks(gflop_per_s=100, gb_per_s=10)))
    most headroom: b (Add), 0.5 ms against 0.1 ms at the peak of copies
    """
    took = nodes["median"].astype(float) * _S_PER_US
    least = peaks.least_seconds(nodes["flop"], nodes["bytes"]).astype(float)
    saved = (took - least).dropna()
    if saved.empty:
        return fact("most headroom: not known, nor is the work of any node")
    row = saved.idxmax()
    computes = nodes["flop"][row] / peaks.gflop_per_s >= nodes["bytes"][row] / peaks.gb_per_s
    node = f"{nodes['name'][row]} ({nodes['op'][row]})".replace("{", "{{").replace("}", "}}")
    return fact(
        f"most headroom: {node}, {{took:.3g}} ms against {{least:.3g}} ms at the peak of "
        f"{'operations' if computes else 'copies'}",
        took=_MS_PER_S * float(took[row]),
        least=_MS_PER_S * float(least[row]),
    )
