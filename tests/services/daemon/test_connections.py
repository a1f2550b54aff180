"""What the clients of a control socket can take of the daemon, whatever they do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.host import users
from aliquot.adapters.host.control import LONGEST
from aliquot.model.status.answers import Event
from aliquot.services.daemon import connections
from aliquot.services.daemon.connections import Client, Clients, FairShare
from aliquot.services.daemon.control import Caller, RefusedError, request_of
from aliquot.services.daemon.pace import Steps

ROOT, ANNA, BERT = 0, 70001, 70002


@given(st.lists(st.tuples(st.integers(70001, 70009), st.integers(1, 40), st.booleans()), max_size=200))
def test_fair_share_of_users_never_adds_up_to_more_than_there_is(steps: list[tuple[int, int, bool]]) -> None:
    share, held = FairShare(256, 64), dict.fromkeys(range(70001, 70010), 0)
    for uid, amount, taking in steps:
        if taking and share.take(uid, amount):
            held[uid] += amount
        elif not taking and held[uid] >= amount:
            share.give_back(uid, amount)
            held[uid] -= amount
        assert sum(held.values()) <= 256
        assert max(held.values()) <= 64
        assert share.take(ROOT, 256), "root has room of its own"
        share.give_back(ROOT, 256)


def test_fair_share_leaves_room_for_the_sixth_user_and_for_root() -> None:
    share = FairShare(connections.CONNECTIONS, connections.CONNECTIONS_OF_ONE)
    counts = [sum(share.take(uid) for _ in range(2000)) for uid in range(70001, 70006)]
    assert counts == [256, 256, 256, 128, 64]
    assert share.take(70006)
    assert share.take(ROOT)


def test_user_who_comes_under_numbers_that_are_lent_to_them_is_one_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `newuidmap` lets every user do who has a line in /etc/subuid: 65,536 users, each with a share of the rest."""
    (tmp_path / "subuid").write_text(f"{ANNA}:200000:65536\n")
    monkeypatch.setattr(users, "_LENT", tmp_path / "subuid")
    users.account_of.cache_clear()

    async def act() -> None:
        clients = Clients(16)
        async with contextlib.AsyncExitStack() as stack:
            for number in range(4):
                await stack.enter_async_context(client_of(clients, 200_000 + number))
            for uid in (200_004, ANNA):
                with pytest.raises(RefusedError) as refused:
                    await stack.enter_async_context(client_of(clients, uid))
                assert "too many connections" in refused.value.details["text"]
            for _ in range(4):
                await stack.enter_async_context(client_of(clients, BERT))
        assert clients.connections.limit(ANNA) == 4, "what was taken was given back"

    asyncio.run(act())
    users.account_of.cache_clear()


@contextlib.asynccontextmanager
async def client_of(clients: Clients, uid: int = ANNA) -> AsyncIterator[tuple[Client, socket.socket]]:
    """A connection of that user, and its other end."""
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=connections.PIECE)
    with theirs:
        try:
            client = clients.admit(reader, writer, Caller(1, uid, uid))
            try:
                yield client, theirs
            finally:
                client.drop()
        finally:
            writer.transport.abort()
            await asyncio.sleep(0.01)  # it closes the socket


def waiting(number: int) -> Event:
    return {"event": {"waiting": {"position": number, "why": "x" * 500}}}


def test_client_that_does_not_read_has_one_update_waiting_and_then_gets_the_newest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_BETWEEN_UPDATES", 0.0)
    monkeypatch.setattr(connections, "_LONGEST_BETWEEN", 0.001)

    async def act() -> None:
        async with client_of(Clients()) as (client, theirs):
            client.expect_updates()
            for number in range(3000):
                client.send(waiting(number))
                await asyncio.sleep(0)
            assert client.unread() <= len(json.dumps(waiting(3000))) + 1, "one update, not thousands"
            theirs.setblocking(False)
            seen = [line["event"]["waiting"]["position"] async for line in lines(theirs, until=2999)]
            assert seen == sorted(seen)
            assert len(seen) < 200

    asyncio.run(act())


async def lines(theirs: socket.socket, until: int) -> AsyncIterator[dict[str, Any]]:
    buffer = b""
    while True:
        buffer += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(theirs, 1 << 16), 60)
        *whole, buffer = buffer.split(b"\n")
        for line in map(json.loads, whole):
            yield line
            if line["event"]["waiting"]["position"] == until:
                return


def test_updates_of_one_client_are_limited_in_rate() -> None:
    async def act() -> None:
        async with client_of(Clients()) as (client, theirs):
            for number in range(500):
                client.send(waiting(number))
            client.send({"ok": {}})
            await asyncio.sleep(0.01)
            said = theirs.recv(1 << 20).splitlines()
            assert [json.loads(line) for line in said] == [waiting(0), {"ok": {}}], "a final answer replaces updates"

    asyncio.run(act())


def test_client_that_leaves_other_answers_unread_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_UNREAD_OF_A_CLIENT", 1 << 16)

    async def act() -> None:
        clients = Clients()
        async with client_of(clients) as (client, theirs):
            for _ in range(100):
                client.send({"event": {"noted": "x" * 10_000}})
            assert client.unread() == 0
            await asyncio.sleep(0.01)
            while theirs.recv(1 << 20):
                pass  # it ends

    asyncio.run(act())


def test_requests_are_refused_while_others_of_the_user_leave_answers_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_UNREAD_OF_ONE", 1 << 20)

    async def act() -> None:
        clients = Clients()
        async with client_of(clients) as (first, _a), client_of(clients, BERT) as (_, _b):
            first.send_line(b"x" * (2 << 20))
            with pytest.raises(RefusedError) as refused:
                clients.check_unread(ANNA)
            assert "do not read their answers: close them" in refused.value.details["text"]
            clients.check_unread(BERT)
            clients.check_unread(ROOT)

    asyncio.run(act())


def test_unfinished_requests_of_one_user_are_bounded_and_others_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_UNFINISHED", 400_000)
    monkeypatch.setattr(connections, "_UNFINISHED_OF_ONE", 300_000)

    async def act() -> None:
        clients = Clients()
        async with contextlib.AsyncExitStack() as stack:
            asking = []
            for _ in range(4):
                client, theirs = await stack.enter_async_context(client_of(clients))
                asking.append(asyncio.create_task(request_of(client)))
                theirs.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(theirs, b"x" * 100_000)
            done, pending = await asyncio.wait(asking, timeout=60, return_when=asyncio.FIRST_COMPLETED)
            errors = [task.exception() for task in done]
            error = errors[0]
            assert isinstance(error, RefusedError)
            assert error.details["text"] == "too many unfinished requests of this user at once: retry later"
            other, theirs = await stack.enter_async_context(client_of(clients, BERT))
            theirs.sendall(b'{"op": "hello"}\n{"more')
            assert await request_of(other) == {"op": "hello"}
            for task in pending:
                task.cancel()
        assert clients.unfinished.take(ANNA, 300_000), "all of it was given back"

    asyncio.run(act())


@pytest.mark.parametrize("line", [b"", b"x" * (LONGEST + 1), b"\xff\n", b"[1]\n"])
def test_malformed_request_of_a_client_is_refused(line: bytes) -> None:
    async def act() -> None:
        async with client_of(Clients()) as (client, theirs):
            theirs.setblocking(False)
            asking = asyncio.create_task(request_of(client))
            with contextlib.suppress(ConnectionError):
                await asyncio.get_running_loop().sock_sendall(theirs, line)
                theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(RefusedError) as refused:
                await asking
            assert refused.value.details["kind"] == "malformed"

    asyncio.run(act())


def test_silent_connection_makes_room_for_a_new_one_of_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_SILENT", -1.0)

    async def act() -> None:
        clients = Clients(connections=8)
        async with contextlib.AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(client_of(clients)) for _ in range(2)]
            await stack.enter_async_context(client_of(clients))
            await asyncio.sleep(0.01)
            assert silent[0][1].recv(10) == b"", "the oldest was closed"
            silent[1][0].silent_since = None  # these have asked something
            for client in list(clients._all):
                client.silent_since = None
            with pytest.raises(RefusedError) as refused:
                await stack.enter_async_context(client_of(clients))
            assert "2 are allowed now. Wait until some end" in refused.value.details["text"]

    asyncio.run(act())


def test_steps_run_once_for_many_calls_and_let_others_have_their_turn() -> None:
    rounds: list[int] = []
    turns = 0

    def work() -> Iterator[None]:
        rounds.append(0)
        for _ in range(20):
            time.sleep(0.004)
            rounds[-1] += 1
            yield

    async def act() -> None:
        nonlocal turns
        soon = Steps(work, every=0.0)
        for _ in range(100):
            soon()
        while not rounds or rounds[-1] < 20:
            turns += 1
            soon()  # while it is under way: once more afterwards
            await asyncio.sleep(0)
        while len(rounds) < 2:
            await asyncio.sleep(0)

    asyncio.run(act())
    assert len(rounds) == 2
    assert turns > 4
