"""NVIDIA's driver API through ctypes: the few calls that the sample workload needs, and nothing to install for them.

`libcuda.so.1` is the card's own driver, or the stand-in of a simulated node: what the loader finds under that name.
A call costs some 2 us from Python, so that what is launched again and again is prepared once (`Card.launcher`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from functools import partial
from typing import Any

_LIBRARY = "libcuda.so.1"
OUT_OF_MEMORY = 2
_NOT_FOUND = 500
NOT_READY = 600  # the answer of a query: not yet done
_MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_EVENT_BLOCKING_SYNC, _EVENT_DISABLE_TIMING = 1, 2
_STREAM_NON_BLOCKING = 1
_CAPTURE_RELAXED = 2

# The calls by name, as the library exports them, with the types of their arguments; each answers a CUresult.
_CALLS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (POINTER(c_char), c_int, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxSynchronize": (),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemsetD8_v2": (c_uint64, c_ubyte, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuStreamCreate": (POINTER(c_void_p), c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventQuery": (c_void_p,),
    "cuEventSynchronize": (c_void_p,),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, POINTER(c_void_p), POINTER(c_void_p)),
    "cuStreamBeginCapture_v2": (c_void_p, c_int),
    "cuStreamEndCapture": (c_void_p, POINTER(c_void_p)),
    "cuGraphInstantiateWithFlags": (POINTER(c_void_p), c_void_p, c_uint64),
    "cuGraphLaunch": (c_void_p, c_void_p),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}

Launch = Callable[[], int]  # a prepared call; answers a CUresult, for `Card.check`


class CudaError(Exception):
    """The driver refused: which call, and what it said."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: {text}")
        self.code = code


class NoDriverError(CudaError):
    """There is no driver, or it has no card for us."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(_LIBRARY, code, text)


class _Driver:
    """The library, and its calls as they are first used: a driver too old for one call still serves the others."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise NoDriverError("no NVIDIA driver is installed here") from error
        self._known: dict[str, Callable[..., int]] = {}

    def function(self, name: str) -> Callable[..., int]:
        found = self._known.get(name)
        if found is None:
            try:
                found = getattr(self._library, name)
            except AttributeError as error:
                raise CudaError(name, _NOT_FOUND, "this driver has no such call") from error
            found.argtypes, found.restype = _CALLS[name], c_int
            self._known[name] = found
        return found

    def prepared(self, name: str, *arguments: Any) -> Launch:
        """The call with arguments that have their C types already: nothing is converted any more, half the price."""
        self.function(name)
        bare: Any = self._library[name]
        bare.restype = c_int
        return partial(bare, *arguments)

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, self.function(name)(*arguments))

    def check(self, name: str, code: int) -> None:
        if code:
            raise CudaError(name, code, self.text(code))

    def text(self, code: int) -> str:
        """As the driver words it: CUDA_ERROR_OUT_OF_MEMORY (out of memory)."""
        parts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if self.function(name)(code, byref(text)) == 0 and text.value:
                parts.append(text.value.decode(errors="replace"))
        return f"{parts[0]} ({parts[1]})" if len(parts) == 2 else f"error {code}"


class Card:
    """One card's primary context, current in the thread that made it. Not to be used across a fork."""

    def __init__(self, index: int) -> None:
        self._driver = driver = _Driver()
        code = driver.function("cuInit")(0)
        if code:
            raise NoDriverError(f"the NVIDIA driver does not start: {driver.text(code)}", code)
        count, device = c_int(), c_int()
        driver.call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise NoDriverError("this process sees no GPU")
        if not 0 <= index < count.value:
            raise NoDriverError(f"there is no card {index}: this process sees {count.value}, counted from 0")
        driver.call("cuDeviceGet", byref(device), index)
        context = c_void_p()
        driver.call("cuDevicePrimaryCtxRetain", byref(context), device)
        driver.call("cuCtxSetCurrent", context)
        name, processors = (c_char * 128)(), c_int()
        driver.call("cuDeviceGetName", name, len(name), device)
        driver.call("cuDeviceGetAttribute", byref(processors), _MULTIPROCESSORS, device)
        self.name = name.value.decode(errors="replace")
        self.multiprocessors = processors.value
        self._module: c_void_p | None = None

    # ---- memory

    def allocate(self, size: int) -> int:
        """The address of `size` bytes on the card, all zero."""
        pointer = c_uint64()
        self._driver.check("cuMemAlloc", self._driver.function("cuMemAlloc_v2")(byref(pointer), size))
        self._driver.call("cuMemsetD8_v2", pointer, 0, size)
        return pointer.value

    def free(self, pointer: int) -> None:
        self._driver.call("cuMemFree_v2", pointer)

    def read(self, pointer: int, count: int) -> list[int]:
        """`count` u64 from the card; waits for the work before it."""
        values = (c_uint64 * count)()
        self._driver.call("cuMemcpyDtoH_v2", values, pointer, 8 * count)
        return list(values)

    # ---- work

    def load(self, image: bytes) -> None:
        """The module that `function` looks in: PTX or machine code."""
        module = c_void_p()
        self._driver.call("cuModuleLoadData", byref(module), image)
        self._module = module

    def function(self, name: str) -> c_void_p | None:
        """A kernel of the module; None where it has none of that name."""
        function = c_void_p()
        code = self._driver.function("cuModuleGetFunction")(byref(function), self._module, name.encode())
        if code == _NOT_FOUND:
            return None
        self._driver.check("cuModuleGetFunction", code)
        return function

    def stream(self) -> c_void_p:
        stream = c_void_p()
        self._driver.call("cuStreamCreate", byref(stream), _STREAM_NON_BLOCKING)
        return stream

    def event(self) -> c_void_p:
        """One whose waits sleep until the card's interrupt comes, and leave the processor to others."""
        event = c_void_p()
        self._driver.call("cuEventCreate", byref(event), _EVENT_DISABLE_TIMING | _EVENT_BLOCKING_SYNC)
        return event

    def synchronize(self) -> None:
        self._driver.call("cuCtxSynchronize")

    # ---- prepared calls, for loops

    def launcher(
        self, function: c_void_p, stream: c_void_p, arguments: Sequence[c_uint64], *, blocks: int, threads: int
    ) -> Launch:
        """The launch of a kernel. It reads the arguments' values each time it is called."""
        addresses = (c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        one, none = c_uint(1), c_void_p()
        grid, block = (c_uint(blocks), one, one), (c_uint(threads), one, one)
        call = self._driver.prepared("cuLaunchKernel", function, *grid, *block, c_uint(0), stream, addresses, none)
        call.keep = arguments  # type: ignore[attr-defined]  # the addresses are theirs
        return call

    def recorder(self, event: c_void_p, stream: c_void_p) -> Launch:
        return self._driver.prepared("cuEventRecord", event, stream)

    def waiter(self, event: c_void_p) -> Launch:
        return self._driver.prepared("cuEventSynchronize", event)

    def querier(self, event: c_void_p) -> Launch:
        """Whether it is done: answers 0 or NOT_READY."""
        return self._driver.prepared("cuEventQuery", event)

    def stream_waiter(self, stream: c_void_p) -> Launch:
        """Waits for all that is on the stream; polls, which answers some 20 us sooner than an event's wait."""
        return self._driver.prepared("cuStreamSynchronize", stream)

    def graph(self, stream: c_void_p, launches: Sequence[Launch]) -> Launch:
        """One launch for all of these, which must be on the stream."""
        driver = self._driver
        driver.call("cuStreamBeginCapture_v2", stream, _CAPTURE_RELAXED)
        for launch in launches:
            self.check(launch())
        graph, ready = c_void_p(), c_void_p()
        driver.call("cuStreamEndCapture", stream, byref(graph))
        driver.call("cuGraphInstantiateWithFlags", byref(ready), graph, 0)
        return driver.prepared("cuGraphLaunch", ready, stream)

    def check(self, code: int) -> None:
        """Raise CudaError when a prepared call answered anything but 0."""
        if code:
            raise CudaError("the card", code, self._driver.text(code))
