"""The programs that the tests run as tenants: `python -m simgpu.programs LINK NAME ARGUMENTS...`.

What a program returns goes back over the link (a socket, as JSON); `serve` does what it is told over it."""

from __future__ import annotations

import ctypes as c
import fcntl
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from simgpu import programs_device, programs_memory, programs_work
from simgpu.driver import Session

MIB = 1 << 20


def rm_file() -> int:
    """The descriptor of this process's RM file: a pipe that the player made."""
    for name in os.listdir("/proc/self/fd"):
        if "/s.state/f" in os.path.realpath(f"/proc/self/fd/{name}"):
            return int(name)
    raise LookupError("no RM file")


class Server:
    """A tenant that the test controls: one method per command."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.session = Session()
        self.streams: list[c.c_void_p | None] = [None]
        self.out = self.session.allocate(4096)
        self.kept: object = None  # the host's side of the latest copy

    def hand_over(self) -> None:
        socket.send_fds(self.link, [b"{}"], [rm_file()])

    def launch(self, us: float, count: int = 1, stream: int = 0, slot: int = -1) -> bool:
        for _ in range(count):
            out = self.out + 24 * slot if slot >= 0 else 0
            self.session.launch(us, stream=self.streams[stream], out=out)
        return True

    def stream(self) -> int:
        self.streams.append(self.session.stream(1))
        return len(self.streams) - 1

    def synchronize(self) -> float:
        start = time.monotonic()
        self.session.synchronize()
        return time.monotonic() - start

    def attempt(self, call: str) -> int:
        return self.session.cuda.status(call)

    def done(self, stream: int = 0) -> bool:
        return self.session.cuda.status("cuStreamQuery", self.streams[stream]) == 0

    def copy(self, size: int, stream: int = 0) -> float:
        """Begin to copy that much to the card, behind a small copy; returns the milliseconds that it took, where
        `stream` is 0, and does not wait for it otherwise."""
        cuda, to, host = self.session.cuda, self.session.allocate(size), (c.c_uint8 * size)()
        first, second, elapsed = self.session.event(), self.session.event(), c.c_float()
        self.kept = host
        cuda.call("cuMemcpyHtoDAsync_v2", to, host, 1, self.streams[stream])
        cuda.call("cuEventRecord", first, self.streams[stream])
        cuda.call("cuMemcpyHtoDAsync_v2", to, host, size, self.streams[stream])
        cuda.call("cuEventRecord", second, self.streams[stream])
        if not stream:
            cuda.call("cuEventSynchronize", second)
            cuda.call("cuEventElapsedTime", c.byref(elapsed), first, second)
        return elapsed.value

    def times(self, slot: int) -> list[int]:
        """How often the kernels of this slot ended, and when the last one began and ended."""
        return self.session.read(self.out + 24 * slot, 3)

    def allocate(self, mib: int) -> int:
        address = c.c_uint64()
        return self.session.cuda.status("cuMemAlloc_v2", c.byref(address), mib * MIB)


def serve(link: socket.socket) -> None:
    server = Server(link)
    link.send(b'"ready"')
    while message := link.recv(1 << 16):
        order = json.loads(message)
        method = getattr(server, order.pop("do").replace(" ", "_"))
        result = method(**order)
        if result is not None:
            link.send(json.dumps(result).encode())


def busy(link: socket.socket, seconds: float) -> list[Any]:
    """Launches, waits, allocates and frees all the time; how many kernels it launched and how many ended, every call
    that failed, and the longest of them in seconds."""
    session = Session()
    out, stream = session.allocate(4096), session.stream(1)
    launched, errors, longest = 0, [], 0.0
    link.send(b'"ready"')
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        for us in (50, 500, 3):
            session.launch(us, stream=stream, out=out)
            launched += 1
        address = c.c_uint64()
        calls: list[tuple[Any, ...]] = [
            ("cuMemAlloc_v2", c.byref(address), 64 * MIB),
            ("cuStreamSynchronize", stream),
            ("cuMemFree_v2", address),
        ]
        errors += [[call[0], status] for call in calls if (status := session.cuda.status(*call))]
        longest = max(longest, time.monotonic() - began)
    return [launched, session.read(out, 1)[0], errors, longest]


def half_registered(link: socket.socket, folder: str) -> None:
    """Computes without the shim, and tells the daemon of a group that it does not have."""
    session = Session()
    file, daemon = rm_file(), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon.connect(f"{folder}/sock")
    group = (0xBAD, 0xBAD, 0, 0xBAD, 1, 1, 1, 0, 7)
    for kind, words, files in ((1, (os.getpid(), 200), []), (2, group, [file]), (3, (1,), [])):
        socket.send_fds(daemon, [struct.pack(f"<I2H{len(words)}I", 0x54514C41, 1, kind, *words)], files)
    link.send(b'"ready"')
    while True:
        for _ in range(8):
            session.launch(1000)
        session.cuda.status("cuCtxSynchronize")


def scribble() -> list[int]:
    """Overwrites the counter in the shared memory of its context's lane, as a program gone wild might."""
    session = Session()
    with open("/proc/self/maps") as maps:
        lane = next(line for line in maps if "/s.state/w" in line)
    session.launch(1000)
    c.memset(int(lane.split("-")[0], 16) + 64, 0xA5, 8)
    return [session.cuda.status("cuCtxSynchronize")]


def control_as_a_daemon(link: socket.socket) -> list[int]:
    """Receives an RM file and handles, and sets the slice with Python's own ioctl (libsimrm is preloaded)."""
    message, files, _, _ = socket.recv_fds(link, 1 << 16, 1)
    order = json.loads(message)
    value = c.create_string_buffer(struct.pack("=Q", order["us"]), 8)
    request = bytearray(
        struct.pack("=4IQ2I", order["client"], order["group"], 0xA06C0103, 0, c.addressof(value), 8, 0xFFFF)
    )
    fcntl.ioctl(files[0], 0xC020462A, request)
    return [struct.unpack_from("=I", request, 28)[0]]


PROGRAMS: dict[str, Callable[..., Any]] = {
    name: getattr(module, name)
    for module in (programs_device, programs_memory, programs_work)
    for name, value in vars(module).items()
    if callable(value) and value.__module__ == module.__name__
}


def main() -> None:
    link = socket.socket(fileno=int(sys.argv[1]))
    name, arguments = sys.argv[2], [json.loads(argument) for argument in sys.argv[3:]]
    if name == "serve":
        serve(link)
        return
    if name.startswith("nvml"):  # imported late: the others do without
        from simgpu import programs_nvml

        if name in ("nvml_events", "nvml_health"):
            getattr(programs_nvml, name)(link)
            return
        result = getattr(programs_nvml, name)(*arguments)
    elif name == "control_as_a_daemon":
        result = control_as_a_daemon(link)
    elif name == "busy":
        result = busy(link, *arguments)
    elif name == "half_registered":
        half_registered(link, *arguments)
        return
    elif name == "scribble":
        result = scribble()
    else:
        result = PROGRAMS[name](*arguments)
    link.send(json.dumps(result).encode())


if __name__ == "__main__":
    main()
