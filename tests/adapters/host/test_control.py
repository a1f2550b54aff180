"""The side of the control socket that commands use."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aliquot.adapters.host import control
from aliquot.adapters.host.control import AnswerError, Connection, ControlError, NoDaemonError, ask, connect
from aliquot.adapters.host.home import Home


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


NOBODY, SOMEBODY = 65534, 70001
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")


@contextmanager
def user(uid: int) -> Iterator[None]:
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def listening(home: Home, uid: int) -> Iterator[socket.socket]:
    """The kernel notes who listens, not who made the socket."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(home.control)
        os.chmod(home.control, 0o777)
        with user(uid):
            listener.listen(8)
        yield listener
    os.unlink(home.control)


@as_root
def test_daemon_of_another_user_is_not_believed(home: Home) -> None:
    """It would decide what a run has in its environment: LD_PRELOAD, for one."""
    os.chmod(home.run, 0o755)
    with listening(home, NOBODY):
        with pytest.raises(ControlError, match="user 65534 listens there, neither root nor you"):
            connect([home])
        with user(SOMEBODY), pytest.raises(ControlError, match="user 65534"):
            connect([home])
        with user(SOMEBODY), pytest.raises(ControlError, match="user 65534"):
            ask([home], {"op": "status"})
    with listening(home, 0):
        connect([home])[0].close()
        with user(SOMEBODY):
            connect([home])[0].close()


@as_root
def test_root_asks_the_daemon_of_any_user_but_does_not_obey_it(home: Home) -> None:
    """As with `sudo ALIQUOT_HOME=... aliquot ps`. A run would have the environment that the daemon says."""
    with listening(home, SOMEBODY) as listener:

        def serve() -> None:
            with listener.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(b'{"ok": {"pid": 1}}\n')

        thread = threading.Thread(target=serve)
        thread.start()
        assert ask([home], {"op": "hello"}) == {"pid": 1}
        thread.join()
        with pytest.raises(ControlError, match=f"user {SOMEBODY}"):
            connect([home])


@as_root
def test_daemon_of_the_system_is_believed_where_its_user_has_no_number(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a user namespace the host's root is the overflow user. Nobody else listens in a folder that only root makes
    and writes to."""
    os.chmod(home.run, 0o755)
    with listening(home, NOBODY):
        monkeypatch.setattr(control, "SYSTEM_RUN", home.run)
        with user(SOMEBODY):
            connect([home])[0].close()
        os.chown(home.run, NOBODY, NOBODY)
        with user(SOMEBODY):
            connect([home])[0].close()
        for owner, mode in ((0, 0o777), (0, 0o1777), (0, 0o775), (SOMEBODY, 0o555), (70002, 0o755)):
            os.chown(home.run, owner, owner)
            os.chmod(home.run, mode)
            with user(SOMEBODY), pytest.raises(ControlError, match="user 65534"):
                connect([home])
        os.chown(home.run, 0, 0)
    os.chmod(home.run, 0o755)
    with listening(home, 70002), user(SOMEBODY), pytest.raises(ControlError, match="user 70002"):
        connect([home])
