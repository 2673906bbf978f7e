"""Run models with one release of ONNX Runtime, for a parent that interleaves several.

This script runs in the environment of that release: it imports NumPy, ONNX Runtime, and
:mod:`ortmeter.releases.runner`, which needs no more.
"""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from ortmeter.releases.runner import Bound, Runner, main, read_feeds

_FATAL_ONLY = 4


class SessionRunner(Runner):
    """A session and its inputs."""

    def __init__(self, question: Mapping[str, Any]) -> None:
        self.question = question
        self.session = _session(question, {})
        self.bound = _bind(self.session, question)
        self.names = [node.name for node in self.session.get_outputs()]

    def record(self, prefix: str, optimized: str) -> None:
        """Open another session, which records its runs."""
        paths = {
            "enable_profiling": True,
            "profile_file_prefix": prefix,
            "optimized_model_filepath": optimized,
        }
        self.session = _session(self.question, paths)
        self.bound = _bind(self.session, self.question)

    def end(self) -> str:
        """Return the file of the runs that were recorded."""
        return str(self.session.end_profiling())


def _session(question: Mapping[str, Any], attributes: Mapping[str, Any]) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _FATAL_ONLY
    for name, value in {**question["attributes"], **attributes}.items():
        if not hasattr(options, name):
            raise ValueError(f"it has no session option {name}")
        setattr(options, name, _enumerated(value) if isinstance(value, list) else value)
    for name in [*question["session_config"], *question["run_config"]]:
        if not _has_key(name):  # this release would ignore it
            raise ValueError(f"it does not read the configuration key {name}")
    for name, value in question["session_config"].items():
        options.add_session_config_entry(name, value)
    name, device = question["provider"]
    providers = [(name, device), "CPUExecutionProvider"]
    if name == "CPUExecutionProvider":
        providers = [name]
    elif name not in ort.get_available_providers():
        raise ValueError(f"it has no {name}, but {', '.join(ort.get_available_providers())}")
    elif name.startswith("CUDA") and hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    session = ort.InferenceSession(
        question["model"], options, providers=providers, enable_fallback=0
    )
    got = session.get_providers()[0]
    if got != name:
        raise ValueError(f"{name} does not work there: the session runs on {got}")
    return session


def _enumerated(value: Sequence[str]) -> Any:
    kind, name = value
    members = getattr(getattr(ort, kind, None), "__members__", {})
    if name not in members:
        raise ValueError(f"it has no {kind} {name}, but {', '.join(members)}")
    return members[name]


@functools.cache
def _has_key(name: str) -> bool:
    folder = Path(ort.__file__).parent / "capi"
    libraries = [p for p in folder.iterdir() if {".so", ".pyd", ".dll", ".dylib"} & {*p.suffixes}]
    files = [file for file in libraries if "provider" not in file.name]
    return any(name.encode() + b"\0" in file.read_bytes() for file in files)


def _bind(session: Any, question: Mapping[str, Any]) -> Bound:
    """Bind the inputs and the outputs, if ONNX Runtime can."""
    feeds = read_feeds(question)
    # Options that say nothing may still take time: 1.30 is slower with them, on bound inputs.
    options: Any = ort.RunOptions() if question["run_config"] else None
    for name, value in question["run_config"].items():
        options.add_run_config_entry(name, value)
    nodes = [*session.get_inputs(), *session.get_outputs()]
    if all(node.type.startswith("tensor(") and "string" not in node.type for node in nodes):
        device = "cuda" if session.get_providers()[0].startswith("CUDA") else "cpu"
        index = int(question["provider"][1].get("device_id", 0))
        binding = session.io_binding()
        make = ort.OrtValue.ortvalue_from_numpy
        values = {name: make(array, device, index) for name, array in feeds.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)

        once = functools.partial(session.run_with_iobinding, binding, options)

        def fresh() -> None:
            for node in session.get_outputs():
                binding.bind_output(node.name, device, index)
            once()

        def first() -> None:
            """Run twice: ONNX Runtime writes into the outputs, unless another shape is declared."""
            fresh()
            bound.run = once
            try:
                once()
            except Exception:  # noqa: BLE001 - each release has its own error
                bound.run = fresh
                fresh()

        bound = Bound(first, lambda: [*map(_array, binding.get_outputs())], (feeds, values))
        return bound
    feeds = {n: a.astype(object) if a.dtype.kind == "U" else a for n, a in feeds.items()}
    run = functools.partial(session.run, None, feeds, options)
    return Bound(run, run, feeds)


def _array(value: Any) -> Any:
    """Copy an output to NumPy, None when its type is not one of NumPy."""
    try:
        return value.numpy()
    except Exception:  # noqa: BLE001 - each release has its own error for bfloat16
        return None


if __name__ == "__main__":
    ort.set_default_logger_severity(_FATAL_ONLY)
    main(SessionRunner, {"onnxruntime": ort.__version__, "numpy": np.__version__})
