"""A daemon's arbiter with real sockets, pages, threads and processes, and a driver that is played.

What is played is the RM below `adapters/gpu/rm.py`: which groups there are, their slices, whether they are paused. A
file of the driver's is any open file of `rm_file`: whatever else a tenant hands over is no file of the driver's.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu import link, rm
from aliquot.adapters.gpu import page as pages
from aliquot.adapters.host.process import processes
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.tenant import Allotment, SharingRules, Standing, Tenant
from aliquot.services.runtime.arbiterd import Arbiterd
from aliquot.services.runtime.cards import heartbeat

UUIDS = ("GPU-0", "GPU-1")
SUBDEVICE = 0x100  # + the index of the card
_SLOTS_AT = 64 + 16 * 128
PATIENCE = 60.0


def until(condition: Callable[[], Any], what: str = "what should have happened") -> Any:
    """Wait for it, as long as a loaded machine may need."""
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.002)
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@dataclass
class Driver:
    """Plays the RM. Groups are named by (client, group)."""

    rm_file: Path
    slices: dict[tuple[int, int], int] = field(default_factory=dict)
    paused: set[tuple[int, int]] = field(default_factory=set)
    calls: list[tuple[str, int, object]] = field(default_factory=list)
    gone: set[tuple[int, int]] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(rm, "is_rm_file", lambda fd, simulated: os.path.samestat(os.fstat(fd), os.stat(self.rm_file)))
        patch.setattr(rm, "uuid_of", self.uuid_of)
        patch.setattr(rm, "get_slice", self.get_slice)
        patch.setattr(rm, "set_slice", self.set_slice)
        patch.setattr(rm, "set_paused", self.set_paused)

    def _called(self, what: str, group: rm.Group, value: object = None) -> tuple[int, int]:
        os.fstat(group.fd)  # a control on a closed file would be a control on somebody else's
        assert os.path.samestat(os.fstat(group.fd), os.stat(self.rm_file))
        key = (group.client, group.group)
        with self.lock:
            self.calls.append((what, group.client, value))
        if key in self.gone:
            raise rm.RmError(what, 0x33)
        if what in self.refuses:
            raise rm.RmError(what, 0x1B)
        return key

    def uuid_of(self, group: rm.Group) -> str:
        self._called("uuid", group)
        return f"GPU-{group.subdevice - SUBDEVICE}"

    def get_slice(self, group: rm.Group) -> int:
        return self.slices.setdefault(self._called("get", group), 2048)

    def set_slice(self, group: rm.Group, microseconds: int) -> None:
        self.slices[self._called("set", group, microseconds)] = microseconds

    def set_paused(self, group: rm.Group, paused: bool) -> None:
        key = self._called("pause" if paused else "resume", group)
        (self.paused.add if paused else self.paused.discard)(key)

    def runs(self, client: int) -> bool:
        return not any(key[0] == client for key in self.paused)


class Nvml:
    """Tells which processes are on a card, with their bytes."""

    def __init__(self) -> None:
        self.on_card: dict[str, dict[int, int]] = {}
        self.mps: set[int] = set()

    def processes(self, uuid: str) -> dict[int, int]:
        return self.on_card.get(uuid, {})

    def mps_clients(self, uuid: str) -> set[int]:
        return self.mps


class FakeShim:
    """A process of a tenant, played by this one: says what a shim says, and writes its line on the page.

    `pid` is whom the daemon takes it for (see Rig.peer): some process that lives.
    """

    def __init__(self, folder: Path, pid: int, slot: int = 0, card: int = 0) -> None:
        self.folder, self.pid, self.slot = folder, pid, slot
        self._page = os.open(folder / "page", os.O_RDWR)
        self._at = _SLOTS_AT + slot * 1088 + 64 + card * 64
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        patience = struct.pack("ll", int(PATIENCE), 0)  # the kernel's: Python's would not wait for room at the door
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
        self.sock.bind(f"\0aliquot-test/{pid}/{id(self)}/{time.monotonic_ns()}")
        self.sock.connect(str(folder / "sock"))

    def say(self, kind: int, *words: int, files: tuple[int, ...] = ()) -> None:
        data = struct.pack(f"<I2H{len(words)}I", pages.MAGIC, pages.VERSION, kind, *words)
        socket.send_fds(self.sock, [data], files)

    def hello(self) -> FakeShim:
        self.say(link.HELLO, self.pid, self.slot)
        return self

    def group(self, client: int, file: Path, *, group: int = 1, card: int = 0, compute: int = 1) -> FakeShim:
        handed = os.open(file, os.O_RDONLY)
        try:
            self.say(link.GROUP, client, group, 0, SUBDEVICE + card, 1, compute, 2, 0, 7, 8, files=(handed,))
        finally:
            os.close(handed)
        return self

    def done(self, groups: int) -> FakeShim:
        self.say(link.DONE, groups)
        return self

    def use(self) -> pages.Use:
        return pages.Use(*struct.unpack("<3Q6I2Q", os.pread(self._page, 64, self._at)))

    def set(self, field: int, value: int, *, size: int = 4) -> None:
        os.pwrite(self._page, value.to_bytes(size, "little"), self._at + field)

    def launch(self, *, waits: bool = True) -> None:
        """Launch as the shim does: count, and ring if it was asked to."""
        self.set(pages.LAUNCHES, self.use().launches + 1, size=8)
        self.set(pages.WAITING, int(waits))
        if self.use().wake:
            self.set(pages.WAKE, 0)
            self.say(link.WAKE, 0)

    def rest(self) -> None:
        """Its work is done, and it saw that."""
        self.set(pages.WAITING, 0)

    def ended(self) -> bool:
        """Whether the daemon hung up."""
        readable, _, _ = select.select([self.sock], [], [], 0)
        try:
            return bool(readable) and self.sock.recv(1) == b""
        except OSError:
            return True

    def close(self) -> None:
        self.sock.close()
        if self._page >= 0:
            os.close(self._page)
            self._page = -1


# Another process: takes its slot, registers with one group, then does as it is told: "wake", "anew", "close".
CHILD = """
import fcntl, os, socket, struct, sys
folder, slot, client, file, uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], int(sys.argv[5])
page = os.open(folder + "/page", os.O_RDWR)
fcntl.lockf(page, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
at = 64 + 16 * 128 + slot * 1088
os.pwrite(page, struct.pack("<I", os.getpid()), at)
os.pwrite(page, struct.pack("<Q", 1 << 30), at + 64)
handed = os.open(file, os.O_RDONLY)
os.chdir(folder)
if uid >= 0:
    os.setuid(uid)
def connect():
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect("sock")
    try:
        messages = (1, (os.getpid(), slot), []), (2, (client, 1, 0, 256, 1, 1, 1, 0, 7), [handed]), (3, (1,), [])
        for kind, words, files in messages:
            data = struct.pack("<I2H%dI" % len(words), 0x54514C41, 1, kind, *words)
            socket.send_fds(sock, [data], files)
    except OSError:
        pass
    return sock
sock = connect()
print("there", flush=True)
for line in sys.stdin:
    if line == "anew\\n":
        sock = connect()
    if line == "ended\\n":
        try:
            print(sock.recv(1) == b"", flush=True)
        except OSError:
            print(True, flush=True)
"""


@dataclass
class Rig:
    """A running daemon's arbiter and all that is around it."""

    folder: Path
    patch: pytest.MonkeyPatch
    rules: SharingRules = field(default_factory=SharingRules)
    whose: Callable[[int], str | None] | None = None

    def __post_init__(self) -> None:
        self.rm_file = self.folder / "nvidiactl"
        self.rm_file.touch()
        self.driver = Driver(self.rm_file)
        self.driver.install(self.patch)
        self.nvml = Nvml()
        self.shims: list[FakeShim] = []
        self.children: list[subprocess.Popen[str]] = []
        self.pids: dict[object, int] = {}
        self._peer, self._watch = link.peer, link.watch
        self.patch.setattr(link, "peer", self.peer)
        self.patch.setattr(link, "watch", self.watch)
        self.patch.setattr(heartbeat, "BEAT", 0.02)  # standings are published as often
        self.patch.setattr(heartbeat, "CALM", 0.02)
        self.daemon = self.another()

    def peer(self, connection: socket.socket) -> tuple[int, int]:
        """The peer as the kernel names it; of a shim, as its address does."""
        name = connection.getpeername()
        if isinstance(name, bytes) and name.startswith(b"\0aliquot-test/"):
            return int(name.split(b"/")[1]), os.getuid()
        return self._peer(connection)

    def watch(self, connection: socket.socket) -> int:
        """The process that `peer` names."""
        pid, _ = self.peer(connection)
        return self._watch(connection) if pid == self._peer(connection)[0] else os.pidfd_open(pid)

    def pid(self, of: object) -> int:
        """A process that lives, the same for the same."""
        if of not in self.pids:
            child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, text=True)
            self.children.append(child)
            self.pids[of] = child.pid
        return self.pids[of]

    def another(self) -> Arbiterd:
        """A daemon, as after a restart."""
        cards = [Card(at, 80 * 1024, uuid=uuid) for at, uuid in enumerate(UUIDS)]
        nvml: Any = self.nvml
        made = Arbiterd(cards, rules=self.rules, nvml=nvml, simulated=True, whose=self.whose)
        made.start()
        return made

    def tenant(self, name: str, app_class: AppClass = AppClass.NORMAL, *, root: int | None = None) -> Path:
        """A tenant with the first card, ten GiB and a half; its folder."""
        allotments = (Allotment(UUIDS[0], 10 << 30, 500),)
        started = None if root is None else processes.start_time(root)
        tenant = Tenant(name, f"the {name}", app_class, allotments, os.getuid(), root, started)
        self.daemon.add(tenant, self.folder / name)
        return self.folder / name

    def shim(self, folder: Path, slot: int = 0) -> FakeShim:
        """A connection of the process of that tenant that has that slot."""
        made = FakeShim(folder, self.pid((folder, slot)), slot)
        self.shims.append(made)
        return made

    def registered(self, folder: Path, client: int, slot: int = 0) -> FakeShim:
        """A shim that is registered with one group on the first card."""
        shim = self.shim(folder, slot).hello().group(client, self.rm_file).done(1)
        until(lambda: shim.pid in self.standing(folder.name).processes, "the registration")
        return shim

    def preempted(self) -> tuple[FakeShim, FakeShim]:
        """Online work (client 11) that has taken the card from offline work (22), which is paused."""
        online = self.registered(self.tenant("on", AppClass.ONLINE), 11)
        offline = self.registered(self.tenant("off", AppClass.OFFLINE), 22)
        offline.launch()
        online.launch()
        until(lambda: not self.driver.runs(22), "the pause")
        return online, offline

    def child(
        self, folder: Path, client: int, slot: int = 0, uid: int = -1, wrapper: tuple[str, ...] = ()
    ) -> subprocess.Popen[str]:
        """Another process that registers with one group; started by the wrapper, where one is given."""
        arguments = [str(folder), str(slot), str(client), str(self.rm_file), str(uid)]
        command = [*wrapper, sys.executable, "-S", "-c", CHILD, *arguments]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "there\n"
        return child

    def standing(self, tenant: str, uuid: str = UUIDS[0]) -> Standing:
        def find() -> Standing | None:
            found = self.daemon.standings()
            return next((standing for standing in found if (standing.tenant, standing.uuid) == (tenant, uuid)), None)

        found = until(find, f"a standing of {tenant}")
        assert isinstance(found, Standing)
        return found

    def held_files(self) -> int:
        """How many files of the driver's this process holds."""
        count, wanted = 0, os.stat(self.rm_file)
        for name in os.listdir("/proc/self/fd"):
            try:
                count += os.path.samestat(os.fstat(int(name)), wanted)
            except OSError:
                continue
        return count

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.communicate()
        self.daemon.stop()
        for shim in self.shims:
            shim.close()


def tell(child: subprocess.Popen[str], what: str) -> None:
    assert child.stdin is not None
    child.stdin.write(what + "\n")
    child.stdin.flush()


def ask(child: subprocess.Popen[str], what: str) -> str:
    tell(child, what)
    assert child.stdout is not None
    return child.stdout.readline().strip()


def running(make: Callable[[], Rig]) -> Iterator[Rig]:
    """For a fixture: the rig, until the test ends. No file of it is left open then."""
    before = open_files()
    made = make()
    yield made
    made.end()
    del made.children[:]
    assert same_files(before), "files were left open"


def same_files(before: object) -> bool:
    """Whether no other files are open than before; files of strangers are closed by other threads, in a moment."""
    end = time.monotonic() + 5
    while open_files() != before and time.monotonic() < end:
        time.sleep(0.002)
    return open_files() == before
