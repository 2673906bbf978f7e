"""Releases of ONNX Runtime, each in an environment of its own that is kept in the cache."""

import datetime as dt
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import threading
import venv
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from ortmeter.child import kill_group, process_group
from ortmeter.errors import InvalidArgumentError, OrtMeterError, without_password
from ortmeter.files import cache_folder, write_atomically
from ortmeter.runtime.providers import Provider

__all__ = ["Release", "parse_release", "prepare"]

#: Distributions that install the module ``onnxruntime``.
DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino")
_MADE_FOR = {"onnxruntime-openvino": Provider("openvino")}
INSTALLED = "installed"

_ACCEPTED = (
    f"Accepted: a version (1.31.1), a distribution with or without its version "
    f"({', '.join(DISTRIBUTIONS)}==1.30.0), a wheel file, {INSTALLED}"
)
_FOR_NUMPY_2 = Version("1.19")  # the first release that is
_GPU_LIBRARIES = Version("1.21")  # the first release that takes them from wheels
_SILENCE_S, _ANSWER_S = 3, 4.0  # seconds: on a connection, until the registry said something
# pip says that it could not reach a registry at this level only.
_PIP_OPTIONS = ("--no-input", "-vv", "--retries=0", f"--timeout={_SILENCE_S}")
_ANSWERED = re.compile(r"\s*(Fetched page http|Downloading |Using cached |Resolved |Processing )")
_AVAILABLE = "Available versions: "
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"
_MARK = "release.json"
_LONGEST = 600  # characters of a reason
_MIB = 1 << 20

_Tell = Callable[[str], None]


@dataclass(frozen=True)
class Release:
    """A release of ONNX Runtime, as asked for.

    Parameters
    ----------
    name : str
        How tables name it: ``1.31.1``, ``onnxruntime-gpu 1.30.0``.
    requirements : tuple of str
        What the installer is asked for; empty for the environment of this process.
    key : str
        Name of its folder in the cache.
    provider : Provider, optional
        What runs its sessions, by default the provider of each variant. It is the one that the
        distribution is made for, where there is one.
    """

    name: str
    requirements: tuple[str, ...] = ()
    key: str = ""
    provider: Provider | None = None

    @property
    def folder(self) -> Path:
        """Folder of the environment; it exists when the environment is complete."""
        return releases_folder() / self.key

    @property
    def python(self) -> Path:
        """The interpreter that has this release."""
        return _python_of(self.folder) if self.key else Path(sys.executable)


def parse_release(text: str, provider: str = "cpu") -> Release:
    """Read what names a release.

    Parameters
    ----------
    text : str
        A version (``1.31.1``), a distribution (``onnxruntime-gpu==1.30.0``,
        ``onnxruntime-openvino``), the path of a wheel, or ``installed``.
    provider : str
        A version alone is one of ``onnxruntime-gpu`` when this is ``cuda``.

    Returns
    -------
    Release
        Nothing is installed yet, see :func:`prepare`.

    Raises
    ------
    InvalidArgumentError
        The text is something else: an option of the installer, another package, an address.

    Examples
    --------
    >>> parse_release("1.31.1").requirements[0]
    'onnxruntime==1.31.1'
    """
    if text == INSTALLED:
        return Release(INSTALLED)
    default = _default(provider)
    if text.endswith(".whl"):
        return _wheel(text)
    distribution, version = _distribution(text, default)
    # Where no system has the libraries of CUDA, they come as wheels, of 2 GB.
    needs = provider == "cuda" and distribution == "onnxruntime-gpu"
    extras = "[cuda,cudnn]" if needs and (version is None or version >= _GPU_LIBRARIES) else ""
    # Without a version, the newest one of today.
    suffix = f"{version or dt.datetime.now(tz=dt.UTC).date()}{'-cuda' if extras else ''}"
    requirement = f"{distribution}{extras}{f'=={version}' if version else ''}"
    return _release(text.replace("==", " "), distribution, requirement, version, suffix=suffix)


def list_releases(first: str, last: str, provider: str = "cpu") -> list[Release]:
    """List what the registry has from one version to another, with a wheel for this Python.

    Parameters
    ----------
    first, last : str
        Versions, the older first.
    provider : str
        They are versions of ``onnxruntime-gpu`` when this is ``cuda``.

    Returns
    -------
    list of Release
        Final releases, the two ends included, oldest first.

    Raises
    ------
    InvalidArgumentError
        A version is not in the registry, or the second is not the newer one.
    OrtMeterError
        The registry does not answer.
    """
    name, low, high = _default(provider), Version(first), Version(last)
    if not {low, high} <= {*(known := _listed(name))} or low >= high:
        raise InvalidArgumentError(
            f"{first}..{last}. Accepted: two releases of {name} for {_PYTHON}, the older first, "
            f"among {', '.join(map(str, known))}"
        )
    return [parse_release(f"{v}", provider) for v in known if low <= v <= high]


def _listed(name: str) -> list[Version]:
    """Ask pip, which knows the registry of the user and the wheels that suit this Python."""
    uv = [shutil.which("uv") or "uv", "tool", "run", "--python", sys.executable, "pip"]
    pip = [sys.executable, "-I", "-m", "pip"] if importlib.util.find_spec("pip") else uv
    command = [*pip, "index", "versions", name, *_PIP_OPTIONS, "--only-binary=:all:"]
    what = f"{name}: its releases cannot be listed"
    lines = _run_installer(command, what, releases_folder())
    # What pages say comes before.
    told = next((line for line in reversed(lines) if line.startswith(_AVAILABLE)), "")
    if not told:
        raise OrtMeterError(f"{what}: pip names none")
    return sorted(map(Version, told.removeprefix(_AVAILABLE).split(", ")))


def _default(provider: str) -> str:
    return "onnxruntime-gpu" if provider == "cuda" else "onnxruntime"


def _distribution(text: str, default: str) -> tuple[str, Version | None]:
    """Read a version, ``name`` or ``name==version``, nothing else that a requirement may hold."""
    with suppress(ValueError):  # also of a number with thousands of digits
        return default, Version(text)
    asked, exactly, number = text.partition("==")
    with suppress(ValueError):
        if (name := canonicalize_name(asked)) in DISTRIBUTIONS:
            return name, Version(number) if exactly else None
    raise InvalidArgumentError(f"release {text!r} is not known. {_ACCEPTED}")


def _wheel(text: str) -> Release:
    file = Path(text)
    try:
        name, version, *_ = parse_wheel_filename(file.name)
    except ValueError as cause:
        raise InvalidArgumentError(f"{text!r} is not the name of a wheel: {cause}") from cause
    if name not in DISTRIBUTIONS:
        raise InvalidArgumentError(
            f"{text!r} is a wheel of {name}. Accepted: {', '.join(DISTRIBUTIONS)}"
        )
    if not file.is_file():
        raise InvalidArgumentError(f"{text!r} is not a file. {_ACCEPTED}")
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    shown, suffix = f"{name} {version} (wheel {digest[:4]})", f"{version}-{digest[:12]}"
    return _release(shown, name, str(file.resolve()), version, suffix=suffix)


def _release(
    name: str, distribution: str, requirement: str, version: Version | None, *, suffix: str
) -> Release:
    # The NumPy of this process, so that the releases differ by themselves only.
    old = version is not None and version < _FOR_NUMPY_2
    numpy = "numpy<2" if old else f"numpy=={np.__version__}"
    tag = numpy.replace("==", "").replace("<", "-")
    key = f"{distribution}-{suffix}-{sys.implementation.cache_tag}-{tag}"
    made_for = _MADE_FOR.get(distribution)
    return Release(name, (requirement, numpy), key, made_for)


def prepare(release: Release, tell: _Tell = lambda _line: None) -> Release:
    """Make the environment of a release, unless the cache has it.

    Parameters
    ----------
    release : Release
        See :func:`parse_release`.
    tell : callable
        Takes the lines that say where the environment is, and how large.

    Returns
    -------
    Release
        The same one.

    Raises
    ------
    OrtMeterError
        The installer failed, or no registry answered within 5 s. Nothing is left in the cache.

    Examples
    --------
    >>> prepare(parse_release("installed")).name
    'installed'
    """
    if not release.key or (release.folder / _MARK).is_file():
        return release
    tell(f"{release.name}: an environment is made in {release.folder}")
    with tempfile.TemporaryDirectory(prefix=".incomplete-", dir=releases_folder()) as folder:
        made = Path(folder, release.key)
        try:
            _install(release, made)
            # Renamed once complete: another process sees the whole environment or none.
            made.rename(release.folder)
        except OSError as cause:
            if not (release.folder / _MARK).is_file():  # else another process made it meanwhile
                raise OrtMeterError(f"{release.name}: its environment fails: {cause}") from cause
    tell(f"{release.name}: its environment takes {folder_size(release.folder) / _MIB:.0f} MiB")
    return release


def _install(release: Release, folder: Path) -> None:
    """Install binary wheels only: nothing of a package is built or run."""
    uv, has_pip = shutil.which("uv"), importlib.util.find_spec("pip") is not None
    venv.create(folder, symlinks=os.name != "nt", with_pip=not (uv or has_pip))
    python = str(_python_of(folder))
    if uv:
        command = [uv, "pip", "install", "--python", python]
    else:
        pip = [sys.executable if has_pip else python, "-I", "-m", "pip", "--python", python]
        command = [*pip, "install", *_PIP_OPTIONS, "--progress-bar=off", "--no-compile"]
    # The other dependencies serve the tools of ONNX Runtime; those of CUDA are its libraries.
    runtime, numpy = release.requirements
    what = f"{release.name}: {runtime} and {numpy} cannot be installed"
    command += ["--only-binary=:all:", *([] if "[" in runtime else ["--no-deps"])]
    _run_installer([*command, runtime, numpy], what, folder)
    write_atomically(folder / _MARK, json.dumps(release.requirements).encode())


def _run_installer(command: Sequence[str], what: str, folder: Path) -> list[str]:
    """Run an installer, which must hear from the registry before it is given more time.

    Returns the lines that it printed; an error begins with *what* fails.
    """
    limits = {"UV_HTTP_TIMEOUT": str(_SILENCE_S), "UV_HTTP_RETRIES": "0", "UV_NO_PROGRESS": "1"}
    lines: list[str] = []
    late: list[str] = []

    def give_up() -> None:
        late.append(f"no registry of packages answered within {_ANSWER_S:g} s")
        kill_group(process)  # with the pip that pip starts

    with (
        tempfile.TemporaryDirectory(prefix="ortmeter-") as temporary,
        process_group(
            command,
            cwd=folder,  # uv obeys a file of the current folder
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **limits, "TMPDIR": temporary},
        ) as process,
    ):
        silence = threading.Timer(_ANSWER_S, give_up)
        try:
            silence.start()
            for line in process.stdout or ():
                lines.append(without_password(line.strip()))
                if _ANSWERED.match(line):
                    silence.cancel()
            code = process.wait()
        finally:
            silence.cancel()
    if code:
        reason = " ".join(late or _errors(lines)) or f"exit code {code}"
        raise OrtMeterError(f"{what} for {_PYTHON}: {textwrap.shorten(reason, _LONGEST)}")
    return lines


def _errors(lines: Sequence[str]) -> list[str]:
    """Keep what an installer says of its failure: pip in capitals, uv in several lines."""
    if told := [line for line in lines if line.startswith("Could not fetch URL")]:
        return list(dict.fromkeys(told))
    first = next((i for i, line in enumerate(lines) if line.startswith("error")), len(lines))
    return [line for line in lines if line.startswith("ERROR")] + list(lines[first:])


def folder_size(folder: Path) -> int:
    """Sum the sizes of the files of a folder, without following links."""
    files = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files)


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def releases_folder() -> Path:
    """Return the folder of the cache that has the environments."""
    return cache_folder("runtimes")
