"""Place the Pods one after the other; none leaves, a misfit is dropped; CPU and memory count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aliquot.model.node import Node
from aliquot.placement.board import Board
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.sim.trace import PodSpec

_POINTS = 200  # of the curve


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one policy on one order of arrivals."""

    policy: str
    total_milli: int
    arrived: int
    placed: int
    dropped: int
    allocated_milli: int
    allocated_milli_at_100: int
    curve: tuple[tuple[float, float], ...]  # percent of the GPU asked for so far, percent of it allocated
    seconds: float

    def percent(self, milli: int) -> float:
        """Of all the GPU there is."""
        return 100.0 * milli / self.total_milli if self.total_milli else 0.0


def replay(
    nodes: Sequence[Node],
    coming: Sequence[PodSpec],
    policy: str,
    *,
    known: Sequence[PodSpec],
    clock: Callable[[], float],
    progress: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Run one policy. `known` is the workload it may know beforehand; with none it learns from the Pods it sees."""
    board = Board()
    for node in nodes:
        board.set_node(node)
    ledger, chooser = Ledger(board), Chooser(board, POLICIES[policy]())
    for at, pod in enumerate(known):
        chooser.observe(pod.claim(str(at)))
    if known:
        chooser.learn()
    total = sum(len(node.cards) for node in nodes) * 1000
    asked = allocated = allocated_at_100 = dropped = 0
    curve = [(0.0, 0.0)]
    every = max(1, len(coming) // _POINTS)
    began = clock()
    for at, pod in enumerate(coming):
        claim = pod.claim(str(at))
        if not known:
            chooser.observe(claim)
        grant = chooser.choose(claim)
        if grant is None:
            dropped += 1
        else:
            booked = ledger.assume(claim, grant, float("inf"))
            assert isinstance(booked, Booking), f"{policy} chose what is not free: {booked}"
            allocated += pod.demand_milli
        asked += pod.demand_milli
        if asked <= total:
            allocated_at_100 = allocated
        if at % every == 0 or at == len(coming) - 1:
            curve.append((100.0 * asked / max(total, 1), 100.0 * allocated / max(total, 1)))
            progress(at + 1)
    seconds = clock() - began
    return Outcome(
        policy, total, len(coming), len(ledger), dropped, allocated, allocated_at_100, tuple(curve), seconds
    )  # fmt: skip
