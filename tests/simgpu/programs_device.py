"""Programs of the tests about devices and contexts."""

from __future__ import annotations

import ctypes as c
import json
import os
from typing import Any

from simgpu.driver import Cuda, Session


def init() -> list[Any]:
    """The result of cuInit, and the cards that are seen."""
    cuda = Cuda()
    status = cuda.status("cuInit", 0)
    if status:
        return [status, []]
    names = []
    for ordinal in range(cuda.get("cuDeviceGetCount", kind=c.c_int)):
        uuid = (c.c_ubyte * 16)()
        cuda.call("cuDeviceGetUuid_v2", uuid, ordinal)
        names.append(bytes(uuid).hex())
    return [0, names]


def device() -> dict[str, Any]:
    cuda = Cuda()
    cuda.call("cuInit", 0)
    name, bus = c.create_string_buffer(80), c.create_string_buffer(16)
    cuda.call("cuDeviceGetName", name, 80, 0)
    cuda.call("cuDeviceGetPCIBusId", bus, 16, 0)
    return {
        "name": name.value.decode(),
        "bus": bus.value.decode(),
        "memory": cuda.get("cuDeviceTotalMem_v2", 0),
        "version": cuda.get("cuDriverGetVersion", kind=c.c_int),
        "multiprocessors": cuda.get("cuDeviceGetAttribute", 16, 0, kind=c.c_int),
        "capability": [cuda.get("cuDeviceGetAttribute", a, 0, kind=c.c_int) for a in (75, 76)],
    }


def proc_address(name: str, version: int, flags: int) -> list[Any]:
    """The result and status of cuGetProcAddress, and the name of the symbol it found."""
    cuda = Cuda()
    found, status = c.c_void_p(), c.c_int(-1)
    result = cuda.status(
        "cuGetProcAddress_v2", name.encode(), c.byref(found), version, c.c_uint64(flags), c.byref(status)
    )
    if not found.value:
        return [result, status.value, None]

    class Information(c.Structure):
        _fields_ = (("file", c.c_char_p), ("base", c.c_void_p), ("symbol", c.c_char_p), ("address", c.c_void_p))

    information = Information()
    c.CDLL(None).dladdr(found, c.byref(information))
    return [result, status.value, information.symbol.decode()]


def context_on(ordinal: int) -> int:
    """What the making of a context there answers."""
    cuda = Cuda()
    cuda.call("cuInit", 0)
    context = c.c_void_p()
    return cuda.status("cuCtxCreate_v2", c.byref(context), 0, ordinal)


def fork_after_init() -> list[int]:
    """What the driver answers the parent and then the child."""
    session = Session()
    reader, writer = os.pipe()
    if os.fork() == 0:
        codes = [session.cuda.status("cuInit", 0), session.cuda.status("cuCtxSynchronize")]
        os.write(writer, json.dumps(codes).encode())
        os._exit(0)
    os.wait()
    return [session.cuda.status("cuCtxSynchronize"), *json.loads(os.read(reader, 100))]


def contexts() -> dict[str, Any]:
    """Retain, release, create, push, pop, destroy, and what is current after each."""
    cuda = Cuda()
    cuda.call("cuInit", 0)
    seen: dict[str, Any] = {"none": cuda.status("cuCtxSynchronize")}
    primary = cuda.get("cuDevicePrimaryCtxRetain", 0)
    seen["same"] = cuda.get("cuDevicePrimaryCtxRetain", 0) == primary
    seen["not current"] = cuda.get("cuCtxGetCurrent")
    own = cuda.get("cuCtxCreate_v2", 0, 0)
    seen["created is current"] = cuda.get("cuCtxGetCurrent") == own
    cuda.call("cuCtxPushCurrent_v2", c.c_void_p(primary))
    seen["pushed is current"] = cuda.get("cuCtxGetCurrent") == primary
    cuda.get("cuCtxPopCurrent_v2")
    seen["popped"] = cuda.get("cuCtxGetCurrent") == own
    cuda.call("cuCtxDestroy_v2", c.c_void_p(own))
    seen["destroyed"] = cuda.status("cuCtxSetCurrent", c.c_void_p(own))
    cuda.call("cuDevicePrimaryCtxRelease_v2", 0)
    flags, active = c.c_uint(), c.c_int()
    cuda.call("cuDevicePrimaryCtxGetState", 0, c.byref(flags), c.byref(active))
    seen["still active"] = active.value
    cuda.call("cuDevicePrimaryCtxRelease_v2", 0)
    cuda.call("cuDevicePrimaryCtxGetState", 0, c.byref(flags), c.byref(active))
    seen["gone"] = active.value
    return seen
