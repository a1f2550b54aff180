"""Folders of strangers are removed whatever is in them, and a caller never waits long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.storage import folders
from aliquot.adapters.storage.folders import ASIDE, remove_file, remove_folder, wait_removed
from kit.machines.silentmount import mounts_below, silent_mount
from kit.running.scarcefiles import scarce_files


def nested(folder: Path, depth: int) -> None:
    """Folders in folders, deeper than a path can say."""
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)


def test_small_folder_is_gone_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    (folder / "inner").mkdir(parents=True)
    (folder / "page").write_text("x")
    (folder / "inner" / "socket").write_text("x")
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_deeply_nested_folders_are_removed_aside(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    nested(folder, 3000)
    remove_folder(folder)
    assert not folder.exists()
    wait_removed()
    assert list(tmp_path.iterdir()) == []


def test_many_files_are_removed_aside_in_another_thread(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    folder.mkdir()
    for at in range(3000):
        (folder / str(at)).touch()
    remove_folder(folder)
    assert not folder.exists()
    wait_removed()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("free", [0, 1, 2])
def test_folder_is_removed_when_there_are_files_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, free: int
) -> None:
    monkeypatch.setattr(folders, "_AGAIN", 0.01)
    folder = tmp_path / "tenant"
    (folder / "inner" / "inner").mkdir(parents=True)
    with scarce_files(free):
        remove_folder(folder)
        assert not folder.exists()
    wait_removed()
    assert list(tmp_path.iterdir()) == []
    assert not caplog.records


def large(path: Path) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)


@pytest.fixture
def unlinked(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """The size of each file that was removed, with the thread that did it."""
    seen: dict[int, str] = {}
    unlink = os.unlink

    def noted(path: str, *, dir_fd: int | None = None) -> None:
        seen[os.lstat(path, dir_fd=dir_fd).st_size] = threading.current_thread().name
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr("os.unlink", noted)
    return seen


@pytest.mark.parametrize("within", [".", "inner"])
def test_large_file_is_removed_in_another_thread(tmp_path: Path, unlinked: dict[int, str], within: str) -> None:
    """The kernel takes a fifth of a second for a GiB, and a file may have many."""
    folder = tmp_path / "tenant"
    (folder / within).mkdir(parents=True)
    large(folder / within / "file")
    os.link(folder / within / "file", folder / within / "another name")
    remove_folder(folder)
    assert not folder.exists()
    wait_removed()
    assert list(tmp_path.iterdir()) == []
    assert unlinked == {64 << 20: "folders"}


def test_large_single_file_is_removed_in_another_thread(tmp_path: Path, unlinked: dict[int, str]) -> None:
    large(tmp_path / "file")
    (tmp_path / "small").touch()
    (tmp_path / "link").symlink_to("file")
    for name in ("link", "file", "small"):
        remove_file(tmp_path / name)
        assert not os.path.lexists(tmp_path / name)
    wait_removed()
    assert list(tmp_path.iterdir()) == []
    assert unlinked.get(64 << 20, "folders") == "folders"


def test_what_an_earlier_process_put_aside_is_removed_too(tmp_path: Path) -> None:
    folder = tmp_path / f"{ASIDE}0"
    nested(folder, 200)
    remove_folder(folder)
    wait_removed()
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("theirs")
    folder = tmp_path / "tenant"
    (folder / "inner").mkdir(parents=True)
    for place in (folder / "link", folder / "inner" / "link"):
        place.symlink_to(kept)
    (folder / "file").symlink_to(kept / "file")
    remove_folder(folder)
    assert (kept / "file").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [kept]
    (tmp_path / "alias").symlink_to(kept)
    remove_folder(tmp_path / "alias")
    assert list(tmp_path.iterdir()) == [kept]


def test_folder_without_permissions_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    (folder / "closed" / "inner").mkdir(parents=True)
    (folder / "closed").chmod(0)
    remove_folder(folder)
    assert list(tmp_path.iterdir()) == []


def test_folder_that_does_not_exist_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove_folder(tmp_path / "tenant")
    assert caplog.records == []


def test_owner_who_goes_on_writing_does_not_keep_the_caller(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    folder.mkdir()
    at = os.open(folder, os.O_RDONLY)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            try:
                os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=at))
            except OSError:
                return  # the folder is gone

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.05)
        remove_folder(folder)
        assert not folder.exists()
    finally:
        stop.set()
        writer.join()
        os.close(at)
    wait_removed()
    assert [path for path in tmp_path.iterdir() if not path.name.startswith(ASIDE)] == []


trees = st.recursive(
    st.sampled_from(["file", "link", "folder"]), lambda inner: st.lists(inner, max_size=12), max_leaves=120
)


def plant(tree: object, at: Path) -> None:
    if isinstance(tree, list):
        at.mkdir()
        for number, branch in enumerate(tree):
            plant(branch, at / str(number))
    elif tree == "file":
        at.touch()
    elif tree == "link":
        at.symlink_to("..")
    else:
        at.mkdir()


@settings(max_examples=50)
@given(st.lists(trees, max_size=8))
def test_any_tree_is_removed(tmp_path_factory: pytest.TempPathFactory, tree: list[object]) -> None:
    parent = tmp_path_factory.mktemp("any")
    plant(tree, parent / "tenant")
    remove_folder(parent / "tenant")
    wait_removed()
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("within", [".", "page", "inner", "inner/deep", "inner/deep/file"])
def test_folder_with_a_mount_that_never_answers_holds_up_nobody(
    tmp_path: Path, within: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "tenant"
    (folder / "inner" / "deep").mkdir(parents=True)
    for file in ("page", "inner/deep/file"):
        (folder / file).touch()
    with silent_mount(folder / within):
        began = time.monotonic()
        remove_folder(folder)
        assert time.monotonic() - began < 5
        nested(tmp_path / "other", 200)
        remove_folder(tmp_path / "other")
        wait_removed()
        assert time.monotonic() - began < 15
        assert (list(tmp_path.iterdir()), mounts_below(tmp_path)) == ([], [])
    assert caplog.records == []


def test_file_with_a_mount_that_never_answers_is_left(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with silent_mount(tmp_path / "file"):
        began = time.monotonic()
        with pytest.raises(OSError, match="somebody has mounted"):
            remove_file(tmp_path / "file")
        assert time.monotonic() - began < 5
