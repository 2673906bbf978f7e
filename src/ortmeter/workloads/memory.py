"""Resident memory and latency of a session over a sequence of batches, in fresh processes."""

import ctypes
import functools
import gc
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ortmeter.errors import OrtMeterError
from ortmeter.machine.gpu import used_memory
from ortmeter.optional import pd
from ortmeter.progress import follow
from ortmeter.runtime.iobinding import run_session
from ortmeter.runtime.providers import Provider
from ortmeter.timing.candidates import SessionSpec, write_specs
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.workloads.startup import call_candidate, resident_memory

__all__ = ["measure_memory"]

_COLUMNS = ["candidate", "sequence", "process", "run", "batch", "memory (MiB)", "seconds"]


def measure_memory(
    variants: Mapping[str, SessionSpec],
    sequences: Mapping[str, Sequence[int]],
    *,
    processes: int = 3,
) -> "pd.DataFrame":
    """Watch the memory of a process that runs a session on one batch after the other.

    Parameters
    ----------
    variants : mapping of str to SessionSpec
        Candidates by name. Their inputs have the largest batch along the first axis; a run takes
        the first rows, with IOBinding where the variant is bound.
    sequences : mapping of str to sequence of int
        Sizes of the batches, in the order of the runs.
    processes : int
        Fresh processes for each candidate and sequence.

    Returns
    -------
    pandas.DataFrame
        One row per candidate, sequence, process and run: *batch*, its size, *memory (MiB)*, by how
        much the memory has grown since the session was created, and
        *seconds* of the run, its copies and the binding of its inputs included. The memory is the
        resident one of the process, or, on CUDA, that in use on the device. Two more rows have
        no batch: run ``trimmed``, once the allocator of the system has returned what it can
        (``malloc_trim`` of glibc), and ``closed``, once the session is closed too.

    Raises
    ------
    OrtMeterError
        A process failed, or the system does not tell the memory of a process.

    Examples
    --------
    >>> from ortmeter.timing.candidates import model_variants
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n, 4] X) => (float[n, 4] Y) { Y = Abs(X) }'''
    >>> variants = model_variants({"abs": text}, [{"X": np.ones((8, 4), "f")}], provider="cpu")
    >>> found = measure_memory(variants, {"growing": [1, 8]}, processes=1)
    >>> found["run"].tolist()
    ['0', '1', 'trimmed', 'closed']
    """
    turns = list(itertools.product(variants, sequences, range(processes)))
    rows: dict[tuple[str, str, int], list[Any]] = {turn: [] for turn in turns}
    with write_specs(variants) as spawn_specs:
        order = np.random.default_rng(0).permutation(len(turns)).tolist()
        for rank in follow(order, "processes"):
            name, sequence, _ = turn = turns[rank]
            sizes = [int(size) for size in sequences[sequence]]
            runs = [*map(str, range(len(sizes))), "trimmed", "closed"]
            told = call_candidate(name, _watch, spawn_spec=spawn_specs[name], sizes=sizes)
            columns = itertools.zip_longest(runs, sizes, *told, fillvalue=np.nan)
            rows[turn] = [(*turn, *row) for row in columns]
    return pd.DataFrame(list(itertools.chain(*rows.values())), columns=_COLUMNS)


def _watch(spawn_spec: SpawnSpec, sizes: list[int]) -> tuple[list[float], list[float]]:
    """Return the growth of the memory (MiB) after each run, once trimmed, once closed; seconds."""
    variant: SessionSpec = spawn_spec.build()
    memory = functools.partial(_used_memory, variant.settings["provider"])
    session = variant.session()
    before = memory()
    used, seconds = [], []
    for size in sizes:
        feeds = {name: feed[:size] for name, feed in variant.feeds.items()}
        start = time.perf_counter()
        run_session(session, feeds, variant.run_config, bound=variant.bound)
        seconds.append(time.perf_counter() - start)
        used.append(memory())
    _trim()
    used.append(memory())
    del session
    gc.collect()
    _trim()
    return [now - before for now in [*used, memory()]], seconds


def _used_memory(provider: Provider) -> float:
    """Read the memory, in MiB."""
    used = used_memory(provider) if provider.on_cuda else (resident_memory() or (None,))[0]
    if used is None:
        raise OrtMeterError(
            f"the memory of {provider} is not reported. Accepted: Linux, and nvidia-ml-py for CUDA"
        )
    return used


def _trim() -> None:
    """Let the allocator return what it keeps, where it can be asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
