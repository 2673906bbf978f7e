"""Which nodes ONNX Runtime shares between threads, and how: the scheduling of its profiles."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortmeter.profiling.events import KERNEL
from ortmeter.runtime.iobinding import open_session
from ortmeter.runtime.loading import ModelLike
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session

__all__ = ["shared_nodes"]

_RUNS = 2


def shared_nodes(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    provider: str | Provider = "auto",
    threads: int = 2,
) -> dict[str, bool]:
    """Tell which nodes ONNX Runtime cuts into blocks for several threads.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.runtime.loading.load_model`.
    feeds : mapping of str to array
        Inputs: their sizes decide.
    provider : str or Provider
        See :func:`~ortmeter.runtime.sessions.make_session`.
    threads : int
        Threads inside an operator.

    Returns
    -------
    dict of str to bool
        By name of node after the optimizations, whether its kernel gave blocks to the threads. A
        kernel of CUDA gives none.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { [exp] Y = Exp(X) }'''
    >>> sizes = (16, 1 << 20)
    >>> [shared_nodes(text, {"X": np.ones(n, np.float32)}, provider="cpu") for n in sizes]
    [{'exp': False}, {'exp': True}]
    """
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        prefix = Path(folder, "profile")
        session = make_session(
            model, provider=provider, threads=threads, spinning="off", profile=prefix
        )
        call = open_session(session, feeds).run
        for _ in range(_RUNS):
            call()
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    shared: dict[str, bool] = {}
    for event in events:
        name, is_kernel, _ = event["name"].rpartition(KERNEL)
        if is_kernel:
            stats = event["args"].get("thread_scheduling_stats") or {}
            blocks = stats.get("main_thread", {}).get("block_size", [])
            shared[name] = shared.get(name, False) or bool(blocks)
    return shared
