import os
import stat
from pathlib import Path

import pytest

from ortmeter.errors import InvalidArgumentError, OrtMeterError
from ortmeter.files import cache_folder, refuse_full_disk, write_atomically


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("asked", [0o600, 0o664, 0o444])
def test_what_is_replaced_keeps_its_permissions(tmp_path, asked):
    file = tmp_path / ("a" * 255)  # the greatest length
    file.write_bytes(b"old")
    file.chmod(asked)
    write_atomically(file, b"new")
    assert (file.read_bytes(), mode(file)) == (b"new", asked)
    assert names(tmp_path) == [file.name]


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_new_file_has_the_permissions_that_open_gives(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_atomically(tmp_path / "ours", b"")
        (tmp_path / "theirs").write_bytes(b"")
    finally:
        os.umask(before)
    assert mode(tmp_path / "ours") == mode(tmp_path / "theirs") == 0o666 & ~mask


@pytest.mark.parametrize("exists", [True, False])
def test_links_are_followed(tmp_path, exists):
    (tmp_path / "far").mkdir()
    target = tmp_path / "far" / "target.txt"
    middle, link = tmp_path / "far" / "middle", tmp_path / "link"
    middle.symlink_to("target.txt")
    link.symlink_to(middle)
    if exists:
        target.write_bytes(b"old")
        target.chmod(0o600)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert middle.is_symlink()
    assert target.read_bytes() == b"new"
    assert not exists or mode(target) == 0o600
    assert names(tmp_path / "far") == ["middle", "target.txt"]


def test_what_is_not_a_regular_file_is_refused_and_left(tmp_path):
    fifo, folder, link = tmp_path / "fifo", tmp_path / "folder", tmp_path / "link"
    os.mkfifo(fifo)
    folder.mkdir()
    link.symlink_to("/dev/null")
    for path in (fifo, folder, link):
        before = path.lstat()
        with pytest.raises(InvalidArgumentError, match=f"'{path}' cannot .*a regular file"):
            write_atomically(path, b"new")
        assert path.lstat() == before
    assert names(tmp_path) == ["fifo", "folder", "link"]


def test_a_failure_leaves_what_was_there_and_names_it(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{file}'"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a.txt"]


def test_a_file_that_cannot_grow_is_named_and_left(tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    refuse_full_disk(file)
    assert names(tmp_path) == []
    file.write_bytes(b"mine")
    refuse_full_disk(file)
    assert file.read_bytes() == b"mine"

    def fail(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=f"No space left on device: '{file}'"):
        refuse_full_disk(file)
    assert file.read_bytes() == b"mine"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_the_folders_of_the_cache_are_private(tmp_path, monkeypatch, mask):
    tmp_path.chmod(0o755)
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "a" / "b"))
    before = os.umask(mask)
    try:
        folder = cache_folder("kernels")
        assert cache_folder("kernels") == folder
    finally:
        os.umask(before)
    made = [folder, folder.parent, folder.parent.parent]
    assert [mode(path) for path in made] == [0o700] * 3
    assert mode(tmp_path) == 0o755

    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(OrtMeterError, match="the folder of the kernels cannot be used"):
        cache_folder("kernels")


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions of POSIX")
def test_a_folder_that_others_can_write_into_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels").chmod(0o777)
    with pytest.raises(OrtMeterError, match="others can write into it"):
        cache_folder("kernels")


def test_a_folder_that_another_process_makes_meanwhile_is_taken(tmp_path, monkeypatch):
    def make_first(path, mode):
        os.mkdir(path, mode)  # noqa: PTH102 - not the method that is replaced
        raise FileExistsError

    monkeypatch.setenv("ORTMETER_CACHE", str(tmp_path))
    monkeypatch.setattr(Path, "mkdir", make_first)
    assert cache_folder("kernels").is_dir()
