"""A program whose memory may leave the card: it adds one to all of its memory again and again, and checks all of it.

usage: parked.py FOLDER NAME GIB [--plain] [--graph] [--triton] [--churn]. It ends when FOLDER/NAME.stop
is there and does nothing while FOLDER/NAME.hold is. FOLDER/NAME.steps has a line for every step: the moment it ended
and what it took. Its last line says in JSON how many steps, how many pieces were wrong, and what the first step after
each hold took. --plain: without PyTorch, by the kernel of `aliquot burn`, which counts at the beginning of each piece.
--churn: every step also frees and allocates all of its memory, in the order of the stream.
"""
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import argparse
import json
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
        "wrong": wrong(steps),
        "pieces": count,
        "filled": filled,
        "woken": woken,
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
