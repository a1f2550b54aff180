"""Logs are bounded while programs append to them."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.host.logfiles import OLDER, bound


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_log_and_older_part_have_the_last_of_what_was_written(pieces: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, written = f"{folder}/x.log", b""
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "wb", buffering=0) as log:
            for piece in pieces:
                log.write(piece)
                written += piece
                bound(path, 1000)
                parts = b"".join(Path(part).read_bytes() for part in (path + OLDER, path) if os.path.exists(part))
                assert written.endswith(parts)
                assert len(parts) >= min(len(written), 500)
                assert len(parts) <= 1800
        assert set(os.listdir(folder)) <= {"x.log", "x.log.1"}


def test_huge_log_is_cut_to_the_limit_without_reading_all_of_it(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.touch()
    os.truncate(log, 1 << 40)  # its owner may do that
    assert bound(str(log), 10_000)
    assert log.stat().st_size == 0
    assert Path(f"{log}{OLDER}").stat().st_size == 10_000


def test_links_and_pipes_are_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 5000)
    (tmp_path / "link.log").symlink_to(precious)
    os.link(precious, tmp_path / "hard.log")
    assert not bound(str(tmp_path / "link.log"), 1000)
    with pytest.raises(OSError, match="symbolic links"):
        bound(str(tmp_path / "link.log"), 10)
    assert not bound(str(tmp_path / "hard.log"), 1000)
    assert precious.stat().st_size == 5000


def test_log_is_cut_on_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * 5000)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert bound(str(log), 1000)
    monkeypatch.undo()
    assert log.stat().st_size == 0
    assert os.listdir(tmp_path) == ["x.log"]


def test_log_is_not_cut_while_no_file_is_left_for_its_older_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * 5000)
    opened = os.open

    def scarce(path: str, flags: int, *more: int, **named: int) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", scarce)
    with pytest.raises(OSError, match="Too many open files"):
        bound(str(log), 1000)
    assert log.stat().st_size == 5000
    monkeypatch.undo()
    assert bound(str(log), 1000)
    assert sorted(os.listdir(tmp_path)) == ["x.log", "x.log.1"]
