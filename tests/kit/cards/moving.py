"""A program whose GPU memory moves: `python -m kit.cards.moving PIECES MIB UNTIL [KIND]`. KIND `ordered`: the
memory is stream-ordered, and a part of it is freed and allocated again in every step; `limited`: of a pool that has a
limit, so it does not move.

It works on all of its memory, checks it in between, and says in one line of JSON what it saw."""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path

from simgpu.driver import CudaError, Session


def limited(session: Session) -> ctypes.c_void_p:
    """A pool of at most 1 TiB. CUmemPoolProps: pinned, on device 0."""
    props = (ctypes.c_uint64 * 11)(1, 1, 0, 1 << 40)
    return ctypes.c_void_p(session.cuda.get("cuMemPoolCreate", ctypes.byref(props)))


def main(pieces: int, mib: int, until: Path, kind: str = "plain") -> dict[str, object]:
    session = Session()
    size = mib << 20
    pool = limited(session) if kind == "limited" else None

    def allocate() -> int:
        if kind == "plain":
            return session.allocate(size)
        if pool is not None:
            return int(session.cuda.get("cuMemAllocFromPoolAsync", size, pool, None))
        return int(session.cuda.get("cuMemAllocAsync", size, None))

    memory = [allocate() for _ in range(pieces)]
    steps, wrong, longest, last = 0, 0, 0.0, time.monotonic()
    hold, held = until.with_suffix(".hold"), False  # while that file is there, it does nothing
    look = until.with_suffix(".look")  # but what this one says

    def places(address: int) -> list[int]:
        return [address, address + size // 2, address + size - 8]

    def write(step: int) -> None:
        for at, address in enumerate(memory):
            for place in places(address):
                word = ctypes.c_uint64(step * 1000 + at)
                session.cuda.call("cuMemcpyHtoD_v2", place, ctypes.byref(word), 8)

    def check(step: int) -> int:
        return sum(
            session.read(place, 1) != [step * 1000 + at]
            for at, address in enumerate(memory)
            for place in places(address)
        )

    def answers() -> dict[str, int]:
        """What is known of the middle of the first piece."""
        base, count, found = ctypes.c_uint64(), ctypes.c_size_t(), {}
        session.cuda.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(count), memory[0] + size // 2)
        for attribute in (2, 3, 7, 9, 11, 12):
            value = ctypes.c_uint64()
            session.cuda.call("cuPointerGetAttribute", ctypes.byref(value), attribute, memory[0] + size // 2)
            found[str(attribute)] = value.value
        return {**found, "p": memory[0], "base": base.value, "size": count.value}

    def current() -> bool:
        return session.cuda.get("cuCtxGetCurrent") == session.context.value

    def write_word() -> int:
        return session.cuda.status("cuStreamWriteValue32_v2", None, memory[0], steps * 1000, 0)

    write(0)
    print("ready", flush=True)
    try:
        while not until.exists() or not steps:  # at least one, however early it has to end
            while hold.exists():
                print("holds", flush=True) if not held else None
                held = True
                if look.exists():
                    what = look.read_text()
                    look.unlink()
                    looks = {"ask": answers, "context": current, "write": write_word}
                    print(json.dumps(looks[what]()), flush=True)
                time.sleep(0.01)
            held = False
            session.launch(1000)
            session.synchronize()
            wrong += check(steps)
            steps += 1
            if kind == "ordered":
                session.cuda.call("cuMemFreeAsync", memory[0], None)
                memory[0] = allocate()
            write(steps)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            time.sleep(0.005)
        wrong += check(steps)
    except CudaError as error:
        return {"steps": steps, "wrong": wrong, "longest": longest, "error": error.code}
    return {"steps": steps, "wrong": wrong, "longest": longest, "error": 0}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])), flush=True)
