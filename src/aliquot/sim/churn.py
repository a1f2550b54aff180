"""Pods come and go: a cluster at a steady load, and how long Pods wait by their size.

Pods of the trace, drawn at random, arrive as a Poisson process and stay for an exponential time of one hour in the
mean; the rate is such that they ask for `load` times the GPU there is. Large Pods make such a sum vary by several
points, so all stays are then scaled by one factor, which makes it exactly `load` over the measured time. The cluster
starts with as many Pods as that load has in the mean: the warm-up only has to bring it to the policy's own way of
filling it.

A Pod that does not fit waits, and holds up no other: when a Pod leaves, those that fit the room it left take it, the
one that has waited longest first. That is how kube-scheduler retries.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.placement.board import Board, Ints
from aliquot.placement.book import Booking, Ledger
from aliquot.placement.choose import POLICIES, Chooser
from aliquot.sim.trace import MOST_CARDS, PodSpec

MEAN_STAY = 3600.0  # seconds; waiting times grow and shrink with it
WARM_UP = 2.0  # of these, before anything is counted
MEASURED = 4.0  # of these

_REPORTS = 200  # of progress
_STEPS = 30  # more than enough
_NOBODY = 1 << 60  # later than every Pod


@dataclass(frozen=True, slots=True)
class Arrival:
    """One Pod: which kind of the trace, when it comes, how long it stays once it runs."""

    at: float
    kind: int
    stay: float


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens to the Pod that came as number `uid`: it begins to wait, gets its place, or leaves."""

    uid: int
    grant: Grant | None = None  # its place
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Waits:
    """How long the Pods of one size waited, in seconds; one that still waits counts with its time so far."""

    size: str  # "no GPU", "share", or how many cards
    pods: int
    waiting: int  # at the end
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Steady:
    """What came of one policy at one load."""

    policy: str
    load: float
    total_milli: int
    arrived: int
    allocated_percent: float  # mean over the measured time
    waits: tuple[Waits, ...]
    seconds: float


def size_of(pod: PodSpec) -> str:
    """The class by which waiting times are reported."""
    if not pod.num_gpu:
        return "no GPU"
    return "share" if pod.num_gpu == 1 and pod.gpu_milli < 1000 else str(pod.num_gpu)


def come_and_go(pods: Sequence[PodSpec], total_milli: int, load: float, seed: int) -> list[Arrival]:
    """The arrivals, by time, `kind` being the place in `pods`; none when no Pod asks for GPU."""
    demand = sum(pod.demand_milli for pod in pods) / max(len(pods), 1)
    if not demand or not total_milli:
        return []
    chance = random.Random(seed)
    present = load * total_milli / demand  # Pods at a time, in the mean
    kinds = len(pods)

    def one(at: float) -> Arrival:
        return Arrival(at, chance.randrange(kinds), chance.expovariate(1.0 / MEAN_STAY))

    coming = [one(0.0) for _ in range(round(present))]
    at, end = 0.0, (WARM_UP + MEASURED) * MEAN_STAY
    while (at := at + chance.expovariate(present / MEAN_STAY)) < end:
        coming.append(one(at))
    by = _factor(coming, pods, load * total_milli)
    return [Arrival(arrival.at, arrival.kind, arrival.stay * by) for arrival in coming]


def _factor(coming: Sequence[Arrival], pods: Sequence[PodSpec], wanted_milli: float) -> float:
    """What to multiply the stays by, so that without waiting that much is asked for in the measured time."""
    begin, end = WARM_UP * MEAN_STAY, (WARM_UP + MEASURED) * MEAN_STAY
    came = np.array([arrival.at for arrival in coming])
    stay = np.array([arrival.stay for arrival in coming])
    milli = np.array([float(pods[arrival.kind].demand_milli) for arrival in coming])
    by = 1.0
    for _ in range(_STEPS):
        there = np.clip(came + by * stay, begin, end) - np.clip(came, begin, end)
        asked = float((milli * there).sum()) / (end - begin)
        if not asked:  # only in a cluster of very few Pods
            return 1.0
        by *= min(2.0, wanted_milli / asked)
    return by


def churn(
    nodes: Sequence[Node],
    pods: Sequence[PodSpec],
    coming: Sequence[Arrival],
    policy: str,
    *,
    load: float,
    known: Sequence[PodSpec],
    clock: Callable[[], float],
    progress: Callable[[int], None] = lambda _: None,
    watch: Callable[[Step], None] = lambda _: None,
) -> Steady:
    """Run one policy on the arrivals of one load. `known` is the workload it may know beforehand, as in `replay`.

    `watch` hears of everything that happens, in its order.
    """
    run = _Run(nodes, pods, policy, known, watch)
    every = max(1, len(coming) // _REPORTS)
    began = clock()
    for at, arrival in enumerate(coming):
        run.until(arrival.at)
        run.arrive(at, arrival)
        if at % every == 0 or at == len(coming) - 1:
            progress(at + 1)
    end = (WARM_UP + MEASURED) * MEAN_STAY
    run.until(end)
    total = sum(len(node.cards) for node in nodes) * 1000
    allocated = 100.0 * run.area / (MEASURED * MEAN_STAY * max(total, 1))
    return Steady(policy, load, total, len(coming), allocated, tuple(run.waits(coming, end)), clock() - began)


class _Run:
    """The cluster, who runs, who waits."""

    def __init__(
        self,
        nodes: Sequence[Node],
        pods: Sequence[PodSpec],
        policy: str,
        known: Sequence[PodSpec],
        watch: Callable[[Step], None],
    ) -> None:
        self.watch = watch
        self.board = Board()
        for node in nodes:
            self.board.set_node(node)
        self.ledger, self.chooser = Ledger(self.board), Chooser(self.board, POLICIES[policy]())
        for at, pod in enumerate(known):
            self.chooser.observe(pod.claim(str(at)))
        if known:
            self.chooser.learn()
        self.learns = not known
        self.pods = pods
        self.allocated = 0
        self.area = 0.0  # milli-GPU x seconds, within the measured time
        self.now = 0.0
        self.started: dict[int, float] = {}
        self.leaving: list[tuple[float, int, int, int]] = []  # when, which, its kind, its row
        self.queue = _Queue(self.board, pods)

    def until(self, time: float) -> None:
        """Let everything happen that happens before that time."""
        while self.leaving and self.leaving[0][0] <= time:
            at, uid, kind, row = heapq.heappop(self.leaving)
            self._pass(at)
            self.ledger.forget(str(uid))
            self.watch(Step(uid, leaves=True))
            self.allocated -= self.pods[kind].demand_milli
            for waiting, arrival in self.queue.take(row):
                claim = self.pods[arrival.kind].claim(str(waiting))
                grant = self.chooser.seat(claim, row)
                assert grant is not None, f"{self.pods[arrival.kind]} does not fit where it should"
                self._start(waiting, arrival, claim, grant)
        self._pass(time)

    def arrive(self, uid: int, arrival: Arrival) -> None:
        """Start it, or let it wait."""
        claim = self.pods[arrival.kind].claim(str(uid))
        if self.learns:
            self.chooser.observe(claim)
        grant = self.chooser.choose(claim)
        if grant is None:
            self.queue.add(uid, arrival)
            self.watch(Step(uid))
        else:
            self._start(uid, arrival, claim, grant)

    def waits(self, coming: Sequence[Arrival], end: float) -> Iterator[Waits]:
        """By size, of the Pods that came in the measured time; the smallest size first."""
        by_size: dict[str, list[tuple[float, bool]]] = {}
        sizes = sorted({(pod.num_gpu, pod.num_gpu != 1 or pod.gpu_milli >= 1000, size_of(pod)) for pod in self.pods})
        for _, _, size in sizes:
            by_size[size] = []
        for uid, arrival in enumerate(coming):
            if arrival.at >= WARM_UP * MEAN_STAY:
                started = self.started.get(uid)
                waited = (end if started is None else started) - arrival.at
                by_size[size_of(self.pods[arrival.kind])].append((waited, started is None))
        for size, found in by_size.items():
            if found:
                times = np.array([waited for waited, _ in found])
                p50, p99 = np.percentile(times, (50, 99))
                still = sum(waiting for _, waiting in found)
                yield Waits(size, len(found), still, float(times.mean()), float(p50), float(p99))

    def _start(self, uid: int, arrival: Arrival, claim: Claim, grant: Grant) -> None:
        booked = self.ledger.assume(claim, grant, float("inf"))
        assert isinstance(booked, Booking), f"chose what is not free: {booked}"
        self.allocated += self.pods[arrival.kind].demand_milli
        self.started[uid] = self.now
        self.watch(Step(uid, grant))
        heapq.heappush(self.leaving, (self.now + arrival.stay, uid, arrival.kind, self.board.row_of[grant.node]))

    def _pass(self, time: float) -> None:
        self.area += self.allocated * max(0.0, time - max(self.now, WARM_UP * MEAN_STAY))
        self.now = time


class _Queue:
    """Who waits, by kind: Pods of one kind fit in the same places, so only the one that waits longest is asked.

    No Pod that waits fits anywhere: room comes only when a Pod leaves, and is then offered to all.
    """

    def __init__(self, board: Board, pods: Sequence[PodSpec]) -> None:
        self._board = board
        place: dict[PodSpec, int] = {}
        self._column = [place.setdefault(pod, len(place)) for pod in pods]
        kinds = list(place)
        self._waiting: list[deque[tuple[int, Arrival]]] = [deque() for _ in kinds]
        self._oldest: Ints = np.full(len(kinds), _NOBODY)
        self._cards: Ints = np.array([pod.num_gpu for pod in kinds], np.int64)
        self._milli: Ints = np.array([pod.gpu_milli for pod in kinds], np.int64)
        self._cpu: Ints = np.array([pod.cpu_milli for pod in kinds], np.int64)
        self._memory: Ints = np.array([pod.memory_mib for pod in kinds], np.int64)
        self._models = np.array(
            [[pod.models is None or name in pod.models for name in board.models] for pod in kinds], bool
        )

    def add(self, uid: int, arrival: Arrival) -> None:
        """One more waits."""
        column = self._column[arrival.kind]
        self._waiting[column].append((uid, arrival))
        self._oldest[column] = self._waiting[column][0][0]

    def take(self, row: int) -> Iterator[tuple[int, Arrival]]:
        """Those that fit the row, one by one: the row is looked at again after each."""
        while (column := self._next(row)) is not None:
            waiting = self._waiting[column]
            found = waiting.popleft()
            self._oldest[column] = waiting[0][0] if waiting else _NOBODY
            yield found

    def _next(self, row: int) -> int | None:
        board = self._board
        # free[k]: what the k-th best card of the node has free; every Pod without a card finds "card 0"
        free = np.concatenate([[1000], np.sort(board.milli[row])[::-1], np.full(MOST_CARDS, -1)])
        good = (self._oldest < _NOBODY) & (free[self._cards] >= self._milli)
        good &= (self._cpu <= board.room_cpu[row]) & (self._memory <= board.room_host[row])
        good &= (self._cards == 0) | self._models[:, board.model[row, 0]]
        if not good.any():
            return None
        return int(np.where(good, self._oldest, _NOBODY).argmin())
