"""A hostile tenant that hands over files: the daemon keeps none, and waits for none."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.adapters.gpu import link
from aliquot.adapters.gpu import page as pages
from aliquot.model.tenant import Level
from aliquot.services.runtime.processes import registration
from kit.cards.arbiterd import SUBDEVICE, FakeShim, until
from kit.cards.hostiletenant import HostileTenant, send
from kit.running.lingering import SECONDS, hand_over, lingering, nested


def _file(folder: Path) -> int:
    return os.open(folder / "plain", os.O_RDWR | os.O_CREAT)


def _folder(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY)


def _pipe(folder: Path) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


def _device(folder: Path) -> int:
    return os.open("/dev/null", os.O_RDWR)


def _page(folder: Path) -> int:
    return os.open(folder / "good/page", os.O_RDWR)


def _path(folder: Path) -> int:
    return os.open(folder, os.O_PATH)


def _socket(folder: Path) -> int:
    ours, theirs = socket.socketpair()
    theirs.close()
    return ours.detach()


@pytest.mark.parametrize("make", [_file, _folder, _pipe, _device, _page, _path, _socket])
def test_registrar_survives_any_file_passed_as_the_drivers(hostile: HostileTenant, make: Callable[[Path], int]) -> None:
    shim = hostile.attack().hello()
    handed = make(hostile.rig.folder)
    shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 1, 0, 7, files=(handed,))
    os.close(handed)
    shim.done(1).say(link.WAKE, 0)
    until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
    shim.close()
    hostile.is_in_order()
    until(lambda: not hostile.rig.standing("bad").processes, "the end of what was held at the gate")


def test_another_file_with_known_handles_gets_no_controls(hostile: HostileTenant) -> None:
    """What was asked of the driver once is remembered, but not of the file."""
    shim = hostile.rig.registered(hostile.folder, 66)
    handed = os.open("/dev/null", os.O_RDWR)
    shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 3, 0, 7, 8, 9, files=(handed,))
    os.close(handed)
    shim.done(1)
    until(lambda: hostile.rig.standing("bad").level is Level.GATE, "the gate in the place of controls")
    shim.close()
    hostile.is_in_order()


def test_a_passed_socket_with_linger_does_not_block_us(hostile: HostileTenant) -> None:
    """SO_LINGER with unread data: its last close would take a minute, and one thread listens to all tenants."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        sender.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                sender.send(bytes(1 << 16))
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
        shim = hostile.attack().hello()
        until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
        shim.say(link.GROUP, 66, 1, 0, SUBDEVICE, 1, 1, 1, 0, 7, files=(sender.fileno(),))
        sender.close()  # not the last: one is on its way
        shim.done(1)
        shim.close()
        until(lambda: not hostile.rig.daemon._tenancies["bad"].processes)
    hostile.is_in_order()


@pytest.mark.parametrize("how", ["behind many files", "in a message that is never read", "within another socket"])
def test_file_whose_close_hangs_does_not_hold_up_other_tenants(hostile: HostileTenant, how: str) -> None:
    """The kernel closes what it has no room for, and what is left in a connection: in the thread that serves all."""
    with lingering() as file, open(os.devnull) as null:
        shim = hostile.attack().hello()
        until(lambda: hostile.rig.daemon._tenancies["bad"].processes)
        if how == "within another socket":
            file = nested(file)
        if how == "in a message that is never read":
            with hostile.rig.daemon._lock:  # so that both are there before it reads the first
                shim.say(9999)
                shim.sock.send(b"no message")
                hand_over(shim.sock, b"no message", file)
        else:
            hand_over(shim.sock, b"no message", file, *[null.fileno()] * 100)
        until(lambda: not hostile.rig.daemon._tenancies["bad"].processes)
        began = time.monotonic()
        hostile.rig.standing("good")
        assert time.monotonic() - began < SECONDS / 2
        shim.close()
    hostile.is_in_order()


def test_files_of_every_message_are_closed(hostile: HostileTenant) -> None:
    for files in (1, 3, 8, 9, 253):
        shim = hostile.attack()
        send(shim, struct.pack("<I2H2I", pages.MAGIC, pages.VERSION, link.HELLO, 1, 0), [0] * files)
        until(shim.ended, "the end of it")
        shim.close()
    hostile.is_in_order()


def test_registrations_that_are_never_completed_hold_few_files(hostile: HostileTenant) -> None:
    """Each group is a file that the daemon holds."""
    shims = [FakeShim(hostile.folder, hostile.rig.pid(("bad", at)), at) for at in range(6)]
    for shim in shims:
        shim.hello()
    for _ in range(registration._MOST_GROUPS):
        for shim in shims:
            try:
                shim.group(66, hostile.rig.rm_file)
            except OSError:
                continue
    until(lambda: any(shim.ended() for shim in shims), "a limit")
    until(lambda: hostile.rig.held_files() <= registration._MOST_PENDING + 10, "the end of files of who was expelled")
    for shim in shims:
        shim.close()
    hostile.is_in_order()
