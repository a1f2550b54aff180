"""A player, tenants on its cards as processes of their own, and the controls a daemon would use."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from kit.running.shimbuild import shim_build

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 20.0  # seconds; nothing here takes one, unless the machine is very busy

OK, INSUFFICIENT_PERMISSIONS, INVALID_CLIENT, INVALID_OBJECT, NOT_SUPPORTED = 0x00, 0x1B, 0x23, 0x33, 0x56
IOC_CONTROL = 0xC020462A
SET_TIMESLICE, GET_TIMESLICE, DISABLE_CHANNELS, GET_GID_INFO = 0xA06C0103, 0xA06C0104, 0x2080110B, 0x2080014A

MAGIC = 0x4D495347
SIM_IOCTL, SIM_CARDS, SIM_STATE, SIM_OPEN = 1, 2, 11, 14


@functools.cache
def library_folder() -> Path:
    """Builds what changed since the last time. SIMGPU_LIBRARIES names another build, as with sanitizers."""
    if elsewhere := os.environ.get("SIMGPU_LIBRARIES"):
        return Path(elsewhere)
    build = shim_build()
    compiler = build.choose_compiler(os.uname().machine, sanitize=False)
    for target in build.targets():
        if target.output.startswith("simgpu/"):
            build.build(target, compiler, build.LIB)
    return Path(build.LIB) / "simgpu"


@functools.cache
def checked_player() -> Path:
    """A player that dies of any wrong access, where gcc has the sanitizers for it; else the plain one."""
    build = shim_build()
    compiler = build.Compiler(("gcc", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"))
    target = next(target for target in build.targets() if target.output == "simgpu/player")
    folder = ROOT / "build" / "sanitized"
    try:
        build.build(target, compiler, folder)
    except (build.BuildError, OSError):
        return library_folder() / "player"
    return Path(folder / target.output)


def wait_until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait until the condition is true. Returns what it returned."""
    deadline = time.monotonic() + patience
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {patience:.0f} s until {what}"
        time.sleep(0.002)
    return result


@dataclass(frozen=True, slots=True)
class Group:
    """A channel group as the player sees it."""

    pid: int
    client: int
    group: int
    engine: int
    slice_us: int
    busy_ns: int
    queued: int
    dead: bool
    current: bool
    channels: tuple[int, ...]
    stopped: int


@dataclass(frozen=True, slots=True)
class Card:
    """A card as the player sees it."""

    uuid: str
    now_ns: int
    memory: int
    used: int
    busy_ns: int
    switches: int
    lost: bool
    groups: tuple[Group, ...]

    def compute(self, pid: int | None = None) -> tuple[Group, ...]:
        return tuple(g for g in self.groups if g.engine == 1 and pid in (None, g.pid))


class Player:
    """Plays cards until it is closed."""

    def __init__(self, *options: str, program: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="simgpu-"))  # short: the path of a socket has 107 bytes
        self.socket = str(self.folder / "s")
        self.command = [
            str(program or library_folder() / "player"),
            "--socket",
            self.socket,
            "--until-stdin-closes",
            *options,
        ]
        self.process = self.another()
        self.tenants: list[Tenant] = []

    def another(self) -> subprocess.Popen[bytes]:
        """One more player of these cards: it stands by while one plays."""
        process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    def crash(self) -> None:
        """Dies of kill -9. What it leaves is the next one's."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.kill()
        self.process.wait(PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self) -> Player:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for tenant in self.tenants:
            tenant.kill()
        assert self.process.poll() is None, f"the player died with {self.process.returncode}"
        assert self.close() == 0

    def close(self, number: int | None = None) -> int:
        """Ends it with a signal, or without one by the end of its input; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if number is not None:
            self.process.send_signal(number)
        else:
            self.process.stdin.close()
        code = self.process.wait(PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()
        self.left = sorted(path.name for path in self.folder.iterdir())
        shutil.rmtree(self.folder)
        return code

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "LD_", "ALIQUOT_"))}
        return kept | {
            "ALIQUOT_SIMGPU": self.socket,
            "LD_LIBRARY_PATH": str(library_folder()),
            "LD_PRELOAD": f"{os.environ.get('SIMGPU_PRELOAD', '')} {library_folder() / 'libsimrm.so'}".strip(),
        }

    def start(self, program: str, *arguments: object, wrapper: Sequence[str] = (), **environment: str) -> Tenant:
        """Starts one of programs.py as a process of its own; by the wrapper, where one is given."""
        tenant = Tenant(self, program, arguments, environment, wrapper)
        self.tenants.append(tenant)
        return tenant

    def run(self, program: str, *arguments: object, **environment: str) -> Any:
        """Runs one of programs.py to its end; what it returned."""
        return self.start(program, *arguments, **environment).result()

    def open(self) -> int:
        """A new RM file."""
        _, (file,) = self.ask_for_files(SIM_OPEN)
        return file

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(self.socket)
        return made

    def ask(self, kind: int, payload: bytes = b"") -> bytes:
        """A request as the libraries make them; the payload of the answer."""
        return self.ask_for_files(kind, payload)[0]

    def ask_for_files(self, kind: int, payload: bytes = b"", rm: int | None = None) -> tuple[bytes, list[int]]:
        """The same, by the holder of an RM file; also the files that came with the answer."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with self.connect() as connection, mine:
            mine.settimeout(PATIENCE)
            with theirs:
                head = struct.pack("=IIQ", MAGIC, kind, time.monotonic_ns())
                files = [theirs.fileno(), *([] if rm is None else [rm])]
                socket.send_fds(connection, [head + payload], files)
            answer, came, _, _ = socket.recv_fds(mine, 1 << 17, 1)
        magic, error, _, _ = struct.unpack_from("=IiII", answer)
        assert (magic, error) == (MAGIC, 0)
        return answer[16:], came

    def cards(self) -> list[Card]:
        state = json.loads(self.ask(SIM_STATE))
        for card in state["cards"]:
            card["groups"] = tuple(Group(**{**g, "channels": tuple(g["channels"])}) for g in card["groups"])
        return [Card(**card) for card in state["cards"]]

    def card(self) -> Card:
        return self.cards()[0]

    def shares(self, tenants: Sequence[Tenant], seconds: float) -> list[float]:
        """Of the card's time, by its own exact accounts: the tenants must be busy all the while."""
        before = self.card()
        time.sleep(seconds)
        after = self.card()
        elapsed = after.now_ns - before.now_ns

        def busy(card: Card, tenant: Tenant) -> int:
            return sum(group.busy_ns for group in card.compute(tenant.pid))

        return [(busy(after, tenant) - busy(before, tenant)) / elapsed for tenant in tenants]


class Tenant:
    """A process with a program of programs.py; they talk in JSON, and the RM file of the process can be had."""

    def __init__(
        self,
        player: Player,
        program: str,
        arguments: Sequence[object],
        environment: dict[str, str],
        wrapper: Sequence[str] = (),
    ) -> None:
        self.player = player
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(PATIENCE)
        command = [*wrapper, sys.executable, "-m", "simgpu.programs", str(theirs.fileno()), program]
        command += map(json.dumps, arguments)
        with theirs:
            self.process = subprocess.Popen(
                command, env=player.environment() | environment, pass_fds=[theirs.fileno()], cwd=ROOT / "tests"
            )
        self.pid = self.process.pid

    def hear(self) -> Any:
        """The next thing the program says."""
        message = self.link.recv(1 << 16)
        assert message, f"the program ended with {self.process.wait(PATIENCE)} and said nothing more"
        return json.loads(message)

    def say(self, message: object) -> None:
        self.link.send(json.dumps(message).encode())

    def ask(self, message: object) -> Any:
        self.say(message)
        return self.hear()

    def result(self) -> Any:
        """What the program returned."""
        result = self.hear()
        assert self.process.wait(PATIENCE) == 0
        self.link.close()
        return result

    def rm_file(self) -> RmFile:
        """A dup of the process's RM file, as its shim would hand it over. The program must listen (`serve`)."""
        self.say({"do": "hand over"})
        _, files, _, _ = socket.recv_fds(self.link, 1 << 16, 1)
        return RmFile(self.player, files[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
        self.link.close()

    def group(self) -> Group:
        return self.player.card().compute(self.pid)[0]


class RmFile:
    """The controls, issued through an open RM file as the daemon issues them."""

    def __init__(self, player: Player, fd: int) -> None:
        self.fd = fd
        os.environ["ALIQUOT_SIMGPU"] = player.socket
        self.library = ctypes.CDLL(str(library_folder() / "libsimrm.so"), use_errno=True)

    def close(self) -> None:
        os.close(self.fd)

    def control(self, client: int, handle: int, command: int, params: bytes) -> tuple[int, bytes]:
        """The status of the control, and what it wrote."""
        buffer = ctypes.create_string_buffer(params, len(params))
        request = ctypes.create_string_buffer(
            struct.pack("=4IQ2I", client, handle, command, 0, ctypes.addressof(buffer), len(params), 0xFFFF), 32
        )
        if self.library.ioctl(self.fd, ctypes.c_ulong(IOC_CONTROL), request) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return struct.unpack_from("=I", request, 28)[0], buffer.raw

    def set_slice(self, group: Group, us: int) -> int:
        return self.control(group.client, group.group, SET_TIMESLICE, struct.pack("=Q", us))[0]

    def get_slice(self, group: Group) -> int:
        status, params = self.control(group.client, group.group, GET_TIMESLICE, bytes(8))
        assert status == OK
        return int(struct.unpack("=Q", params)[0])

    def disable(self, group: Group, subdevice: int, *, disable: bool) -> int:
        channels = list(group.channels)
        padding = [0] * (64 - len(channels))
        params = struct.pack("=B3xI2B6xQ", disable, len(channels), 0, 0, 0)
        params += struct.pack("=64I", *([group.client] * len(channels) + padding))
        params += struct.pack("=64I", *(channels + padding))
        return self.control(group.client, subdevice, DISABLE_CHANNELS, params)[0]

    def pause(self, group: Group) -> int:
        return self.disable(group, SUBDEVICE, disable=True)

    def resume(self, group: Group) -> int:
        return self.disable(group, SUBDEVICE, disable=False)


SUBDEVICE = 0x5C000002  # the second object that a process makes: the player's handles count up
