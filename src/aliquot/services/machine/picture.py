"""The dashboard of one machine, made of its status (status.py) and of what its cards' loops trace.

A machine has a few cards: all of it is told with every tick, live.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

import aliquot
from aliquot.arbiter.timeline import Record
from aliquot.model.claim import Usage
from aliquot.model.status.machine import Status
from aliquot.placement.waste import Waste
from aliquot.services.daemon.metrics import exposition
from aliquot.services.dashboard.contract import FULL, Json, card_class, packed
from aliquot.services.dashboard.history import Values
from aliquot.services.dashboard.nodeview import Cards, node_told, pod_told, trouble, waiting_told
from aliquot.services.dashboard.timelines import Timelines

_MOST_WAITING = 200


class MachinePicture:
    """See the head of the file. `records` hands over what was traced since it was last asked."""

    every = 0.5

    def __init__(
        self,
        status: Callable[[], Status],
        waste: Waste,
        records: Callable[[], Mapping[str, Iterable[Record]]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._status, self._waste, self._records, self._clock = status, waste, records, clock
        self._timelines = Timelines()
        self._known: tuple[float, Json] = (-1.0, {})
        self._read_at = 0.0  # our clock then
        self._layout: list[tuple[Any, ...]] | None = None  # as last told
        self._waiting: Json | None = None
        self._trouble: Json | None = None
        self._told_until: int | None = None  # the timeline's bucket before which all is told

    # --- what is looked at -----------------------------------------------------------------------------------------

    def _seen(self, now: float) -> Json:
        """The status, read once for one `now`."""
        if self._known[0] != now:
            self._read_at = self._clock()
            self._known = (now, msgspec.to_builtins(self._status()))
            self._timelines.add(self._records(), self._known[1]["tenants"])
        return self._known[1]

    def _nodes(self, seen: Json) -> list[tuple[Json, list[Json]]]:
        """Each node with its cards, in order."""
        nodes: list[Json] = seen.get("nodes") or [
            {"name": socket.gethostname(), "offers": [], "policy": seen["rules"]["policy"]}
        ]
        first = nodes[0]["name"]
        return [(node, [card for card in seen["cards"] if card.get("node", first) == node["name"]]) for node in nodes]

    # --- the picture -----------------------------------------------------------------------------------------------

    def point(self, now: float) -> Values:
        seen = self._seen(now)
        totals = self._totals(seen)
        return {
            "memory": _percent(totals["memory_booked_mib"], totals["memory_mib"]),
            "core": _percent(totals["core_booked"], totals["core"]),
            "busy": None if totals["busy"] is None else round(totals["busy"] * 100, 1),
            "fragmentation": None if totals["fragmentation"] is None else round(totals["fragmentation"] * 100, 1),
            "waiting": totals["waiting"],
            **totals["pods"],
        }

    def state(self, now: float) -> Json:
        seen = self._seen(now)
        nodes = self._nodes(seen)
        kinds: dict[tuple[Any, ...], int] = {}
        of_node = [kinds.setdefault(_kind(node, cards), len(kinds)) for node, cards in nodes]
        names = [node["name"] for node, _ in nodes]
        if self._layout is None:
            self._layout = _layout(nodes)
        self._waiting = self._trouble = None  # what changed back until the next tick is news to whoever reads this
        return {
            "version": aliquot.__version__,
            "kind": "machine",
            "name": socket.gethostname(),
            "simulated": seen["daemon"].get("simulated"),
            "now": now,
            "priority": "binpack",
            "leading": None,
            "totals": self._totals(seen),
            "kinds": [
                dict(zip(("offers", "policy", "model", "cards", "memory_mib"), ([*kind[0]], *kind[1:]), strict=True))
                for kind in kinds
            ],
            "nodes": {
                "names": names,
                "kind": of_node,
                "cards": [len(cards) for _, cards in nodes],
                "trouble": _troubles(seen, nodes),
            },
            "cards": _bytes(seen, [card for _, cards in nodes for card in cards]),
            "waiting": self._waiters(seen, now),
            "live": {"nodes": self._live(seen, now, None)},
        }

    def tick(self, now: float) -> Json | None:
        seen = self._seen(now)
        nodes = self._nodes(seen)
        layout = _layout(nodes)
        if layout != self._layout:
            self._layout = layout
            return None
        waiting, troubles = self._waiters(seen, now), _troubles(seen, nodes)
        since, self._told_until = self._told_until, self._timelines.end(self._read_at)
        told = {
            "now": now,
            "totals": self._totals(seen),
            "rows": [*range(len(nodes))],
            "cards": _bytes(seen, [card for _, cards in nodes for card in cards]),
            "trouble": troubles if troubles != self._trouble else None,
            "waiting": waiting if waiting != self._waiting else None,
            "live": {"nodes": self._live(seen, now, since)},
        }
        self._waiting, self._trouble = waiting, troubles
        return told

    async def node(self, name: str, now: float) -> Json | None:
        return next((node for node in self._live(self._seen(now), now, None) if node["name"] == name), None)

    def pod(self, key: str, now: float) -> Json | None:
        return pod_told(self._seen(now), key, now)

    def search(self, words: str, limit: int) -> Json:
        seen, wanted = self._seen(time.time()), words.lower()
        names = [node["name"] for node, _ in self._nodes(seen)]
        pods = [
            {"key": each["key"], "node": each["node"], "class": each["class"], "phase": each["phase"]}
            for each in _everybody(seen, names[0])
            if wanted in each["key"].lower()
        ]
        return {"nodes": [name for name in names if wanted in name.lower()][:limit], "pods": pods[:limit]}

    def metrics(self) -> bytes:
        return exposition(self._status())

    # --- its parts -------------------------------------------------------------------------------------------------

    def _totals(self, seen: Json) -> Json:
        cards, tenants = seen["cards"], seen["tenants"]
        held = {card["uuid"] for tenant in tenants for card in tenant["cards"]}
        out = [card for card in cards if not card.get("healthy", True)]
        used = [card["memory_used_bytes"] for card in cards if card["memory_used_bytes"] is not None]
        busy = [card["utilisation"] for card in cards if card["utilisation"] is not None]
        self._waste.learn((_usages(tenant), 0) for tenant in tenants)
        return {
            "nodes": len(self._nodes(seen)),
            "cards": len(cards),
            "cards_free": sum(card["uuid"] not in held for card in cards) - len(out),
            "cards_out": len(out),
            "memory_mib": sum(card["memory_bytes"] for card in cards) >> 20,
            "memory_booked_mib": sum(card["memory_booked_bytes"] for card in cards) >> 20,
            "memory_used_mib": sum(used) >> 20 if used else None,
            "core": 100 * len(cards),
            "core_booked": round(sum(card["core_booked"] for card in cards), 1),
            "busy": round(sum(busy) / len(busy), 4) if busy else None,
            "fragmentation": self._waste.ratio(),
            "pods": {
                name: sum(tenant["class"] == name for tenant in tenants) for name in ("online", "offline", "normal")
            },
            "waiting": len(_waiters(seen)),
            "troubled": len(_troubles(seen, self._nodes(seen))),
        }

    def _waiters(self, seen: Json, now: float) -> Json:
        entries = _waiters(seen)
        return {"count": len(entries), "pods": [waiting_told(entry, now) for entry in entries[:_MOST_WAITING]]}

    def _live(self, seen: Json, now: float, since: int | None) -> list[Json]:
        """Every node in full; of the timeline the buckets from `since` on."""
        cards = Cards(seen)
        return [
            node_told(
                node,
                here,
                seen,
                cards,
                self._timelines.told([card["uuid"] for card in here], since, self._read_at, now),
            )
            for node, here in self._nodes(seen)
        ]


def _layout(nodes: list[tuple[Json, list[Json]]]) -> list[tuple[Any, ...]]:
    """What a tick cannot tell."""
    return [(node["name"], *_kind(node, cards)) for node, cards in nodes]


def _kind(node: Json, cards: list[Json]) -> tuple[Any, ...]:
    first: Json = cards[0] if cards else {"model": "", "memory_bytes": 0}
    return tuple(node["offers"]), node["policy"], first["model"], len(cards), first["memory_bytes"] >> 20


def _bytes(seen: Json, cards: list[Json]) -> Json:
    """A byte per card."""
    on_card: dict[str, list[tuple[str, bool]]] = {}
    for tenant in seen["tenants"]:
        for card in tenant["cards"]:
            on_card.setdefault(card["uuid"], []).append((tenant["class"], card["exclusive"]))
    return {
        "memory": packed(bytes(_byte(card["memory_booked_bytes"], card["memory_bytes"]) for card in cards)),
        "core": packed(bytes(_byte(card["core_booked"], 100) for card in cards)),
        "class": packed(bytes(_class(card, on_card.get(card["uuid"], [])) for card in cards)),
    }


def _byte(part: float, whole: float) -> int:
    """Anything at all is at least 1, so that it shows."""
    return min(FULL, max(int(part > 0), round(part * FULL / whole))) if whole else 0


def _class(card: Json, tenants: list[tuple[str, bool]]) -> int:
    classes = {name for name, _ in tenants}
    return card_class(
        out=not card.get("healthy", True),
        whole=any(exclusive for _, exclusive in tenants),
        online="online" in classes,
        offline="offline" in classes,
        shared=bool(tenants),
    )


def _usages(tenant: Json) -> list[Usage]:
    return [
        Usage(
            memory_mib=card["memory_limit_bytes"] >> 20,
            core_milli=0 if card["core"] is None else round(card["core"] * 10),
            exclusive=int(card["exclusive"]),
        )
        for card in tenant["cards"]
    ]


def _percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1) if whole else 0.0


def _waiters(seen: Json) -> list[Json]:
    """Whoever is in the queue, then Pods that are not in it: no card could ever take them."""
    pods = {pod["key"]: pod for pod in seen.get("pods", ()) if pod["phase"] == "Pending" and not pod["node"]}
    queued = [
        {**entry, "dialect": pod["dialect"], "wants": pod["wants"]} if (pod := pods.pop(entry["name"], None)) else entry
        for entry in seen["queue"]
    ]
    return [*queued, *pods.values()]


def _everybody(seen: Json, first_node: str) -> Iterable[Json]:
    pods = seen.get("pods", ())
    keys = {pod["key"] for pod in pods}
    node_of = {card["uuid"]: card.get("node", first_node) for card in seen["cards"]}
    yield from pods
    for tenant in seen["tenants"]:
        if tenant["name"] not in keys:
            node = next((node_of.get(card["uuid"]) for card in tenant["cards"]), None)
            yield {"key": tenant["name"], "node": node, "class": tenant["class"], "phase": "Running"}
    for entry in seen["queue"]:
        if entry["name"] in keys:
            continue
        yield {"key": entry["name"], "node": None, "class": entry["class"], "phase": "Pending"}


def _troubles(seen: Json, nodes: list[tuple[Json, list[Json]]]) -> Json:
    """By the node's number, as text: JSON has no other keys."""
    found = ((str(at), trouble(seen, cards)) for at, (_, cards) in enumerate(nodes))
    return {at: words for at, words in found if words}
