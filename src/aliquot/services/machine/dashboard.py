"""The dashboard of one machine, made of its status (status.py) and of what its cards' loops trace.

A machine has a few cards: every tick has all of it, live.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import aliquot
from aliquot.arbiter.timeline import Record
from aliquot.model.claim import AppClass, Usage
from aliquot.model.status.dashboard import (
    CardBytes,
    DashboardState,
    FoundPod,
    History,
    Live,
    Node,
    NodeKind,
    Nodes,
    Pod,
    PodCounts,
    Point,
    SearchResult,
    Tick,
    Totals,
    Waiting,
)
from aliquot.model.status.machine import CardStatus, NodeStatus, Status, TenantStatus
from aliquot.model.status.messages import Message
from aliquot.placement.policies.waste import Waste
from aliquot.services.daemon.metrics import exposition
from aliquot.services.dashboard.contract import FULL, card_class, packed, percent
from aliquot.services.dashboard.nodeview import node_view, pod_view, tenants_by_card, trouble, waiting_views
from aliquot.services.dashboard.timelines import Timelines

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_MOST_WAITING = 200


class MachineView:
    """See the head of the file. `records` returns what was traced since its last call."""

    every = 0.5

    def __init__(
        self,
        status: Callable[[], Status],
        waste: Waste,
        records: Callable[[], Mapping[str, Iterable[Record]]],
        families: Sequence[Callable[[], Iterable[Metric]]] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._families = families  # of metrics beside the status
        self._read_status, self._waste, self._records, self._clock = status, waste, records, clock
        self._timelines = Timelines()
        self._known: tuple[float, Status] | None = None
        self._read_at = 0.0  # our clock then
        self._layout: list[tuple[str, NodeKind]] | None = None  # as last sent
        self._waiting: Waiting | None = None
        self._trouble: dict[str, list[Message]] | None = None
        self._sent_until: int | None = None  # the timeline's bucket before which all was sent

    def _status(self, now: float) -> Status:
        """Read once for one `now`."""
        if self._known is None or self._known[0] != now:
            self._read_at = self._clock()
            self._known = (now, self._read_status())
            self._timelines.add(self._records(), self._known[1].tenants)
        return self._known[1]

    # --- View ------------------------------------------------------------------------------------------------------

    def point(self, now: float) -> Point:
        totals = self._totals(self._status(now))
        fragmentation = totals.fragmentation
        return Point(
            time=round(now, 1),
            memory=percent(totals.memory_booked_mib, totals.memory_mib),
            core=percent(totals.core_booked, totals.core),
            busy=None if totals.busy is None else round(totals.busy * 100, 1),
            fragmentation=None if fragmentation is None else round(fragmentation * 100, 1),
            waiting=totals.waiting,
            online=totals.pods.online,
            offline=totals.pods.offline,
            normal=totals.pods.normal,
        )

    def state(self, now: float, history: History) -> DashboardState:
        status = self._status(now)
        nodes = _nodes(status)
        kinds: dict[NodeKind, int] = {}
        kind_of = [kinds.setdefault(_kind(status, node), len(kinds)) for node in nodes]
        if self._layout is None:
            self._layout = _layout(status)
        self._waiting = self._trouble = None  # the next tick repeats them: they may change back until then
        return DashboardState(
            version=aliquot.__version__,
            kind="machine",
            name=socket.gethostname(),
            simulated=status.daemon.simulated or None,
            now=now,
            priority="binpack",
            leading=None,
            totals=self._totals(status),
            kinds=[*kinds],
            nodes=Nodes(
                names=[node.name for node in nodes],
                kind=kind_of,
                cards=[len(status.cards_of(node.name)) for node in nodes],
                trouble=_troubles(status),
            ),
            cards=_card_bytes(status),
            waiting=_waiting(status, now),
            live=Live(self._live(status, now, None)),
            history=history,
        )

    def tick(self, now: float, point: Point | None) -> Tick | None:
        status = self._status(now)
        layout = _layout(status)
        if layout != self._layout:
            self._layout = layout
            return None
        waiting, troubles = _waiting(status, now), _troubles(status)
        since, self._sent_until = self._sent_until, self._timelines.end(self._read_at)
        tick = Tick(
            now=now,
            totals=self._totals(status),
            rows=[*range(len(layout))],
            cards=_card_bytes(status),
            trouble=troubles if troubles != self._trouble else None,
            waiting=waiting if waiting != self._waiting else None,
            point=point,
            live=Live(self._live(status, now, since)),
        )
        self._waiting, self._trouble = waiting, troubles
        return tick

    async def node(self, name: str, now: float) -> Node | None:
        return next((node for node in self._live(self._status(now), now, None) if node.name == name), None)

    async def pod(self, key: str, now: float) -> Pod | None:
        return pod_view(self._status(now), key, now)

    def search(self, words: str, limit: int) -> SearchResult:
        status, wanted = self._status(time.time()), words.lower()
        nodes = [node.name for node in _nodes(status) if wanted in node.name.lower()]
        pods = [pod for pod in _everything(status) if wanted in pod.key.lower()]
        return SearchResult(nodes=nodes[:limit], pods=pods[:limit])

    def metrics(self) -> bytes:
        return exposition(self._read_status(), more=[metric for family in self._families for metric in family()])

    # --- parts -----------------------------------------------------------------------------------------------------

    def _totals(self, status: Status) -> Totals:
        cards, tenants = status.cards, status.tenants
        held = {share.uuid for tenant in tenants for share in tenant.cards}
        used = [card.memory_used_bytes for card in cards if card.memory_used_bytes is not None]
        busy = [card.utilisation for card in cards if card.utilisation is not None]
        self._waste.learn((_usages(tenant), 0) for tenant in tenants)
        return Totals(
            nodes=len(_nodes(status)),
            cards=len(cards),
            cards_free=sum(card.uuid not in held and not card.is_out for card in cards),
            cards_out=sum(card.is_out for card in cards),
            memory_mib=sum(card.memory_bytes for card in cards) >> 20,
            memory_booked_mib=sum(card.memory_booked_bytes for card in cards) >> 20,
            memory_used_mib=sum(used) >> 20 if used else None,
            core=100 * len(cards),
            core_booked=round(sum(card.core_booked for card in cards), 1),
            busy=round(sum(busy) / len(busy), 4) if busy else None,
            fragmentation=self._waste.ratio(),
            pods=PodCounts(**{kind.value: sum(tenant.app_class is kind for tenant in tenants) for kind in _CLASSES}),
            waiting=len(waiting_views(status, 0.0)),
            troubled=len(_troubles(status)),
        )

    def _live(self, status: Status, now: float, since: int | None) -> list[Node]:
        """Every node in full; of the timeline the buckets from `since` on."""
        tenants = tenants_by_card(status)
        found = []
        for node in _nodes(status):
            uuids = [card.uuid for card in status.cards_of(node.name)]
            found.append(node_view(node, status, tenants, self._timelines.since(uuids, since, self._read_at, now)))
        return found


_CLASSES = (AppClass.ONLINE, AppClass.OFFLINE, AppClass.NORMAL)


def _nodes(status: Status) -> list[NodeStatus]:
    return status.nodes or [NodeStatus(socket.gethostname(), [], [], status.rules.policy)]


def _layout(status: Status) -> list[tuple[str, NodeKind]]:
    """What a tick cannot express."""
    return [(node.name, _kind(status, node)) for node in _nodes(status)]


def _kind(status: Status, node: NodeStatus) -> NodeKind:
    cards = status.cards_of(node.name)
    model, memory = (cards[0].model, cards[0].memory_mib) if cards else ("", 0)
    return NodeKind(tuple(node.offers), node.policy, model, len(cards), memory)


def _waiting(status: Status, now: float) -> Waiting:
    entries = waiting_views(status, now)
    return Waiting(count=len(entries), pods=entries[:_MOST_WAITING])


def _card_bytes(status: Status) -> CardBytes:
    """A byte per card, in the order of the nodes."""
    cards = [card for node in _nodes(status) for card in status.cards_of(node.name)]
    on_card: dict[str, list[tuple[AppClass, bool]]] = {}
    for tenant in status.tenants:
        for share in tenant.cards:
            on_card.setdefault(share.uuid, []).append((tenant.app_class, share.exclusive))
    return CardBytes(
        memory=packed(bytes(_byte(card.memory_booked_bytes, card.memory_bytes) for card in cards)),
        core=packed(bytes(_byte(card.core_booked, 100) for card in cards)),
        app_class=packed(bytes(_class(card, on_card.get(card.uuid, [])) for card in cards)),
    )


def _byte(part: float, whole: float) -> int:
    """Any booking at all is at least 1, so that it shows."""
    return min(FULL, max(int(part > 0), round(part * FULL / whole))) if whole else 0


def _class(card: CardStatus, tenants: list[tuple[AppClass, bool]]) -> int:
    classes = {app_class for app_class, _ in tenants}
    return card_class(
        out=card.is_out,
        whole=any(exclusive for _, exclusive in tenants),
        online=AppClass.ONLINE in classes,
        offline=AppClass.OFFLINE in classes,
        shared=bool(tenants),
    )


def _usages(tenant: TenantStatus) -> list[Usage]:
    return [
        Usage(
            memory_mib=share.limit_mib,
            core_milli=0 if share.core is None else round(share.core * 10),
            exclusive=int(share.exclusive),
        )
        for share in tenant.cards
    ]


def _everything(status: Status) -> Iterable[FoundPod]:
    for tenant in status.tenants:
        yield FoundPod(tenant.name, tenant.node or None, tenant.app_class, "Running")
    for entry in status.queue:
        yield FoundPod(entry.name, None, entry.app_class, "Pending")


def _troubles(status: Status) -> dict[str, list[Message]]:
    """By the node's number, as text: JSON has no other keys."""
    found = {str(number): trouble(status, status.cards_of(node.name)) for number, node in enumerate(_nodes(status))}
    return {number: words for number, words in found.items() if words}
