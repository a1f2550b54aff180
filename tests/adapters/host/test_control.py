"""The side of the control socket that commands use."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.adapters.host.control import AnswerError, Connection, ControlError, NoDaemonError, ask, connect
from aliquot.adapters.host.home import Home


@pytest.fixture
def home() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        yield Home(folder, folder)


def answering(home: Home, answer: bytes) -> threading.Thread:
    """A daemon that says this to the first who asks, whatever it asks."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(home.control)
    listener.listen(1)

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1 << 16)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_connect_raises_nodaemon_without_a_listening_socket(home: Home) -> None:
    with pytest.raises(NoDaemonError):
        connect([home])
    left = socket.socket(socket.AF_UNIX)
    left.bind(home.control)  # as a daemon that was killed leaves it
    left.close()
    with pytest.raises(NoDaemonError):
        connect([home])
    with pytest.raises(NoDaemonError):
        Connection("/" + "x" * 200)


def test_connect_takes_the_first_home_that_listens(home: Home) -> None:
    thread = answering(home, b'{"ok": {"pid": 1}}\n')
    assert ask([Home("/nonexistent", "/nonexistent"), home], {"op": "hello"}) == {"pid": 1}
    thread.join()


def test_events_come_before_the_answer(home: Home) -> None:
    thread = answering(home, b'{"event": {"waiting": 1}}\n{"event": {"waiting": 2}}\n{"ok": {}}\n')
    connection, _ = connect([home])
    connection.send({})
    assert list(connection.events(10.0)) == [{"waiting": 1}, {"waiting": 2}, {"ok": {}}]
    connection.close()
    thread.join()


def test_a_refused_request_is_an_answererror_with_its_kind(home: Home) -> None:
    thread = answering(home, b'{"error": {"kind": "denied", "text": "not yours"}}\n')
    with pytest.raises(AnswerError, match="not yours") as refused:
        ask([home], {})
    assert refused.value.kind == "denied"
    thread.join()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[1]\n", b"", b'{"ok": '])
def test_an_answer_that_is_no_json_object_is_a_controlerror(home: Home, answer: bytes) -> None:
    thread = answering(home, answer)
    with pytest.raises(ControlError):
        ask([home], {})
    thread.join()


def test_a_folder_in_the_place_of_the_socket_is_a_controlerror(home: Home) -> None:
    Path(home.control).mkdir()
    with pytest.raises((ControlError, NoDaemonError)):
        connect([home])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
def test_daemon_of_another_user_is_not_believed(home: Home) -> None:
    """It would decide what a run has in its environment: LD_PRELOAD, for one."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.control)
        os.seteuid(65534)  # the kernel notes who listens, not who made the socket
        try:
            listener.listen(4)
        finally:
            os.seteuid(0)
        with pytest.raises(ControlError, match="user 65534 listens there, neither root nor you"):
            connect([home])
        with pytest.raises(ControlError, match="user 65534"):
            ask([home], {"op": "status"})
    os.unlink(home.control)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.control)
        listener.listen(1)
        connect([home])[0].close()
