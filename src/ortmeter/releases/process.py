"""A process of its own for each release of ONNX Runtime, and the questions that it answers."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ortmeter.child import Child, script_command
from ortmeter.errors import InvalidArgumentError, ModelError
from ortmeter.releases.environments import Release
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.loading import is_path, load_model
from ortmeter.runtime.ortvalues import is_known_to_numpy
from ortmeter.runtime.providers import THREADS
from ortmeter.runtime.sessions import LEVELS, check_settings
from ortmeter.runtime.settings import apply_options, checked_config, spinning_config
from ortmeter.timing.candidates import SessionSpec

_SCRIPT = Path(__file__).with_name("child.py")
_PATIENCE_S = 300.0

_IGNORES_THREADS = "OpenVINOExecutionProvider"  # those of the session


class ReleaseProcess(Child):
    """A process that runs models with one release; it answers one question at a time.

    It is a function that runs its model once, with a clock of its own: a candidate. A process that
    does not answer within *patience_s* seconds is killed.
    """

    _lines = 1

    def __init__(
        self, release: Release, script: Path | None = None, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self.release = release
        python = release.python if release.key else None
        command = script_command(script or _SCRIPT, python)
        super().__init__(command, name=f"{release.name}: its process", patience_s=patience_s)

    def open(self, question: Mapping[str, Any]) -> None:
        """Create the session of a variant; it takes the place of the one before."""
        self.start_open(question)
        self.answer()

    def start_open(self, question: Mapping[str, Any]) -> None:
        """Ask for a session; :meth:`answer` waits for it. Several processes open side by side."""
        name, device = question["provider"]
        if own := self.release.provider:
            known = device if own.execution_provider == name else {}
            name, device = own.execution_provider, {**known, **own.options}
        threads = question["attributes"].get("intra_op_num_threads")
        if threads and name == _IGNORES_THREADS:
            device = {THREADS: str(threads), **device}
        self.start("open", **{**question, "provider": [name, device]})

    def sample(self, number: int, settling: int = 0) -> float:
        """Return the seconds of a call, mean of *number* calls after *settling* others."""
        return float(self.ask("sample", number=number, settling=settling))

    def outputs(self, folder: Path) -> dict[str, np.ndarray]:
        """Run the session once, and read its outputs that are numbers, by way of a file."""
        names = self.ask("outputs", file=str(folder / "outputs.npz"))
        with np.load(folder / "outputs.npz", allow_pickle=False) as file:
            return {name: file[key] for name, key in names.items()}

    def __call__(self) -> None:
        self.sample(1)

    def _error(self, told: Mapping[str, Any]) -> ModelError:
        return ModelError(f"{self.release.name}: {told['error']}")


def run_once(release: Release, variant: SessionSpec, **options: Any) -> dict[str, np.ndarray]:
    """Run a variant once, in a process of its own: its outputs that are numbers."""
    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as folder,
        ReleaseProcess(release, **options) as child,
    ):
        child.open(write_questions({"": variant}, Path(folder))[""])
        return child.outputs(Path(folder))


def write_questions(variants: Mapping[str, SessionSpec], folder: Path) -> dict[str, dict[str, Any]]:
    """Write what the processes read: models that are no file, inputs, settings."""
    return {
        name: _question(variant, folder / str(rank))
        for rank, (name, variant) in enumerate(variants.items())
    }


def _question(variant: SessionSpec, base: Path) -> dict[str, Any]:
    settings = {"threads": 1, "optimization": "all", "spinning": "during-run", **variant.settings}
    plain = {name: settings[name] for name in ("threads", "optimization", "spinning")}
    check_settings(**plain)
    # Values are checked as those of a session are, and travel by name.
    attributes = SimpleNamespace()
    apply_options(attributes, settings.get("session_options") or {})
    usual = spinning_config(plain["spinning"])
    config = {**usual, **checked_config(settings.get("session_config") or {})}
    provider = settings["provider"]
    tf32 = {"use_tf32": str(int(settings.get("tf32", False)))} if provider.on_cuda else {}
    device = {**provider.options, **tf32}
    device |= {k: str(v) for k, v in (settings.get("provider_options") or {}).items()}
    if is_path(variant.model):
        model = Path(variant.model).resolve()
    else:
        model = base.with_suffix(".onnx")
        model.write_bytes(load_model(variant.model).SerializeToString())
    return {
        "model": str(model),
        "arrays": str(base.with_suffix(".npz")),
        "feeds": _write_arrays(variant.feeds, base.with_suffix(".npz")),
        "provider": [provider.execution_provider, device],
        "attributes": {
            "intra_op_num_threads": plain["threads"],
            "graph_optimization_level": ["GraphOptimizationLevel", LEVELS[plain["optimization"]]],
            # Members of enumerations by name: their numbers may differ in another release.
            **{
                name: value if isinstance(value, bool | int) else [type(value).__name__, value.name]
                for name, value in vars(attributes).items()
            },
        },
        "session_config": config,
        "run_config": {name: str(value) for name, value in variant.run_config.items()},
    }


def _write_arrays(feeds: Mapping[str, Any], file: Path) -> dict[str, str]:
    """Write inputs without pickle; for each, its name in the file."""
    arrays = []
    for name, value in feeds.items():
        array = as_numpy(value)
        is_text = array.dtype.kind in "OSUT"
        if not is_text and not is_known_to_numpy(array.dtype):
            raise InvalidArgumentError(
                f"input {name!r} is {array.dtype}. Accepted between releases: types of NumPy, texts"
            )
        arrays.append(array.astype(str) if is_text else array)
    np.savez(file, *arrays)
    return {name: f"arr_{rank}" for rank, name in enumerate(feeds)}
