"""The shim on the host."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

import pytest

from aliquot.adapters.storage.shims import Installed, ShimError, examine, install, sweep

X86_64, AARCH64 = 62, 183


def a_library(path: Path, text: bytes = b"one", machine: int = X86_64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little")
    path.write_bytes(head.ljust(64, b"\0") + text)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    a_library(tmp_path / "lib" / "libaliquot.so")
    a_library(tmp_path / "lib" / "simgpu" / "libsimrm.so")
    a_library(tmp_path / "lib" / "simgpu" / "libcuda.so.1")
    return tmp_path / "lib"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def put(source: Path, state: Path, version: str = "0.1.0", **more: tuple[str, ...]) -> Installed:
    return install(source, state, version, machine="x86_64", **more)


def names(state: Path) -> list[str]:
    return sorted(path.name for path in (state / "shim").iterdir())


def test_the_library_is_there_and_named_by_its_path_in_containers(source: Path, state: Path) -> None:
    done = put(source, state)
    assert done.library.read_bytes() == (source / "libaliquot.so").read_bytes()
    assert done.preload.read_text() == "/usr/local/lib/aliquot/libaliquot.so\n"
    assert done.folder.parent == state / "shim"
    assert done.folder.name.startswith("0.1.0-")
    assert (state / "shim" / "current").resolve() == done.folder


def test_everyone_may_load_it_and_only_root_may_change_it(source: Path, state: Path) -> None:
    before = os.umask(0o077)
    try:
        done = put(source, state)
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (done.folder, done.library, done.preload)]
    assert modes == [0o755, 0o755, 0o644]


def test_what_stands_in_for_a_driver_is_preloaded_after_the_shim_or_only_put_beside_it(
    source: Path, state: Path
) -> None:
    done = put(source, state, more=("simgpu/libsimrm.so",), beside=("simgpu/libcuda.so.1",))
    assert done.preload.read_text() == ("/usr/local/lib/aliquot/libaliquot.so\n/usr/local/lib/aliquot/libsimrm.so\n")
    assert sorted(path.name for path in done.folder.iterdir()) == [
        "ld.so.preload",
        "libaliquot.so",
        "libcuda.so.1",
        "libsimrm.so",
    ]


def written(path: Path) -> tuple[int, ...]:
    """All that a write of any kind would change; when it was last read is not of it."""
    found = path.stat()
    return (
        found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode, found.st_uid, found.st_nlink
    )  # fmt: skip


def test_installing_twice_changes_nothing(source: Path, state: Path) -> None:
    first = put(source, state)
    before = written(first.library)
    again = put(source, state)
    assert (first.fresh, again.fresh) == (True, False)
    assert again.folder == first.folder
    assert written(again.library) == before


def test_a_version_is_whole_before_it_has_its_name_and_only_then_do_new_containers_get_it(
    source: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in between, an installer leaves what was there; nobody ever mounts half of a version."""
    before = put(source, state)
    a_library(source / "libaliquot.so", b"two")
    steps, rename, replace = [], os.rename, os.replace
    current = state / "shim" / "current"

    def renamed(draft: Path, folder: Path) -> None:
        if not folder.exists() and draft.exists():
            assert sorted(path.name for path in draft.iterdir()) == ["ld.so.preload", "libaliquot.so"]
            assert current.resolve() == before.folder
            steps.append("its name")
        rename(draft, folder)

    def pointed(draft: Path, link: Path) -> None:
        assert draft.resolve().is_dir()
        steps.append("the link")
        replace(draft, link)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "replace", pointed)
    after = put(source, state)
    assert steps == ["its name", "the link"]
    assert current.resolve() == after.folder


def test_another_build_of_the_same_version_stands_beside_the_first(source: Path, state: Path) -> None:
    first = put(source, state)
    a_library(source / "libaliquot.so", b"two")
    second = put(source, state)
    assert names(state) == sorted([first.folder.name, second.folder.name, "current"])
    assert first.library.read_bytes() != second.library.read_bytes()
    assert (state / "shim" / "current").resolve() == second.folder


def test_a_version_that_was_damaged_is_mended_and_who_has_it_open_keeps_it(source: Path, state: Path) -> None:
    done = put(source, state)
    with open(done.library, "r+b") as mounted:
        done.preload.unlink()
        assert put(source, state).fresh
        assert os.fstat(mounted.fileno()).st_nlink == 0
        assert mounted.read(4) == b"\x7fELF"
    assert done.preload.exists()
    assert names(state) == sorted([done.folder.name, "current"])


def test_a_library_of_another_architecture_is_refused(source: Path, state: Path) -> None:
    a_library(source / "libaliquot.so", machine=AARCH64)
    with pytest.raises(ShimError, match=r"is for aarch64, and this host is x86_64: use .* for x86_64"):
        put(source, state)
    assert not state.exists()
    assert install(source, state, "0.1.0", machine="aarch64").fresh


def test_what_is_no_library_is_refused(source: Path, state: Path) -> None:
    for data in (b"", b"\x7fELF", b"#!/bin/sh\n" * 20):
        (source / "libaliquot.so").write_bytes(data)
        with pytest.raises(ShimError, match="is not an ELF library"):
            put(source, state)


def test_a_library_that_was_not_built_is_reported(source: Path, state: Path) -> None:
    (source / "libaliquot.so").unlink()
    with pytest.raises(ShimError, match="is not there: build it with `make native`"):
        put(source, state)


@pytest.mark.parametrize(
    ("step", "number", "message"),
    [
        ("fsync", errno.ENOSPC, "No space left on device: free some space"),
        ("rename", errno.EROFS, "Read-only file system: mount the host's folder writable"),
        ("replace", errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_fails_is_reported_and_leaves_nothing_half_done(
    source: Path, state: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, message: str
) -> None:
    before = put(source, state)
    a_library(source / "libaliquot.so", b"two")

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, step, fail)
        with pytest.raises(ShimError, match=message):
            put(source, state)
    assert (state / "shim" / "current").resolve() == before.folder
    assert not [name for name in names(state) if name.startswith(".")]
    assert put(source, state).library.read_bytes().endswith(b"two")


def test_another_installer_that_was_faster_is_no_error(
    source: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def slower(self: Path, target: Path) -> Path:
        if self.name.startswith(".new-"):
            shutil.copytree(self, target)
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", slower)
    done = put(source, state)
    assert done.library.exists()
    assert names(state) == sorted([done.folder.name, "current"])


def test_a_sweep_leaves_what_is_kept_and_what_is_current(source: Path, state: Path) -> None:
    folders = []
    for text in (b"one", b"two", b"three"):
        a_library(source / "libaliquot.so", text)
        folders.append(put(source, state).folder)
    assert sweep(state, {folders[1]}) == [folders[0].name]
    assert names(state) == sorted([folders[1].name, folders[2].name, "current"])
    assert sweep(state, set()) == [folders[1].name]


def test_a_sweep_removes_drafts_only_when_they_are_old(source: Path, state: Path) -> None:
    put(source, state)
    draft, link = state / "shim" / ".new-killed", state / "shim" / ".new-current-1"
    draft.mkdir()
    link.symlink_to("nowhere")
    assert sweep(state, set()) == []
    assert draft.exists()
    long_ago = time.time() - 7200
    for path in (draft, link):
        os.utime(path, (long_ago, long_ago), follow_symlinks=False)
    assert sweep(state, set()) == []
    assert not [name for name in names(state) if name.startswith(".")]


def test_there_is_nothing_to_sweep_before_anything_was_installed(state: Path) -> None:
    assert sweep(state, set()) == []


# --- looked at by another --------------------------------------------------------------------------------------------


def test_a_version_that_was_installed_has_nothing_wrong_with_it(source: Path, tmp_path: Path) -> None:
    install(source, tmp_path, "1", more=("simgpu/libsimrm.so",), machine="x86_64")
    assert examine(tmp_path, machine="x86_64") is None


def test_what_is_missing_or_of_another_machine_is_reported(source: Path, tmp_path: Path) -> None:
    assert "shim/current: No such file" in str(examine(tmp_path, machine="x86_64"))
    installed = install(source, tmp_path, "1", more=("simgpu/libsimrm.so",), machine="x86_64")
    assert "is for x86_64, and this host is aarch64" in str(examine(tmp_path, machine="aarch64"))
    (installed.folder / "libsimrm.so").unlink()
    assert "names /usr/local/lib/aliquot/libsimrm.so, which is missing in the same folder" in str(
        examine(tmp_path, machine="x86_64")
    )
    installed.library.unlink()
    assert str(examine(tmp_path, machine="x86_64")).endswith("libaliquot.so is not there")
