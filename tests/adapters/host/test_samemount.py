"""What lies in our folders is opened, and what somebody mounted over it never asked anything."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host import samemount
from kit.machines.silentmount import mounts_below, silent_mount
from kit.running.scarcefiles import scarce_files


@pytest.fixture(params=["openat2", "without"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """An open folder, with the kernel's openat2 and on a kernel that has none."""
    if request.param == "without":
        monkeypatch.setattr(samemount, "_OPENAT2", 9_999)
    opened = os.open(tmp_path, os.O_RDONLY)
    yield opened
    os.close(opened)


def test_files_and_folders_are_opened_as_usual(tmp_path: Path, folder: int) -> None:
    (tmp_path / "folder").mkdir()
    inner = samemount.open_in(folder, "folder", os.O_RDONLY | os.O_DIRECTORY)
    made = samemount.open_in(inner, "file", os.O_RDWR | os.O_CREAT, 0o640)
    assert os.write(made, b"x") == 1
    again = samemount.open_path(tmp_path / "folder" / "file", os.O_RDWR | os.O_CREAT)
    assert os.read(again, 9) == b"x"
    assert not os.get_inheritable(again)
    found = samemount.lstat_in(inner, "file")
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (1, 0o640)
    for opened in (inner, made, again):
        os.close(opened)


@pytest.mark.parametrize(
    ("name", "flags", "why"),
    [
        ("absent", os.O_RDONLY, errno.ENOENT),
        ("file", os.O_RDONLY | os.O_DIRECTORY, errno.ENOTDIR),
        ("file", os.O_RDWR | os.O_CREAT | os.O_EXCL, errno.EEXIST),
        ("link", os.O_RDONLY, errno.ELOOP),
    ],
)
def test_what_cannot_be_opened_is_an_error_as_usual(
    tmp_path: Path, folder: int, name: str, flags: int, why: int
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match=name) as caught:
        samemount.open_path(tmp_path / name, flags)
    assert (caught.value.errno, caught.value.filename) == (why, str(tmp_path / name))
    assert stat.S_ISLNK(samemount.lstat_in(folder, "link").st_mode)
    assert [samemount.exists(tmp_path / other) for other in ("file", "link", "absent")] == [True, True, False]


@pytest.mark.parametrize("is_folder", [True, False])
def test_file_system_that_never_answers_is_not_asked(tmp_path: Path, folder: int, is_folder: bool) -> None:
    place = tmp_path / "place"
    place.mkdir() if is_folder else place.touch()
    with silent_mount(place):
        began = time.monotonic()
        for flags in (os.O_PATH, os.O_RDONLY | (os.O_DIRECTORY if is_folder else 0), os.O_RDWR | os.O_CREAT):
            with pytest.raises(OSError, match="somebody has mounted a file system there") as caught:
                samemount.open_in(folder, "place", flags)
            assert caught.value.errno == errno.EXDEV
        with pytest.raises(OSError, match="somebody has mounted"):
            samemount.lstat(place)
        assert samemount.exists(place)
        assert mounts_below(tmp_path) == [str(place)]
        assert samemount.detach(folder, "place")
        assert not samemount.detach(folder, "place")
        assert time.monotonic() - began < 10
        assert mounts_below(tmp_path) == []
    assert place.exists()


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_name_that_no_file_can_have_is_no_other_file(tmp_path: Path, name: str) -> None:
    """C would open what comes before the zero."""
    (tmp_path / "a").touch()
    assert not samemount.exists(f"{tmp_path}/{name}")
    with pytest.raises(ValueError, match=r"null byte|surrogates not allowed"):
        samemount.lstat(f"{tmp_path}/{name}")


@pytest.mark.parametrize("free", [0, 1])
def test_nothing_is_taken_for_absent_while_no_file_is_left(tmp_path: Path, folder: int, free: int) -> None:
    """With one file the folder is opened, and what lies in it is not."""
    (tmp_path / "there").touch()
    with scarce_files(free), pytest.raises(OSError, match="Too many open files"):
        samemount.exists(tmp_path / "there")
    assert samemount.exists(tmp_path / "there")
    assert not samemount.exists(tmp_path / "there" / "below")
    assert not samemount.exists(tmp_path / ("x" * 300))
