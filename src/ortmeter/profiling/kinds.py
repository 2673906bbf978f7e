"""Pair the profiles of two libraries, torch and ONNX Runtime, by kind of operator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pandas as pd

from ortmeter.errors import InvalidArgumentError
from ortmeter.operators.kinds import kind_of
from ortmeter.optional import import_optional
from ortmeter.profiling.record import Profile

__all__ = ["OUTSIDE", "session_kinds", "torch_kinds"]

#: What a run does outside of any operator.
OUTSIDE = "outside"
_RUN = "ortmeter run"
_SECONDS_PER_US = 1e-6


def session_kinds(found: Profile) -> dict[str, float]:
    """Sum the kernels of a run by kind.

    Parameters
    ----------
    found : Profile
        Of :func:`~ortmeter.profiling.profile`.

    Returns
    -------
    dict of str to float
        Seconds of a run by kind, median over the steady runs. A node of several operators counts
        for the one that names it: a convolution with its normalization is a convolution. ONNX
        Runtime counts in whole microseconds; on CUDA, it times launches.

    Examples
    --------
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[8] X) => (float[8] Y) { Z = Softmax(X)  Y = Exp(Z) }'''
    >>> from ortmeter.profiling import profile
    >>> x = np.ones(8, np.float32)
    >>> ran = profile(text, {"X": x}, provider="cpu", repeat=3, overhead=False)
    >>> list(session_kinds(ran))
    ['attention', 'elementwise']
    """
    events, weighted = found.steady, _weighted(found.model)
    pairs = zip(events["op"], events["name"], strict=True)
    kinds = [kind_of(str(op), computed=str(name) not in weighted) for op, name in pairs]
    return _median_run(kinds, events["iteration"], events["self_duration"])


def _weighted(model: onnx.ModelProto | None) -> set[str]:
    """Name the nodes that have a constant input."""
    if model is None:
        return set()
    constants = {tensor.name for tensor in model.graph.initializer}
    return {node.name for node in model.graph.node if constants.intersection(node.input)}


def _median_run(kinds: Any, runs: Any, microseconds: Any) -> dict[str, float]:
    """Median over the runs of the time of each kind, in the order in which kinds come."""
    times = {"kind": list(kinds), "run": np.asarray(runs), "time": np.asarray(microseconds)}
    frame = pd.DataFrame(times)
    whole = frame.pivot_table("time", "run", "kind", aggfunc="sum", fill_value=0, sort=False)
    return {str(kind): float(_SECONDS_PER_US * whole[kind].median()) for kind in whole}


def torch_kinds(call: Callable[[], object], runs: int = 5) -> dict[str, float]:
    """Sum the functions of torch that a call runs, by kind.

    Parameters
    ----------
    call : callable
        Runs a model on torch, without arguments.
    runs : int
        Number of runs in the median, after one that is left out.

    Returns
    -------
    dict of str to float
        Seconds of a run by kind. A function counts with those that it calls: what ``aten::linear``
        does is a matrix product. On CUDA, it is the time of the host.

    Raises
    ------
    InvalidArgumentError
        There is no run.

    Examples
    --------
    >>> import torch
    >>> x = torch.ones(8, 8)
    >>> list(torch_kinds(lambda: torch.relu(torch.nn.functional.linear(x, x)), 2))
    ['matrix product', 'elementwise']
    """
    if runs < 1:
        raise InvalidArgumentError(f"runs={runs}. Accepted: an integer from 1")
    profiler = import_optional("torch", "torch").profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(1 + runs):
            with profiler.record_function(_RUN):
                call()
    return sum_functions(recorded.events())


def sum_functions(events: Any) -> dict[str, float]:
    """Sum the outermost functions of each run but the first one."""
    ranks = {e.id: rank for rank, e in enumerate(e for e in events if e.name == _RUN)}
    rows = [
        (kind_of(e.name), ranks[e.cpu_parent.id], e.time_range.elapsed_us())
        for e in events
        if e.cpu_parent is not None and ranks.get(e.cpu_parent.id)
    ]
    return _median_run(*zip(*rows, strict=True)) if rows else {}
