"""Small values for tests, so that only what matters shows."""

from __future__ import annotations

from typing import Any

from aliquot.dialects import Rules, parse_pod
from aliquot.model.claim import AppClass, Claim, ContainerClaim, Role, Slice
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.placement.board import Board

GIB = 1024
EVERY_OFFER = frozenset(Offer)


def a_node(name: str = "n1", *memory_gib: int, offers: frozenset[Offer] = EVERY_OFFER, **more: Any) -> Node:
    """A node with cards of those sizes (one of 16 GiB when none is given) that serves every dialect."""
    cards = tuple(Card(index, size * GIB, uuid=f"{name}-{index}") for index, size in enumerate(memory_gib or (16,)))
    return Node(name, cards, offers, **more)


def a_board(*nodes: Node) -> Board:
    """A board of these nodes."""
    board = Board()
    for node in nodes:
        board.set_node(node)
    return board


def a_slice(memory_gib: int = 0, core: int | None = None, greedy: int | None = None, **more: Any) -> Slice:
    """A slice in the units people use: GiB and percent."""
    return Slice(
        memory_mib=memory_gib * GIB,
        core_milli=None if core is None else 10 * core,
        greedy_milli=None if greedy is None else 10 * greedy,
        **more,
    )


def a_container(
    part: Slice, count: int | None = 1, *, role: Role = Role.MAIN, name: str = "main", index: int = 0
) -> ContainerClaim:
    """One container's request."""
    return ContainerClaim(name, index, role, part, count)


def a_claim(*containers: ContainerClaim, name: str = "pod", **more: Any) -> Claim:
    """A claim of these containers that any node serves."""
    values: dict[str, Any] = {"offer": Offer.ANY, "dialect": "test", "app_class": AppClass.NORMAL, **more}
    return Claim(uid=more.pop("uid", name), namespace="ns", name=name, containers=containers, **_without(values, "uid"))


def asking(memory_gib: int = 0, core: int | None = None, *, count: int = 1, name: str = "pod", **more: Any) -> Claim:
    """A claim of one container for `count` slices of that size."""
    return a_claim(a_container(a_slice(memory_gib, core), count), name=name, **more)


def online(memory_gib: int, name: str = "online") -> Claim:
    """An online Pod of qGPU."""
    return asking(memory_gib, name=name, offer=Offer.QGPU_MIXED, app_class=AppClass.ONLINE)


def offline(memory_gib: int, greedy: int, name: str = "offline") -> Claim:
    """An offline Pod of qGPU."""
    part = a_slice(memory_gib, greedy=greedy)
    return a_claim(a_container(part), name=name, offer=Offer.QGPU_MIXED, app_class=AppClass.OFFLINE, together=True)


def whole_cards(count: int, name: str = "pod") -> Claim:
    """A claim for whole cards."""
    return a_claim(a_container(Slice(memory_percent=100, exclusive=True), count), name=name, offer=Offer.T9K_EXCLUSIVE)


def whole_node(name: str = "pod") -> Claim:
    """A claim for a whole node."""
    part = Slice(memory_percent=100, exclusive=True)
    return a_claim(a_container(part, None), name=name, offer=Offer.T9K_EXCLUSIVE, whole_node=True)


def _without(values: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != key}


def claim_of(manifest: dict[str, Any], rules: Rules | None = None) -> Claim:
    """What a valid Pod asks for."""
    parsed = parse_pod(manifest, rules or Rules())
    assert isinstance(parsed, Claim), parsed
    return parsed
