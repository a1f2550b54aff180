"""Connections of a unix socket, also while no file is left."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.services.daemon import accepting
from aliquot.services.daemon.accepting import StreamServer
from kit.running.logged import logged
from kit.running.scarcefiles import scarce_files

PATIENCE = 60.0


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "sock"))
        made.listen(128)
        yield made


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.readline())
    writer.close()


async def all_ended() -> None:
    async with asyncio.timeout(PATIENCE):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)  # transports close their sockets soon after that


def test_connections_wait_while_no_file_is_left_and_the_log_has_one_line(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "_AGAIN", 0.01)
    attempts: list[float] = []
    accept = socket.socket.accept

    def counted(self: socket.socket) -> object:
        attempts.append(asyncio.get_running_loop().time())
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", counted)

    async def serve() -> bytes:
        clients = [socket.socket(socket.AF_UNIX) for _ in range(20)]
        server = StreamServer(answer, listener, limit=100)
        with scarce_files(0):
            for client in clients:
                client.connect(listener.getsockname())
            await asyncio.sleep(0.2)
            assert 2 <= len(attempts) <= 30
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection(sock=clients[-1])
            writer.write(b"there\n")
            line = await reader.readline()
        server.close()
        writer.close()
        for client in clients[:-1]:
            client.close()
        await all_ended()
        return line

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(serve()) == b"there\n"
    assert logged(caplog) == [("connection_accept_failed", {"why": "[Errno 24] Too many open files"})]


def test_closed_server_accepts_no_more_and_keeps_who_is_connected(listener: socket.socket) -> None:
    async def serve() -> None:
        server = StreamServer(answer, listener, limit=100)
        path = listener.getsockname()
        reader, writer = await asyncio.open_unix_connection(path)
        await asyncio.sleep(0.05)
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_unix_connection(path)
        writer.write(b"still\n")
        assert await reader.readline() == b"still\n"
        writer.close()
        await all_ended()

    asyncio.run(serve())
