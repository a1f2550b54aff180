"""A program whose memory may leave the card: it adds one to all of its memory again and again, and checks all of it.

usage: parked.py FOLDER NAME GIB [--plain] [--graph] [--triton] [--churn] [--arrays GIB]. It ends when FOLDER/NAME.stop
is there and does nothing while FOLDER/NAME.hold is. FOLDER/NAME.steps has a line for every step: the moment it ended
and what it took. Its last line says in JSON how many steps, how many pieces were wrong, and what the first step after
each hold took. --plain: without PyTorch, by the kernel of `aliquot burn`, which counts at the beginning of each piece.
--churn: every step also frees and allocates all of its memory, in the order of the stream. --arrays: it also has CUDA
arrays of so many GiB, with random contents, which are compared at the end; their contents are not there with --plain.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import time
from collections.abc import Callable
from ctypes import c_uint64
from pathlib import Path
from typing import Any

_LONGEST = 900  # seconds; longer than any row
_PIECE = 64 << 20
_PLAIN_PIECE = 256 << 20


def _plain(count: int, *, graph: bool) -> tuple[Callable[[], None], Callable[[int], int]]:
    from aliquot.adapters.gpu.burnkernel import PTX
    from aliquot.adapters.gpu.cuda import Card

    card = Card(0)
    card.load(PTX)
    function = card.function("burn")
    assert function is not None
    stream = card.stream()
    pieces = [card.allocate(_PLAIN_PIECE) for _ in range(count)]
    launches = [
        card.launcher(function, stream, [c_uint64(1000), c_uint64(piece)], blocks=1, threads=32) for piece in pieces
    ]
    card.synchronize()
    whole = [card.graph(stream, launches)] if graph else launches

    def step() -> None:
        for launch in whole:
            card.check(launch())
        card.synchronize()

    return step, lambda steps: sum(card.read(piece, 1)[0] != steps for piece in pieces)


def _torch(count: int, *, graph: bool, triton: bool, churn: bool) -> tuple[Callable[[], None], Callable[[int], int]]:
    import torch

    pieces = [torch.full((_PIECE // 4,), float(at), device="cuda") for at in range(count)]
    torch.cuda.synchronize()
    add: Callable[[], Any] = lambda: torch._foreach_add_(pieces, 1.0)  # noqa: E731
    if triton:

        @torch.compile  # type: ignore[untyped-decorator]  # by Triton on a card
        def fused(piece: Any) -> Any:
            return (piece + 0.5) + 0.5

        def add() -> None:
            for piece in pieces:
                piece.copy_(fused(piece))

    if churn:

        def add() -> None:
            torch._foreach_add_(pieces, 1.0)
            for at, piece in enumerate(pieces):
                pieces[at] = piece.clone()

    if graph:
        captured = torch.cuda.CUDAGraph()
        add()
        torch._foreach_sub_(pieces, 1.0)
        torch.cuda.synchronize()
        with torch.cuda.graph(captured):
            add()
        add = captured.replay

    def step() -> None:
        add()
        torch.cuda.synchronize()

    return step, lambda steps: sum(int((piece != float(at + steps)).any()) for at, piece in enumerate(pieces))


class Arrays:
    """CUDA arrays of 1 GiB: what only the driver's checkpoint moves. In the current context."""

    _ROW, _ROWS, _AT_ONCE = 256 << 10, 4096, 64

    def __init__(self, count: int, *, filled: bool) -> None:
        self._cuda, self._filled = ctypes.CDLL("libcuda.so.1"), filled
        shape = (c_uint64 * 3)(self._ROW // 16, self._ROWS, 4 << 32 | 0x20)  # CUDA_ARRAY_DESCRIPTOR: four floats each
        self._arrays = [ctypes.c_void_p() for _ in range(count)]
        for array in self._arrays:
            self._check(self._cuda.cuArrayCreate_v2(ctypes.byref(array), ctypes.byref(shape)))
        self._contents = [os.urandom(self._ROW * self._AT_ONCE) for _ in range(count if filled else 0)]
        for array, contents in zip(self._arrays, self._contents, strict=False):
            for row in range(0, self._ROWS, self._AT_ONCE):
                self._copy(array, ctypes.create_string_buffer(contents, len(contents)), row, to_array=True)

    def wrong(self) -> int:
        """How many arrays have other contents now."""
        found = 0
        for array, contents in zip(self._arrays, self._contents, strict=False):
            buffer = ctypes.create_string_buffer(len(contents))
            same = True
            for row in range(0, self._ROWS, self._AT_ONCE):
                self._copy(array, buffer, row, to_array=False)
                same = same and buffer.raw == contents
            found += not same
        return found

    def _copy(self, array: ctypes.c_void_p, buffer: Any, row: int, *, to_array: bool) -> None:
        """CUDA_MEMCPY2D: x, y, kind, host, device, array, pitch of the source and of the target; width, height."""
        host = [0, 0, 1, ctypes.addressof(buffer), 0, 0, self._ROW]
        card = [0, row, 3, 0, 0, array.value or 0, 0]
        ends = [*host, *card] if to_array else [*card, *host]
        copy = (c_uint64 * 16)(*ends, self._ROW, self._AT_ONCE)
        self._check(self._cuda.cuMemcpy2D_v2(ctypes.byref(copy)))

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"arrays: CUDA error {code}")


def wait_while(held: Callable[[], bool]) -> bool:
    """Whether it waited. It says so exactly then: a look of its own for that may answer otherwise than the next one."""
    waited = False
    while held():
        if not waited:
            print("HELD", flush=True)
        waited = True
        time.sleep(0.002)
    return waited


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("gib", type=float)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--triton", action="store_true")
    parser.add_argument("--churn", action="store_true")
    parser.add_argument("--arrays", type=int, default=0)
    given = parser.parse_args()
    signal.alarm(_LONGEST)  # the row that started it may have been killed
    stop, hold = (given.folder / f"{given.name}.{end}" for end in ("stop", "hold"))
    size = _PLAIN_PIECE if given.plain else _PIECE
    count = max(1, int(given.gib * 2**30) // size)
    if not given.plain:
        import torch

        torch.cuda.init()  # not part of what an allocation takes
    began = time.monotonic()
    if given.plain:
        step, wrong = _plain(count, graph=given.graph)
    else:
        step, wrong = _torch(count, graph=given.graph, triton=given.triton, churn=given.churn)
    arrays = Arrays(given.arrays, filled=not given.plain)
    filled = time.monotonic() - began
    print(f"READY {filled:.3f}", flush=True)
    steps, woken = 0, []
    with (given.folder / f"{given.name}.steps").open("w", buffering=1) as log:
        while not stop.exists():
            held = wait_while(lambda: hold.exists() and not stop.exists())
            began = time.monotonic()
            step()
            ended = time.monotonic()
            steps += 1
            if held:
                woken.append(ended - began)
            log.write(f"{ended:.6f} {ended - began:.6f}\n")
    found = {
        "steps": steps,
        "wrong": wrong(steps) + arrays.wrong(),
        "pieces": count + given.arrays,
        "filled": filled,
        "woken": woken,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
