"""How much memory the inputs of a model may take."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

__all__ = ["half_of_memory"]

_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def half_of_memory() -> int:
    """Return half of the memory that this process may use, in bytes.

    That of the machine, or less where a container or a scheduler of jobs sets a limit; 2 GiB where
    the system does not tell.
    """
    if not hasattr(os, "sysconf"):
        return 2**31
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min((machine, *_limits())) // 2


def _limits() -> Iterator[int]:
    """Limits of the control groups of this process, and of the groups that hold them."""
    for group, name in _groups():
        # A container often sees its own group as the root, under a path that it cannot see.
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # no limit, or none that is told
                yield int((_GROUPS / folder / name).read_text(encoding="ascii"))


def _groups() -> Iterator[tuple[PurePosixPath, str]]:
    """Groups that limit memory, under the folder of the groups, and their file of the limit."""
    try:
        lines = _MEMBERSHIP.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        rank, kinds, path = [*line.split(":", 2), "", ""][:3]
        group = PurePosixPath(path.strip("/"))
        if rank == "0" and not kinds:  # version 2: one tree for everything
            yield group, "memory.max"
        elif "memory" in kinds.split(","):
            yield "memory" / group, "memory.limit_in_bytes"
