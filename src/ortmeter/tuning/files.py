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
from typing import Any

import msgspec

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.evidence import plural
from ortmeter.files import write_atomically
from ortmeter.machine.environment import environment
from ortmeter.runtime.arrays import as_numpy
from ortmeter.runtime.digests import content, digest, model_digest
from ortmeter.runtime.loading import is_path, load_model, write_model
from ortmeter.runtime.providers import resolve_provider
from ortmeter.runtime.sessions import session_code
from ortmeter.runtime.settings import DEFAULT as PLAIN
from ortmeter.timing.candidates import SessionSpec
from ortmeter.timing.measurement import SpawnSpec
from ortmeter.tuning.race import DEFAULT, TUNED
from ortmeter.tuning.space import Setup
from ortmeter.tuning.waves import ALWAYS

SESSION, SCRIPT, MODEL = "session.json", "session.py", "model.onnx"
_FEW = 8  # integers that are written
_RUN = '''

def bind(feeds):
    """Bind inputs by name, once. session.run_with_iobinding(binding) fills binding.get_outputs().

    On CPU, write inputs into the same contiguous arrays. Elsewhere or for other shapes, bind again.
    """
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    return binding
'''


class Session(msgspec.Struct, kw_only=True):
    """A session that was chosen, as its file has it: what to set, and what it was measured on."""

    default: str
    model: str
    provider: str
    default_provider: str
    threads: int  # of the default, 0 for as many as there are cores
    settings: dict[str, Any]  # what differs from the default
    io_binding: bool
    changes: list[dict[str, str]]
    inputs: dict[str, list[str]]  # as the options --shape and --value take them
    model_digest: str
    inputs_digest: str
    versions: dict[str, str]
    machine: str
    result: dict[str, Any]


def write_session(
    folder: Path, setup: Setup, default: SessionSpec, result: Mapping[str, Any]
) -> Session:
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
    Session
        What was written; its paths are relative to the folder.
    """
    spec, file = setup.spec, folder / MODEL
    original = Path(default.model).resolve() if is_path(default.model) else file
    if spec.model is default.model:
        file = original
    if file == folder / MODEL:
        write_model(load_model(spec.model), file)
    plain, settings = dict(default.settings), dict(spec.settings)
    arrays = {name: as_numpy(value) for name, value in spec.feeds.items()}
    few = {n: a for n, a in arrays.items() if a.dtype.kind in "iub" and a.size <= _FEW}
    machine, inside = environment(), folder.resolve()
    found = Session(
        default=Path(os.path.relpath(original, inside)).as_posix(),
        model=Path(os.path.relpath(file, inside)).as_posix(),
        provider=str(settings.pop("provider")),
        default_provider=str(plain.pop("provider")),
        threads=plain["threads"],
        settings={name: v for name, v in settings.items() if v != plain.get(name)},
        io_binding=spec.bound,
        changes=[{"axis": c.axis, "set": c.name, "reason": c.reason} for c in setup.changes],
        inputs={
            "shape": [f"{n}={'x'.join(map(str, a.shape))}" for n, a in arrays.items() if a.shape],
            "value": [f"{n}={json.dumps(a.tolist())}" for n, a in few.items()],
        },
        model_digest=model_digest(original),
        inputs_digest=digest(map(content, arrays.values())),
        versions=dict(machine.packages),
        machine=machine.hardware,
        result=dict(result),
    )
    text = json.dumps(msgspec.to_builtins(found), indent=2) + "\n"
    write_atomically(folder / SESSION, text.encode())
    write_atomically(folder / SCRIPT, _script(found).encode())
    return found


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
    if model_digest(Path(found.default)) != found.model_digest:
        raise InvalidArgumentError(f"{found.default} is not the model that {file} was measured on")
    return found


def is_of_another(folder: Path, model: Path) -> bool:
    """Whether a folder has what was found for another model."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads((folder / SESSION).read_bytes())
        return bool(kept["model_digest"] != model_digest(model))
    return False


def session_specs(found: Session, feeds: Mapping[str, Any]) -> dict[str, SessionSpec]:
    """Return the default, and what was chosen if it differs, to be measured on these inputs."""
    default, chosen = map(resolve_provider, (found.default_provider, found.provider))
    plain = {**PLAIN, "threads": found.threads, "provider": default}
    specs = {DEFAULT: SessionSpec(Path(found.default), feeds, plain, bound=False)}
    if found.changes:
        settings = {**plain, "provider": chosen, **found.settings}
        specs[TUNED] = SessionSpec(Path(found.model), feeds, settings, bound=found.io_binding)
    return specs


def _script(found: Session) -> str:
    """Write the session as plain onnxruntime, which finds its model from anywhere."""
    where = f"str(Path(__file__).resolve().parent / {found.model!r})"
    settings = {**({"threads": found.threads} if found.threads else {}), **found.settings}
    provider = resolve_provider(found.provider)
    code = session_code("MODEL", provider=provider, **settings).replace('"MODEL"', where)
    told = ", ".join(change["set"] for change in found.changes) or "the defaults"
    told += f", on {plural(found.threads, 'core')}" if found.threads else ""
    head = f'"""Session chosen by ortmeter tune: {told}."""\n\nfrom pathlib import Path\n\n'
    return f"{head}{code}\n{_RUN if found.io_binding else ''}"


def key_of(references: Sequence[SpawnSpec], asked: object) -> str:
    """Identify a search: its model, settings, inputs, questions, machine and versions."""
    machine, given = environment(), [reference.arguments for reference in references]
    fed = digest(Path(file).read_bytes() for one in given for file in one["feeds"].values())
    measured = model_digest(Path(given[0]["model"])), given[0]["settings"], fed
    known = measured, asked, machine.identity, sorted(machine.packages.items())
    return digest([repr(known).encode()])


class Journal:
    """Waves of measurements, kept in a file: a search that begins again finds them there.

    Parameters
    ----------
    file : Path
        Where they are kept.
    key : str
        What identifies the search: what another one left is not read.
    """

    def __init__(self, file: Path, key: str) -> None:
        self._file, self._kept = file, dict[str, Any](key=key, waves=[])
        self.rank, self.replayed_s = 0, 0.0
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found = json.loads(file.read_bytes())
            self._kept = found if found["key"] == key else self._kept

    def wave(
        self, names: Sequence[str], take: Callable[[], Mapping[str, Sequence[float]]]
    ) -> Mapping[str, Sequence[float]]:
        """Return the next wave: the one that is kept, if it can be one of these, or another."""
        waves, rank = self._kept["waves"], self.rank
        self.rank += 1
        if rank < len(waves) and {*names[:ALWAYS]} <= {*waves[rank]["samples"]}:
            self.replayed_s += waves[rank]["seconds"]
            return {name: s for name, s in waves[rank]["samples"].items() if name in names}
        start = time.perf_counter()
        samples = {name: [*map(float, values)] for name, values in take().items()}
        waves[rank:] = [{"samples": samples, "seconds": time.perf_counter() - start}]
        write_atomically(self._file, json.dumps(self._kept).encode())
        return samples


def run_metric(command: str, setup: Setup, default: SessionSpec, folder: Path) -> list[float]:
    """Ask a command about a candidate: it prints a score, or one per sample.

    Parameters
    ----------
    command : str
        It gets the file of the model and ``session.json``.
    setup : Setup
        The candidate.
    default : SessionSpec
        What it changes.
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
    model = folder / write_session(folder, setup, default, {}).model
    asked = [*shlex.split(command), str(model.resolve()), str(folder / SESSION)]
    try:
        # The user's own command, and no shell.
        done = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603
        return list(map(float, done.stdout.split())) or [math.nan]
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        told = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        raise OrtMeterError(
            f"--metric {command!r} failed: {''.join(told)}. Accepted: a command that prints numbers"
        ) from error
