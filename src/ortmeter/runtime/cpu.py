"""Read what the processors are, and how many of them this process may use."""

import functools
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

__all__ = ["cpu_flags", "group_files", "processor", "usable_cores"]

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Instructions that choose the kernels of products, by the flag that tells them.
_INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_vnni": "VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512_bf16": "BF16",
    "amx_tile": "AMX",
    "asimddp": "dot products",
    "sve": "SVE",
}


@functools.cache
def cpu_flags() -> tuple[str, ...]:
    """List the instruction sets of the CPU.

    Returns
    -------
    tuple of str
        Names of the system (``avx2``), sorted; empty if unknown.

    Examples
    --------
    >>> cpu_flags() == tuple(sorted(cpu_flags()))
    True
    """
    return tuple(sorted(cpu_info().get("flags", cpu_info().get("Features", "")).split()))


@functools.cache
def cpu_info() -> dict[str, str]:
    """First processor of ``/proc/cpuinfo``, empty on other systems."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): text.strip() for name, _, text in pairs}


@functools.cache
def processor() -> dict[str, str]:
    """Say what the processor is, which its name may not tell.

    Returns
    -------
    dict of str to str
        ``family``, ``model``, ``stepping``, ``instructions`` that choose kernels, ``caches``, and
        ``hypervisor``: yes or no. Empty on systems that do not say.

    Examples
    --------
    >>> set(processor()) <= {"family", "model", "stepping", "instructions", "caches", "hypervisor"}
    True
    """
    told = cpu_info()
    if not told:
        return {}
    names = {"family": "cpu family", "model": "model", "stepping": "stepping"}
    arm = {"family": "CPU architecture", "model": "CPU part", "stepping": "CPU revision"}
    flags = cpu_flags()
    caches = {}
    for folder in sorted(_CACHES.glob("index*")):
        with suppress(OSError):  # a virtual machine may not say how large a cache is
            level, kind, size = (
                (folder / name).read_text().strip() for name in ("level", "type", "size")
            )
            caches[f"L{level}{'' if kind == 'Unified' else kind[:1].lower()}"] = size
    return {
        **{key: told.get(name, told.get(arm[key], "")) for key, name in names.items()},
        "instructions": ", ".join(name for flag, name in _INSTRUCTIONS.items() if flag in flags),
        "caches": ", ".join(f"{name} {size}" for name, size in caches.items()),
        "hypervisor": "yes" if "hypervisor" in flags else "no",
    }


def usable_cores() -> int:
    """Count the logical cores that this process may use.

    Returns
    -------
    int
        One at least.

    Examples
    --------
    >>> usable_cores() >= 1
    True
    """
    return len(core_numbers())


def core_numbers() -> Collection[int]:
    """Numbers of the logical cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def group_files(file: str, kind: str, older: str, *, root: Path = Path("/")) -> Iterator[Path]:
    """List a file of the control groups of this process and of those above; some may not exist.

    Parameters
    ----------
    file : str
        Its name where all kinds of limits share one tree (version 2).
    kind, older : str
        The tree, ``memory`` or ``cpu``, and the name of the file in it (version 1).
    root : Path
        Where ``proc`` and ``sys`` are.

    Yields
    ------
    Path
        The file of the group of this process first, then of the groups above.

    Examples
    --------
    >>> files = group_files("cpu.max", "cpu", "cpu.cfs_quota_us")
    >>> {file.name for file in files} <= {"cpu.max", "cpu.cfs_quota_us"}
    True
    """
    groups = root / "sys/fs/cgroup"
    with suppress(OSError):
        told = (root / "proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
        for line in told.splitlines():
            rank, kinds, path = [*line.split(":", 2), "", ""][:3]
            group = PurePosixPath(path.strip("/"))
            # A container often sees its own group as the root, under a path that it cannot see.
            for folder in (group, *group.parents):
                if rank == "0" and not kinds:
                    yield groups / folder / file
                elif kind in kinds.split(","):
                    yield groups / kind / folder / older
