"""What a search leaves: the model, its session as JSON and as Python, and a journal to go on."""

import contextlib
import json
import math
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.files import write_atomically
from ortmeter.machine.environment import environment
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.digests import content, digest, model_digest
from ortmeter.runtime.loading import is_path, load_model
from ortmeter.runtime.providers import Provider, resolve_provider
from ortmeter.runtime.sessions import session_code
from ortmeter.runtime.settings import DEFAULT
from ortmeter.timing.candidates import SessionSpec
from ortmeter.tuning.space import Setup

SESSION, SCRIPT, MODEL = "session.json", "session.py", "model.onnx"
_VERSION = 1
_FEW = 8  # integers that are written
_RUN = '''

def run(feeds):
    """Run the session on inputs, a mapping of names to arrays, bound before the run."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()
'''

_MAIN = """
if __name__ == "__main__":
    print(*(f"{i.name}: {i.type} {i.shape}" for i in session.get_inputs()), sep="\\n")
"""


class Session(msgspec.Struct):
    """A session that was chosen, as its file has it: what to set, where it was measured."""

    version: int
    default: str
    model: str
    provider: str
    threads: int  # of the default, 0 for as many as there are cores
    settings: dict[str, Any]
    bound: bool
    changes: list[dict[str, str]]
    inputs: dict[str, list[str]]  # as the options --shape and --value take them
    digest: str
    digest_inputs: str
    versions: dict[str, str]
    machine: str
    result: dict[str, Any]


class Written(NamedTuple):
    """What was written: the file of the model, wherever it is, and names in the folder."""

    model: Path
    names: list[str]


def write_session(
    folder: Path, setup: Setup, default: SessionSpec, result: Mapping[str, Any]
) -> Written:
    """Write the model if it changed, ``session.json`` and ``session.py``.

    Parameters
    ----------
    folder : Path
        An existing folder.
    setup : Setup
        What was chosen.
    default : SessionSpec
        What it was compared with.
    result : mapping
        What the confirmation found, plain values.

    Returns
    -------
    Written
        The file of the model, that of the default if it did not change, and the names of the files.
    """
    original = Path(default.model).resolve() if is_path(default.model) else None
    spec, file = setup.spec, folder / MODEL
    if original is not None and spec.model is default.model:
        file = original
    else:
        write_atomically(file, load_model(spec.model).SerializeToString())
    provider = spec.settings["provider"]
    settings = {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in spec.settings.items()
        if name != "provider" and value != DEFAULT.get(name)
    }
    machine = environment()
    arrays = {name: as_numpy(value) for name, value in spec.feeds.items()}
    few = {n: a for n, a in arrays.items() if a.dtype.kind in "iub" and a.size <= _FEW}
    found = Session(
        version=_VERSION,
        default=_relative(original or file, folder),
        model=_relative(file, folder),
        provider=str(provider),
        threads=default.settings["threads"],
        settings=settings,
        bound=spec.bound,
        changes=[{"axis": c.axis, "set": c.name, "reason": c.reason} for c in setup.changes],
        inputs={
            "shape": [f"{n}={'x'.join(map(str, a.shape))}" for n, a in arrays.items() if a.shape],
            "value": [f"{n}={json.dumps(a.tolist())}" for n, a in few.items()],
        },
        digest=model_digest(original or file),
        digest_inputs=_inputs_digest(spec.feeds),
        versions=dict(machine.packages),
        machine=machine.hardware,
        result=dict(result),
    )
    text = json.dumps(msgspec.to_builtins(found), indent=2) + "\n"
    write_atomically(folder / SESSION, text.encode())
    write_atomically(folder / SCRIPT, _script(found, provider).encode())
    return Written(file, [SESSION, SCRIPT, *([] if file == original else [MODEL])])


def read_session(file: Path) -> Session:
    """Read what :func:`write_session` wrote, with the paths of its models.

    Parameters
    ----------
    file : Path
        ``session.json``.

    Returns
    -------
    Session
        Its models exist; that of the default is the one that was measured.

    Raises
    ------
    InvalidArgumentError
        The file is not one of these, or a model is missing or has changed.
    """
    try:
        found = msgspec.json.decode(file.read_bytes(), type=Session)
        for name in ("default", "model"):
            setattr(found, name, str((file.parent / getattr(found, name)).resolve(strict=True)))
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidArgumentError(
            f"{file}: {error}. Accepted: a session.json of ortmeter tune, with its models"
        ) from error
    if model_digest(Path(found.default)) != found.digest:
        raise InvalidArgumentError(f"{found.default} is not the model that {file} was measured on")
    return found


def is_of_another(folder: Path, model: Path) -> bool:
    """Whether a folder has what was found for another model."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return bool(json.loads((folder / SESSION).read_bytes())["digest"] != model_digest(model))
    return False


def session_specs(found: Session, feeds: Mapping[str, Any]) -> dict[str, SessionSpec]:
    """Return the default and what was chosen, to be measured on these inputs."""
    plain = {**DEFAULT, "threads": found.threads, "provider": resolve_provider(found.provider)}
    settings = {**plain, **found.settings}
    return {
        "default": SessionSpec(Path(found.default), feeds, plain, {}, bound=False),
        "tuned": SessionSpec(Path(found.model), feeds, settings, {}, bound=found.bound),
    }


def _script(found: Session, provider: Provider) -> str:
    """Write the session as plain onnxruntime, which finds its model from anywhere."""
    code = session_code("MODEL", **found.settings)
    where = f"str(Path(__file__).resolve().parent / {found.model!r})"
    code = code.replace('"MODEL"', where)
    if not provider.is_cpu and "provider_options" not in found.settings:
        names = [provider.execution_provider, "CPUExecutionProvider"]
        code = code.replace(f"{where}, options", f"{where}, options, providers={names!r}")
    told = ", ".join(change["set"] for change in found.changes) or "the defaults"
    told += f", on {found.threads} core{'s' * (found.threads > 1)}" if found.threads else ""
    head = f'"""Session chosen by ortmeter tune: {told}."""\n\nfrom pathlib import Path\n\n'
    return f"{head}{code}\n{_RUN if found.bound else ''}{_MAIN}"


def _relative(file: Path, folder: Path) -> str:
    return Path(os.path.relpath(file, folder.resolve())).as_posix()


def key_of(
    default: SessionSpec, samples: Sequence[Mapping[str, Any]], asked: Sequence[object]
) -> str:
    """Identify a search: its model, inputs, questions, machine and versions."""
    model, machine = default.model, environment()
    if is_path(model):
        own = model_digest(Path(model))
    else:
        own = digest([load_model(model).SerializeToString()])
    fed = [_inputs_digest(feeds) for feeds in samples]
    packages = sorted(machine.packages.items())
    return digest([repr((own, fed, asked, machine.identity, packages)).encode()])


def _inputs_digest(feeds: Mapping[str, Any]) -> str:
    return digest(content(as_numpy(value)) for value in feeds.values())


class Journal:
    """Waves of measurements, kept in a file: a search that begins again finds them there.

    Parameters
    ----------
    file : Path, optional
        Where they are kept, nowhere by default.
    key : str
        What identifies the search: what another one left is not read.
    """

    def __init__(self, file: Path | None, key: str) -> None:
        self._file = file
        self._kept: dict[str, Any] = {"key": key, "refused": {}, "waves": []}
        self.rank, self.replayed_s = 0, 0.0
        if file is not None and file.is_file():
            with contextlib.suppress(ValueError, TypeError):
                found = json.loads(file.read_bytes())
                self._kept = found if found["key"] == key else self._kept

    @property
    def refused(self) -> dict[str, str]:
        """Why candidates were refused, if there is a wave without them."""
        return dict(self._kept["refused"]) if self._kept["waves"] else {}

    def wave(
        self,
        names: Sequence[str],
        take: Callable[[], Mapping[str, Sequence[float]]],
        refused: Mapping[str, str],
    ) -> Mapping[str, Sequence[float]]:
        """Return the next wave: the one that is kept, if it has these candidates, or another."""
        waves, rank = self._kept["waves"], self.rank
        self.rank += 1
        if rank < len(waves) and list(waves[rank]["samples"]) == list(names):
            self.replayed_s += waves[rank]["seconds"]
            kept: Mapping[str, Sequence[float]] = waves[rank]["samples"]
            return kept
        start = time.perf_counter()
        samples = {name: [*map(float, values)] for name, values in take().items()}
        waves[rank:] = [{"samples": samples, "seconds": time.perf_counter() - start}]
        self._kept["refused"] = dict(refused)
        if self._file is not None:
            write_atomically(self._file, json.dumps(self._kept).encode())
        return samples


def run_metric(command: str, setup: Setup, folder: Path) -> list[float]:
    """Ask a command about a candidate: it prints a score, or one per sample.

    Parameters
    ----------
    command : str
        It gets the file of the model and ``session.json``.
    setup : Setup
        The candidate.
    folder : Path
        Where both are written.

    Returns
    -------
    list of float
        What it printed.

    Raises
    ------
    OrtMeterError
        The command failed, or printed no number.
    """
    model = write_session(folder, setup, setup.spec, {}).model
    asked = [*shlex.split(command), str(model), str(folder / SESSION)]
    try:
        # The user's own command, and no shell.
        done = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603
        return list(map(float, done.stdout.split())) or [math.nan]
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise OrtMeterError(
            f"--metric {command!r} failed: {''.join(told)}. Accepted: a command that prints numbers"
        ) from error
