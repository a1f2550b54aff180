"""Runs in the tenant: the driver API over ctypes, as the programs of the tests use it. Knows nothing of pytest."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from typing import Any

MIB = 1 << 20
GIB = 1 << 30
OUT_OF_MEMORY = 2
DEVICE = 1  # a location in the driver's words


class Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class PieceProp(ctypes.Structure):
    _fields_ = (("type", c_int), ("handles", c_int), ("location", Location), ("rest", c_char * 64))


class PoolProps(ctypes.Structure):
    _fields_ = (
        ("type", c_int), ("handles", c_int), ("location", Location),
        ("security", c_void_p), ("most", c_size_t), ("rest", c_char * 56),
    )  # fmt: skip


class AllocNode(ctypes.Structure):
    _fields_ = (
        ("pool", PoolProps), ("access", c_void_p), ("accesses", c_size_t), ("bytes", c_size_t), ("pointer", c_uint64),
    )  # fmt: skip


class NodeParams(ctypes.Structure):
    _fields_ = (("type", c_int), ("reserved", c_int * 3), ("alloc", AllocNode), ("rest", c_char * 128))


class Array3D(ctypes.Structure):
    _fields_ = (
        ("width", c_size_t), ("height", c_size_t), ("depth", c_size_t),
        ("format", c_int), ("channels", c_uint), ("flags", c_uint),
    )  # fmt: skip


cuda: Any = ctypes.CDLL("libcuda.so.1")
if hasattr(cuda, "fake_taken"):  # on_card.py runs this over the real one
    cuda.fake_taken.restype = c_uint64
    cuda.fake_calls.restype = c_uint64


def say(**values: Any) -> None:
    """One line of JSON to the test."""
    print(json.dumps(values), flush=True)


def heard() -> None:
    """Wait for the test to say go on: a line on stdin."""
    sys.stdin.readline()


def context(device: int = 0) -> c_void_p:
    made = c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuCtxCreate_v2(byref(made), 0, device) == 0
    return made


def alloc(n: int) -> tuple[int, int]:
    p = c_uint64()
    result = cuda.cuMemAlloc_v2(byref(p), c_size_t(n))
    return result, p.value


def free(p: int) -> int:
    return int(cuda.cuMemFree_v2(c_uint64(p)))


def info() -> tuple[int, int]:
    spare, total = c_size_t(), c_size_t()
    assert cuda.cuMemGetInfo_v2(byref(spare), byref(total)) == 0
    return spare.value, total.value


def used() -> int:
    """What the tenant is charged, seen from inside."""
    spare, total = info()
    return total - spare


def stream() -> c_void_p:
    made = c_void_p()
    assert cuda.cuStreamCreate(byref(made), 0) == 0
    return made


def alloc_async(n: int, on: c_void_p | None = None) -> tuple[int, int]:
    p = c_uint64()
    return cuda.cuMemAllocAsync(byref(p), c_size_t(n), on), p.value


def free_async(p: int, on: c_void_p | None = None) -> int:
    return int(cuda.cuMemFreeAsync(c_uint64(p), on))


def piece(n: int, *, kind: int = DEVICE, device: int = 0) -> tuple[int, int]:
    handle, prop = c_uint64(), PieceProp(type=1, location=Location(kind, device))
    return cuda.cuMemCreate(byref(handle), c_size_t(n), byref(prop), c_ulonglong(0)), handle.value


def graph() -> c_void_p:
    made = c_void_p()
    assert cuda.cuGraphCreate(byref(made), 0) == 0
    return made


def alloc_node(on: c_void_p, n: int) -> tuple[int, int]:
    node, params = c_void_p(), AllocNode(pool=PoolProps(type=1, location=Location(DEVICE, 0)), bytes=n)
    return cuda.cuGraphAddMemAllocNode(byref(node), on, None, c_size_t(0), byref(params)), params.pointer


def free_node(on: c_void_p, p: int) -> int:
    return int(cuda.cuGraphAddMemFreeNode(byref(c_void_p()), on, None, c_size_t(0), c_uint64(p)))


def instantiate(of: c_void_p) -> c_void_p:
    made = c_void_p()
    assert cuda.cuGraphInstantiateWithFlags(byref(made), of, c_ulonglong(0)) == 0
    return made


def launch(on: c_void_p | None = None) -> int:
    return int(cuda.cuLaunchKernel(None, 1, 1, 1, 1, 1, 1, 0, on, None, None))


# ---- memory that can leave ----

RESERVED, RESERVED_HIGH, USED, USED_HIGH, THRESHOLD = 5, 6, 7, 8, 4  # attributes of a pool


def primary(device: int = 0) -> c_void_p:
    """The device's own context, current from now on."""
    made = c_void_p()
    assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(byref(made), device) == cuda.cuCtxSetCurrent(made) == 0
    return made


def step() -> None:
    """Tell the test, and wait for it."""
    say(step=1)
    heard()


def taken() -> int:
    """Bytes of the first card, without the block of one byte that the shim has ahead (captures.c)."""
    return int(cuda.fake_taken(0)) // 512 * 512


def wait() -> None:
    assert cuda.cuCtxSynchronize() == 0


def default() -> c_void_p:
    pool = c_void_p()
    assert cuda.cuDeviceGetDefaultMemPool(byref(pool), 0) == 0
    return pool


def pool(**more: int) -> c_void_p:
    made, props = c_void_p(), PoolProps(type=1, location=Location(DEVICE, 0), **more)
    assert cuda.cuMemPoolCreate(byref(made), byref(props)) == 0
    return made


def alloc_from(of: c_void_p, n: int, on: c_void_p | None = None) -> tuple[int, int]:
    p = c_uint64()
    return cuda.cuMemAllocFromPoolAsync(byref(p), c_size_t(n), of, on), p.value


def ask(attribute: int, of: c_void_p | None = None) -> int:
    value = c_uint64()
    assert cuda.cuMemPoolGetAttribute(of or default(), attribute, byref(value)) == 0
    return value.value


def tell(attribute: int, value: int, of: c_void_p | None = None) -> None:
    assert cuda.cuMemPoolSetAttribute(of or default(), attribute, byref(c_uint64(value))) == 0


def trim(keep: int = 0, of: c_void_p | None = None) -> None:
    assert cuda.cuMemPoolTrimTo(of or default(), c_size_t(keep)) == 0


def about(attribute: int, p: int) -> int:
    """An attribute of a pointer."""
    value = c_uint64()
    assert cuda.cuPointerGetAttribute(byref(value), attribute, c_uint64(p)) == 0
    return value.value


def plain() -> int:
    """Allocations that the driver's own pools served."""
    return int(cuda.fake_calls(b"cuMemAllocAsync") + cuda.fake_calls(b"cuMemAllocFromPoolAsync"))


def map_(h: int, n: int, at: int = 0x100000000) -> None:
    assert cuda.cuMemMap(c_uint64(at), c_size_t(n), c_size_t(0), c_uint64(h), c_ulonglong(0)) == 0


def access(n: int, at: int = 0x100000000) -> None:
    assert cuda.cuMemSetAccess(c_uint64(at), c_size_t(n), byref((c_int * 3)(DEVICE, 0, 3)), c_size_t(1)) == 0


def unmap(n: int, at: int = 0x100000000) -> None:
    assert cuda.cuMemUnmap(c_uint64(at), c_size_t(n)) == 0


def release(h: int) -> int:
    return int(cuda.cuMemRelease(c_uint64(h)))


def export(h: int) -> int:
    return int(cuda.cuMemExportToShareableHandle(byref(c_int()), c_uint64(h), 1, c_ulonglong(0)))


def array() -> c_void_p:
    made, shape = c_void_p(), Array3D(1024, 1024, 1, 1, 1, 0)
    assert cuda.cuArray3DCreate_v2(byref(made), byref(shape)) == 0
    return made


# ---- the resource manager, as the driver speaks to it ----

ROOT, CLIENT_DEVICE, SUBDEVICE, GROUP, CHANNEL, COMPUTE = 0x41, 0x80, 0x2080, 0xA06C, 0xC86F, 0xCBC0
_libc = ctypes.CDLL(None, use_errno=True)


class Alloc(ctypes.Structure):
    _fields_ = (
        ("root", c_uint), ("parent", c_uint), ("object", c_uint), ("kind", c_uint),
        ("params", c_uint64), ("params_size", c_uint), ("status", c_uint),
    )  # fmt: skip


class Alloc64(ctypes.Structure):
    _fields_ = (
        ("root", c_uint), ("parent", c_uint), ("object", c_uint), ("kind", c_uint),
        ("params", c_uint64), ("rights", c_uint64),
        ("params_size", c_uint), ("flags", c_uint), ("status", c_uint), ("pad", c_uint),
    )  # fmt: skip


class Xfer(ctypes.Structure):
    _fields_ = (("command", c_uint), ("size", c_uint), ("pointer", c_uint64))


class Free(ctypes.Structure):
    _fields_ = (("root", c_uint), ("parent", c_uint), ("object", c_uint), ("status", c_uint))


def ioc(number: int, size: int) -> ctypes.c_ulong:
    return ctypes.c_ulong(3 << 30 | size << 16 | ord("F") << 8 | number)


def rm_alloc(
    fd: int, root: int, parent: int, kind: int, *, engine: int | None = None, form: str = "64", handle: int = 0
) -> int:
    """Makes an object through one of the three forms the driver uses; its handle."""
    group = (c_uint * 5)(0, 0, 0, engine or 0, 0)
    at = ctypes.addressof(group) if engine is not None else 0
    if form == "32":
        short = Alloc(root, parent, handle, kind, at, 20, 9)
        assert _libc.ioctl(fd, ioc(0x2B, 32), byref(short)) == 0
        return int(short.object)
    long = Alloc64(root, parent, handle, kind, at, 0, 20, 0, 9, 0)
    if form == "64":
        assert _libc.ioctl(fd, ioc(0x2B, 48), byref(long)) == 0
    else:
        xfer = Xfer(0x2B, 48, ctypes.addressof(long))
        assert _libc.ioctl(fd, ioc(211, 16), byref(xfer)) == 0
    return int(long.object)


def rm_free(fd: int, root: int, handle: int) -> None:
    assert _libc.ioctl(fd, ioc(0x29, 16), byref(Free(root, 0, handle, 9))) == 0


class Context:
    """The RM objects of one CUDA context: a compute group and a copy group."""

    def __init__(self, client: int = 0xC1D00001, *, channels: int = 8, subdevice: int = 0) -> None:
        self.fd = os.open("/dev/null", os.O_RDWR)
        self.client = client
        self.device = rm_alloc(self.fd, client, client, CLIENT_DEVICE)
        self.subdevice = rm_alloc(self.fd, client, self.device, SUBDEVICE, handle=subdevice)
        self.copy = rm_alloc(self.fd, client, self.device, GROUP, engine=9)
        self.copy_channel = rm_alloc(self.fd, client, self.copy, CHANNEL)
        self.group = rm_alloc(self.fd, client, self.device, GROUP, engine=1, form="32")
        forms = ("32", "64", "xfer")
        self.channels = [rm_alloc(self.fd, client, self.group, CHANNEL, form=forms[i % 3]) for i in range(channels)]
        self.compute = rm_alloc(self.fd, client, self.channels[0], COMPUTE)
