"""Who holds what, by the API server alone. Of the product only the table of the sizes that cards are sold with is used,
so that the judge cannot be wrong in the same way.

All three dialects, with their rules for sharing; `audit` follows one kind of card through thousands of changes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.model.device import nominal_gib
from testbed.objects import Object, list_pods
from testbed.plane import ControlPlane

GRANT = "aliquot.dev/grant"
INVENTORY = "aliquot.dev/inventory"
_MEMORY, _CORE, _GREEDY = "memory_mib", "core_milli", "greedy_milli"
_WHOLE = 1000  # thousandths of a card

Cards = dict[int, dict[str, int]]  # by the card's number


def granted(pod: Object) -> dict[str, list[int]]:
    """The cards that each container of the Pod was given, by its grant."""
    return {
        container["name"]: [card["index"] for card in container["cards"]] for container in _grant(pod)["containers"]
    }


def cards_of(pod: Object) -> list[int]:
    """All cards of the Pod, each once."""
    return sorted({card for cards in granted(pod).values() for card in cards})


def held(pod: Object) -> Cards:
    """What the Pod holds of each card at once: max(init peak, sum of app containers and sidecars)."""
    shares = {container["name"]: container["cards"] for container in _grant(pod)["containers"]}
    sidecars: Cards = defaultdict(lambda: defaultdict(int))
    peak: Cards = defaultdict(lambda: defaultdict(int))
    for container in pod["spec"].get("initContainers") or ():
        mine = shares.get(container["name"], [])
        if container.get("restartPolicy") == "Always":
            _add(sidecars, mine)
            _raise_to(peak, sidecars)
        else:
            _raise_to(peak, _added(sidecars, mine))
    for container in pod["spec"]["containers"]:
        _add(sidecars, shares.get(container["name"], []))
    _raise_to(peak, sidecars)
    return peak


def overbooked(plane: ControlPlane) -> list[str]:
    """Every card that more was given of than it has, and every Pod that is where it may not be; in sentences."""
    nodes = {node["metadata"]["name"]: node for node in plane.api("GET", "/api/v1/nodes")["items"]}
    return judge(nodes, list_pods(plane))


@dataclass(slots=True)
class _Books:
    used: Cards = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    pods: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # by card
    qgpu: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))  # those of qGPU's, whose rule it is
    alone: dict[int, str] = field(default_factory=dict)  # cards that one Pod has to itself
    here: list[str] = field(default_factory=list)  # all Pods but those of DaemonSets
    owner: str | None = None  # who has the whole node


def judge(nodes: Mapping[str, Object], pods: Iterable[Object]) -> list[str]:
    """Judge objects that were read before."""
    books: dict[str, _Books] = defaultdict(_Books)
    wrong = []
    for pod in pods:
        name, node = pod["metadata"]["name"], pod["spec"].get("nodeName")
        if not node or pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            continue
        book = books[node]
        if not any(owner["kind"] == "DaemonSet" for owner in pod["metadata"].get("ownerReferences") or ()):
            book.here.append(name)
        if GRANT not in (pod["metadata"].get("annotations") or {}):
            continue
        grant = _grant(pod)
        if grant["node"] != node:
            wrong.append(f"{name} is on {node} with a grant of {grant['node']}")
        book.owner = name if grant.get("whole_node") else book.owner
        today = _numbers(grant, nodes.get(node))
        for card, use in held(pod).items():
            _add(book.used, [{"index": today[card], **use}])
            book.pods[today[card]].append(name)
            if _is_qgpu(pod):
                book.qgpu[today[card]].append(name)
        for card in _exclusive(grant):
            book.alone[today[card]] = name
    return wrong + [sentence for name, book in books.items() for sentence in _judge(name, nodes.get(name), book)]


def _judge(name: str, node: Object | None, book: _Books) -> Iterable[str]:
    if book.owner is not None and book.here != [book.owner]:
        yield f"{name} is {book.owner}'s alone, and yet there are {book.here}"
    for card, owner in book.alone.items():
        if book.pods[card] != [owner]:
            yield f"card {card} of {name} is {owner}'s alone, and yet there are {book.pods[card]}"
    sizes = {} if node is None else sizes_of(node)
    shared_by_four = node is not None and "qgpu-device-enable" in node["metadata"].get("labels", {})
    for card, use in book.used.items():
        if card in sizes and use[_MEMORY] > sizes[card]:
            yield f"card {card} of {name} has {sizes[card]} MiB, {use[_MEMORY]} given to {book.pods[card]}"
        for what in (_CORE, _GREEDY):
            if use[what] > _WHOLE:
                yield f"card {card} of {name}: {what} {use[what]} given to {book.pods[card]}"
        if card in sizes and shared_by_four and len(book.qgpu[card]) > nominal_gib(sizes[card]) // 4:
            yield f"card {card} of {name} is shared by {book.qgpu[card]}, more than its memory / 4"


def sizes_of(node: Object) -> dict[int, int]:
    """The memory of each card in MiB, by the inventory or by what the node advertises in GiB."""
    annotations = node["metadata"].get("annotations") or {}
    if INVENTORY in annotations:
        return {card["index"]: card["memory_mib"] for card in json.loads(annotations[INVENTORY])["cards"]}
    amounts = node["status"].get("capacity", {})
    for memory, count, per in (
        ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", 1),
        ("tke.cloud.tencent.com/qgpu-memory", "tke.cloud.tencent.com/qgpu-core", 100),
    ):
        if memory in amounts and count in amounts:
            cards = int(amounts[count]) // per
            return dict.fromkeys(range(cards), int(amounts[memory]) // cards * 1024)
    return {}


def _numbers(grant: Mapping[str, Any], node: Object | None) -> dict[int, int]:
    """The card's number now, by what it was at the grant: who it is, its UUID says."""
    annotations = {} if node is None else node["metadata"].get("annotations") or {}
    cards = json.loads(annotations[INVENTORY])["cards"] if INVENTORY in annotations else []
    today = {card["uuid"]: card["index"] for card in cards if card.get("uuid")}
    shares = [card for container in grant["containers"] for card in container["cards"]]
    return {share["index"]: today.get(share.get("uuid"), share["index"]) for share in shares}


def _grant(pod: Object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pod["metadata"]["annotations"][GRANT])
    return found


def _is_qgpu(pod: Object) -> bool:
    """Others may come to a card that has as many Pods as qGPU's rule allows."""
    asked = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return any(resource.startswith("tke.cloud.tencent.com/qgpu-") for limits in asked for resource in limits)


def _exclusive(grant: Mapping[str, Any]) -> set[int]:
    return {card["index"] for container in grant["containers"] for card in container["cards"] if card.get("exclusive")}


def _add(to: Cards, shares: Iterable[Mapping[str, Any]]) -> None:
    for share in shares:
        for what in (_MEMORY, _CORE, _GREEDY):
            to[share["index"]][what] += share.get(what) or 0


def _added(to: Cards, shares: Iterable[Mapping[str, Any]]) -> Cards:
    copy: Cards = defaultdict(lambda: defaultdict(int))
    _add(copy, ({"index": card, **use} for card, use in to.items()))
    _add(copy, shares)
    return copy


def _raise_to(peak: Cards, now: Cards) -> None:
    for card, use in now.items():
        for what, amount in use.items():
            peak[card][what] = max(peak[card][what], amount)
