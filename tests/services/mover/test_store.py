"""What is written down about the pool, on a tmpfs that may be full and in logs that may be broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.services.mover.pool import UNIT, Part
from aliquot.services.mover.service import Mover
from aliquot.services.mover.store import Kept, Key, Store

KEY = Key("a", 0, 1, "GPU-0")
OTHER = Key("b", 0, 1, "GPU-0")


def piece(at: int) -> Kept:
    return Kept(UNIT, (Part(at * UNIT, UNIT),))


class Full:
    """A tmpfs with room for that many more bytes: then writes are short, then they fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
        self._write, self._room = os.write, room
        monkeypatch.setattr(os, "write", self.write)

    def write(self, file: int, data: bytes) -> int:
        if not self._room:
            raise OSError(28, "No space left on device")
        written = self._write(file, data[: self._room])
        self._room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 20])
def test_line_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    store = Store(tmp_path, 4 * UNIT)
    store.write_kept(KEY, {1: piece(0)})
    with monkeypatch.context() as patch:
        Full(patch, room)
        with pytest.raises(OSError, match="No space left"):
            store.write_kept(KEY, {2: piece(1)})
    store.write_kept(KEY, {3: piece(2)})
    assert Store(tmp_path, 0).kept() == {KEY: {1: piece(0), 3: piece(2)}}


def test_piece_whose_return_cannot_be_written_down_stays_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the next mover would find it where another tenant's bytes are by then."""
    mover = Mover(Store(tmp_path, 4 * UNIT))
    mover.add_memory(0, 4 * UNIT)
    mover.keep(KEY, mover.reserve(KEY, [(1, UNIT), (2, UNIT)]))
    found = mover.find(KEY, [(1, UNIT)])
    assert found is not None
    mover.read(found)
    with monkeypatch.context() as patch:
        Full(patch, 3)
        with pytest.raises(OSError, match="No space left"):
            mover.returned(KEY, found)
    assert mover.free() == 2 * UNIT
    mover.keep(KEY, mover.reserve(KEY, [(1, UNIT)]))  # it leaves again
    assert mover.free() == 2 * UNIT
    mover.only([], None)
    assert mover.free() == 4 * UNIT


def test_log_that_cannot_be_read_is_lost_and_its_parts_stay_taken(tmp_path: Path) -> None:
    store = Store(tmp_path, 8 * UNIT)
    store.write_kept(OTHER, {1: piece(0)})
    (tmp_path / "parked" / KEY.file).write_text(
        f"[1, {UNIT}, [[0, {2 * UNIT}]]]\n"  # another has half of that now
        f"[2, {UNIT}, [[{4 * UNIT}, {UNIT}]]]\n"
        f"[3, 2097[4]\n7\n"
        f"[5, {UNIT}, [[{4 * UNIT}, {2 * UNIT}]]]\n"
    )
    for _ in range(2):  # the second finds the log in order
        mover = Mover(Store(tmp_path, 8 * UNIT))
        mover.add_memory(0, 8 * UNIT)
        assert mover.kept[OTHER] == {1: piece(0)}
        assert mover.find(KEY, [(2, UNIT)]) is None
        assert mover.free() == 4 * UNIT  # 0, 1, 4 and 5 are taken
    mover.keep(KEY, mover.reserve(KEY, [(2, UNIT)]))
    assert 2 in Store(tmp_path, 0).kept()[KEY]
    mover.only([("b", 0, 1)], None)
    assert mover.free() == 7 * UNIT


def test_half_a_line_is_removed_before_the_next_is_appended(tmp_path: Path) -> None:
    store = Store(tmp_path, 4 * UNIT)
    store.write_kept(KEY, {1: piece(0)})
    with (tmp_path / "parked" / KEY.file).open("a") as log:
        log.write("[2, 2097")
    again = Store(tmp_path, 4 * UNIT)
    assert again.kept() == {KEY: {1: piece(0)}}
    again.write_kept(KEY, {3: piece(1)})
    assert Store(tmp_path, 4 * UNIT).kept() == {KEY: {1: piece(0), 3: piece(1)}}


def test_log_of_a_process_that_moves_one_piece_out_and_back_for_ever_stays_short(tmp_path: Path) -> None:
    """It is memory of the host: 190 KiB a second for each process, as long as the tenant may leave."""
    mover = Mover(Store(tmp_path, 4 * UNIT))
    mover.add_memory(0, 4 * UNIT)
    mover.keep(KEY, mover.reserve(KEY, [(1, UNIT)]))
    for _ in range(3000):
        mover.keep(KEY, mover.reserve(KEY, [(2, UNIT)]))
        mover.keep(KEY, mover.reserve(KEY, [(2, UNIT)]))
        found = mover.find(KEY, [(2, UNIT)])
        assert found is not None
        mover.read(found)
        mover.returned(KEY, found)
        assert (tmp_path / "parked" / KEY.file).stat().st_size < 70_000
    assert Store(tmp_path, 0).kept() == mover.kept
    assert [path.name for path in (tmp_path / "parked").iterdir()] == [KEY.file]


def test_log_that_cannot_be_written_anew_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mover = Mover(Store(tmp_path, 4 * UNIT))
    mover.add_memory(0, 4 * UNIT)

    def no_room(path: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", no_room)
    for _ in range(3000):
        mover.keep(KEY, mover.reserve(KEY, [(2, UNIT)]))
    assert Store(tmp_path, 0).kept() == mover.kept
