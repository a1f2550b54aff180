"""Controls are sent only to files of the driver; what it answers becomes an error of ours."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.gpu import rm
from aliquot.adapters.gpu.rm import Group, RmError

GROUP = Group(fd=999_999, client=0xC1D00001, group=0x5C000020, subdevice=0x5C000003, channels=(7, 8, 9))


class Driver:
    """Stands for the ioctl: answers a status, and remembers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, status: int = 0, answer: bytes = b"") -> None:
        self.status, self.answer = status, answer
        self.asked: list[tuple[int, int, int, bytes]] = []  # client, object, command, params
        monkeypatch.setattr(fcntl, "ioctl", self.ioctl)

    def ioctl(self, fd: int, request: int, argument: bytearray) -> int:
        assert request == rm.CONTROL_IOC
        client, target, command, _, address, size, _ = struct.unpack("<4IQ2I", argument)
        self.asked.append((client, target, command, ctypes.string_at(address, size)))
        ctypes.memmove(address, self.answer, min(size, len(self.answer)))
        struct.pack_into("<I", argument, 28, self.status)
        return 0


def test_a_slice_is_set_on_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(monkeypatch)
    rm.set_slice(GROUP, 8130)
    assert driver.asked == [(GROUP.client, GROUP.group, rm.SET_TIMESLICE, struct.pack("<Q", 8130))]


def test_a_slice_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, answer=struct.pack("<Q", 2048))
    assert rm.get_slice(GROUP) == 2048


@given(st.integers(1, 200), st.booleans())
def test_a_pause_names_every_channel_once(channels: int, paused: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        driver = Driver(patch)
        rm.set_paused(Group(-1, 5, 6, 7, tuple(range(100, 100 + channels))), paused)
    named: list[int] = []
    for client, target, command, params in driver.asked:
        assert (client, target, command, params[0]) == (5, 7, rm.DISABLE_CHANNELS, paused)
        count = struct.unpack_from("<I", params, 4)[0]
        assert struct.unpack_from(f"<{count}I", params, 24) == (5,) * count
        named += struct.unpack_from(f"<{count}I", params, 24 + 4 * rm.DISABLE_MAX)
    assert named == list(range(100, 100 + channels))


def test_the_card_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = "GPU-8a56a4bc-aaaa-bbbb-cccc-0123456789ab"
    Driver(monkeypatch, answer=struct.pack("<3I", 0, 0, len(uuid) + 1) + uuid.encode() + b"\0")
    assert rm.uuid_of(GROUP) == uuid


@given(st.binary(max_size=300))
def test_whatever_the_driver_answers_a_uuid_is_text(answer: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Driver(patch, answer=answer)
        assert isinstance(rm.uuid_of(GROUP), str)


@pytest.mark.parametrize(("status", "gone"), [(0x23, True), (0x33, True), (0x57, True), (0x1B, False), (0x56, False)])
def test_a_refusal_reports_whether_the_object_is_gone(monkeypatch: pytest.MonkeyPatch, status: int, gone: bool) -> None:
    Driver(monkeypatch, status)
    with pytest.raises(RmError, match=f"0x{status:x}") as caught:
        rm.set_paused(GROUP, True)
    assert caught.value.gone is gone


def test_a_file_that_knows_no_such_ioctl_is_a_refusal() -> None:
    with open("/dev/null", "rb") as file, pytest.raises(RmError):
        rm.get_slice(Group(file.fileno(), 1, 2, 3, (4,)))


def test_a_closed_file_is_a_refusal() -> None:
    with pytest.raises(RmError):
        rm.get_slice(GROUP)


@pytest.mark.parametrize("simulated", [False, True])
def test_file_system_of_a_handed_file_is_not_asked(simulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that a user wrote (FUSE) may never answer."""
    monkeypatch.setattr(rm, "os", None)  # nothing else of it is called: an fstat may hang
    reading, writing = os.pipe()
    assert rm.is_rm_file(writing, simulated=simulated) == simulated
    for fd in (reading, writing):
        os.close(fd)


def test_only_files_of_the_driver_are_sent_controls(tmp_path: Path) -> None:
    """A tenant may hand over anything; an ioctl on a terminal, say, would be ours to answer for."""
    (tmp_path / "file").touch()
    reading, writing = os.pipe()
    ours, theirs = socket.socketpair()
    folder, plain = os.open(tmp_path, os.O_RDONLY), os.open(tmp_path / "file", os.O_RDONLY)
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        for fd in (reading, writing, folder, plain, null, ours.fileno()):
            assert not rm.is_rm_file(fd, simulated=False)
        for fd in (ours.fileno(), folder, plain, null):
            assert not rm.is_rm_file(fd, simulated=True)
        assert (rm._device(null), rm._device(plain)) == ((1, 3), None)
        assert rm.is_rm_file(writing, simulated=True)
    finally:
        for fd in (reading, writing, folder, plain, null):
            os.close(fd)
        ours.close()
        theirs.close()
