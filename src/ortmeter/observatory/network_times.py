"""Time the same models on torch and on ONNX Runtime in fresh processes, and profile both."""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd

from ortmeter.child import run_child, set_variables
from ortmeter.errors import OrtMeterError
from ortmeter.observatory.network_runs import network_candidate, start_network
from ortmeter.observatory.networks import NETWORKS, make_inputs
from ortmeter.profiling.kinds import KINDS, OUTSIDE, scale_kinds, session_kinds, torch_kinds
from ortmeter.profiling.run import profile
from ortmeter.progress import progress_bar
from ortmeter.runtime.iobinding import BoundSession
from ortmeter.runtime.providers import Provider
from ortmeter.runtime.sessions import make_session
from ortmeter.timing.candidates import session_candidate
from ortmeter.timing.comparison import Comparisons
from ortmeter.timing.loop import measure_here
from ortmeter.timing.measurement import Candidate
from ortmeter.timing.measuring import measure_each

__all__ = ["CONTENDERS", "measure_networks", "profile_networks"]

#: The library that a model comes from, ONNX Runtime with IOBinding and without, and inductor.
CONTENDERS = LIBRARY, ORT, UNBOUND, INDUCTOR = "eager", "onnxruntime", "session.run", "inductor"

# OpenMP threads of torch wait for 0.1 ms after a function, not for several: ONNX Runtime runs next.
_SHORT_WAIT = {"GOMP_SPINCOUNT": "10000"}
# The allocator of the system keeps what torch returns (the first is the largest that is accepted).
_KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**40)}
_QUIET = {"KINETO_LOG_LEVEL": "99"}
_ROUNDS, _WARMUP, _RUNS_S, _RUNS = 8, 3, 0.03, (3, 10)

Case = tuple[str, int]


def measure_networks(
    cases: Mapping[str, Case],
    models: Mapping[str, onnx.ModelProto],
    *,
    provider: Provider,
    threads: int = 1,
    inductor: bool = False,
    **options: Any,
) -> Comparisons:
    """Time models on the library that they come from, and on ONNX Runtime.

    Parameters
    ----------
    cases : mapping of str to tuple of str and int
        By name, one of :data:`~ortmeter.observatory.networks.NETWORKS` and a batch.
    models : mapping of str to ModelProto
        What :func:`~ortmeter.observatory.networks.export_network` returned, by network.
    provider : Provider
        Where torch and ONNX Runtime run.
    threads : int
        Threads of each.
    inductor : bool
        Whether torch.compile is measured too, where torch is. This process compiles first, which
        takes a minute, and sets the threads of torch; the others find what it compiled.
    **options
        Of :func:`~ortmeter.timing.measure_each`: ``processes``, ``repeat``, ``budget_s``...

    Returns
    -------
    Comparisons
        By case, candidates of :data:`CONTENDERS`, in turn in the same processes. Threads of either
        library soon stop waiting after a run. On CUDA, each call waits for the device.

    Examples
    --------
    >>> from ortmeter.observatory.networks import export_network
    >>> models = {"forest": export_network("forest")[0]}
    >>> found = measure_networks(
    ...     {"one row": ("forest", 1)}, models, provider=Provider("cpu"), repeat=3, precision=None
    ... )
    >>> list(found["one row"])
    ['eager', 'onnxruntime', 'session.run']
    """
    settings: dict[str, Any] = {"provider": str(provider), "threads": threads}
    groups: dict[str, dict[str, Candidate]] = {}
    for case, (name, batch) in cases.items():
        group = {LIBRARY: network_candidate(name, batch, **settings)}
        for way, bound in ((ORT, True), (UNBOUND, False)):
            feeds = make_inputs(name, batch)
            group[way] = session_candidate(models[name], feeds, bound=bound, **settings)
        if inductor and NETWORKS[name].library == "torch":
            group[INDUCTOR] = network_candidate(name, batch, **settings, compiled=True)
        groups[case] = group
    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as folder,
        set_variables({**_SHORT_WAIT, "TORCHINDUCTOR_CACHE_DIR": folder}),
    ):
        for group in groups.values():
            if INDUCTOR in group:
                group[INDUCTOR].function()  # the processes find what this one compiles
        return measure_each(groups, axis="case", sync=str(provider), **options)


def profile_networks(
    cases: Mapping[str, Case],
    models: Mapping[str, onnx.ModelProto],
    *,
    provider: Provider,
    threads: int = 1,
    processes: int = 5,
    turns: int = 2,
) -> pd.DataFrame:
    """Say where the time of a run goes, on torch and on ONNX Runtime, in fresh processes.

    There, the allocator of the system keeps the memory that torch returns, as the arena of a
    session does: what is left is the time of the operators.

    Parameters
    ----------
    cases, models, provider, threads
        As in :func:`measure_networks`; networks of torch only.
    processes : int
        Fresh processes.
    turns : int
        Times that a process takes each case.

    Returns
    -------
    pandas.DataFrame
        One row per case, turn and kind of operator: columns ``case``, ``process``, ``turn``,
        ``kind``, ``eager`` and ``onnxruntime``, in seconds of a run. The rows of a turn add up to
        its median latencies, see :func:`~ortmeter.profiling.kinds.scale_kinds`.

    Raises
    ------
    OrtMeterError
        A process stopped; the message is its own.

    Examples
    --------
    >>> profile_networks({}, {}, provider=Provider("cpu"), processes=1).empty
    True
    """
    rows = []
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary:
        folder = Path(temporary)
        for name, model in models.items():
            onnx.save(model, folder / f"{name}.onnx")
        question, answer = folder / "question.json", folder / "answer.json"
        plain = {
            "cases": dict(cases),
            "provider": str(provider),
            "threads": threads,
            "turns": turns,
        }
        with progress_bar("profiles", total=processes) as bar:
            for process in range(processes if cases else 0):
                question.write_text(json.dumps({**plain, "seed": process}), encoding="utf-8")
                environment = {**_SHORT_WAIT, **_KEEP, **_QUIET}
                child = run_child(__name__, question, answer, environment=environment)
                if child.returncode:
                    last = (child.stderr.strip().splitlines() or ["no message"])[-1]
                    raise OrtMeterError(f"A profiling process stopped: {last}")
                found = json.loads(answer.read_text(encoding="utf-8"))
                rows += [{**row, "process": process} for row in found]
                bar.update()
    return pd.DataFrame(rows, columns=["case", "process", "turn", "kind", LIBRARY, ORT])


def main(question: str, answer: str) -> None:
    """Profile each case: the part of the child."""
    asked = json.loads(Path(question).read_text(encoding="utf-8"))
    provider, threads = Provider.parse(asked["provider"]), asked["threads"]
    rows = []
    rng = np.random.default_rng(asked["seed"])
    try:
        for turn in range(asked["turns"]):
            for case in rng.permutation(list(asked["cases"])).tolist():
                name, batch = asked["cases"][case]
                model = onnx.load(Path(question).with_name(f"{name}.onnx"))
                options = {"seed": turn, "provider": provider, "threads": threads}
                both = profile_both(name, batch, model, **options)
                rows += [{"case": case, "turn": turn, **row} for row in both]
    except OrtMeterError as error:
        sys.exit(str(error))
    rows.sort(key=lambda row: [*asked["cases"]].index(row["case"]))
    Path(answer).write_text(json.dumps(rows), encoding="utf-8")


def profile_both(
    name: str, batch: int, model: onnx.ModelProto, *, seed: int, provider: Provider, threads: int
) -> list[dict[str, Any]]:
    """Time and profile one case in this process: a row per kind of operator."""
    feeds = make_inputs(name, batch)
    call = start_network(name, batch, provider=str(provider), threads=threads, compiled=False)
    session = make_session(model, provider=provider, threads=threads)
    with BoundSession(session, feeds) as bound:
        measured = measure_here(
            {LIBRARY: Candidate(call), ORT: Candidate(bound.run)},
            repeat=_ROUNDS,
            warmup=_WARMUP,
            precision=None,
            budget_s=1.0,
            sync=str(provider),
            seed=seed,
        )
    latencies = {side: measured[side].median for side in measured}
    runs = int(np.clip(_RUNS_S / max(latencies.values()), *_RUNS))
    ran = profile(
        model,
        feeds,
        repeat=runs,
        warmup=runs,
        overhead=False,
        provider=provider,
        threads=threads,
    )
    kinds = {LIBRARY: torch_kinds(call, runs), ORT: session_kinds(ran)}
    scaled = {side: scale_kinds(times, latencies[side]) for side, times in kinds.items()}
    return [
        {"kind": kind, **{side: times.get(kind, 0.0) for side, times in scaled.items()}}
        for kind in (*KINDS, OUTSIDE)
        if any(kind in times for times in scaled.values())
    ]
