"""Runs and Pods of one machine as its dashboard tells them: what each asked for, what it got, and why it waits."""

from __future__ import annotations

from aliquot.services.dashboard.contract import Json
from aliquot.wording.requests import gib, on_cards
from aliquot.wording.shortage import card_named, lacks, reason


def node_told(node: Json, cards: list[Json], seen: Json, told: Cards, timeline: Json | None) -> Json:
    """One node in full: with its cards, who is on them, and who held them in the last minute."""
    return {
        "name": node["name"],
        "offers": node["offers"],
        "policy": node["policy"],
        "release_delay_seconds": seen["rules"]["release_delay_seconds"],
        "trouble": trouble(seen, cards),
        "notes": notes(seen, cards),
        "cards": [told.told(card) for card in cards],
        "timeline": timeline,
    }


def trouble(seen: Json, cards: list[Json]) -> list[str]:
    """What is wrong with these cards, in a word each."""
    out = sum(not card.get("healthy", True) for card in cards)
    return [f"{out} card{'s' * (out > 1)} out"] * bool(out) + ["findings"] * bool(notes(seen, cards))


def notes(seen: Json, cards: list[Json]) -> list[str]:
    """What should not be on these cards, in sentences."""
    here = {card["uuid"] for card in cards}
    return [finding["text"] for finding in seen["findings"] if finding["uuid"] in here]


class Cards:
    """Who is on each card, in full."""

    def __init__(self, seen: Json) -> None:
        dialects = {pod["key"]: pod["dialect"] for pod in seen.get("pods", ())}
        self._tenants: dict[str, list[Json]] = {}
        for tenant in seen["tenants"]:
            for card in tenant["cards"]:
                told = _on_card(tenant, card, dialects.get(tenant["name"], "run"))
                self._tenants.setdefault(card["uuid"], []).append(told)

    def told(self, card: Json) -> Json:
        """One card."""
        tenants = self._tenants.get(card["uuid"], [])
        return {
            "index": card["index"],
            "uuid": card["uuid"],
            "model": card["model"],
            "healthy": card.get("healthy", True),
            "why_out": card.get("why_out"),
            "memory_mib": card["memory_bytes"] >> 20,
            "memory_booked_mib": card["memory_booked_bytes"] >> 20,
            "memory_used_mib": _mib(card["memory_used_bytes"]),
            "core_booked": card["core_booked"],
            "greedy_booked": sum(tenant["core"] or 0 for tenant in tenants if tenant["greedy"]),
            "busy": card["utilisation"],
            "exclusive": any(tenant["exclusive"] for tenant in tenants),
            "tenants": tenants,
        }


def _on_card(tenant: Json, card: Json, dialect: str) -> Json:
    return {
        "key": tenant["name"],
        "class": tenant["class"],
        "dialect": dialect,
        "memory_mib": card["memory_limit_bytes"] >> 20,
        "memory_used_mib": _mib(card["memory_used_bytes"]),
        "core": card["core"],
        "greedy": _greedy(tenant, card),
        "exclusive": card["exclusive"],
        "share": None if card["share"] is None else round(card["share"], 4),
        "state": card["state"],
        "preemptions": card["preemptions"],
        "paused_seconds": round(card["paused_seconds"], 3),
    }


def _greedy(tenant: Json, card: Json) -> bool:
    """Whether its compute is offline compute, counted apart."""
    return bool(card.get("greedy", tenant["class"] == "offline" and card["core"] is not None))


def _mib(amount: int | None) -> int | None:
    return None if amount is None else amount >> 20


# --- one of them ---------------------------------------------------------------------------------------------------


def pod_told(seen: Json, key: str, now: float) -> Json | None:
    """A Pod, or a run, by its name."""
    pod = next((pod for pod in seen.get("pods", ()) if pod["key"] == key), None)
    if pod is not None:
        return _pod(seen, pod)
    tenant = next((tenant for tenant in seen["tenants"] if tenant["name"] == key), None)
    if tenant is not None:
        return _run(seen, tenant)
    entry = next((entry for entry in seen["queue"] if entry["name"] == key), None)
    return None if entry is None else _queued(entry, now)


def _pod(seen: Json, pod: Json) -> Json:
    owner = pod.get("owner")
    tenant: Json = next((tenant for tenant in seen["tenants"] if tenant["name"] == pod["key"]), pod)
    return {
        "key": pod["key"],
        "kind": "pod",
        "class": pod["class"],
        "dialect": pod["dialect"],
        "phase": pod["phase"],
        "node": pod["node"],
        "cards": [_card(tenant, card) for card in pod["cards"]],
        "containers": [{"name": container["name"], "command": container["command"]} for container in pod["containers"]],
        "owner": None if owner is None else f"{owner['kind']}/{owner['name']}",
        "since": pod["started"] or pod["created"],
        "why": _why(pod),
        "refusals": [],
    }


def _why(pod: Json) -> list[str]:
    """As a cluster's dashboard words it; what it asked for is the first of its own sentences."""
    asks = [f"It asks for {pod['wants']}, in the words of {pod['dialect']}."] if pod["wants"] else []
    own = [*pod["why"][len(asks) :], *([pod["reason"]] if pod["reason"] else [])]
    return [*asks, *(f"{each[:1].upper()}{each[1:].removesuffix('.')}." for each in own)]


def _run(seen: Json, tenant: Json) -> Json:
    node_of = {card["uuid"]: card.get("node") for card in seen["cards"]}
    cards = tenant["cards"]
    places = ", ".join(str(card["index"]) for card in cards)
    return {
        "key": tenant["name"],
        "kind": "run",
        "class": tenant["class"],
        "dialect": "run",
        "phase": "Running",
        "node": next((node_of.get(card["uuid"]) for card in cards), None),
        "cards": [_card(tenant, card) for card in cards],
        "containers": [{"name": "main", "command": tenant["command"]}],
        "owner": None,
        "since": tenant["created"],
        "why": [
            f"It was promised {_promise(cards[0])} of {len(cards)} card{'s' * (len(cards) > 1)}." if cards else "",
            f"Card {places}: of the cards that had room then, the fullest (binpack).",
        ][0 if cards else 2 :],
        "refusals": [],
    }


def _card(tenant: Json, card: Json) -> Json:
    return {
        "index": card["index"],
        "uuid": card["uuid"],
        "memory_mib": card["memory_limit_bytes"] >> 20,
        "core": card["core"],
        "greedy": _greedy(tenant, card),
        "exclusive": card["exclusive"],
    }


def _promise(card: Json) -> str:
    if card["exclusive"]:
        return "all"
    core = "" if card["core"] is None else f" and {card['core']:g}% of the compute"
    return f"{_size(card['memory_limit_bytes'])}{core}"


def _queued(entry: Json, now: float) -> Json:
    return {
        "key": entry["name"],
        "kind": "run",
        "class": entry["class"],
        "dialect": "run",
        "phase": "Pending",
        "node": None,
        "cards": [],
        "containers": [{"name": "main", "command": entry["command"]}],
        "owner": None,
        "since": now - entry["waited_seconds"],
        "why": [f"It wants {_wants(entry)}.", f"It is number {entry['position']} of {entry['of']} who wait."],
        "refusals": [
            {"reason": f"{card_named(refusal)} {lacks(refusal)}", "nodes": 1, "example": None}
            for refusal in entry.get("refusals") or ()
            if refusal.get("card") is not None
        ],
    }


def waiting_told(entry: Json, now: float) -> Json:
    """One who waits: a run of the queue, or a Pod without a place."""
    if "phase" in entry:
        return {
            "key": entry["key"],
            "class": entry["class"],
            "dialect": entry["dialect"],
            "since": entry["created"],
            "reason": entry["reason"] or "",
            "wants": entry["wants"],
        }
    return {
        "key": entry["name"],
        "class": entry["class"],
        "dialect": entry.get("dialect", "run"),
        "since": round(now - entry["waited_seconds"], 1),
        "reason": reason(entry),
        "wants": _wants(entry),
    }


def _wants(entry: Json) -> str:
    """A Pod says it itself: of what it asks for, the queue knows the first container."""
    if "wants" in entry:
        return str(entry["wants"])
    parts = [] if entry["memory_bytes"] is None else [_size(entry["memory_bytes"])]
    parts += [] if entry["core"] is None else [f"{entry['core']:g}%"]
    return on_cards(parts, entry["gpus"])


def _size(amount: int) -> str:
    return gib(amount >> 20)
