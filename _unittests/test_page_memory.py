"""The setting, the views and the sequences of the page on memory."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from page_runner import parse, run_setting

SEQUENCES = ("fixed", "cycling", "random", "one large")
PEAKS = {"default": 40.0, "no memory pattern": 20.0, "no arena": 60.0, "shrinking": 10.0}
SLOW = {"shrinking": 2.0}


@pytest.fixture(scope="module")
def data():
    """Known peaks, kept to the end, and times of a row; the first run allocates."""
    rows = []
    for (name, peak), sequence, process in itertools.product(PEAKS.items(), SEQUENCES, range(5)):
        times = [100.0, *7 * [16e-3 * SLOW.get(name, 1.0)]]
        runs = [(str(run), 16, (1 + process) * peak, times[run]) for run in range(8)]
        runs += [("trimmed", np.nan, peak, np.nan), ("closed", np.nan, -1.0, np.nan)]
        rows += [(name, sequence, process, *run) for run in runs]
    columns = ["candidate", "sequence", "process", "run", "batch", "memory (MiB)", "seconds"]
    return SimpleNamespace(found=pd.DataFrame(rows, columns=columns), legend="planted")


def test_the_setting_disables_memory_patterns_and_nothing_else():
    model = parse("(float[n] X) => (float[n] Y) { Y = Abs(X) }")
    options = run_setting("no_memory_pattern", model)["options"]
    assert (options.enable_mem_pattern, options.enable_cpu_mem_arena) == (False, True)


def test_the_tables_have_the_medians_of_the_processes(page, data):
    """The first run is no time of a row, and no negative memory is shown."""
    held, times, freed = (page[name](data) for name in ("held", "row_times", "freed"))
    assert list(held.columns) == [*SEQUENCES]
    assert held["random"].to_dict() == {name: 3 * peak for name, peak in PEAKS.items()}
    assert times["fixed"].to_dict() == pytest.approx({n: SLOW.get(n, 1.0) for n in PEAKS})
    assert (freed["closed"] == 0).all()
    assert freed["trimmed"].to_dict() == PEAKS
