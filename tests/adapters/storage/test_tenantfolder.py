"""A tenant's folder from release to release: the page of another layout is left to those who read it."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from aliquot.adapters.gpu.page import MAGIC, VERSION, PageError
from aliquot.adapters.storage import tenantfolder
from aliquot.model.tenant import Allotment
from kit.machines.silentmount import silent_mount
from kit.running.scarcefiles import scarce_files

CARD = [Allotment("GPU-0", 1 << 30)]


def prepare(folder: Path) -> None:
    page, door = tenantfolder.prepare_folder(folder, CARD, None)
    page.close()
    door.close()


def test_page_of_a_later_layout_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t" / "uid"
    prepare(folder)
    later = b"ALQT\x02\0\0\0" + b"as its processes know it"
    (folder / "page").write_bytes(later)
    (folder / "version").write_text("2\n")
    with pytest.raises(PageError, match=r"is of version 2, .* create the Pod again, or start the run again"):
        prepare(folder)
    assert (folder / "page").read_bytes() == later


def test_folder_without_version_file_is_used(tmp_path: Path) -> None:
    prepare(tmp_path / "uid")
    prepare(tmp_path / "uid")
    assert sorted(path.name for path in (tmp_path / "uid").iterdir()) == ["page", "sock"]


def test_version_on_the_page_is_not_trusted(tmp_path: Path) -> None:
    """Else it would be out of control after the next start of the agent."""
    prepare(tmp_path / "uid")
    with (tmp_path / "uid" / "page").open("r+b") as page:
        page.write(b"ALQT\x09\0\0\0")
    prepare(tmp_path / "uid")
    head = MAGIC.to_bytes(4, "little") + VERSION.to_bytes(4, "little")
    assert (tmp_path / "uid" / "page").read_bytes()[:8] == head


@pytest.mark.parametrize("said", [b"", b"\xff\xfe", b"one", b"1" * 100])
def test_malformed_version_is_refused(tmp_path: Path, said: bytes) -> None:
    prepare(tmp_path / "uid")
    (tmp_path / "uid" / "version").write_bytes(said)
    with pytest.raises(PageError, match="is of version"):
        prepare(tmp_path / "uid")


def test_folder_of_a_group_stays_as_it_was_made(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    tmp_path.chmod(0o711)
    page, door = tenantfolder.prepare_folder(tmp_path, CARD, 65533, folder_too=False)
    page.close()
    door.close()
    found = {path.name: (path.stat().st_uid, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()}
    assert found == {"page": (65533, 0o600), "sock": (65533, 0o600)}
    assert (tmp_path.stat().st_uid, tmp_path.stat().st_mode & 0o777) == (0, 0o711)


@pytest.mark.parametrize("within", [".", "page", "sock", "version"])
def test_folder_with_a_mount_that_never_answers_is_unusable_at_once(tmp_path: Path, within: str) -> None:
    """Its user owns the folder of a run."""
    folder = tmp_path / "t" / "uid"
    page, door = tenantfolder.prepare_folder(folder, CARD, 65533)
    (folder / "version").write_text(f"{VERSION}\n")
    assert tenantfolder.is_whole(folder, page)
    with closing(page), closing(door), silent_mount(folder / within):  # which may skip the test
        began = time.monotonic()
        assert tenantfolder.is_whole(folder, page) == (within == "version")
        with pytest.raises((OSError, PageError), match=r"somebody has mounted|busy"):
            tenantfolder.prepare_folder(folder, CARD, 65533)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("free", [0, 1])
def test_folder_is_not_taken_for_broken_while_no_file_is_left(tmp_path: Path, free: int) -> None:
    """It would be made anew, and its processes would be on a page that nobody reads."""
    page, door = tenantfolder.prepare_folder(tmp_path / "uid", CARD, None)
    with scarce_files(free), pytest.raises(OSError, match="Too many open files"):
        tenantfolder.is_whole(tmp_path / "uid", page)
    assert tenantfolder.is_whole(tmp_path / "uid", page)
    (tmp_path / "uid" / "sock").unlink()
    assert not tenantfolder.is_whole(tmp_path / "uid", page)
    (tmp_path / "uid").rename(tmp_path / "elsewhere")
    assert not tenantfolder.is_whole(tmp_path / "uid", page)
    page.close()
    door.close()
