"""Ask for the card's memory by ways around the quota until it is refused; then hold it until told to go.

usage: holes.py CASE QUOTA_BYTES STOP_FILE. Prints `FULL granted-bytes why`. All are what an honest program may do:
export, import, pools, graphs within graphs, two processes. `once` is granted what two processes share, if it counts
once.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.gpu.workloads import memory as plain  # after the path is set

_MIB = 1 << 20
_WHOLE = 2 * _MIB  # the granularity
_POOLS = 100  # more than the shim once followed
Call = Callable[..., None]


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_ubyte * 64),)


class _ChildNode(ctypes.Structure):  # CUgraphNodeParams, 256 bytes, with CUDA_CHILD_GRAPH_NODE_PARAMS
    _fields_ = (
        ("type", c_int),
        ("reserved", c_int * 3),
        ("graph", c_void_p),
        ("ownership", c_int),
        ("rest", ctypes.c_ubyte * 228),
    )


def _piece(call: Call, size: int) -> c_uint64:
    handle = c_uint64()
    prop = plain._AllocationProp(type=1, handles=1, location=plain._Location(1, 0))
    call("cuMemCreate", byref(handle), c_size_t(-(-size // _WHOLE) * _WHOLE), byref(prop), c_uint64(0))
    return handle


def _export(call: Call, handle: c_uint64) -> int:
    fd = c_int(-1)
    call("cuMemExportToShareableHandle", byref(fd), handle, c_int(1), c_uint64(0))
    return fd.value


def _import(call: Call, fd: int, size: int) -> None:
    """Import and map: programs do not hold memory only to look at its handle."""
    handle, address = c_uint64(), c_uint64()
    whole = -(-size // _WHOLE) * _WHOLE
    call("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), c_int(1))
    try:
        call("cuMemAddressReserve", byref(address), c_size_t(whole), c_size_t(0), c_uint64(0), c_uint64(0))
        call("cuMemMap", address, c_size_t(whole), c_size_t(0), handle, c_uint64(0))
    except MemoryError:
        call("cuMemRelease", handle)
        raise


def _export_import() -> plain.Take:
    call = plain._driver()

    def take(size: int) -> None:
        handle = _piece(call, size)
        fd = _export(call, handle)
        call("cuMemRelease", handle)
        again = c_uint64()
        call("cuMemImportFromShareableHandle", byref(again), c_void_p(fd), c_int(1))
        os.close(fd)

    return take


def _export_hold() -> plain.Take:
    call = plain._driver()

    def take(size: int) -> None:
        handle = _piece(call, size)
        _export(call, handle)  # the file stays open, and holds it
        call("cuMemRelease", handle)

    return take


def _dma_buf() -> plain.Take:
    call = plain._driver()

    def take(size: int) -> None:
        address, fd = c_uint64(), c_int(-1)
        call("cuMemAlloc_v2", byref(address), c_size_t(size))
        call("cuMemGetHandleForAddressRange", byref(fd), address, c_size_t(size), c_int(1), c_uint64(0))
        call("cuMemFree_v2", address)

    return take


def _many_pools(kind: int, where: int) -> Callable[[], plain.Take]:
    def prepare() -> plain.Take:
        call = plain._driver()

        def pool() -> c_void_p:
            made = c_void_p()
            call("cuMemPoolCreate", byref(made), byref(plain._PoolProps(type=kind, location=plain._Location(where, 0))))
            return made

        for _ in range(_POOLS):
            pool()
        return lambda size: call("cuMemAllocFromPoolAsync", byref(c_uint64()), c_size_t(size), pool(), None)

    return prepare


def _managed_default() -> plain.Take:
    call, pool = plain._driver(), c_void_p()
    call("cuMemGetDefaultMemPool", byref(pool), byref(plain._Location(1, 0)), c_int(2))
    return lambda size: call("cuMemAllocFromPoolAsync", byref(c_uint64()), c_size_t(size), pool, None)


def _graph_within(ownership: int | None) -> Callable[[], plain.Take]:
    """`ownership` 1: the child is moved into its parent; None: a clone is launched."""

    def prepare() -> plain.Take:
        call = plain._driver()

        def take(size: int) -> None:
            graph, child, node, ready = c_void_p(), c_void_p(), c_void_p(), c_void_p()
            access = plain._Access(plain._Location(1, 0), 3)
            pool = plain._PoolProps(type=1, location=plain._Location(1, 0))
            wish = plain._AllocNode(pool=pool, access=ctypes.pointer(access), accesses=1, size=size)
            call("cuGraphCreate", byref(child), 0)
            call("cuGraphAddMemAllocNode", byref(node), child, None, c_size_t(0), byref(wish))
            if ownership is None:
                call("cuGraphClone", byref(graph), child)
            else:
                call("cuGraphCreate", byref(graph), 0)
                within = _ChildNode(type=4, graph=child, ownership=ownership)
                call("cuGraphAddNode", byref(node), graph, None, c_size_t(0), byref(within))
            call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
            call("cuGraphLaunch", ready, None)
            call("cuStreamSynchronize", None)

        return take

    return prepare


def _heap() -> plain.Take:
    call = plain._driver()
    asked = 0

    def take(size: int) -> None:
        nonlocal asked
        call("cuCtxSetLimit", c_int(2), c_size_t(asked + size))
        asked += size

    return take


class _Other:
    """A second process of the tenant, which opens what it is sent: answers "ok", or why not."""

    def __init__(self, work: Callable[[Call, bytes, list[int]], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            ours.close()
            self._serve(theirs, work)
            os._exit(0)
        theirs.close()
        self.socket = ours

    def _serve(self, theirs: socket.socket, work: Callable[[Call, bytes, list[int]], None]) -> None:
        call = plain._driver()
        while True:
            data, files, _, _ = socket.recv_fds(theirs, 4096, 4)
            if not data:
                return
            try:
                work(call, data, files)
                theirs.send(b"ok")
            except Exception as error:
                theirs.send(f"{type(error).__name__}: {error}".encode())
            for fd in files:
                os.close(fd)

    def ask(self, data: bytes, files: list[int]) -> None:
        socket.send_fds(self.socket, [data], files)
        answer = self.socket.recv(4096).decode()
        if answer != "ok":
            raise MemoryError(answer) if "MEMORY" in answer else RuntimeError(answer)


def _open_ipc(call: Call, data: bytes, files: list[int]) -> None:
    call("cuIpcOpenMemHandle_v2", byref(c_uint64()), _Handle.from_buffer_copy(data), c_uint(1))


def _import_sent(call: Call, data: bytes, files: list[int]) -> None:
    _import(call, files[0], int(data))


def _two_processes() -> plain.Take:
    other = _Other(_import_sent)
    call = plain._driver()

    def take(size: int) -> None:
        handle = _piece(call, size)
        fd = _export(call, handle)
        try:
            other.ask(str(size).encode(), [fd])
        finally:
            os.close(fd)
            call("cuMemRelease", handle)
        time.sleep(0.3)  # the other's thread sees that it has to pay

    return take


def _two_processes_ipc() -> plain.Take:
    other = _Other(_open_ipc)
    call = plain._driver()

    def take(size: int) -> None:
        address, handle = c_uint64(), _Handle()
        call("cuMemAlloc_v2", byref(address), c_size_t(size))
        call("cuIpcGetMemHandle", byref(handle), address)
        try:
            other.ask(bytes(handle), [])
        finally:
            call("cuMemFree_v2", address)
        time.sleep(0.3)

    return take


CASES: dict[str, Callable[[], plain.Take]] = {
    "export-import": _export_import,
    "export-hold": _export_hold,
    "dma-buf": _dma_buf,
    "many-pools": _many_pools(1, 1),
    "managed-pools": _many_pools(2, 0),
    "managed-default-pool": _managed_default,
    "child-graph": _graph_within(1),
    "cloned-graph": _graph_within(None),
    "heap": _heap,
    "two-processes": _two_processes,
    "two-processes-ipc": _two_processes_ipc,
}


def once(quota: int) -> tuple[int, str]:
    """Two processes of the tenant share three quarters of the quota, by either way: is the second one charged again?"""
    importer, opener = _Other(_import_sent), _Other(_open_ipc)
    call, size = plain._driver(), quota * 3 // 8 // _WHOLE * _WHOLE
    handle, address, ipc = _piece(call, size), c_uint64(), _Handle()
    fd = _export(call, handle)
    importer.ask(str(size).encode(), [fd])
    call("cuMemAlloc_v2", byref(address), c_size_t(size))
    call("cuIpcGetMemHandle", byref(ipc), address)
    opener.ask(bytes(ipc), [])
    return 2 * size, "shared with two processes"


def lend(quota: int, path: str) -> tuple[int, str]:
    """Another tenant: exports three quarters of its quota to every client."""
    call, size = plain._driver(), quota * 3 // 4 // _WHOLE * _WHOLE
    fd = _export(call, _piece(call, size))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(60)
        with listener.accept()[0] as connection:
            socket.send_fds(connection, [str(size).encode()], [fd])
    return size, "lent to another tenant"


def borrow(quota: int, path: str) -> tuple[int, str]:
    """Has half of its own quota, and maps what the other lends: that does not fit."""
    call = plain._driver()
    call("cuMemAlloc_v2", byref(c_uint64()), c_size_t(quota // 2))
    deadline = time.monotonic() + 15
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        data, files, _, _ = socket.recv_fds(connection, 4096, 4)
    try:
        _import(call, files[0], int(data))
    except MemoryError as error:
        return quota // 2, str(error)
    return quota // 2 + int(data), "never refused"


def main() -> None:
    case, quota, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    whole: dict[str, Callable[[], tuple[int, str]]] = {
        "once": lambda: once(quota),
        "lend": lambda: lend(quota, str(Path(stop).parent / "lend.sock")),
        "borrow": lambda: borrow(quota, str(Path(stop).parent / "lend.sock")),
    }
    plain.CASES.update({name: (prepare, 8 * _MIB) for name, prepare in CASES.items()})
    why: Any
    try:
        granted, why = whole[case]() if case in whole else plain.fill(case, quota)
    except Exception as error:
        granted, why = 0, f"cannot: {type(error).__name__}: {error}"
    print(f"FULL {granted} {why}", flush=True)
    deadline = time.monotonic() + 60
    while not os.path.exists(stop) and time.monotonic() < deadline:
        time.sleep(0.02)
    os._exit(0)


if __name__ == "__main__":
    main()
