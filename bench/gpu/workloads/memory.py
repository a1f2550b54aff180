"""Ask for the card's memory in one way until it is refused; then hold it until told to go.

usage: memory.py CASE QUOTA_BYTES STOP_FILE. Prints `FULL granted-bytes why`. The case `seen` prints what the card's
size looks like from here instead. Needs nothing but ctypes, and the framework that the case names.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_ushort, c_void_p
from typing import Any

_MIB = 1 << 20
Take = Callable[[int], None]  # so many bytes more; raises when they are refused


class _Location(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", c_int))


class _AllocationProp(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", c_uint64),
    )


class _PoolProps(ctypes.Structure):  # CUmemPoolProps
    _fields_ = (
        ("type", c_int),
        ("handles", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("most", c_size_t),
        ("usage", c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class _AllocNode(ctypes.Structure):  # CUDA_MEM_ALLOC_NODE_PARAMS
    _fields_ = (
        ("pool", _PoolProps),
        ("access", ctypes.POINTER(_Access)),
        ("accesses", c_size_t),
        ("size", c_size_t),
        ("pointer", c_uint64),
    )


class _ArrayDescriptor(ctypes.Structure):
    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_int), ("channels", c_uint))


def _driver() -> Callable[..., None]:
    """A context on card 0, and a way to call: call("cuMemAlloc_v2", ...) raises MemoryError or RuntimeError."""
    library = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        code = getattr(library, name)(*arguments)
        if code == 2:
            raise MemoryError(f"{name}: CUDA_ERROR_OUT_OF_MEMORY")
        if code:
            raise RuntimeError(f"{name}: error {code}")

    device, context = c_int(), c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", byref(device), 0)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    return call


def _simple(name: str, *more: Any) -> Callable[[], Take]:
    """A call that takes a pointer and a size."""

    def prepare() -> Take:
        call = _driver()
        return lambda size: call(name, byref(c_uint64()), c_size_t(size), *more)

    return prepare


def _pitch() -> Take:
    call = _driver()
    return lambda size: call(
        "cuMemAllocPitch_v2", byref(c_uint64()), byref(c_size_t()), c_size_t(4096), c_size_t(size // 4096), c_uint(4)
    )


def _pool() -> Take:
    call, pool = _driver(), c_void_p()
    call("cuMemPoolCreate", byref(pool), byref(_PoolProps(type=1, location=_Location(1, 0))))
    return lambda size: call("cuMemAllocFromPoolAsync", byref(c_uint64()), c_size_t(size), pool, None)


def _vmm() -> Take:
    call, prop = _driver(), _AllocationProp(type=1, location=_Location(1, 0))
    whole = 2 * _MIB  # the granularity

    def take(size: int) -> None:
        call("cuMemCreate", byref(c_uint64()), c_size_t(-(-size // whole) * whole), byref(prop), c_uint64(0))

    return take


def _graph() -> Take:
    call = _driver()

    def take(size: int) -> None:
        graph, node, ready = c_void_p(), c_void_p(), c_void_p()
        access = _Access(_Location(1, 0), 3)
        pool = _PoolProps(type=1, location=_Location(1, 0))
        wish = _AllocNode(pool=pool, access=ctypes.pointer(access), accesses=1, size=size)
        call("cuGraphCreate", byref(graph), 0)
        call("cuGraphAddMemAllocNode", byref(node), graph, None, c_size_t(0), byref(wish))
        call("cuGraphInstantiateWithFlags", byref(ready), graph, c_uint64(0))
        call("cuGraphLaunch", ready, None)
        call("cuStreamSynchronize", None)

    return take


def _array() -> Take:
    call = _driver()

    def take(size: int) -> None:
        shape = _ArrayDescriptor(4096, max(1, size // (4096 * 16)), 0x20, 4)  # four floats: 16 bytes
        call("cuArrayCreate_v2", byref(c_void_p()), byref(shape))

    return take


def _torch() -> Take:
    import torch

    kept: list[Any] = []
    return lambda size: kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def _jax() -> Take:
    import jax
    import jax.numpy as jnp

    kept: list[Any] = []
    return lambda size: kept.append(jax.block_until_ready(jnp.ones(size, dtype=jnp.uint8)))


def _cupy() -> Take:
    import cupy

    kept: list[Any] = []
    return lambda size: kept.append(cupy.empty(size, dtype=cupy.uint8))


CASES: dict[str, tuple[Callable[[], Take], int]] = {  # how to begin, and the smallest step that makes sense
    "alloc": (_simple("cuMemAlloc_v2"), _MIB),
    "pitch": (_pitch, _MIB),
    "managed": (_simple("cuMemAllocManaged", c_uint(1)), _MIB),
    "async": (_simple("cuMemAllocAsync", None), _MIB),
    "pool": (_pool, _MIB),
    "vmm": (_vmm, 2 * _MIB),
    "graph": (_graph, 2 * _MIB),
    "array": (_array, _MIB),
    "torch": (_torch, 16 * _MIB),
    "torch-async": (_torch, 16 * _MIB),
    "torch-expandable": (_torch, 16 * _MIB),
    "jax": (_jax, 16 * _MIB),
    "cupy": (_cupy, 16 * _MIB),
}


def fill(case: str, quota: int) -> tuple[int, str]:
    """All there is, in ever smaller steps: bytes granted, and the last refusal. Twice the quota is proof enough."""
    prepare, smallest = CASES[case]
    take, step = prepare(), quota // 16
    granted, why = 0, "never refused"
    while step >= smallest and granted < 2 * quota:
        try:
            take(step)
            granted += step
        except Exception as error:  # each framework has a class of its own for it; any but a refusal is told as it is
            why = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if not _is_refusal(error):
                raise
            step //= 2
    return granted, why


def _is_refusal(error: Exception) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return "out_of_memory" in text or "outofmemory" in text or "out of memory" in text or "resource_exhausted" in text


def pair(quota: int) -> tuple[int, str]:
    """Two processes of one tenant, at the same time: what they were granted together."""
    pipes = []
    for _ in range(2):
        ours, theirs = os.pipe()
        if os.fork() == 0:
            granted, why = fill("alloc", quota)
            os.write(theirs, json.dumps([granted, why]).encode())
            time.sleep(600)
            os._exit(0)
        os.close(theirs)
        pipes.append(ours)
    answers = [json.loads(os.read(pipe, 4096)) for pipe in pipes]
    return sum(answer[0] for answer in answers), answers[0][1]


def seen() -> dict[str, int | None]:
    """The card's size in bytes, by each source. None: there is no such source."""
    call = _driver()
    free, total, device_total = c_size_t(), c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    call("cuDeviceTotalMem_v2", byref(device_total), 0)
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle, memory = c_void_p(), (c_uint64 * 3)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, byref(handle))
    code = nvml.nvmlDeviceGetMemoryInfo(handle, byref(memory))
    second = (c_uint64 * 5)(40 | 2 << 24)  # nvmlMemory_v2_t: version, total, reserved, free, used
    code_v2 = nvml.nvmlDeviceGetMemoryInfo_v2(handle, byref(second))
    answers: dict[str, int | None] = {
        "cuMemGetInfo": total.value,
        "cuDeviceTotalMem": device_total.value,
        "nvmlDeviceGetMemoryInfo": memory[0] if code == 0 else 0,
        "nvmlDeviceGetMemoryInfo_v2": second[1] if code_v2 == 0 else 0,
        "nvidia-smi": None,
    }
    if program := shutil.which("nvidia-smi"):
        query = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout
        answers["nvidia-smi"] = int(said.split()[0]) * _MIB
    return answers


def main() -> None:
    case, quota, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if case == "seen":
        print(json.dumps(seen()))
        return
    try:
        granted, why = pair(quota) if case == "pair" else fill(case, quota)
    except Exception as error:
        sys.exit(f"{type(error).__name__}: {error}")
    print(f"FULL {granted} {why}", flush=True)
    deadline = time.monotonic() + 120
    while not os.path.exists(stop) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main()
