"""The dashboard of a cluster: what the scheduler knows, sent as changes.

A byte for each card is kept as it was last sent; a tick looks at the rows of the board that changed since, and sends
the nodes whose bytes differ. Nothing goes over all Pods, and over all cards only a few vector operations a second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np

import aliquot
from aliquot.model.claim import AppClass
from aliquot.model.status.dashboard import (
    DashboardState,
    History,
    Node,
    Nodes,
    Pod,
    PodCounts,
    Point,
    SearchResult,
    Tick,
    Totals,
    Waiting,
)
from aliquot.model.status.messages import Message
from aliquot.placement.board import Ints
from aliquot.placement.policies.waste import Waste
from aliquot.services.dashboard.contract import percent
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard import claimpods
from aliquot.services.scheduler.dashboard.agentclient import merged, with_pauses
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.layout import Bytes, Layout, Used, card_bytes, encoded, lay_out, used_on_board

_MOST_WAITING = 200
_LEARN = 60.0  # seconds between two looks at what kind of Pods there are
_SAMPLE = 1000  # of them looked at
_WAIT = 5.0  # seconds that a list of those who wait may be old while it is the same Pods


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a cluster's dashboard shows beside the cluster itself."""

    name: str
    leading: Callable[[], bool]
    metrics: Callable[[], bytes]
    ask_agent: Callable[[str], Awaitable[Node | None]] | None = None  # the node as its agent sees it, live


class ClusterView:
    """See the head of the file."""

    every = 1.0

    def __init__(self, cluster: Cluster, details: Details, around: Surroundings) -> None:
        self._cluster, self._details, self._around = cluster, details, around
        self._waste = Waste(cluster.board)
        self._learn_next = 0.0
        self._layout: Layout | None = None
        self._laid = -1  # the board's clock when the layout was last looked at
        self._sent_layout: Layout | None = None  # what the listeners have, its cards, and the board's clock then
        self._claimed = Used.none(0)  # what claims hold of the layout's cards
        self._touched: set[int] = set()  # nodes whose claims changed since the last tick
        self._sent: Bytes = {}
        self._clock = -1
        self._totals: tuple[tuple[object, ...], Totals] | None = None
        self._waiting: Waiting | None = None
        self._waiting_of: tuple[float, list[str]] = (0.0, [])
        self._waiting_sent: Waiting | None = None
        self._trouble: dict[str, list[Message]] | None = None
        self._joined = False  # a state was sent since the last tick: its receiver misses what changed back since

    # --- View ------------------------------------------------------------------------------------------------------

    def point(self, now: float) -> Point:
        totals = self._count(now)
        fragmentation = totals.fragmentation
        return Point(
            time=round(now, 1),
            memory=percent(totals.memory_booked_mib, totals.memory_mib, 2),
            core=percent(totals.core_booked, totals.core, 2),
            busy=None,
            fragmentation=None if fragmentation is None else round(fragmentation * 100, 2),
            waiting=totals.waiting,
            online=totals.pods.online,
            offline=totals.pods.offline,
            normal=totals.pods.normal,
        )

    def state(self, now: float, history: History) -> DashboardState:
        layout = self._current()
        self._joined = True
        if self._sent_layout is None:
            self._sends_all(layout)
        return DashboardState(
            version=aliquot.__version__,
            kind="cluster",
            name=self._around.name,
            simulated=None,
            now=now,
            priority=self._cluster.policy,
            leading=self._around.leading(),
            totals=self._count(now),
            kinds=layout.kinds,
            nodes=Nodes(
                names=layout.names, kind=layout.kind, cards=layout.counts.tolist(), trouble=self._troubles(layout)
            ),
            cards=encoded(self._bytes(layout)),
            waiting=self._waiters(now),
            live=None,
            history=history,
        )

    def tick(self, now: float, point: Point | None) -> Tick | None:
        layout = self._current()
        if layout is not self._sent_layout:
            self._sends_all(layout)
            return None
        board = self._cluster.board
        rows = np.flatnonzero(board.changed[: board.rows] > self._clock).tolist()
        self._clock = board.clock
        here = {at for row in rows if (at := layout.index_of_row.get(row)) is not None} | self._touched
        nodes, self._touched = np.array(sorted(here), np.int64), set()
        differing = self._differing(layout, nodes)
        joined, self._joined = self._joined, False
        nodes = nodes if joined else differing
        places = layout.cards_of(nodes)
        waiting, trouble = self._waiters(now), self._troubles(layout)
        tick = Tick(
            now=now,
            totals=self._count(now),
            rows=nodes.tolist(),
            cards=encoded({name: column[places] for name, column in self._sent.items()}),
            trouble=trouble if joined or trouble != self._trouble else None,
            waiting=waiting if waiting is not self._waiting_sent else None,
            point=point,
            live=None,
        )
        self._waiting_sent, self._trouble = waiting, trouble
        return tick

    async def node(self, name: str, now: float) -> Node | None:
        found = self._details.node(name)
        if found is None or self._around.ask_agent is None:
            return found
        return merged(found, await self._around.ask_agent(name))

    async def pod(self, key: str, now: float) -> Pod | None:
        found = self._details.pod(key)
        if found is None or found.node is None or self._around.ask_agent is None:
            return found
        return with_pauses(found, await self._around.ask_agent(found.node))

    def search(self, words: str, limit: int) -> SearchResult:
        return self._details.search(words, limit, self._current().names)

    def metrics(self) -> bytes:
        return self._around.metrics()

    # --- parts -----------------------------------------------------------------------------------------------------

    def _current(self) -> Layout:
        """The layout, made anew where nodes came or went."""
        board, broken = self._cluster.board, frozenset(self._cluster.reported.unusable)
        changed = np.flatnonzero(board.changed[: board.rows] > self._laid)
        self._laid = board.clock
        by_claims, claims = self._cluster.reported.by_claims, self._details.claims
        fresh = {board.names[row] for row in changed.tolist()} & claims.nodes.keys() if claims.nodes else set()
        fresh |= claims.take_changed()
        layout = self._layout
        if layout is None or not layout.holds(board, changed, broken, by_claims):
            layout = self._layout = lay_out(board, broken, frozenset(by_claims))
            self._claimed, fresh = Used.none(len(layout.card_rows)), {*claims.nodes}
        for name in fresh:
            at, on_node = layout.index_of.get(name), claims.on(name)
            if at is not None and on_node.node is not None:
                first = layout.starts[at]
                self._claimed.table[:, first : first + layout.counts[at]] = on_node.used.table
                self._touched.add(at)
        return layout

    def _bytes(self, layout: Layout) -> Bytes:
        board, rows, slots = self._cluster.board, layout.card_rows, layout.card_slots
        return card_bytes(board, rows, slots, used_on_board(board, rows, slots) + self._claimed)

    def _sends_all(self, layout: Layout) -> None:
        """A state follows: later ticks have the changes since."""
        self._sent, self._touched = self._bytes(layout), set()
        self._clock, self._sent_layout = self._cluster.board.clock, layout

    def _differing(self, layout: Layout, nodes: Ints) -> Ints:
        """Of these nodes those with a card whose bytes differ from what was sent."""
        if not len(nodes):
            return nodes
        places = layout.cards_of(nodes)
        board, rows, slots = self._cluster.board, layout.card_rows[places], layout.card_slots[places]
        fresh = card_bytes(board, rows, slots, used_on_board(board, rows, slots) + Used(self._claimed.table[:, places]))
        others = np.zeros(len(places), bool)
        for name, column in fresh.items():
            others |= column != self._sent[name][places]
            self._sent[name][places] = column
        of_node = np.repeat(np.arange(len(nodes)), layout.counts[nodes])
        return nodes[np.unique(of_node[others])]

    def _count(self, now: float) -> Totals:
        """The totals, counted once for each state of the board."""
        cluster, board = self._cluster, self._cluster.board
        self._learn(now)
        wrong = cluster.reported.unusable.keys() | cluster.reported.closed.keys() | cluster.reported.others.keys()
        claims = self._details.claims
        waiting = len(cluster.pending) + len(claims.waiting())
        known: tuple[object, ...] = (board.clock, claims.clock, waiting, len(wrong), self._learn_next)
        if self._totals is not None and self._totals[0] == known:
            return self._totals[1]
        layout = self._current()
        rows, slots, claimed = layout.card_rows, layout.card_slots, self._claimed
        healthy, memory = board.healthy[rows, slots], board.memory[rows, slots]
        held = (board.used_slices[rows, slots] > 0) | (board.taken[rows] > 0) | (claimed.tenants > 0)
        waste = self._waste.ratio()
        classes = cluster.ledger.classes + claims.users
        totals = Totals(
            nodes=len(layout.names),
            cards=len(rows),
            cards_free=int((healthy & ~held).sum()),
            cards_out=int((~healthy).sum()),
            memory_mib=int(memory.sum()),
            memory_booked_mib=int(board.used_memory[rows, slots].sum() + claimed.memory.sum()),
            memory_used_mib=None,
            core=100 * len(rows),
            core_booked=round(int(board.booked_core(rows, slots).sum() + claimed.core.sum()) / 10, 1),
            busy=None,
            fragmentation=None if waste is None else round(waste, 4),
            pods=PodCounts(
                online=classes[AppClass.ONLINE], offline=classes[AppClass.OFFLINE], normal=classes[AppClass.NORMAL]
            ),
            waiting=waiting,
            troubled=len(self._troubles(layout)),
        )
        self._totals = (known, totals)
        return totals

    def _learn(self, now: float) -> None:
        """What kind of Pods there are, from some of them."""
        if self._learn_next - _LEARN <= now < self._learn_next:
            return
        self._learn_next = now + _LEARN
        ledger = self._cluster.ledger
        sample = islice(ledger, 0, None, max(1, len(ledger) // _SAMPLE))
        self._waste.learn((booking.occupant.usage.values(), booking.occupant.cpu_milli) for booking in sample)

    def _waiters(self, now: float) -> Waiting:
        """The waiting Pods, those with claims last; the same object as before where nothing is new."""
        pending, claiming = self._cluster.pending, self._details.claims.waiting()
        first, count = [*islice(chain(pending, claiming), _MOST_WAITING)], len(pending) + len(claiming)
        since, uids = self._waiting_of
        same = self._waiting is not None and first == uids and self._waiting.count == count
        if not same or self._details.behind or not 0 <= now - since < _WAIT:
            self._waiting_of = (now, first)
            waiting = Waiting(
                count,
                [
                    self._details.waiting(pending[uid], now)
                    if uid in pending
                    else claimpods.waiting(self._cluster, self._details.claims, claiming[uid])
                    for uid in first
                ],
            )
            if waiting != self._waiting:
                self._waiting = waiting
        assert self._waiting is not None
        return self._waiting

    def _troubles(self, layout: Layout) -> dict[str, list[Message]]:
        """By the node's number, as text: JSON has no other keys."""
        cluster = self._cluster
        out = np.bincount(
            np.repeat(np.arange(len(layout.names)), layout.counts),
            ~cluster.board.healthy[layout.card_rows, layout.card_slots],
            minlength=len(layout.names),
        )
        troubled = {*np.flatnonzero(out).tolist()}
        reported = cluster.reported
        for name in {*reported.unusable, *reported.closed, *reported.others, *self._details.claims.troubled}:
            if name in layout.index_of:  # others have no cards and never had
                troubled.add(layout.index_of[name])
        return {str(at): self._details.trouble(layout.names[at]) for at in sorted(troubled)}
