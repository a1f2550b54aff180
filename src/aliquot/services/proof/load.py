"""One of the two contexts of a contest: `python -m aliquot.services.proof.load PROGRESS`, on the first card it sees.

It prints `ready`, and keeps the card's queue full from the first byte on its standard input until that is closed. It
counts kernels that are done, and looks often: a count and the moment of the look are one sample, which is exact
however seldom this process runs. It ends with the process that started it, and after `_LONGEST` in any case.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import struct
import sys
import time
from ctypes import c_uint64
from pathlib import Path
from typing import NamedTuple

from aliquot.adapters.gpu.burnkernel import PTX, RESULT_BYTES
from aliquot.adapters.gpu.cuda import NOT_READY, Card, CudaError, Launch, NoDriverError

KERNEL_US = 500.0
_BATCH = 2  # kernels with one event
# In the queue: 40 ms of work, so that a process that waits for a processor does not run dry. Not more: with some 450
# launches and events in the queue the driver blocks the next one until half of them are done, on the H200 for 100 ms,
# and a count that comes after a pause then has that time in it as well.
_BATCHES = 40
_LOOK = 0.0005  # seconds between two looks
_THREADS, _BLOCKS = 256, 2
_LONGEST = 30  # seconds

NO_LIBRARY = "no-library"  # the answer where there is no libcuda

_SAMPLE = struct.Struct("@4Q")
SIZE = _SAMPLE.size


class Sample(NamedTuple):
    """Kernels done, when that was (CLOCK_MONOTONIC, ns), and how often the queue was found empty."""

    done: int
    looked: int
    dry: int


def read_sample(progress: mmap.mmap) -> Sample | None:
    """The latest; None while it is being written."""
    first = _SAMPLE.unpack_from(progress)
    second = _SAMPLE.unpack_from(progress)
    return Sample(*first[1:]) if first == second and first[0] % 2 == 0 else None


class _Progress:
    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), SIZE)).cast("Q")

    def write(self, done: int, dry: int) -> None:
        words = self._words
        words[0] += 1  # odd: half written
        words[1], words[2], words[3] = done, time.monotonic_ns(), dry
        words[0] += 1


class _Queue:
    """Batches of kernels."""

    def __init__(self, card: Card) -> None:
        self._card = card
        card.load(PTX)
        function = card.function("burn")
        if function is None:
            raise LookupError("burn")
        stream = card.stream()
        self._iterations, self._out = c_uint64(1_000), c_uint64(0)
        arguments, blocks = [self._iterations, self._out], _BLOCKS * card.multiprocessors
        self._launch = card.launcher(function, stream, arguments, blocks=blocks, threads=_THREADS)
        events = [card.event() for _ in range(_BATCHES)]
        self._records = [card.recorder(event, stream) for event in events]
        self._queries: list[Launch] = [card.querier(event) for event in events]
        self._put = self._taken = self.dry = 0

    def calibrate(self) -> None:
        """Make kernels about as long as they should be. The other may be on the card too: the shortest counts."""
        places = 4
        buffer = self._card.allocate(places * RESULT_BYTES)
        took = 0.0
        while took < KERNEL_US / 4:
            for place in range(places):
                self._out.value = buffer + place * RESULT_BYTES
                self._card.check(self._launch())
            self._card.synchronize()
            words = self._card.read(buffer, 3 * places)
            took = min(max(1, words[3 * at + 2] - words[3 * at + 1]) for at in range(places)) / 1000
            self._iterations.value = max(1, round(self._iterations.value * min(16.0, KERNEL_US / took)))
        self._card.free(buffer)
        self._out.value = 0

    def turn(self) -> int:
        """Take what is done, fill up; kernels done so far."""
        while self._taken < self._put:
            code = self._queries[self._taken % _BATCHES]()
            if code == NOT_READY:
                break
            self._card.check(code)
            self._taken += 1
        if self._put and self._taken == self._put:
            self.dry += 1
        done = self._taken
        while self._put - self._taken < _BATCHES:
            for _ in range(_BATCH):
                self._card.check(self._launch())
            self._card.check(self._records[self._put % _BATCHES]())
            self._put += 1
        return done * _BATCH


def main(progress: Path) -> None:
    """See the head of the file."""
    signal.alarm(_LONGEST)  # it may hang in the driver
    sample = _Progress(progress)
    queue = _Queue(Card(0))
    queue.calibrate()
    print("ready", flush=True)
    if not os.read(0, 1):
        return
    while not select.select([0], [], [], 0)[0]:
        sample.write(queue.turn(), queue.dry)
        time.sleep(_LOOK)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except NoDriverError as error:
        print(NO_LIBRARY if error.code == 0 else error, flush=True)
    except (CudaError, LookupError, OSError) as error:
        print(error, flush=True)
    sys.stdout.flush()
    os._exit(0)  # what is queued need not be waited for
