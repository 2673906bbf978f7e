"""What would disturb a measurement on a GPU, as its driver tells it through nvidia-ml-py."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ortmeter.runtime.providers import Provider

_Answer = TypeVar("_Answer")
_MIB = 1 << 20
_BUSY = 5  # percent

#: Reasons for which a driver lowers the clocks, by their bit; those of users are left out.
_REASONS: Mapping[int, str] = {
    0x4: "limit of power",
    0x8: "slowdown of the hardware",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake (hardware)",
}


def gpu_findings(provider: Provider) -> list[str] | None:
    """Look at the GPU of a provider; None without nvidia-ml-py, or when the driver refuses."""
    return _ask_driver(provider, _look)


def used_memory(provider: Provider) -> float | None:
    """Return the MiB in use on the GPU of a provider; None where :func:`gpu_findings` is."""
    return _ask_driver(provider, lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used / _MIB)


def _ask_driver(provider: Provider, ask: Callable[[Any, Any], _Answer]) -> _Answer | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return ask(pynvml, _handle(pynvml, provider.index))
    except (pynvml.NVMLError, ValueError):
        return None
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: Any, index: int) -> Any:
    """Find the device of an index of CUDA: a variable may choose and order those that it sees."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    name = visible[index] if visible[0] and index < len(visible) else str(index)
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    return nvml.nvmlDeviceGetHandleByUUID(name)


def _look(nvml: Any, gpu: Any) -> list[str]:
    def ask(name: str, *arguments: Any) -> Any:
        """Call a function that this driver, or this release of the bindings, may not have."""
        try:
            return getattr(nvml, name)(gpu, *arguments)
        except (nvml.NVMLError, AttributeError):
            return None

    findings = []
    number = ask("nvmlDeviceGetIndex")
    label, command = f"GPU {number}", f"nvidia-smi -i {number}"
    kinds = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
    others = {process.pid for kind in kinds for process in ask(kind) or ()} - {os.getpid()}
    load = ask("nvmlDeviceGetUtilizationRates")
    busy = load.gpu if load is not None and load.gpu >= _BUSY else 0
    if others or busy:
        used = f", which is {busy}% busy" if busy else ""
        who = f"other processes ({len(others)}) use" if others else "something uses"
        findings.append(f"{who} {label}{used}: {command} lists them, stop them")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
    if told := [text for bit, text in _REASONS.items() if reasons & bit]:
        findings.append(f"the clocks of {label} are lowered ({', '.join(told)}): wait, cool it")
    return findings
