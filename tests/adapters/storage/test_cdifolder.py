"""The folder that container runtimes read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from aliquot.adapters.storage.cdifolder import CdiError, CdiFolder
from aliquot.dialects.wire.cdi import parse_spec, render_spec
from aliquot.model.containers.edits import CdiName, Edits, Spec


def a_spec(device: str = "3f2a", **env: str) -> Spec:
    return Spec(CdiName("aliquot.dev/qgpu-core", device), Edits(env), "uid", "ml", "train-0", "main")


def a_folder(path: Path) -> CdiFolder:
    return CdiFolder(path, render_spec, parse_spec)


def test_write_and_remove_specs(tmp_path: Path) -> None:
    folder, one, two = a_folder(tmp_path), a_spec("1"), a_spec("2")
    assert folder.write(one)
    assert folder.write(two)
    folder.remove(one.name)
    folder.remove(one.name)  # saying it twice changes nothing
    assert a_folder(tmp_path).specs() == [two]
    assert [path.name for path in tmp_path.iterdir()] == [two.name.file]


def test_spec_is_readable_by_all_users(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        a_folder(tmp_path).write(a_spec())
    finally:
        os.umask(before)
    assert (tmp_path / a_spec().name.file).stat().st_mode & 0o777 == 0o644


def test_write_of_an_identical_spec_does_nothing(tmp_path: Path) -> None:
    folder, path = a_folder(tmp_path), tmp_path / a_spec().name.file
    folder.write(a_spec())
    before = path.stat()
    assert not folder.write(a_spec())
    assert path.stat().st_ino == before.st_ino
    assert folder.write(a_spec(A="other"))
    assert folder.specs() == [a_spec(A="other")]


def test_specs_ignore_files_of_other_programs(tmp_path: Path) -> None:
    others = {"nvidia.yaml": b"kind: nvidia.com/gpu", ".hidden": b"", "aliquot.dev-damaged.yaml": b"# aliquot {"}
    for name, data in others.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "aliquot.dev-folder.yaml").mkdir()
    assert a_folder(tmp_path).specs() == []
    assert {name: (tmp_path / name).read_bytes() for name in others} == others


def test_specs_remove_drafts_of_a_killed_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as killed:
        killed.setattr(os, "replace", lambda *_: None)
        killed.setattr(CdiFolder, "_sync", lambda _: None)
        a_folder(tmp_path).write(a_spec())
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".")
    assert a_folder(tmp_path).specs() == []
    assert list(tmp_path.iterdir()) == []


def test_write_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runtimes read a file when it appears: its bytes are on the disk before, its name after."""
    steps, sync, replace = [], os.fsync, os.replace

    def synced(number: int) -> None:
        steps.append(f"sync {Path(os.readlink(f'/proc/self/fd/{number}')).name[:9]}")
        sync(number)

    def replaced(draft: Path, target: Path) -> None:
        assert draft.parent == target.parent
        assert draft.read_bytes() == render_spec(a_spec())
        steps.append("rename")
        replace(draft, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    (tmp_path / "cdi").mkdir()
    a_folder(tmp_path / "cdi").write(a_spec())
    assert steps == ["sync .aliquot-", "rename", "sync cdi"]


@pytest.mark.parametrize(
    ("step", "number", "message"),
    [
        ("fsync", errno.ENOSPC, "No space left on device: free some space"),
        ("replace", errno.EROFS, "Read-only file system: mount it writable"),
        ("replace", errno.EIO, "Input/output error"),
    ],
)
def test_write_on_a_failing_disk_keeps_the_old_spec(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int, message: str
) -> None:
    folder = a_folder(tmp_path)
    folder.write(a_spec())

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, step, fail)
        with pytest.raises(CdiError, match=f"{tmp_path}: {message}"):
            folder.write(a_spec(A="other"))
    assert [path.name for path in tmp_path.iterdir()] == [a_spec().name.file]
    assert folder.specs() == [a_spec()]


def test_missing_folder_is_an_error_with_what_to_do(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "cdi")
    with pytest.raises(CdiError, match="cdi: No such file or directory: create it and add it to"):
        folder.write(a_spec())
    with pytest.raises(CdiError, match="create it and add it to"):
        folder.specs()
    folder.remove(a_spec().name)  # what is not there is gone


def test_folder_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    folder = a_folder(tmp_path / "cdi")
    for attempt in (lambda: folder.write(a_spec()), folder.specs, lambda: folder.remove(a_spec().name)):
        with pytest.raises(CdiError, match="it must be a folder"):
            attempt()
