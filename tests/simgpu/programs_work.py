"""Programs of the tests that launch kernels; each returns what it saw."""

from __future__ import annotations

import ctypes as c
import threading
import time
from typing import Any

from simgpu.driver import Session


def kernels() -> dict[str, Any]:
    """Kernels take as long as they have iterations, by the card's clock."""
    session = Session()
    out = session.allocate(24)
    seen: dict[str, Any] = {}
    for us in (50, 1000, 20000):
        before = time.monotonic_ns()
        session.launch(us, out=out)
        _, start, end = session.read(out, 3)
        seen[str(us)] = [(end - start) / 1000, before <= start <= end <= time.monotonic_ns()]
    seen["count"] = session.read(out, 1)[0]
    other = c.c_void_p(session.cuda.get("cuModuleGetFunction", session.module, b"other"))
    first, second = session.event(), session.event()
    session.launch(20000)  # time enough to submit all the rest
    session.cuda.call("cuEventRecord", first, None)
    for _ in range(10):
        session.cuda.call("cuLaunchKernel", other, 1, 1, 1, 32, 1, 1, 0, None, None, None)
    session.cuda.call("cuEventRecord", second, None)
    session.cuda.call("cuEventSynchronize", second)
    elapsed = c.c_float()
    session.cuda.call("cuEventElapsedTime", c.byref(elapsed), first, second)
    seen["ten others"] = elapsed.value
    seen["missing"] = session.cuda.status("cuModuleGetFunction", c.byref(c.c_void_p()), session.module, b"nobody")
    seen["block too large"] = session.cuda.status("cuLaunchKernel", other, 1, 1, 1, 2048, 1, 1, 0, None, None, None)
    return seen


def streams() -> dict[str, Any]:
    """Order within a stream, waits between streams, queries, and the rules of the legacy default stream."""
    session = Session()
    cuda = session.cuda
    out = session.allocate(24 * 8)
    first, second = session.stream(1), session.stream(1)
    session.launch(20000, stream=first, out=out)
    busy = cuda.status("cuStreamQuery", first)
    event = session.event(2)
    cuda.call("cuEventRecord", event, first)
    cuda.call("cuStreamWaitEvent", second, event, 0)
    session.launch(100, stream=second, out=out + 24)
    session.launch(100, stream=first, out=out + 48)
    cuda.call("cuStreamSynchronize", second)
    idle = cuda.status("cuStreamQuery", second)
    session.synchronize()
    words = session.read(out, 9)
    blocking = session.stream(0)
    session.launch(5000, stream=blocking, out=out + 72)
    session.launch(100, out=out + 96)  # the legacy stream comes after it
    session.launch(100, stream=blocking, out=out + 120)  # and before this
    session.launch(100, twin="_ptsz", out=out + 144)  # a thread's own stream is a blocking one
    session.synchronize()
    more = session.read(out + 72, 12)
    return {
        "busy": busy,
        "idle": idle,
        "second waited": words[4] >= words[2],
        "first in order": words[7] >= words[2],
        "legacy waited": more[4] >= more[2],
        "waited for legacy": more[7] >= more[5],
        "per thread": more[9],
        "bad handle": cuda.status("cuStreamSynchronize", c.c_void_p(0x1234)),
    }


def host_functions() -> list[Any]:
    """They run between the kernels of their stream, on another thread."""
    session = Session()
    out = session.allocate(48)
    seen: list[Any] = []
    callback_type = c.CFUNCTYPE(None, c.c_void_p)

    def note(_: object) -> None:
        seen.append(time.monotonic_ns())
        time.sleep(0.01)
        seen.append(time.monotonic_ns())

    callback = callback_type(note)
    session.launch(5000, out=out)
    session.cuda.call("cuLaunchHostFunc", None, callback, None)
    session.launch(100, out=out + 24)
    issued = time.monotonic_ns()
    session.synchronize()
    words = session.read(out, 6)
    return [issued < seen[0], words[2] <= seen[0], seen[1] <= words[4]]


def queue(us: float, depth: int, seconds: float) -> float:
    """A steady load with `depth` kernels in the queue. The share of the time that the card was kept busy."""
    session = Session()
    out = session.allocate(24)
    events = [session.event(2) for _ in range(depth)]
    start, count = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        if count >= depth:
            session.cuda.call("cuEventSynchronize", events[count % depth])
        session.launch(us, out=out)
        session.cuda.call("cuEventRecord", events[count % depth], None)
        count += 1
    session.synchronize()
    return count * us * 1e-6 / (time.monotonic() - start)


def launch_cost(count: int) -> float:
    """Microseconds to submit one kernel, with the queue full most of the time."""
    session = Session()
    nothing = c.c_uint64(0)
    parameters = (c.c_void_p * 2)(c.addressof(nothing), c.addressof(nothing))
    launch = session.cuda.library.cuLaunchKernel
    best = 1e9
    for _ in range(5):
        start = time.monotonic()
        for _ in range(count):
            launch(session.burn, 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
        best = min(best, (time.monotonic() - start) / count * 1e6)
        session.synchronize()
    return best


def threads(number: int, kernels: int) -> list[int]:
    """Each with its own stream, events and memory, and now and then a host function. What its kernels counted."""
    session = Session()
    counted = [0] * number
    callback = c.CFUNCTYPE(None, c.c_void_p)(lambda _: None)

    def work(index: int) -> None:
        session.cuda.call("cuCtxSetCurrent", session.context)
        out, stream, event = session.allocate(24), session.stream(index % 2), session.event()
        for i in range(kernels):
            session.launch(i % 50, stream=stream, out=out)
            session.cuda.call("cuEventRecord", event, stream)
            if i % 7 == 0:
                session.cuda.call("cuEventSynchronize", event)
            if i % 20 == 0:
                session.cuda.call("cuLaunchHostFunc", stream, callback, None)
        session.cuda.call("cuStreamSynchronize", stream)
        counted[index] = session.read(out, 1)[0]

    running = [threading.Thread(target=work, args=(index,)) for index in range(number)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return counted


def faults() -> list[int]:
    """A kernel that writes where nothing is ends its context, as on a real card; another context goes on."""
    session = Session()
    session.launch(100, out=0x1000)
    codes = [session.cuda.status("cuCtxSynchronize"), session.cuda.status("cuCtxSynchronize")]
    session.cuda.call("cuDevicePrimaryCtxReset_v2", 0)
    again = Session()
    again.launch(100)
    again.synchronize()
    return codes


def copies() -> dict[str, float]:
    """A kernel of 4 ms and two copies of 2 ms that may all begin at the same instant: when each ends, in
    milliseconds, and when a third one ends that goes in the direction of the first."""
    session = Session()
    cuda = session.cuda
    size = 50_000_000
    card, host = session.allocate(size), (c.c_uint8 * size)()
    kernel, into, out, third = (session.stream(1) for _ in range(4))
    began, ended = session.event(), {name: session.event() for name in ("kernel", "into", "out", "third")}
    session.launch(300_000, stream=kernel)  # time enough to submit all the rest
    cuda.call("cuEventRecord", began, kernel)
    session.launch(4_000, stream=kernel)
    for stream in (into, out, third):
        cuda.call("cuStreamWaitEvent", stream, began, 0)
    cuda.call("cuMemcpyHtoDAsync_v2", card, host, size, into)
    cuda.call("cuMemcpyDtoHAsync_v2", host, card, size, out)
    cuda.call("cuMemcpyHtoDAsync_v2", card, host, size, third)
    for stream, event in zip((kernel, into, out, third), ended.values(), strict=True):
        cuda.call("cuEventRecord", event, stream)
    session.synchronize()
    seen, elapsed = {}, c.c_float()
    for name, event in ended.items():
        cuda.call("cuEventElapsedTime", c.byref(elapsed), began, event)
        seen[name] = elapsed.value
    return seen
