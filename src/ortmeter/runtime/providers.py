"""Execution providers: their names, and which ones work on this machine."""

import contextlib
import ctypes
import functools
import importlib
import importlib.util
import io
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ortmeter.child import Child, ChildError, output_of
from ortmeter.errors import InvalidArgumentError, ProviderUnavailableError
from ortmeter.optional import onnxruntime

__all__ = ["Provider", "probe_providers", "resolve_provider", "usable_providers"]

_EXECUTION_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_NAME = re.compile(r"([a-z][a-z0-9-]*)(?::(\d+))?(?:=(.+))?")
_CODE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
# Where it failed in its own source: /folder/file.h:563 void Class::function(int) const
_PLACE = re.compile(r"/\S+\.\w+:\d+ [^\n]*?\)(?: const|::<lambda\(\)>)?(?: \[with .*?\])? ")
#: Option of the providers that ignore the threads of a session.
THREADS = "num_of_threads"
_PACKAGE = "onnxruntime-ep-"
# What a library reads in the environment to take a driver that computes on the CPU.
_SOFTWARE = re.compile(rb"ORT_[A-Z_]*ALLOW_SOFTWARE[A-Z_]*")
_PROBE_TIMEOUT_S = 120
_PROBE = """<ir_version: 10, opset_import: ["": 21]>
probe (float[n, n] X) => (float[n, n] Y) { Y = MatMul(X, X) }"""

#: Why CUDA does not work where the wheel has nothing for it.
NO_CUDA = "the onnxruntime installed is the CPU wheel, which has no CUDA provider"
#: What the providers are that were asked for by name and work, beside those of the wheels.
described: dict[str, str] = {}


@dataclass(frozen=True)
class Provider:
    """An execution provider, the index of its device, and the library that has it.

    Parameters
    ----------
    name : str
        Short name, in lower case: ``cpu``, ``cuda``, or another of ONNX Runtime, ``webgpu``.
    index : int
        Index of the device, 0 on CPU.
    library : str
        File of a plugin. Empty, the provider is in the wheel of ONNX Runtime, or in the package
        ``onnxruntime-ep-<name>``.

    Examples
    --------
    >>> Provider.parse("cuda:1")
    Provider(name='cuda', index=1)
    >>> str(Provider.parse("cuda:1")), str(Provider.parse("cuda:0")), str(Provider.parse("cpu"))
    ('cuda:1', 'cuda', 'cpu')
    """

    name: str
    index: int = 0
    library: str = field(default="", repr=False)

    @classmethod
    def parse(cls, text: str) -> "Provider":
        """Read ``NAME[:index][=LIBRARY]``: ``cpu``, ``cuda:1``, ``webgpu=libwebgpu.so``.

        Raises
        ------
        InvalidArgumentError
            Anything else, or a name that ONNX Runtime does not have.
        """
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        name, index, library = match.groups(default="") if match else ("", "", "")
        if not (library or _is_known(name)) or (name == "cpu" and text != name):
            raise InvalidArgumentError(
                f"provider={text!r} is not known. Accepted: auto, cpu, cuda, cuda:1 (device "
                "index), another one of ONNX Runtime, or NAME=LIBRARY (the file of a plugin)"
            )
        return cls(name, int(index or 0), library and str(Path(library).absolute()))

    @property
    def execution_provider(self) -> str:
        """Name of the provider in ONNX Runtime."""
        if self.name in _EXECUTION_PROVIDERS:
            return _EXECUTION_PROVIDERS[self.name]
        return full_name(self.name, onnxruntime.get_all_providers()) or self.device.ep_name

    @property
    def device(self) -> Any:
        """What ONNX Runtime lists of its device, None for a provider that it knows by name only."""
        return None if self.is_cpu else find_device(self.name, self.index, self.library)

    @property
    def file(self) -> str:
        """Its own library, empty without one; CUDA refuses by itself what it does not know."""
        if self.device is not None:
            return library_of(self.device)
        if self.is_cpu or self.on_cuda:
            return ""
        folder = Path(onnxruntime.__file__).with_name("capi")
        return str(next(folder.glob(f"*onnxruntime_providers_{self.name}.*"), ""))

    @property
    def threads(self) -> str:
        """Its own option for the number of threads, empty where none is known."""
        return THREADS if self.file and not unread(self.file, [THREADS]) else ""

    def given_to(self, options: Any, asked: Mapping[str, Any]) -> list[Any] | None:
        """Add the provider to the options of a session, or return what it takes beside them."""
        texts = {name: str(value) for name, value in asked.items()}
        if self.file and (ignored := unread(self.file, texts)):
            raise InvalidArgumentError(
                f"provider option {ignored!r} is not read by {self.file}, which would ignore it"
            )
        if self.device is not None:
            options.add_provider_for_devices([self.device], texts)
            return None
        return [(self.execution_provider, {**self.options, **texts})]

    @property
    def options(self) -> dict[str, str]:
        """What chooses its device in the wheel."""
        return {"device_id": str(self.index)} if self.on_cuda or self.index else {}

    @property
    def is_cpu(self) -> bool:
        """Whether it is the one that every session has, without options of its own."""
        return self.name == "cpu"

    @property
    def memory(self) -> Any:
        """What ONNX Runtime allocates on its device with, None where memory has a name."""
        if self.device is None:
            return None
        return self.device.memory_info(onnxruntime.OrtDeviceMemoryType.DEFAULT)

    @property
    def is_software(self) -> bool:
        """Whether a driver that computes on the CPU stands for a device with its own memory."""
        return self.memory is not None and self.device.device.type.name == "CPU"

    @property
    def on_cuda(self) -> bool:
        """Whether its tensors are in the memory of CUDA, which torch shares."""
        return self.name == "cuda"

    @property
    def allocation(self) -> dict[str, Any]:
        """What ONNX Runtime takes to allocate in its memory, nothing for that of the host."""
        if self.memory is not None:
            return {"memory_info": self.memory}
        return {"device_type": "cuda", "device_id": self.index} if self.on_cuda else {}

    @property
    def label(self) -> str:
        """Name for titles, ``CPU`` or ``CUDA``; a GPU that a driver computes is ``software``."""
        return f"{'software ' * self.is_software}{self.place.upper()}"

    @property
    def place(self) -> str:
        """Its name and device, ``cuda:1``, without the library."""
        return f"{self.name}:{self.index}" if self.index else self.name

    def __str__(self) -> str:
        return f"{self.place}={self.library}" if self.library else self.place


def _is_known(name: str) -> bool:
    """Whether ONNX Runtime has a provider of this name, or a package is installed for it."""
    if name in _EXECUTION_PROVIDERS or importlib.util.find_spec("onnxruntime") is None:
        return name in _EXECUTION_PROVIDERS
    return offers(name, onnxruntime.get_all_providers())


def _absent(provider: Provider) -> str:
    """Return why there is nothing to try: neither the wheel, nor a package, has this provider."""
    wheel = onnxruntime.get_available_providers()
    if provider.library or offers(provider.name, wheel):
        return ""
    package = f"the package onnxruntime-ep-{provider.name} is not installed"
    return NO_CUDA if provider.on_cuda else f"onnxruntime has {', '.join(wheel)}, and {package}"


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
    return {"cpu": "", "cuda": _probe("cuda")[0] if _is_built_for_cuda() else NO_CUDA}


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
        ``auto``, or ``NAME[:index][=LIBRARY]``: ``cpu``, ``cuda:1``, ``webgpu``. ``auto`` is CUDA
        if it works, and the CPU on a machine without a GPU, or with the CPU wheel: a warning tells
        then that there is a GPU. Any other name of ONNX Runtime is looked for in its wheel, then
        in the package ``onnxruntime-ep-NAME``; with a file, in that plugin, whose code runs. It is
        tried in a child process first. A `Provider` is returned as it is.

    Raises
    ------
    InvalidArgumentError
        The name is not known.
    ProviderUnavailableError
        The provider does not work, and was requested, or the GPU wheel is installed and
        ``nvidia-smi -L`` lists a GPU; the message gives the reason.

    Examples
    --------
    >>> resolve_provider("cpu").execution_provider
    'CPUExecutionProvider'
    """
    if isinstance(provider, Provider):
        return provider
    is_auto = isinstance(provider, str) and provider == "auto"
    asked = Provider.parse("cuda" if is_auto else provider)
    if asked.library or asked.name not in _EXECUTION_PROVIDERS:
        reason, what = (absent, "") if (absent := _absent(asked)) else _found(str(asked))
        if reason:
            raise ProviderUnavailableError(
                f"provider={provider!r} does not work here: {reason.rstrip('.')}. "
                "To run on the CPU: --provider cpu"
            )
        described[asked.place] = what
        return asked
    # The probe costs a child process: whoever asks for the CPU does not need it.
    if asked.is_cpu or not (reason := probe_providers()[asked.name]):
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


def _probe(provider: str) -> tuple[str, str]:
    """Return why a provider does not work, nothing when it does, and what it is then.

    ``get_available_providers`` describes the wheel and a session that asks for CUDA is created on
    CPU without an error, so the only truth is a session which may not fall back. It runs in a child
    process because a failed attempt writes to file descriptor 2 and a broken driver may abort.
    """
    missing, said, description = "", "", ""
    try:
        with Child(patience_s=_PROBE_TIMEOUT_S) as child:
            try:
                missing, reason, description = child.ask(_try_provider, provider=provider)
            finally:
                said = child.errors()
    except ChildError as error:
        died = f"the probe died with exit code {error.code}"
        reason = f"the probe did not answer ({error})" if error.code is None else died
    # The cause is in what the libraries wrote, the exception only says that it did not start.
    refused = re.search(r"Failed to load library .* with error: (.*)", said)
    return reason and (missing or (refused[1].strip() if refused else reason)), description


_found = functools.cache(_probe)


def _try_provider(provider: str) -> tuple[str, str, str]:
    """Return the libraries that are missing, why it does not work, what it is: the child's part."""
    missing = ""
    try:
        asked = Provider.parse(provider)
        if absent := _absent(asked):
            return "", absent, ""
        if asked.on_cuda:
            missing = load_cuda_libraries()
        reason = _run_product(asked)
        return missing, reason, "" if reason else _describe_device(asked)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong, it is not usable
        return missing, reason_of(error), ""


def reason_of(cause: Exception) -> str:
    """Message of ONNX Runtime without its codes and the places in its source."""
    return _PLACE.sub("", _CODE.sub("", str(cause))).strip()


def _describe_device(provider: Provider) -> str:
    """Describe what runs: package or wheel, library as its bytes tell it, device, threads."""
    import hashlib

    told = f"{onnxruntime.package_name} {onnxruntime.__version__}"
    if provider.device is not None:
        package = "" if provider.library else package_of(provider.name)
        digest = hashlib.sha256(Path(provider.file).read_bytes()).hexdigest()[:16]
        hardware, adapter = provider.device.device, "a software adapter on the "
        told = f"{package} ({Path(provider.file).name}, sha256 {digest}) on ".lstrip()
        told += f"{adapter * provider.is_software}{hardware.type.name} of {hardware.vendor}"
    return told if provider.threads else f"{told}, whose number of threads is not controlled"


def _run_product(provider: Provider) -> str:
    """Return why a session does not multiply two matrices on a provider, nothing when it does."""
    import numpy as np
    import onnx.parser

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    model = onnx.parser.parse_model(_PROBE).SerializeToString()
    session = onnxruntime.InferenceSession(
        model, options, providers=provider.given_to(options, {}), enable_fallback=0
    )
    (got,) = session.run(None, {"X": np.full((2, 2), 3, dtype=np.float32)})
    # What a session lists first may run none of its nodes.
    ran_on = dict.fromkeys(part.ep_name for part in session.get_provider_graph_assignment_info())
    if set(ran_on) != {provider.execution_provider}:
        return f"the session runs on {', '.join(ran_on) or 'nothing'}"
    if not (got == 18).all():  # noqa: PLR2004
        return f"a product of two matrices is wrong on {provider.label}: {got.tolist()}"
    return ""


def full_name(name: str, names: Iterable[str]) -> str:
    """Return the name that ONNX Runtime gives to a provider, among some, empty when it is none."""
    wanted = f"{name.replace('-', '')}executionprovider"
    return next((known for known in names if known.lower() == wanted), "")


def package_of(name: str) -> str:
    """Return the installed package of a provider with its version, empty when there is none."""
    import importlib.metadata  # takes a while

    try:
        return f"{_PACKAGE}{name} {importlib.metadata.version(_PACKAGE + name)}"
    except importlib.metadata.PackageNotFoundError:
        return ""


def offers(name: str, names: Iterable[str]) -> bool:
    """Whether a provider is among some, or a package is installed for it."""
    return bool(full_name(name, names) or package_of(name))


def library_of(device: Any) -> str:
    """Return the library that a device comes from, empty for that of ONNX Runtime."""
    library = device.ep_metadata.get("library_path", "")
    return library and str(Path(library).resolve())


@functools.cache
def find_device(name: str, index: int, library: str) -> Any:
    """Return the device of a provider as ONNX Runtime lists it, None when it is known by name only.

    The library is the one that is given, else none where the wheel has the provider, else that of
    the package of this name. A ProviderUnavailableError says why it offers no such device.
    """
    in_wheel = full_name(name, onnxruntime.get_available_providers())
    if not library and not in_wheel and package_of(name):
        library = importlib.import_module(f"{_PACKAGE}{name}".replace("-", "_")).get_library_path()
    library = library and str(Path(library).resolve())
    listed = onnxruntime.get_ep_devices()
    if library and library not in map(library_of, listed):
        _register(library)
        listed = onnxruntime.get_ep_devices()
    mine = [device for device in listed if full_name(name, [device.ep_name])]
    mine = [device for device in mine if not library or library_of(device) == library]
    if index < len(mine):
        return mine[index]
    if not library:
        return None
    there = f"{listed[0].device.type.name} of {listed[0].device.vendor}"
    told = f"{Path(library).name} offers {len(mine) or 'none'} of the devices here ({there})"
    if not mine and (software := _SOFTWARE.search(Path(library).read_bytes())):
        told += f": a software adapter is not allowed without {software[0].decode()}=1"
    elif not mine:
        told += ": it is for those of another vendor, or their driver is missing"
    raise ProviderUnavailableError(told)


@functools.cache
def _register(library: str) -> None:
    """Run the code of a library: ONNX Runtime aborts at exit if it is registered twice."""
    onnxruntime.register_execution_provider_library(Path(library).name, library)


def unread(library: str, names: Iterable[str]) -> str:
    """Return an option that a library does not read, as its bytes tell: it would be ignored."""
    return next((name for name in names if not _reads(library, name)), "")


@functools.cache
def _reads(library: str, name: str) -> bool:
    """Look once for an option: a library has many megabytes, and sessions are many."""
    return name.encode() + b"\0" in Path(library).read_bytes()
