"""CUDA's driver API through ctypes, for the programs of the tests."""

from __future__ import annotations

import ctypes as c
from typing import Any

PTX = b".version 8.0\n.target sm_90\n.visible .entry burn(.param .u64 a, .param .u64 b)\n.visible .entry other()\n"


class CudaError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


class Cuda:
    """Calls by name, with errors raised; integers become what the prototypes here say."""

    def __init__(self) -> None:
        self.library = c.CDLL("libcuda.so.1")
        size, pointer = c.c_size_t, c.c_uint64
        self.arguments: dict[str, list[Any]] = {
            "cuMemAlloc_v2": [c.c_void_p, size],
            "cuMemAllocManaged": [c.c_void_p, size, c.c_uint],
            "cuMemAllocAsync": [c.c_void_p, size, c.c_void_p],
            "cuMemAllocFromPoolAsync": [c.c_void_p, size, c.c_void_p, c.c_void_p],
            "cuMemFreeAsync": [pointer, c.c_void_p],
            "cuMemFree_v2": [pointer],
            "cuMemcpyHtoD_v2": [pointer, c.c_void_p, size],
            "cuMemcpyDtoH_v2": [c.c_void_p, pointer, size],
            "cuMemcpyDtoD_v2": [pointer, pointer, size],
            "cuMemcpyHtoDAsync_v2": [pointer, c.c_void_p, size, c.c_void_p],
            "cuMemcpyDtoHAsync_v2": [c.c_void_p, pointer, size, c.c_void_p],
            "cuMemsetD8_v2": [pointer, c.c_ubyte, size],
            "cuMemsetD32Async": [pointer, c.c_uint, size, c.c_void_p],
            "cuMemGetAddressRange_v2": [c.c_void_p, c.c_void_p, pointer],
            "cuPointerGetAttribute": [c.c_void_p, c.c_int, pointer],
            "cuStreamWriteValue32_v2": [c.c_void_p, pointer, c.c_uint, c.c_uint],
            "cuMemPoolTrimTo": [c.c_void_p, size],
            "cuMemAddressReserve": [c.c_void_p, size, size, pointer, c.c_uint64],
            "cuMemAddressFree": [pointer, size],
            "cuMemCreate": [c.c_void_p, size, c.c_void_p, c.c_uint64],
            "cuMemMap": [pointer, size, size, c.c_uint64, c.c_uint64],
            "cuMemUnmap": [pointer, size],
            "cuMemSetAccess": [pointer, size, c.c_void_p, size],
            "cuMemRelease": [c.c_uint64],
        }

    def status(self, name: str, *arguments: Any) -> int:
        function = getattr(self.library, name)
        if name in self.arguments:
            function.argtypes = self.arguments[name]
        return int(function(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        code = self.status(name, *arguments)
        if code:
            raise CudaError(name, code)

    def get(self, name: str, *arguments: Any, kind: type[Any] = c.c_uint64) -> int:
        """The one that writes its answer through its first argument."""
        out = kind()
        self.call(name, c.byref(out), *arguments)
        return int(out.value or 0)


class Session:
    """A process that has a context and the burn kernel."""

    def __init__(self, ordinal: int = 0) -> None:
        self.cuda = Cuda()
        self.cuda.call("cuInit", 0)
        self.context = c.c_void_p(self.cuda.get("cuDevicePrimaryCtxRetain", ordinal))
        self.cuda.call("cuCtxSetCurrent", self.context)
        self.module = c.c_void_p(self.cuda.get("cuModuleLoadData", PTX))
        self.burn = c.c_void_p(self.cuda.get("cuModuleGetFunction", self.module, b"burn"))

    def launch(self, us: float, *, out: int = 0, stream: c.c_void_p | None = None, twin: str = "") -> None:
        iterations, pointer = c.c_uint64(round(us * 1000)), c.c_uint64(out)
        parameters = (c.c_void_p * 2)(c.addressof(iterations), c.addressof(pointer))
        self.cuda.call("cuLaunchKernel" + twin, self.burn, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None)

    def synchronize(self) -> None:
        self.cuda.call("cuCtxSynchronize")

    def stream(self, flags: int = 0) -> c.c_void_p:
        return c.c_void_p(self.cuda.get("cuStreamCreate", flags))

    def event(self, flags: int = 0) -> c.c_void_p:
        return c.c_void_p(self.cuda.get("cuEventCreate", flags))

    def allocate(self, size: int) -> int:
        return self.cuda.get("cuMemAlloc_v2", size)

    def read(self, address: int, words: int) -> list[int]:
        buffer = (c.c_uint64 * words)()
        self.cuda.call("cuMemcpyDtoH_v2", buffer, address, 8 * words)
        return list(buffer)

    def free_memory(self) -> int:
        free, total = c.c_size_t(), c.c_size_t()
        self.cuda.call("cuMemGetInfo_v2", c.byref(free), c.byref(total))
        return int(free.value)
