"""What a tenant's shim says: one of four messages, or the end of the connection. Files never stay behind."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aliquot.adapters.gpu import link
from aliquot.adapters.gpu.link import Done, GroupSeen, Hello, Later, LinkError, Wake
from aliquot.adapters.gpu.page import CARDS, MAGIC, SLOTS, VERSION
from kit.machines.machine import eventually

_word = st.integers(0, 2**32 - 1)


def packet(kind: int, *words: int) -> bytes:
    return struct.pack(f"<I2H{len(words)}I", MAGIC, VERSION, kind, *words)


def open_files() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


class TestParse:
    @given(_word, st.integers(0, SLOTS - 1))
    def test_hello(self, pid: int, slot: int) -> None:
        assert link.parse(packet(link.HELLO, pid, slot), []) == Hello(pid, slot)

    @given(st.lists(_word, min_size=6, max_size=6), st.lists(_word, min_size=1, max_size=link.CHANNELS))
    def test_group(self, words: list[int], channels: list[int]) -> None:
        found = link.parse(packet(link.GROUP, *words, len(channels), 0, *channels), [77])
        client, group, device, subdevice, engine, compute = words
        assert found == GroupSeen(77, client, group, device, subdevice, engine, bool(compute), tuple(channels))

    @given(_word)
    def test_done(self, groups: int) -> None:
        assert link.parse(packet(link.DONE, groups), []) == Done(groups)

    @given(st.integers(0, CARDS - 1))
    def test_wake(self, card: int) -> None:
        assert link.parse(packet(link.WAKE, card), []) == Wake(card)

    @pytest.mark.parametrize(
        ("data", "files", "why"),
        [
            (b"", 0, "no message"),
            (packet(link.HELLO, 1), 0, "kind 1 with 4 bytes"),
            (packet(link.HELLO, 1, SLOTS), 0, "slot"),
            (packet(link.WAKE, CARDS), 0, "card"),
            (packet(link.WAKE, 0), 1, "a file where none belongs"),
            (packet(link.GROUP, 1, 2, 3, 4, 5, 1, 1, 0, 9), 0, "0 files"),
            (packet(link.GROUP, 1, 2, 3, 4, 5, 1, 1, 0, 9), 2, "2 files"),
            (packet(link.GROUP, 1, 2, 3, 4, 5, 1, 0, 0), 1, "0 channels"),
            (packet(link.GROUP, 1, 2, 3, 4, 5, 1, 2, 0, 9), 1, "2 channels"),
            (packet(link.GROUP, 1, 2, 3, 4, 5, 1, 2**32 - 1, 0, 9), 1, "channels"),
            (packet(link.GROUP, 1, 2), 1, "cut short"),
            (packet(0), 0, "kind 0"),
            (struct.pack("<I2H", MAGIC, VERSION + 1, link.DONE), 0, "restart the process with the new shim"),
            (struct.pack("<I2H", 0, VERSION, link.DONE), 0, "version"),
        ],
    )
    def test_parse_refuses_malformed_messages_with_a_reason(self, data: bytes, files: int, why: str) -> None:
        with pytest.raises(LinkError, match=why):
            link.parse(data, [70 + at for at in range(files)])

    @given(st.binary(max_size=700), st.lists(st.integers(3, 1000), max_size=3))
    @example(packet(link.HELLO, 1, 2) + b"x", [])
    def test_parse_returns_a_message_or_raises_linkerror(self, data: bytes, files: list[int]) -> None:
        heads = [data, struct.pack("<I2H", MAGIC, VERSION, (data or b"\0")[0] % 6) + data]
        for head in heads:
            try:
                found = link.parse(head, files)
            except LinkError:
                continue
            assert isinstance(found, Hello | GroupSeen | Done | Wake | Later)


class TestNewerShimOfTheSameVersion:
    """A container keeps the shim it was started with, also when the agent goes back to an earlier release."""

    @given(st.binary(max_size=64))
    def test_parse_ignores_appended_fields(self, more: bytes) -> None:
        assert link.parse(packet(link.HELLO, 7, 3) + more, []) == Hello(7, 3)
        assert link.parse(packet(link.DONE, 2) + more, []) == Done(2)
        assert link.parse(packet(link.WAKE, 1) + more, []) == Wake(1)
        group = link.parse(packet(link.GROUP, 1, 2, 3, 4, 5, 1, 1, 0, 9) + more, [70])
        assert isinstance(group, GroupSeen)
        assert group.channels == (9,)

    @given(st.integers(link.WAKE + 1, 2**16 - 1), st.binary(max_size=64), st.lists(st.integers(3, 9), max_size=2))
    def test_parse_ignores_unknown_kinds(self, kind: int, body: bytes, files: list[int]) -> None:
        assert link.parse(struct.pack("<I2H", MAGIC, VERSION, kind) + body, files) == Later(kind)


class TestReceive:
    def test_a_group_comes_with_its_file(self, ends: tuple[socket.socket, socket.socket]) -> None:
        ours, theirs = ends
        with open("/dev/null", "rb") as file:
            socket.send_fds(theirs, [packet(link.GROUP, 1, 2, 3, 4, 5, 1, 1, 0, 9)], [file.fileno()])
            found = link.receive(ours)
            assert isinstance(found, GroupSeen)
            assert os.path.samestat(os.fstat(found.fd), os.fstat(file.fileno()))
        assert not os.get_inheritable(found.fd)
        os.close(found.fd)

    def test_receive_returns_none_when_the_other_side_is_gone(self, ends: tuple[socket.socket, socket.socket]) -> None:
        ours, theirs = ends
        with pytest.raises(BlockingIOError):
            link.receive(ours)
        theirs.close()
        assert link.receive(ours) is None

    @pytest.mark.parametrize("files", [1, 2, 8, 9, 200])
    def test_receive_closes_files_of_a_refused_message(
        self, ends: tuple[socket.socket, socket.socket], files: int
    ) -> None:
        ours, theirs = ends
        before = open_files()
        socket.send_fds(theirs, [packet(link.DONE, 0)], [0] * files)
        with pytest.raises(LinkError):
            link.receive(ours)
        eventually(lambda: open_files() == before)

    def test_receive_closes_files_without_a_message(self, ends: tuple[socket.socket, socket.socket]) -> None:
        ours, theirs = ends
        before = open_files()
        socket.send_fds(theirs, [b""], [0, 0])
        assert link.receive(ours) is None
        eventually(lambda: open_files() == before)

    def test_receive_refuses_an_oversized_message(self, ends: tuple[socket.socket, socket.socket]) -> None:
        ours, theirs = ends
        theirs.send(packet(link.GROUP) + bytes(100_000))
        with pytest.raises(LinkError):
            link.receive(ours)

    def test_peer_is_what_the_kernel_says(self, ends: tuple[socket.socket, socket.socket]) -> None:
        assert link.peer(ends[0]) == (os.getpid(), os.getuid())
