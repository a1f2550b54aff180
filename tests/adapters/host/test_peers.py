"""Who is at the other end of a socket, also after the pid of an ended process went to another."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from aliquot.adapters.host import peers
from aliquot.adapters.host.process import processes
from kit.cards.reuse import NOBODY, SERVER, connection_of_ended, needs_root
from kit.machines.machine import eventually

LINUXES = pytest.mark.parametrize("option", [peers.SO_PEERPIDFD, 9999], ids=["6.5 and later", "older"])


@LINUXES
def test_peer_of_has_pid_user_and_start_time(monkeypatch: pytest.MonkeyPatch, option: int) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        started = processes.start_time(os.getpid())
        assert peers.peer_of(ours) == (os.getpid(), os.getuid(), os.getgid(), started)


@LINUXES
def test_peer_of_an_ended_process_has_no_start_time(
    monkeypatch: pytest.MonkeyPatch, option: int, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "sock"))
        listener.listen()
        code = f"import socket; socket.socket(socket.AF_UNIX).connect({str(tmp_path / 'sock')!r})"
        child = subprocess.Popen([sys.executable, "-S", "-c", code])
        child.wait()
        connection, _ = listener.accept()
        with connection:
            assert peers.peer_of(connection)[:4:3] == (child.pid, None)


def _newest(listener: socket.socket) -> socket.socket:
    """Those before it are of processes whose pids nothing got."""
    connection, _ = listener.accept()
    listener.setblocking(False)
    while True:
        try:
            later, _ = listener.accept()
        except BlockingIOError:
            return connection
        connection.close()
        connection = later


@needs_root
@LINUXES
@pytest.mark.parametrize("command", [("sleep", "600"), SERVER], ids=["root's", "root's for the user"])
def test_peer_of_is_not_the_process_that_has_its_pid_now(
    monkeypatch: pytest.MonkeyPatch, option: int, command: Sequence[str]
) -> None:
    monkeypatch.setattr(peers, "SO_PEERPIDFD", option)
    with tempfile.TemporaryDirectory(prefix="alq") as folder, socket.socket(socket.AF_UNIX) as listener:
        os.chmod(folder, 0o711)  # the other user connects there
        listener.bind(f"{folder}/sock")
        os.chmod(f"{folder}/sock", 0o666)
        listener.listen()
        with connection_of_ended(Path(folder, "sock"), victim=command) as (_, victim):
            if command is SERVER:
                eventually(lambda: processes.uid_of(victim.pid) == NOBODY)
            with _newest(listener) as connection:
                assert peers.credentials(connection) == (victim.pid, NOBODY, NOBODY)
                assert peers.peer_of(connection).started is None
