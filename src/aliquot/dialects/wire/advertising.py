"""The devices that a node advertises to the kubelet, for each resource that its labels enable.

A device here is a token, named after a card as gpushare does (`<uuid>-_-<j>`), but not tied to it: the kubelet picks
any, and the Pod's annotation says which card it really has. Therefore (a card that is
withheld counts as unhealthy here)

    an unhealthy card  makes free tokens unhealthy, any of them, as many as the card has free. Tokens held by Pods on
                       the card stay healthy: kube-scheduler subtracts them as requests anyway. So kube-scheduler and
                       kubelet both see as many free tokens as the healthy cards have room for
    the NUMA node      is set only if it is the same for all cards. Set per token, it would make the kubelet choose
                       CPUs, or refuse Pods, by a card that they do not get

Where gpu-mem is counted in MiB, a node may have more of it than the kubelet handles as devices. Then the agent writes
the amount into the Node's status, and the kubelet calls it for `native.PLACE`, of which each container has one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, islice

from aliquot.dialects import gpushare, hami, native, qgpu, t9k
from aliquot.dialects.gpushare import MemoryUnit
from aliquot.dialects.rules import Rules
from aliquot.model.device import Card
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid

MOST_DEVICES = native.MOST_DEVICES
_MARK = "-_-"  # between the card and the number
NODE = "node"  # instead of a card's UUID, for resources of the whole node


@dataclass(frozen=True, slots=True)
class Advert:
    """One resource, and the number of tokens of each card. `whole`: a resource of the whole node. `counted`: no tokens,
    but an amount in the Node's status."""

    resource: str
    amounts: Mapping[str, int]  # by the cards' UUIDs
    whole: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """One device, as the kubelet counts them."""

    id: str
    healthy: bool
    numa: int | None


def adverts(node: Node, rules: Rules, *, marked: bool = False) -> tuple[Advert, ...] | Invalid:
    """The resources that the node offers, or why it cannot advertise them. `marked`: its agent has counted gpu-mem
    before. That stays so when it has fewer cards: a kubelet with devices of it counts nothing for five minutes when
    they are back, and Pods run without such devices."""
    if not node.cards:
        return ()
    nameless = next((card for card in node.cards if not card.uuid), None)
    if nameless is not None:
        return Invalid(f"cards[{nameless.index}].uuid", None, "only cards that NVML reports can be advertised")
    by_resource: dict[str, dict[str, int]] = {}
    for card in node.cards:
        for resource, amount in _amounts(card, node, rules).items():
            by_resource.setdefault(resource, {})[card.uuid] = amount
    found = []
    for resource, amounts in by_resource.items():
        many = sum(amounts.values()) > MOST_DEVICES
        counted = (many or marked) and resource == gpushare.MEMORY and rules.gpushare_unit is MemoryUnit.MIB
        if many and not counted:
            allowed = f"no more than {MOST_DEVICES} devices of one resource, the most that the kubelet handles"
            return Invalid(f'status.capacity["{resource}"]', sum(amounts.values()), allowed)
        found.append(Advert(resource, amounts, counted=counted))
    whole = (Advert(resource, {NODE: amount}, True) for resource, amount in t9k.amounts_of_node(node.offers).items())
    return (*found, *whole)


def _amounts(card: Card, node: Node, rules: Rules) -> dict[str, int]:
    return {
        **qgpu.amounts(card, node.offers),
        **t9k.amounts(card, node.offers),
        **gpushare.amounts(card, node.offers, rules.gpushare_unit),
        **hami.amounts(card, node.offers),
        **_places(node, rules),
    }


def _places(node: Node, rules: Rules) -> dict[str, int]:
    """In clusters that count in MiB every node has places: a Pod that got one fits small nodes, too."""
    if Offer.GPUSHARE in node.offers and rules.gpushare_unit is MemoryUnit.MIB:
        return {native.PLACE: min(native.MANY_PLACES, MOST_DEVICES // len(node.cards))}
    return {native.PLACE: native.PLACES} if Offer.KAI in node.offers else {}


def counted_amount(advert: Advert, cards: Iterable[Card], held: Mapping[str, int]) -> int:
    """The amount for the Node's status: of a card out of use only what Pods hold there (`held`, by UUID), because
    kube-scheduler subtracts that as requests."""
    usable = {card.uuid for card in cards if card.usable}
    return sum(amount if uuid in usable else min(amount, held.get(uuid, 0)) for uuid, amount in advert.amounts.items())


def tokens(advert: Advert, cards: Sequence[Card], held: Mapping[str, frozenset[str]]) -> tuple[Token, ...]:
    """The resource's devices. `held`: by token, the UUIDs of its holder's cards, on which they are spread evenly."""
    numa = _common_numa(cards)
    healthy_cards = {card.uuid for card in cards if card.usable}
    if advert.whole:
        healthy = all(card.usable for card in cards)
        return tuple(Token(name, healthy, numa) for names in _names(advert).values() for name in names)
    names = _names(advert)
    out = _unhealthy(names, names.keys() - healthy_cards, held)
    return tuple(Token(name, name not in out, numa) for name in chain.from_iterable(names.values()))


def _names(advert: Advert) -> dict[str, list[str]]:
    return {uuid: [f"{uuid}{_MARK}{j}" for j in range(amount)] for uuid, amount in advert.amounts.items()}


def is_token(device: str) -> bool:
    """Whether a device's ID has the form of ours: NVIDIA's and HAMi's plugins write others."""
    return _MARK in device


def _unhealthy(
    names: Mapping[str, Sequence[str]], unhealthy: Iterable[str], held: Mapping[str, frozenset[str]]
) -> frozenset[str]:
    """The tokens to mark unhealthy for these cards. Deterministic, so that nothing flickers."""
    left = 0
    for uuid in (unhealthy := frozenset(unhealthy)):
        # Counts tokens by the number of cards that they are spread on.
        spread = Counter(len(cards) for cards in held.values() if uuid in cards)
        on_it = sum(Fraction(count, cards) for cards, count in spread.items())
        left += max(0, len(names[uuid]) - int(on_it))
    # First those named after the unhealthy cards: people read names.
    by_name = chain.from_iterable(names[uuid] for uuid in sorted(names, key=lambda uuid: uuid not in unhealthy))
    free = (name for name in by_name if name not in held)
    return frozenset(islice(free, left))


def _common_numa(cards: Sequence[Card]) -> int | None:
    nodes = {card.numa for card in cards}
    return nodes.pop() if len(nodes) == 1 else None
