"""Write files that are never seen half-written, find the folders of the cache."""

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from ortmeter.errors import InvalidArgumentError, OrtMeterError

_LARGEST_BLOCK = 2**20  # of a disk


def replaceable(path: Path) -> Path:
    """Find the file that a path leads to, through symbolic links; it may not exist yet."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # also a link to what does not exist yet
        return Path(os.path.realpath(path))
    if not stat.S_ISREG(mode):
        raise InvalidArgumentError(
            f"{os.fspath(path)!r} cannot be written. Accepted: a regular file "
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
    with _naming(path):
        descriptor = os.open(temporary, flags, 0o666 if mode is None else 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(content)
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a file in the errors of the system: it names a temporary one, or none."""
    try:
        yield
    except OSError as cause:
        if cause.errno is None:
            raise
        raise OSError(cause.errno, cause.strerror, os.fspath(path)) from cause


def refuse_full_disk(file: Path) -> None:
    """Raise what the system says of a file that cannot grow: ONNX Runtime does not tell it."""
    if not file.is_file():
        return
    size = file.stat().st_size
    try:
        with _naming(file), file.open("ab") as stream:
            stream.write(bytes(_LARGEST_BLOCK))
            stream.flush()
            os.fsync(stream.fileno())
    finally:
        os.truncate(file, size)


def cache_folder(name: str) -> Path:
    """Return a folder of the cache for code that runs: nobody else may write into it."""
    cache = os.environ.get("ORTMETER_CACHE") or platformdirs.user_cache_path("ortmeter")
    folder = Path(cache, name).absolute()
    try:
        _make_private(folder)
        status = folder.stat()
    except OSError as cause:
        raise OrtMeterError(f"the folder of the {name} cannot be used: {cause}") from cause
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise OrtMeterError(
            f"{os.fspath(folder)!r} belongs to another user, or others can write into it: it is "
            "not safe for code that runs. Set ORTMETER_CACHE to a folder of your own"
        )
    return folder


def _make_private(folder: Path) -> None:
    """Make a folder and those above that are missing, for nobody else, whatever the umask."""
    if folder.is_dir():
        return
    _make_private(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():  # else another process made it meanwhile
            raise
    else:
        folder.chmod(0o700)
