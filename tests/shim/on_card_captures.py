"""Not a test of the suite: what captures.c expects of the driver, on a real card; then the same calls with the shim.

    python tests/shim/on_card_captures.py

Each line is a check. `waits` is the time that the call took while 0.4 s of work were under way elsewhere.
"""

from __future__ import annotations

import ctypes as c
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

from shim.on_card_kit import check, failures, run_inside

SPIN = b""".version 7.0
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 ns) {
    .reg .u64 %r<5>; .reg .pred %p;
    ld.param.u64 %r1, [ns];
    mov.u64 %r2, %globaltimer;
L:  mov.u64 %r3, %globaltimer;
    sub.u64 %r4, %r3, %r2;
    setp.lt.u64 %p, %r4, %r1;
    @%p bra L;
    ret;
}
"""
MODES = ("global", "thread-local", "relaxed")
LONG = 0.4
cu: Any = None
spin = c.c_void_p()
context = c.c_void_p()


def must(code: int) -> None:
    assert code == 0, code


def set_up() -> None:
    global cu
    cu = c.CDLL("libcuda.so.1")
    module = c.c_void_p()
    must(cu.cuInit(0))
    must(cu.cuDevicePrimaryCtxRetain(c.byref(context), 0))
    must(cu.cuCtxSetCurrent(context))
    must(cu.cuModuleLoadData(c.byref(module), SPIN))
    must(cu.cuModuleGetFunction(c.byref(spin), module, b"spin"))


def stream(flags: int = 1) -> c.c_void_p:
    made = c.c_void_p()
    must(cu.cuStreamCreate(c.byref(made), flags))
    return made


def work(on: c.c_void_p | None, seconds: float = LONG) -> None:
    n = c.c_uint64(int(seconds * 1e9))
    must(cu.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, on, (c.c_void_p * 1)(c.addressof(n)), None))


def alloc(n: int) -> int:
    p = c.c_uint64()
    must(cu.cuMemAlloc_v2(c.byref(p), c.c_size_t(n)))
    return p.value


def free(p: int) -> int:
    return int(cu.cuMemFree_v2(c.c_uint64(p)))


def timed(call: Callable[[], int]) -> tuple[int, float]:
    began = time.monotonic()
    return call(), round(time.monotonic() - began, 3)


def during(mode: int, own: int, call: Callable[[], int]) -> tuple[int, float, int]:
    """The call while another thread captures: its answer and time, and what the capture ends with. `own`: the mode of
    the calling thread."""
    begun, go_on = threading.Event(), threading.Event()
    end: list[int] = []

    def capture() -> None:
        must(cu.cuCtxSetCurrent(context))
        on = stream()
        must(cu.cuStreamBeginCapture_v2(on, mode))
        begun.set()
        go_on.wait(30)
        end.append(cu.cuStreamEndCapture(on, c.byref(c.c_void_p())))

    thread = threading.Thread(target=capture)
    thread.start()
    begun.wait(30)
    swap = c.c_int(own)
    must(cu.cuThreadExchangeStreamCaptureMode(c.byref(swap)))
    result, took = timed(call)
    must(cu.cuThreadExchangeStreamCaptureMode(c.byref(swap)))
    go_on.set()
    thread.join()
    return result, took, end[0]


def waits() -> None:
    """cuMemFree waits for all work of the context, whatever the size of the block."""
    places = {"one stream": [1], "three streams": [1, 1, 1], "the legacy stream": [0], "the thread's own": [2]}
    for size in (1, 512, 4096, 3 << 20):
        for name, kinds in places.items():
            streams = [stream() if kind == 1 else c.c_void_p(kind) for kind in kinds]
            p = alloc(size)
            for one in streams:
                work(one)
            result, took = timed(lambda p=p: free(p))  # type: ignore[misc]
            check(f"free of {size} B waits for work on {name}", result == 0 and took > LONG * 0.8, (result, took))
            cu.cuCtxSynchronize()
    for mode in (1, 2):
        for size in (1, 3 << 20):
            p, on = alloc(size), stream()
            work(on)
            answer = during(mode, 0, lambda p=p: free(p))  # type: ignore[misc]
            good = answer[0] == 0 and answer[1] > LONG * 0.8 and answer[2] == 0
            check(f"free of {size} B waits during a capture in mode {MODES[mode]}, which survives", good, answer)
            cu.cuCtxSynchronize()
    p, on = alloc(1), stream()
    work(on)
    answer = during(0, 2, lambda: free(p))
    check(
        "so in mode global, from a relaxed thread", answer[0] == 0 and answer[1] > LONG * 0.8 and not answer[2], answer
    )
    cu.cuCtxSynchronize()
    p, on = alloc(1), stream()
    work(on)
    answer = during(0, 0, lambda: free(p))
    check("in mode global it answers 900 and breaks the capture", (answer[0], answer[2]) == (900, 901), answer)
    cu.cuCtxSynchronize()
    check("and the block can be freed later", free(p) == 0)
    other, p, on = c.c_void_p(), alloc(1), stream()
    must(cu.cuCtxCreate_v2(c.byref(other), 0, 0))  # takes as long as a part of the work
    must(cu.cuCtxSetCurrent(context))
    work(on)
    must(cu.cuCtxSetCurrent(other))
    result, took = timed(lambda: free(p))
    check("free from another context waits for the block's own", result == 0 and took > LONG * 0.8, (result, took))
    must(cu.cuCtxDestroy_v2(other))
    must(cu.cuCtxSetCurrent(context))


def rules() -> None:
    """What calls of the shim answer in mode global, from a thread that is relaxed and from one that is not. None may
    break a capture when it is relaxed."""

    class Prop(c.Structure):
        _fields_ = (("type", c.c_int), ("handles", c.c_int), ("where", c.c_int * 2), ("rest", c.c_char * 64))

    unit = c.c_size_t(2 << 20)
    at, handle, event, pool = c.c_uint64(), c.c_uint64(), c.c_void_p(), c.c_void_p()
    prop = Prop(type=1, handles=1, where=(c.c_int * 2)(1, 0))
    access, value, spare, total = (c.c_int * 3)(1, 0, 3), c.c_uint64(), c.c_size_t(), c.c_size_t()
    must(cu.cuEventCreate(c.byref(event), 2))
    must(cu.cuDeviceGetDefaultMemPool(c.byref(pool), 0))
    on, null = stream(), c.c_uint64(0)
    calls: list[tuple[str, Callable[[], int]]] = [
        ("cuMemAlloc(1)", lambda: cu.cuMemAlloc_v2(c.byref(value), c.c_size_t(1))),
        ("cuMemAddressReserve", lambda: cu.cuMemAddressReserve(c.byref(at), unit, c.c_size_t(0), null, null)),
        ("cuMemCreate", lambda: cu.cuMemCreate(c.byref(handle), unit, c.byref(prop), null)),
        ("cuMemMap", lambda: cu.cuMemMap(at, unit, c.c_size_t(0), handle, null)),
        ("cuMemSetAccess", lambda: cu.cuMemSetAccess(at, unit, access, c.c_size_t(1))),
        ("cuMemUnmap", lambda: cu.cuMemUnmap(at, unit)),
        ("cuMemRelease", lambda: cu.cuMemRelease(handle)),
        ("cuMemAddressFree", lambda: cu.cuMemAddressFree(at, unit)),
        ("cuMemGetInfo", lambda: cu.cuMemGetInfo_v2(c.byref(spare), c.byref(total))),
        ("cuMemPoolGetAttribute", lambda: cu.cuMemPoolGetAttribute(pool, 5, c.byref(value))),
        ("cuMemPoolTrimTo", lambda: cu.cuMemPoolTrimTo(pool, c.c_size_t(0))),
        ("cuDeviceGetGraphMemAttribute", lambda: cu.cuDeviceGetGraphMemAttribute(0, 2, c.byref(value))),
        ("cuDeviceGraphMemTrim", lambda: cu.cuDeviceGraphMemTrim(0)),
        ("cuMemAllocAsync", lambda: cu.cuMemAllocAsync(c.byref(value), unit, on)),
        ("cuMemFreeAsync", lambda: cu.cuMemFreeAsync(value, on)),
        ("cuEventRecord", lambda: cu.cuEventRecord(event, on)),
        ("cuEventQuery", lambda: cu.cuEventQuery(event)),
        ("cuStreamWaitEvent", lambda: cu.cuStreamWaitEvent(on, event, 0)),
        ("cuStreamQuery", lambda: cu.cuStreamQuery(on)),
        ("cuStreamSynchronize", lambda: cu.cuStreamSynchronize(on)),
        ("cuStreamSynchronize(legacy)", lambda: cu.cuStreamSynchronize(None)),
    ]
    # relaxed first: calls build on each other's results
    relaxed = [during(0, 2, call) for _, call in calls]
    strict = [during(0, 0, call) for _, call in calls]
    for (name, _), (result, _, end), (answer, _, broken) in zip(calls, relaxed, strict, strict=True):
        note = f"relaxed: {result}, end {end}; not relaxed: {answer}, end {broken}"
        check(f"{name} breaks no capture from a relaxed thread", end == 0 and not 900 <= result <= 909, note)


def late() -> None:
    """A wait for the context that is under way when a capture begins: parking's, when it gave up waiting."""
    on = stream()
    ends: list[int] = []

    def wait() -> None:
        must(cu.cuCtxSetCurrent(context))
        ends.append(cu.cuCtxSynchronize())

    work(on)
    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.1)
    answer = during(1, 0, lambda: bool(time.sleep(0.6)))  # type: ignore[func-returns-value]
    waiter.join()
    check("a capture that begins during cuCtxSynchronize survives", answer[2] == 0 and ends == [0], (answer, ends))


def shimmed() -> None:
    """In a tenant that may be parked: as without the shim."""
    big = [alloc(8 << 20) for _ in range(12)]
    for mode in range(3):
        for own in range(3):
            p, on = big.pop(), stream()
            work(on)
            answer = during(mode, own, lambda p=p: free(p))  # type: ignore[misc]
            breaks = mode == own == 0
            good = answer[0] == (900 if breaks else 0) and answer[2] == (901 if breaks else 0)
            good = good and (breaks or answer[1] > LONG * 0.8)
            check(f"cuMemFree, capture {MODES[mode]}, thread {MODES[own]}", good, answer)
            cu.cuCtxSynchronize()
            value = c.c_uint64()
            answer = during(mode, own, lambda: cu.cuMemAlloc_v2(c.byref(value), c.c_size_t(8 << 20)))  # noqa: B023
            good = answer[0] == (900 if breaks else 0) and answer[2] == (901 if breaks else 0)
            check(f"cuMemAlloc, capture {MODES[mode]}, thread {MODES[own]}", good and answer[1] < 0.2, answer)
            if breaks:
                check("what was not freed can be freed later", free(p) == 0)
    began = time.monotonic()
    for _ in range(2000):
        free(alloc(4 << 20))
    print(f"      4 MiB with cuMemAlloc and cuMemFree: {(time.monotonic() - began) / 2000 * 1e6:.0f} us a pair")


def outside() -> int:
    set_up()
    print("the driver alone:")
    waits()
    rules()
    late()
    print("with the shim, parkable:", flush=True)
    return failures() + run_inside(__file__, 4 << 30, parkable=True)


def inside() -> int:
    set_up()
    shimmed()
    return failures()


if __name__ == "__main__":
    sys.exit(min(100, inside() if "inside" in sys.argv else outside()))
