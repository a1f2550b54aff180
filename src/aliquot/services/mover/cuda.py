"""The few calls of the driver that copy a piece of a tenant's memory to the pool and back."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
from collections.abc import Sequence
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from aliquot.services.mover.pool import UNIT, Part, copies

_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_FILE = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
_READ_WRITE = 3
_PORTABLE = 1
_NOT_BLOCKING = 1
_STREAMS = 8  # that a card has from the start: two tenants that leave or return at once have three each

# The context is of no more use, and every call in it fails from now on.
_LASTING = {46, 214, 220, 700, 702, 710, *range(714, 720)}

log = logging.getLogger(__name__)


class CudaError(Exception):
    """A call of the driver failed."""


class _Access(ctypes.Structure):
    _fields_ = (("type", c_int), ("id", c_int), ("flags", c_int))


class Card:
    """A context on one card. Its methods are called by one thread at a time; each thread calls `enter` first."""

    def __init__(self, uuid: bytes) -> None:
        self._ready = False
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._call("cuInit", 0)
        self.ordinal = self._find(uuid)
        self._context = c_void_p()
        device = c_int()
        self._call("cuDeviceGet", byref(device), self.ordinal)
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), device)
        self.enter()
        # A stream takes memory of the card, and when memory has to leave there may be none: they are made once. Moves
        # for which there is none share the first: each then waits for the other's copies as well.
        try:
            self._shared = self._new_stream()
        except CudaError:
            self._call("cuDevicePrimaryCtxRelease_v2", device)
            raise
        self._streams: list[c_void_p] = []
        with contextlib.suppress(CudaError):
            while len(self._streams) < _STREAMS:
                self._streams.append(self._new_stream())
        self._ready = True

    def enter(self) -> None:
        """Make it the calling thread's card."""
        self._call("cuCtxSetCurrent", self._context)

    def register(self, address: int, size: int) -> None:
        """Pin memory of ours: what is pinned is copied at the speed of the bus."""
        self._call("cuMemHostRegister_v2", c_void_p(address), c_size_t(size), c_uint(_PORTABLE))

    def stream(self) -> c_void_p:
        """A stream for one move."""
        try:
            return self._streams.pop()
        except IndexError:
            return self._shared

    def _new_stream(self) -> c_void_p:
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), c_uint(_NOT_BLOCKING))
        return made

    def wait(self, stream: c_void_p) -> None:
        """Wait until the stream's copies are done."""
        self._call("cuStreamSynchronize", stream)

    def end(self, stream: c_void_p) -> None:
        """Its copies are done; another move may use it."""
        if stream is not self._shared:
            self._streams.append(stream)

    def open(self, file: int, size: int) -> Window:
        """The piece behind a file, mapped here."""
        return Window(self, file, size)

    def copy(self, window: Window, pool: int, parts: Sequence[Part], stream: c_void_p, *, out: bool) -> None:
        """Begin to copy the piece to those parts of the pool, or back."""
        at = window.address
        for part in copies(parts, window.size):
            host, card = c_void_p(pool + part.offset), c_uint64(at)
            if out:
                self._call("cuMemcpyDtoHAsync_v2", host, card, c_size_t(part.size), stream)
            else:
                self._call("cuMemcpyHtoDAsync_v2", card, host, c_size_t(part.size), stream)
            at += part.size

    def _find(self, uuid: bytes) -> int:
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        for ordinal in range(count.value):
            found = (ctypes.c_ubyte * 16)()
            self._call("cuDeviceGetUuid", byref(found), ordinal)
            if bytes(found) == uuid:
                return ordinal
        raise CudaError(f"no card {uuid.hex()} here")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code in _LASTING and self._ready:  # what is kept stays, and the next mover has a new context
            log.error("context_lost", extra={"data": {"call": name, "code": code}})
            os._exit(1)
        if code:
            raise CudaError(f"{name}: error {code}")


class Window:
    """A tenant's piece in our addresses. The file is closed by its owner."""

    def __init__(self, card: Card, file: int, size: int) -> None:
        if size % UNIT:
            raise CudaError(f"a piece of {size} bytes, not of whole units")
        self.size, self._card = size, card
        handle, address = c_uint64(), c_uint64()
        card._call("cuMemImportFromShareableHandle", byref(handle), c_void_p(file), c_int(_FILE))
        try:
            card._call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(UNIT), c_uint64(0), c_uint64(0))
            self.address = address.value
            try:
                card._call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
                access = _Access(_DEVICE, card.ordinal, _READ_WRITE)
                card._call("cuMemSetAccess", address, c_size_t(size), byref(access), c_size_t(1))
            except CudaError:
                self._free()
                raise
        finally:
            card._call("cuMemRelease", handle)  # the mapping keeps it

    def close(self) -> None:
        """Unmap."""
        self._card._call("cuMemUnmap", c_uint64(self.address), c_size_t(self.size))
        self._free()

    def _free(self) -> None:
        self._card._call("cuMemAddressFree", c_uint64(self.address), c_size_t(self.size))
