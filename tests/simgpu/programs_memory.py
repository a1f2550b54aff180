"""Programs of the tests that allocate, copy and build graphs; each returns what it saw."""

from __future__ import annotations

import ctypes as c
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simgpu.driver import CudaError, Session

MIB = 1 << 20


def attempt(*calls: Callable[[], object]) -> list[int]:
    """The error code of each call, 0 where it went well."""
    codes = []
    for call in calls:
        try:
            call()
            codes.append(0)
        except CudaError as error:
            codes.append(error.code)
    return codes


def memory(mib: int) -> dict[str, Any]:
    """Allocates in every way there is, and sees what the card has left."""
    session = Session()
    cuda = session.cuda
    start = session.free_memory()
    seen: dict[str, Any] = {"start": start}

    def taken() -> int:
        return start - session.free_memory()

    plain = session.allocate(mib * MIB)
    seen["plain"] = taken()
    cuda.call("cuMemFree_v2", plain)
    seen["freed"] = taken()
    managed = cuda.get("cuMemAllocManaged", mib * MIB, 1)
    seen["managed"] = taken()
    c.memset(managed, 7, 100)  # the program may write to it
    cuda.call("cuMemFree_v2", managed)
    pooled = cuda.get("cuMemAllocAsync", mib * MIB, None)
    seen["pooled"] = taken()
    cuda.call("cuMemFreeAsync", pooled, None)
    seen["kept by the pool"] = taken()
    session.synchronize()
    seen["after synchronize"] = taken()
    seen["too much"] = attempt(
        lambda: session.allocate(seen["start"] + MIB),
        lambda: cuda.get("cuMemAllocAsync", seen["start"] + MIB, None),
        lambda: session.allocate(0),
    )
    seen["invalid"] = attempt(lambda: cuda.call("cuMemFree_v2", plain), lambda: cuda.call("cuMemFree_v2", 12345))
    seen["end"] = taken()
    return seen


def pools() -> dict[str, int]:
    """Reserved and used bytes of the default pool, as its memory comes and goes."""
    session = Session()
    cuda = session.cuda
    pool = c.c_void_p(cuda.get("cuDeviceGetDefaultMemPool", 0))

    def attribute(number: int) -> int:
        value = c.c_uint64()
        cuda.call("cuMemPoolGetAttribute", pool, number, c.byref(value))
        return value.value

    cuda.call("cuMemPoolSetAttribute", pool, 4, c.byref(c.c_uint64(2**64 - 1)))
    first = cuda.get("cuMemAllocAsync", 40 * MIB, None)
    seen = {"reserved": attribute(5), "used": attribute(7)}
    cuda.call("cuMemFreeAsync", first, None)
    session.synchronize()
    seen |= {"kept": attribute(5), "unused": attribute(7), "high": attribute(8)}
    cuda.call("cuMemPoolTrimTo", pool, 0)
    seen["trimmed"] = attribute(5)
    return seen


def virtual_memory() -> dict[str, Any]:
    """Reserve, create, map, unmap, release."""
    session = Session()
    cuda = session.cuda
    start = session.free_memory()
    size = 64 * MIB
    prop = struct.pack("=iiiiQ8x", 1, 1, 1, 0, 0)
    access = struct.pack("=iii", 1, 0, 3)
    address = cuda.get("cuMemAddressReserve", size, 0, 0, 0)
    seen: dict[str, Any] = {"reserved": start - session.free_memory()}
    handle = cuda.get("cuMemCreate", size, prop, 0)
    seen["created"] = start - session.free_memory()
    cuda.call("cuMemMap", address, size, 0, handle, 0)
    cuda.call("cuMemSetAccess", address, size, access, 1)
    cuda.call("cuMemsetD8_v2", address, 255, MIB)
    cuda.call("cuMemsetD8_v2", address + 8, 0, MIB - 16)  # becomes a hole, but for its edges
    seen["cleared"] = [session.read(address + at, 1)[0] for at in (0, 8, 4096, MIB // 2, MIB - 16, MIB - 8)]
    seen["twice"] = cuda.status("cuMemMap", address, size, 0, handle, 0)
    cuda.call("cuMemRelease", handle)
    seen["released"] = start - session.free_memory()
    cuda.call("cuMemUnmap", address, size)
    seen["unmapped"] = start - session.free_memory()
    cuda.call("cuMemAddressFree", address, size)
    seen["not a multiple"] = cuda.status("cuMemCreate", c.byref(c.c_uint64()), size + 1, prop, 0)
    return seen


def contents() -> dict[str, Any]:
    """What is written is read back, in the order of the stream; large memory reads as zeros."""
    session = Session()
    cuda = session.cuda
    one, two, large = session.allocate(64), session.allocate(64), session.allocate(2 * MIB)
    cuda.call("cuMemcpyHtoD_v2", one, (c.c_uint64 * 2)(11, 22), 16)
    cuda.call("cuMemcpyDtoD_v2", two, one, 16)
    stream = session.stream()
    source, target = (c.c_uint64 * 2)(33, 44), (c.c_uint64 * 2)()
    cuda.call("cuMemcpyHtoDAsync_v2", one, source, 16, stream)
    source[0] = 99  # pageable memory was taken when the call was made
    cuda.call("cuMemcpyDtoHAsync_v2", target, one, 16, stream)
    early = list(target)
    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuMemsetD8_v2", large, 255, 2 * MIB)
    return {
        "copied": session.read(two, 2),
        "early": early,
        "late": list(target),
        "large": session.read(large, 1),
        "beyond": cuda.status("cuMemcpyDtoH_v2", (c.c_uint64 * 16)(), one, 128),
    }


def rows() -> dict[str, Any]:
    """Copies and fills in rows; hints are for managed memory only."""
    session = Session()
    cuda = session.cuda
    target = session.allocate(4 * 32)
    cuda.call("cuMemsetD2D8_v2", c.c_uint64(target), c.c_size_t(32), c.c_ubyte(1), c.c_size_t(8), c.c_size_t(4))
    source = (c.c_uint64 * 4)(10, 11, 12, 13)
    copy = struct.pack("=QQi4xQQQQ", 0, 0, 1, c.addressof(source), 0, 0, 16)
    copy += struct.pack("=QQi4xQQQQQQ", 8, 1, 2, 0, target, 0, 32, 8, 2)
    cuda.call("cuMemcpy2D_v2", copy)
    managed = cuda.get("cuMemAllocManaged", 4096, 1)
    return {
        "words": session.read(target, 16),
        "hints": [
            cuda.status("cuMemPrefetchAsync", c.c_uint64(address), c.c_size_t(64), 0, None)
            for address in (managed, target)
        ],
    }


def captures(mode: str, call: str, own: str) -> dict[str, Any]:
    """What a call answers while another thread captures in that mode, and what becomes of it. `own` is the mode
    of the calling thread."""
    session = Session()
    cuda = session.cuda
    busy, other = session.stream(1), session.stream(1)
    p = session.allocate(4096)
    seen: dict[str, Any] = {}

    def capture(begun: threading.Event, go_on: threading.Event) -> None:
        cuda.call("cuCtxSetCurrent", session.context)
        cuda.call("cuStreamBeginCapture_v2", busy, int(mode))
        begun.set()
        go_on.wait(20)
        status = c.c_int()
        cuda.call("cuStreamIsCapturing", busy, c.byref(status))
        seen["status"] = status.value
        (seen["launch"],) = attempt(lambda: session.launch(1000, stream=busy))
        seen["end"] = cuda.status("cuStreamEndCapture", busy, c.byref(c.c_void_p()))

    events = threading.Event(), threading.Event()
    thread = threading.Thread(target=capture, args=events)
    thread.start()
    events[0].wait(20)
    before = c.c_int(int(own))
    cuda.call("cuThreadExchangeStreamCaptureMode", c.byref(before))
    arguments: dict[str, tuple[Any, ...]] = {
        "cuMemAlloc_v2": (c.byref(c.c_uint64()), 4096), "cuMemFree_v2": (p,), "cuStreamSynchronize": (other,),
        "cuStreamQuery": (None,), "cuCtxSynchronize": (), "cuMemAllocAsync": (c.byref(c.c_uint64()), 4096, other),
    }  # fmt: skip
    seen["call"] = cuda.status(call, *arguments[call])
    events[1].set()
    thread.join()
    seen["after"] = cuda.status("cuCtxSynchronize")
    return seen


def graphs() -> dict[str, Any]:
    """Captured and built by hand; memory of a graph is taken at its first launch."""
    session = Session()
    cuda = session.cuda
    out = session.allocate(48)
    stream = session.stream(1)
    cuda.call("cuStreamBeginCapture_v2", stream, 0)
    for _ in range(3):
        session.launch(1000, stream=stream, out=out)
    status = c.c_int()
    cuda.call("cuStreamIsCapturing", stream, c.byref(status))
    graph = c.c_void_p()
    cuda.call("cuStreamEndCapture", stream, c.byref(graph))
    cuda.call("cuStreamBeginCapture_v2", stream, 0)
    refused = cuda.status("cuStreamSynchronize", stream)
    broken = cuda.status("cuStreamEndCapture", stream, c.byref(c.c_void_p()))
    nothing = session.read(out, 1)[0]
    executable = c.c_void_p(cuda.get("cuGraphInstantiateWithFlags", graph, c.c_uint64(0)))
    for _ in range(2):
        cuda.call("cuGraphLaunch", executable, stream)
    cuda.call("cuStreamSynchronize", stream)
    seen = {
        "capturing": status.value,
        "refused": refused,
        "broken": broken,
        "before": nothing,
        "after": session.read(out, 1)[0],
    }

    start = session.free_memory()
    built = c.c_void_p(cuda.get("cuGraphCreate", 0))
    params = bytearray(struct.pack("=iiiiQQ56x", 1, 0, 1, 0, 0, 0) + struct.pack("=QQQQ", 0, 0, 64 * MIB, 0))
    node = c.c_void_p()
    buffer = (c.c_char * len(params)).from_buffer(params)
    cuda.call("cuGraphAddMemAllocNode", c.byref(node), built, None, c.c_size_t(0), buffer)
    seen["added"] = start - session.free_memory()
    executable = c.c_void_p(cuda.get("cuGraphInstantiateWithFlags", built, c.c_uint64(0)))
    cuda.call("cuGraphLaunch", executable, stream)
    seen["launched"] = start - session.free_memory()
    cuda.call("cuStreamSynchronize", stream)
    cuda.call("cuGraphExecDestroy", executable)
    seen["destroyed"] = start - session.free_memory()
    return seen


def free_waits(capture: str) -> list[float]:
    """How long a free takes that comes after work of 0.3 s, in its context and in another; what a capture ends with."""
    session = Session()
    cuda = session.cuda
    streams = [session.stream(1) for _ in range(3)]
    pointers = [session.allocate(MIB), session.allocate(8 * MIB)]
    if int(capture):
        cuda.call("cuStreamBeginCapture_v2", streams[2], 2)
    seen = []
    for p, elsewhere in zip(pointers, (False, True), strict=True):
        session.launch(300_000, stream=streams[0])
        session.launch(1, stream=streams[1])
        if elsewhere:
            cuda.get("cuCtxCreate_v2", 0, 0)
        began = time.monotonic()
        cuda.call("cuMemFree_v2", p)
        seen.append(time.monotonic() - began)
    cuda.call("cuCtxSetCurrent", session.context)
    end = cuda.status("cuStreamEndCapture", streams[2], c.byref(c.c_void_p())) if int(capture) else 0
    return [*seen, end]


def free_again() -> dict[str, Any]:
    """Refused while this thread captures; then done."""
    session = Session()
    cuda = session.cuda
    stream = session.stream(1)
    start = session.free_memory()
    p = session.allocate(64 * MIB)
    cuda.call("cuStreamBeginCapture_v2", stream, 1)
    refused = cuda.status("cuMemFree_v2", p)
    cuda.status("cuStreamEndCapture", stream, c.byref(c.c_void_p()))
    charged = start - session.free_memory() >= 64 * MIB
    freed = cuda.status("cuMemFree_v2", p)
    return {"refused": refused, "charged": charged, "freed": freed, "left": start - session.free_memory()}


def capture_while(folder: str, instead: str = "") -> int:
    """Captures from the file `begun` on until there is a file `end`; what it ends with. `instead`: what happened to it
    by then."""
    session = Session()
    stream = session.stream(1)
    session.allocate(64 * MIB)
    if instead == "context":
        context = c.c_void_p(session.cuda.get("cuCtxCreate_v2", 0, 0))
        stream = session.stream(1)
    session.cuda.call("cuStreamBeginCapture_v2", stream, 0)
    if instead == "unmatched":  # of a stream that has joined: the capture goes on
        joined, event = session.stream(1), session.event()
        session.cuda.call("cuEventRecord", event, stream)
        session.cuda.call("cuStreamWaitEvent", joined, event, 0)
        assert session.cuda.status("cuStreamEndCapture", joined, c.byref(c.c_void_p())) == 903
    elif instead == "stream":
        session.cuda.call("cuStreamDestroy_v2", stream)
    elif instead == "context":
        session.cuda.call("cuCtxDestroy_v2", context)
        session.cuda.call("cuCtxSetCurrent", session.context)
    (Path(folder) / "begun").touch()
    deadline = time.monotonic() + 60
    while not (Path(folder) / "end").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    if instead in ("stream", "context"):
        return 0
    session.launch(1000, stream=stream)
    return session.cuda.status("cuStreamEndCapture", stream, c.byref(c.c_void_p()))
