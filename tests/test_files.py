"""Files are whole or not there, whatever happens while they are written."""

import os
import stat

import pytest

from rookery import files


def test_a_file_takes_its_place_at_the_end(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    files.write(path, b"old")
    with files.replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        (part,) = [each for each in path.parent.iterdir() if each != path]
        assert files.is_part(part)
        assert files.is_part(part, "file")
        assert not files.is_part(part, "other")
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_what_goes_wrong_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "file"
    files.write(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    def write():
        with files.replacing(path) as file:
            file.write(b"half")
            if step == "write":
                full()

    if step != "write":
        monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="No space left"):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_its_owners_alone_and_no_link_is_followed(tmp_path):
    path, target = tmp_path / "file", tmp_path / "target"
    target.write_bytes(b"somebody's")
    path.symlink_to(target)
    old = os.umask(0)
    try:
        files.write(path, b"secret", private=True)
        files.write(tmp_path / "public", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "public").stat().st_mode) == 0o666
    assert target.read_bytes() == b"somebody's"
    assert not path.is_symlink()


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    for name in (".file.0123.part", "file.part", ".hidden", "file"):
        (tmp_path / name).touch()
    files.remove_parts(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"file.part", ".hidden", "file"}
