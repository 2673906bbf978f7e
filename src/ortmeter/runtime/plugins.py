"""Execution providers that are libraries of their own: a process registers one when it is named."""

import functools
import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ortmeter.errors import ProviderUnavailableError

_PACKAGE = "onnxruntime-ep-"
# What a library reads in the environment to take a driver that computes on the CPU.
_SOFTWARE = re.compile(rb"ORT_[A-Z_]*ALLOW_SOFTWARE[A-Z_]*")


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
    import onnxruntime

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
    import onnxruntime

    onnxruntime.register_execution_provider_library(Path(library).name, library)


def unread(library: str, names: Iterable[str]) -> str:
    """Return an option that a library does not read, as its bytes tell: it would be ignored."""
    return next((name for name in names if not _reads(library, name)), "")


@functools.cache
def _reads(library: str, name: str) -> bool:
    """Look once for an option: a library has many megabytes, and sessions are many."""
    return name.encode() + b"\0" in Path(library).read_bytes()
