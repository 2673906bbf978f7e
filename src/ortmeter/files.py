"""Write files that are never seen half-written, find the folders of the cache."""

import os
import stat
import uuid
from contextlib import suppress
from pathlib import Path

import platformdirs

from ortmeter.errors import InvalidArgumentError, OrtMeterError


def replaceable(path: Path) -> Path:
    """Find the file that a path leads to, through symbolic links; it may not exist yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also a link to what does not exist yet
        return Path(os.path.realpath(path))
    if not stat.S_ISREG(mode):
        raise InvalidArgumentError(
            f"{os.fspath(path)!r} cannot be written: it is {_kind(mode)}. Accepted: a regular file "
            "or a name that is free, in a writable folder"
        )
    return Path(os.path.realpath(path))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file, or leave what was there when that fails.

    Links are followed; a file that is replaced keeps its permissions.
    """
    file = replaceable(path)
    mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else None
    # Not a file of tempfile, readable by its owner only; nor a name made of the path's, too long.
    temporary = file.with_name(f".{uuid.uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def _sync_folder(folder: Path) -> None:
    """Keep the new name through a power cut, where the system can open a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")


def cache_folder(name: str) -> Path:
    """Return a folder of the cache for code that runs: nobody else may write into it."""
    cache = os.environ.get("ORTMETER_CACHE") or platformdirs.user_cache_path("ortmeter")
    folder = Path(cache, name).absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as cause:
        raise OrtMeterError(f"the folder of the {name} cannot be used: {cause}") from cause
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise OrtMeterError(
            f"{os.fspath(folder)!r} belongs to another user, or others can write into it: it is "
            "not safe for code that runs. Set ORTMETER_CACHE to a folder of your own"
        )
    return folder
