"""What a reader of a profile must know before trusting it."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ortmeter.timing.claims import Claim, fact

__all__ = ["find_caveats"]

_CPU = "CPUExecutionProvider"
_SHORT_US = 10
_SHORT_SHARE = 0.1
_PARALLEL = 1.05
_LAUNCHES = (
    "The times of {devices} are those of the launch of a kernel, which runs later on the device: "
    "compare latencies of whole runs. Times on the device need a build of ONNX Runtime with "
    "--enable_cuda_profiling (its kernels are then in session_events, category Kernel) or a "
    "profiler of the device such as Nsight Systems"
)


def find_caveats(
    steady: pd.DataFrame, runs: pd.DataFrame, overhead: Claim | None, *, truncated: bool
) -> Iterator[Claim]:
    """Find what limits the conclusions drawn from a profile.

    Parameters
    ----------
    steady : pandas.DataFrame
        Kernels of the steady runs.
    runs : pandas.DataFrame
        What :meth:`~ortmeter.profiling.Profile.by_iteration` returns.
    overhead : Claim, optional
        Latency without and with profiling.
    truncated : bool
        Whether the end of the file is missing.

    Yields
    ------
    Claim
        One for each.
    """
    if truncated:
        yield fact("The file is truncated: the last run is incomplete and is left out")
    devices = sorted(set(steady["provider"].dropna().astype(str)) - {_CPU})
    if devices:
        yield fact(_LAUNCHES, devices=", ".join(devices))
    if len(runs) == 1:
        yield fact(
            "There is only one run: it includes the allocations and the cold caches of the first"
        )
    counted = runs[runs["steady"]]
    if counted["kernel_time"].sum() > _PARALLEL * counted["covered"].sum():
        yield fact(
            "Kernels ran at the same time: their times add up to more than the duration of a run"
        )
    if np.any(_ends(runs)[:-1] > runs["start"].to_numpy()[1:]):
        yield fact(
            "Runs overlap: a kernel executed by a thread of the pool is counted in the run that "
            "started last"
        )
    short = steady["self_duration"][steady["duration"] < _SHORT_US].sum()
    if short > _SHORT_SHARE * steady["self_duration"].sum():
        yield fact(
            f"Kernels below {_SHORT_US} µs take {{share:.0%}} of the time of all kernels, and each "
            "of their times is rounded down to a microsecond",
            share=float(short / steady["self_duration"].sum()),
        )
    if overhead is not None and overhead.is_difference:
        yield overhead


def _ends(runs: pd.DataFrame) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return (runs["start"] + runs["duration"]).to_numpy()
