"""Files of the control groups of this process, by which Linux limits a container or a job."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def group_files(file: str, kind: str, older: str, *, root: Path = Path("/")) -> Iterator[Path]:
    """List a file of the groups of this process and of those above; some may not exist.

    It is *file* where all kinds of limits share one tree (version 2), *older* in the tree of
    *kind*, ``memory`` or ``cpu`` (version 1).
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
