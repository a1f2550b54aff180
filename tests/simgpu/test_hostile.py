"""The player against clients that send garbage. Nothing they do reaches another one."""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import random
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator

import pytest

from kit.running.lingering import SECONDS, lingering, nested
from simgpu.rig import MAGIC, SIM_CARDS, SIM_IOCTL, Player, checked_player, library_folder, wait_until

SIM_ATTACH, SIM_BELL = 3, 7


def garbage(rng: random.Random) -> bytes:
    """From pure noise to requests that are almost right."""
    size = rng.choice([0, 1, 15, 16, 24, 32, 40, 64, 100, 700, 8191, 8192, 9000, 20_000])
    noise = rng.randbytes(size)
    if rng.random() < 0.2:
        return noise
    head = struct.pack(
        "=IIQ", MAGIC, rng.choice([*range(15), 2**31 + 1, 2**32 - 1]), rng.choice([0, 2**64 - 1, rng.getrandbits(64)])
    )
    if rng.random() < 0.5:
        return head + noise
    nr, length = rng.choice([0x29, 0x2A, 0x2B, 211]), rng.choice([0, 8, 20, 268, 536, 2**32 - 1])
    struct_size = rng.choice([16, 32, 48, 64, 2**31])
    words = [
        rng.choice([0, 1, 0x41, 0x80, 0x2080, 0xA06C, 0xC86F, 0xC1D00001, 0x5C000001, 0xA06C0103]) for _ in range(12)
    ]
    head = struct.pack("=IIQ", MAGIC, SIM_IOCTL, 0) + struct.pack("=4I", nr, struct_size, length, 0)
    return head + struct.pack("=12I", *words)[: min(struct_size, 48)] + noise[: min(length, 4000)]


@pytest.fixture
def player() -> Iterator[Player]:
    """One that watches its own memory: what goes wrong in it does not go unseen."""
    with Player("--memory", "8192", program=checked_player()) as made:
        yield made


def send(connection: socket.socket, message: bytes, files: list[int]) -> None:
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
        connection.sendmsg([message], ancillary, socket.MSG_DONTWAIT)


@pytest.mark.parametrize("seed", range(4))
def test_noise_kills_no_process_and_takes_nothing(player: Player, seed: int) -> None:
    rng = random.Random(seed)
    tenant = player.start("serve")
    tenant.hear()
    files_before = len(os.listdir(f"/proc/{player.process.pid}/fd"))
    used = player.card().used
    reader, writer = os.pipe()
    null = os.open("/dev/null", os.O_RDWR)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for _ in range(20):
        with player.connect() as connection:
            for _ in range(rng.randrange(60)):
                pool = [null, writer, reader, theirs.fileno(), connection.fileno()]
                send(connection, garbage(rng), rng.sample(pool, rng.choice([0, 0, 1, 1, 2, 5])))
            if rng.random() < 0.3:
                connection.shutdown(socket.SHUT_WR)
    for fd in (reader, writer, null):
        os.close(fd)
    mine.close()
    theirs.close()
    tenant.ask({"do": "launch", "us": 100, "slot": 0})
    tenant.ask({"do": "synchronize"})
    assert tenant.ask({"do": "times", "slot": 0})[0] == 1
    wait_until(lambda: len(player.card().groups) == 2, "only the tenant's groups are left")
    assert player.card().used == used
    wait_until(
        lambda: len(os.listdir(f"/proc/{player.process.pid}/fd")) <= files_before, "no file of a client is still open"
    )


def test_an_empty_packet_is_not_the_end_of_a_connection(player: Player) -> None:
    tenant = player.start("serve")
    tenant.hear()
    file = tenant.rm_file()
    with player.connect() as connection:
        connection.send(b"")
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            socket.send_fds(connection, [struct.pack("=IIQ", MAGIC, SIM_CARDS, 0)], [theirs.fileno()])
            mine.settimeout(20)
            assert mine.recv(1 << 16)
    assert file.get_slice(tenant.group()) == 2048
    assert tenant.ask({"do": "allocate", "mib": 1}) == 0


@pytest.mark.parametrize("place", ["reply", "rm", "too-many", "in-a-queue", "never-read"])
def test_file_whose_close_hangs_does_not_hold_up_the_cards(player: Player, place: str) -> None:
    request = struct.pack("=IIQ", MAGIC, SIM_CARDS, 0)
    with lingering() as slow, player.connect() as connection:
        handed = nested(slow) if place == "in-a-queue" else slow
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, theirs:
            before = {"rm": [theirs.fileno()], "too-many": [theirs.fileno()] * 100}.get(place, [])
            os.kill(player.process.pid, signal.SIGSTOP)  # so that ours is not the last one
            try:
                for _ in range(40 if place == "never-read" else 1):
                    send(connection, request, [*before, handed.fileno()])
                handed.close()
                if place == "never-read":
                    connection.close()
            finally:
                os.kill(player.process.pid, signal.SIGCONT)
        began = time.monotonic()
        for _ in range(5):
            player.card()
        assert time.monotonic() - began < SECONDS / 4


def test_lane_that_its_process_makes_longer_is_cut(player: Player) -> None:
    context = RawContext(player)
    size = os.fstat(context.file).st_size
    os.posix_fallocate(context.file, 0, 64 << 20)
    wait_until(lambda: os.fstat(context.file).st_size == size, "it has its length again")
    context.close()


class RawContext:
    """A context without libcuda: its objects and its lane, to be filled with anything. Offsets are those of wire.h."""

    HEAD, RUNG, WAITS, RING = 64, 72, 3264, 69824

    def __init__(self, player: Player) -> None:
        self.player, self.rm = player, player.open()
        self.connection = player.connect()
        self.client = self.allocate(0, 0, 0x41)
        device = self.allocate(self.client, self.client, 0x80)
        self.allocate(self.client, device, 0x2080)
        self.group = self.allocate(self.client, device, 0xA06C)
        self.channel = self.allocate(self.client, self.group, 0xC86F)
        request = struct.pack("=II", self.client, self.group)
        _, (self.file,) = player.ask_for_files(SIM_ATTACH, request, self.rm)
        self.lane = mmap.mmap(self.file, 69824 + 512 * 48)

    def close(self) -> None:
        self.lane.close()
        self.connection.close()
        os.close(self.file)
        os.close(self.rm)

    def allocate(self, root: int, parent: int, class_: int) -> int:
        request = struct.pack("=4I", 0x2B, 32, 0, 0) + struct.pack("=4IQ2I", root, parent, 0, class_, 0, 0, 0)
        handle, status = struct.unpack_from("=8xI16xI", self.player.ask_for_files(SIM_IOCTL, request, self.rm)[0])
        assert status == 0
        return int(handle)

    def submit(self, items: list[bytes]) -> None:
        (head,) = struct.unpack_from("=Q", self.lane, self.HEAD)
        for item in items:
            at = self.RING + head % 512 * 48
            self.lane[at : at + 48] = item
            head += 1
        struct.pack_into("=Q", self.lane, self.HEAD, head % 2**64)
        send(self.connection, struct.pack("=IIQ", MAGIC, SIM_BELL, 0), [self.rm])


def almost_right(rng: random.Random, context: RawContext, seq: int) -> bytes:
    """An entry of a lane with at most one thing wrong."""
    wrong = rng.choice([None, None, None, "stamp", "seq", "duration", "after", "channel", "stream", "kind", "result"])
    extreme = rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, rng.getrandbits(64)])
    return struct.pack(
        "=4QI4HI",
        extreme if wrong == "stamp" else time.monotonic_ns(),
        extreme if wrong == "seq" else seq,
        extreme if wrong == "duration" else rng.choice([0, 1000, 50_000]),
        extreme if wrong == "after" else 0,
        extreme & 0xFFFFFFFF if wrong == "channel" else context.channel,
        extreme & 0xFFFF if wrong == "stream" else rng.randrange(128),
        extreme & 0xFFFF if wrong == "after" else 0,
        extreme & 0xFFFF if wrong == "kind" else rng.choice([1, 1, 2, 3]),
        rng.choice([0, 1, 2, 0xFFFF]),
        extreme & 0xFFFFFFFF if wrong == "result" else rng.choice([0, 1, 4096]),
    )


@pytest.mark.parametrize("seed", range(4))
def test_noise_in_a_lane_harms_no_other(player: Player, seed: int) -> None:
    rng = random.Random(seed)
    tenant = player.start("serve")
    tenant.hear()
    for _ in range(15):
        context = RawContext(player)
        seq = 0
        for _ in range(rng.randrange(1, 20)):
            items = []
            for _ in range(rng.randrange(40)):
                seq += 1
                items.append(almost_right(rng, context, seq))
            context.submit(items)
            if rng.random() < 0.3:  # a wait for anything, and a host function that ended at any time
                struct.pack_into("=I", context.lane, context.RUNG + 4, 1)
                at = context.WAITS + rng.randrange(64) * 16
                struct.pack_into("=IIQ", context.lane, at, rng.choice([2, 7]), rng.getrandbits(32), rng.getrandbits(64))
                struct.pack_into("=Q", context.lane, 1216 + rng.randrange(256) * 8, rng.getrandbits(64))
            if rng.random() < 0.05:
                struct.pack_into("=Q", context.lane, context.HEAD, rng.getrandbits(64))
            if rng.random() < 0.2:
                player.card()
            if rng.random() < 0.02:
                os.ftruncate(context.file, rng.choice([0, 100, 8192]))
                break
        context.close()
    tenant.ask({"do": "launch", "us": 100, "slot": 0})
    tenant.ask({"do": "synchronize"})
    assert tenant.ask({"do": "times", "slot": 0})[0] == 1
    wait_until(lambda: len(player.card().groups) == 2, "only the tenant's groups are left")


def test_garbage_in_a_lane_ends_only_its_own_context(player: Player) -> None:
    victim, other = player.start("scribble"), player.start("serve")
    other.hear()
    assert victim.result() == [719]
    other.ask({"do": "launch", "us": 100, "slot": 0})
    other.ask({"do": "synchronize"})
    assert other.ask({"do": "times", "slot": 0})[0] == 1


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--cards", "0"],
        ["--cards", "65"],
        ["--memory", "-5"],
        ["--memory", "lots"],
        ["--switch-us", ""],
        ["--unknown"],
        ["stray"],
    ],
)
def test_bad_options_are_refused(options: list[str]) -> None:
    command = [str(library_folder() / "player"), *(["--socket", "/nowhere/s"] if options else []), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 2
    assert done.stderr
    assert not done.stdout


def test_a_socket_left_by_a_dead_player_is_taken_over_and_a_live_one_is_not(player: Player) -> None:
    command = [str(library_folder() / "player"), "--socket", player.socket, "--until-stdin-closes"]
    second = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    assert second.returncode == 1
    assert "other cards are simulated here already: 1 of 8192 MiB" in second.stderr
    stale = str(player.folder / "stale")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(stale)
    command[2] = stale
    third = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=20)
    assert (third.returncode, third.stdout) == (0, "ready\n")
