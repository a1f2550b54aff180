"""What calls of the driver take, in nanoseconds: allocations and their ends, small copies. Needs nothing but ctypes.

usage: calls.py. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from functools import partial
from statistics import median

_MIB = 1 << 20
_TURNS = 7


class Card:
    """The first card, with its own context and one stream."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, self.stream, device = c_void_p(), c_void_p(), c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), device)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", byref(self.stream), 1)
        self.host = ctypes.create_string_buffer(64)
        self.there = self.take(64)

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.cuda, name)(*arguments):
            raise SystemExit(f"{name}: error {code}")

    def take(self, size: int) -> c_uint64:
        made = c_uint64()
        self.call("cuMemAlloc_v2", byref(made), c_size_t(size))
        return made

    def plain(self, size: int) -> None:
        self.call("cuMemFree_v2", self.take(size))

    def ordered(self, size: int) -> None:
        made = c_uint64()
        self.call("cuMemAllocAsync", byref(made), c_size_t(size), self.stream)
        self.call("cuMemFreeAsync", made, self.stream)

    def copy(self) -> None:
        self.call("cuMemcpyHtoD_v2", self.there, self.host, c_size_t(64))


def nanoseconds(what: Callable[[], None], count: int) -> float:
    """The median of some turns, each of many calls."""
    what()
    found = []
    for _ in range(_TURNS):
        began = time.perf_counter_ns()
        for _ in range(count):
            what()
        found.append((time.perf_counter_ns() - began) / count)
    return round(median(found))


def main() -> None:
    card = Card()
    # One kept block holds the pool: a program that allocates in a stream has other memory too.
    kept = c_uint64()
    card.call("cuMemAllocAsync", byref(kept), c_size_t(64 * _MIB), card.stream)
    found = {
        **{f"cudaMalloc {size}": nanoseconds(partial(card.plain, size), 100) for size in (4096, _MIB, 8 * _MIB)},
        **{f"cudaMallocAsync {size}": nanoseconds(partial(card.ordered, size), 2000) for size in (4096, _MIB)},
        "copy 64": nanoseconds(card.copy, 1000),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
