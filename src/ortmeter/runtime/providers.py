"""Execution providers: their names, and which ones work on this machine."""

import contextlib
import ctypes
import functools
import importlib.util
import io
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

from ortmeter.child import Child, ChildError, output_of
from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError

__all__ = ["Provider", "probe_providers", "resolve_provider", "usable_providers"]

_EXECUTION_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_PROBE_TIMEOUT_S = 120
_PROBE = """<ir_version: 10, opset_import: ["": 21]>
probe (float[n, n] X) => (float[n, n] Y) { Y = MatMul(X, X) }"""

#: Why CUDA does not work where the wheel has nothing for it.
NO_CUDA = "the onnxruntime installed is the CPU wheel, which has no CUDA provider"


@dataclass(frozen=True)
class Provider:
    """An execution provider and the index of its device.

    Parameters
    ----------
    name : {"cpu", "cuda"}
        Short name, also the device type of ONNX Runtime and torch.
    index : int
        Index of the device, 0 on CPU.

    Examples
    --------
    >>> Provider.parse("cuda:1")
    Provider(name='cuda', index=1)
    >>> str(Provider.parse("cuda:1")), str(Provider.parse("cuda:0")), str(Provider.parse("cpu"))
    ('cuda:1', 'cuda', 'cpu')
    """

    name: str
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> "Provider":
        """Read ``cpu``, ``cuda`` or ``cuda:1``.

        Raises
        ------
        InvalidArgumentError
            Anything else.
        """
        match = re.fullmatch(r"(cpu|cuda(?::(\d+))?)", text) if isinstance(text, str) else None
        if match is None:
            raise InvalidArgumentError(
                f"provider={text!r} is not known. Accepted: auto, cpu, cuda, cuda:1 (device index)"
            )
        return cls(text.partition(":")[0], int(match[2] or 0))

    @property
    def execution_provider(self) -> str:
        """Name of the provider in ONNX Runtime."""
        return _EXECUTION_PROVIDERS[self.name]

    @property
    def label(self) -> str:
        """Name for titles, ``CPU`` or ``CUDA``."""
        return str(self).upper()

    def __str__(self) -> str:
        return f"{self.name}:{self.index}" if self.index else self.name


@functools.cache
def probe_providers() -> dict[str, str]:
    """Find out which providers work, by a session in a child process.

    Returns
    -------
    dict of str to str
        For each provider that this package knows, the reason why it does not work, empty if it
        works. Computed once per process: half a second with the GPU wheel, nothing otherwise.

    Examples
    --------
    >>> probe_providers()["cpu"]
    ''
    """
    if importlib.util.find_spec("onnxruntime") is None:
        reason = 'onnxruntime is not installed: pip install "ortmeter[cpu]" or "ortmeter[gpu]"'
        return dict.fromkeys(_EXECUTION_PROVIDERS, reason)
    return {"cpu": "", "cuda": _probe_cuda() if _is_built_for_cuda() else NO_CUDA}


def usable_providers() -> tuple[str, ...]:
    """Short names of the providers that work on this machine, the fastest first.

    Examples
    --------
    >>> "cpu" in usable_providers()
    True
    """
    return tuple(name for name in ("cuda", "cpu") if not probe_providers()[name])


def resolve_provider(provider: str | Provider) -> Provider:
    """Choose the provider that will run.

    Parameters
    ----------
    provider : str or Provider
        ``auto``, ``cpu``, ``cuda`` or ``cuda:1``. ``auto`` is CUDA if it works, and the CPU on a
        machine without a GPU, or with the CPU wheel: a warning tells then that there is a GPU. A
        `Provider` is returned as it is.

    Raises
    ------
    InvalidArgumentError
        The name is not known.
    ProviderUnavailableError
        CUDA does not work, and was requested, or the GPU wheel is installed and ``nvidia-smi -L``
        lists a GPU; the message gives the reason.

    Examples
    --------
    >>> resolve_provider("cpu").execution_provider
    'CPUExecutionProvider'
    """
    if isinstance(provider, Provider):
        return provider
    is_auto = isinstance(provider, str) and provider == "auto"
    asked = Provider.parse("cuda" if is_auto else provider)
    # The probe costs a child process: whoever asks for the CPU does not need it.
    if asked.name == "cpu" or not (reason := probe_providers()[asked.name]):
        return asked
    if is_auto and (reason == NO_CUDA or probe_providers()["cpu"] or not _lists_gpu()):
        _warn_of_cpu_wheel(reason)
        return Provider("cpu")
    raise ProviderUnavailableError(
        f"provider={provider!r}: CUDA does not work on this machine: {reason}. It needs a GPU with "
        'its driver (nvidia-smi -L lists it) and pip install "ortmeter[gpu]", without the CPU '
        "wheel onnxruntime. To run on the CPU: make PROVIDER=cpu, --provider cpu, or provider='cpu'"
    )


@functools.cache
def _lists_gpu() -> bool:
    """Ask the driver, as the Makefile does: CUDA that fails does not mean that there is no GPU."""
    return output_of("nvidia-smi", "-L") is not None


@functools.cache
def _warn_of_cpu_wheel(reason: str) -> None:
    if reason == NO_CUDA and _lists_gpu():
        text = "the CPU runs everything. To use the GPU: pip install ortmeter[gpu], not onnxruntime"
        warnings.warn(f"nvidia-smi -L lists a GPU, but {NO_CUDA}: {text}", stacklevel=3)


def load_cuda_libraries() -> str:
    """Load the libraries that the CUDA provider links with; return what is missing, or nothing.

    ONNX Runtime looks beside itself only: the wheels of NVIDIA that came with torch may be in
    another folder of the path.
    """
    import onnxruntime

    folders = nvidia_folders()
    said = io.StringIO()
    # ONNX Runtime prints what it cannot load on the standard output.
    with contextlib.redirect_stdout(said):
        onnxruntime.preload_dlls()
        if not _is_found("libcudnn.so.9"):  # ONNX Runtime opens it later, and says nothing now
            for folder in folders:
                onnxruntime.preload_dlls(cuda=False, directory=str(folder))
        if said.getvalue():
            for folder in folders:
                onnxruntime.preload_dlls(directory=str(folder))
            # What was loaded is found by its name: what is printed now is missing.
            said.seek(0)
            said.truncate()
            onnxruntime.preload_dlls()
    missing = dict.fromkeys(re.findall(r"Failed to load (?:\S*/)?([^\s:/]+)", said.getvalue()))
    if not missing:
        return ""
    places = [*map(str, folders), "the folder of onnxruntime", "the paths of the loader"]
    return f"{', '.join(missing)} cannot be loaded (looked for in {', '.join(places)})"


def _is_found(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def nvidia_folders() -> list[Path]:
    """List the folders of libraries of NVIDIA's wheels, wherever they are in the path."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else list(spec.submodule_search_locations or [])
    return sorted(path for root in roots for path in Path(root).glob("*/lib") if path.is_dir())


def _is_built_for_cuda() -> bool:
    """Look for the library of the provider: a process that imports the wheel takes far longer."""
    wheel = importlib.util.find_spec("onnxruntime")
    folders = [] if wheel is None else map(Path, wheel.submodule_search_locations or [])
    return any(any(folder.glob("capi/*onnxruntime_providers_cuda*")) for folder in folders)


def _probe_cuda() -> str:
    """Return why CUDA does not work, nothing when it does.

    ``get_available_providers`` describes the wheel and a session that asks for CUDA is created on
    CPU without an error, so the only truth is a session which may not fall back. It runs in a child
    process because a failed attempt writes to file descriptor 2 and a broken driver may abort.
    """
    missing, said = "", ""
    try:
        with Child(patience_s=_PROBE_TIMEOUT_S) as child:
            try:
                missing, reason = child.ask(_try_cuda)
            finally:
                said = child.errors()
    except ChildError as error:
        died = f"the probe died with exit code {error.code}"
        reason = f"the probe did not answer ({error})" if error.code is None else died
    # The cause is in what the libraries wrote, the exception only says that CUDA did not start.
    refused = re.search(r"Failed to load library .* with error: (.*)", said)
    return reason and (missing or (refused[1].strip() if refused else reason))


def _try_cuda() -> tuple[str, str]:
    """Return the libraries that are missing, and why CUDA does not work: the child's part."""
    missing = ""
    try:
        import onnxruntime

        if _EXECUTION_PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
            return "", NO_CUDA
        missing = load_cuda_libraries()
        return missing, _run_product()
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, CUDA is not usable
        return missing, f"{type(error).__name__}: {error}"


def _run_product() -> str:
    """Return why a session does not multiply two matrices on CUDA, nothing when it does."""
    import numpy as np
    import onnx.parser
    import onnxruntime

    name = _EXECUTION_PROVIDERS["cuda"]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    model = onnx.parser.parse_model(_PROBE).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=[name], enable_fallback=0)
    (got,) = session.run(None, {"X": np.full((2, 2), 3, dtype=np.float32)})
    if session.get_providers()[0] != name:
        return f"the session runs on {session.get_providers()[0]}"
    if not (got == 18).all():  # noqa: PLR2004
        return f"a product of two matrices is wrong on CUDA: {got.tolist()}"
    return ""
