"""Run a model and record its profile."""

import os
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.iobinding import BoundSession
from ortmeter.loading import ModelLike, is_onnx_text, load_model, model_files
from ortmeter.profiling.correlation import name_nodes
from ortmeter.profiling.reading import read_recording, read_startup
from ortmeter.profiling.record import Profile
from ortmeter.providers import Provider, resolve_provider
from ortmeter.sessions import make_session
from ortmeter.timing import Speedup, measure, speedup

__all__ = ["profile"]

_OVERHEAD_S = 1.0
_OVERHEAD_ROUNDS = (10, 50)


def profile(
    model: ModelLike,
    feeds: Mapping[str, Any],
    *,
    provider: str | Provider = "auto",
    optimization: str = "all",
    threads: int = 1,
    repeat: int = 10,
    warmup: int = 1,
    tf32: bool = False,
    custom_ops: Iterable[str | os.PathLike[str]] = (),
    overhead: bool = True,
) -> Profile:
    """Run a model and record which kernels run, when, on what, and their memory.

    Two sessions of the same settings are created. One records its runs, in a temporary folder, and
    writes the graph that it optimized. The other one records its start-up only, which writes
    nothing, then tells how long a run takes without recording.

    Parameters
    ----------
    model : ModelProto, bytes, path or text
        See :func:`~ortmeter.loading.load_model`. Nodes without a name get one, operator and rank,
        unless the model has external data.
    feeds : mapping of str to array
        Inputs, bound once on the device, see :class:`~ortmeter.iobinding.BoundSession`.
    provider, optimization, threads, tf32, custom_ops
        Settings of the session, see :func:`~ortmeter.sessions.make_session`.
    repeat : int
        Runs that the statistics are about.
    warmup : int
        Runs before them, recorded too.
    overhead : bool
        Measure the latency with and without recording, in turn. It takes about one second more, or
        ten runs of each when they are longer.

    Returns
    -------
    Profile
        ``warmup + repeat`` runs, with the graph that ran and the original model.

    Raises
    ------
    FeedError
        The feeds do not match the model.
    ModelError
        The model cannot be read, or a kernel failed; nothing is left on the disk.
    InvalidArgumentError
        A setting has a value that is not accepted.
    ProviderUnavailableError
        The provider does not work on this machine.

    Examples
    --------
    >>> import numpy as np
    >>> text = '''<ir_version: 10, opset_import: ["": 21]>
    ... g (float[n] X) => (float[n] Y) { Z = Abs(X)  Y = Exp(Z) }'''
    >>> found = profile(text, {"X": np.float32([1, 2])}, provider="cpu", repeat=3)
    >>> found.by_node()["name"].tolist(), found.iterations
    (['Abs_0', 'Exp_1'], 4)
    """
    if repeat < 1 or warmup < 0:
        raise InvalidArgumentError(
            f"repeat={repeat}, warmup={warmup}. Accepted: repeat from 1, warmup from 0"
        )
    resolved = resolve_provider(provider) if isinstance(provider, str) else provider
    options: dict[str, Any] = {
        "provider": resolved,
        "optimization": optimization,
        "threads": threads,
        "tf32": tf32,
    }
    sessions = {**options, "custom_ops": tuple(custom_ops)}
    source, original = _named(model)
    with tempfile.TemporaryDirectory(prefix="ortmeter-") as folder:
        plain = make_session(source, profile=Path(folder, "startup"), **sessions)
        startup = read_startup(plain.end_profiling())
        optimized = Path(folder, "optimized.onnx")
        with BoundSession(plain, feeds) as bound:
            # Names of inserted nodes may differ in another session: this one tells its own graph.
            session = make_session(
                source, profile=Path(folder, "profile"), optimized_path=optimized, **sessions
            )
            try:
                measured = _run(session, feeds, warmup + repeat, bound if overhead else None)
            finally:
                # This closes the file, which some systems cannot delete otherwise.
                recorded = session.end_profiling()
        recording = read_recording(recorded).keep(startup, warmup + repeat)
        ran = load_model(optimized, external_folder=_folder(model))
    settings = {**options, "provider": str(resolved), "repeat": repeat, "warmup": warmup}
    return Profile(
        *recording.with_domains(ran),
        model=ran,
        original=original,
        overhead=measured,
        settings=settings,
        warmup=warmup,
    )


def _run(
    session: Any, feeds: Mapping[str, Any], count: int, plain: BoundSession | None
) -> Speedup | None:
    """Record the runs, then compare with a session that does not record."""
    with BoundSession(session, feeds) as bound:
        start = time.perf_counter()
        for rank in range(count):
            try:
                bound.run()
            except OrtMeterError as error:
                error.add_note(f"This happened in run {rank} of a profile of {count}.")
                raise
        latency = (time.perf_counter() - start) / count
        return None if plain is None else _overhead(plain, bound, latency)


def _overhead(plain: BoundSession, recorded: BoundSession, latency: float) -> Speedup:
    """Compare latencies without and with recording, measured in turn."""
    least, most = _OVERHEAD_ROUNDS
    rounds = min(max(int(_OVERHEAD_S / 2 / latency), least), most)
    results = measure(
        {"not recorded": plain.run, "recorded": recorded.run}, repeat=rounds, precision=None
    )
    return speedup(results["not recorded"], results["recorded"])


def _is_path(model: ModelLike) -> bool:
    return isinstance(model, str | os.PathLike) and not is_onnx_text(model)


def _folder(model: ModelLike) -> Path | None:
    """Folder of the external data."""
    return Path(model).parent if _is_path(model) else None  # type: ignore[arg-type]


def _named(model: ModelLike) -> tuple[ModelLike, onnx.ModelProto]:
    """Model for the sessions, and the same one with a name for each node."""
    loaded = load_model(model)
    named = name_nodes(loaded)
    # External data is beside the file: another file would not find it.
    if named is loaded or (_is_path(model) and len(model_files(model)) > 1):  # type: ignore[arg-type]
        return model, named
    return named, named
