"""The cards of a Pod, in the annotations and variables of gpushare. Two forms, because peers read one or the other:

ALIYUN_COM_GPU_MEM_IDX, _DEV, _POD, _ASSIGNED, _ASSUME_TIME    the old form, for one card only
scheduler.framework.gpushare.allocation                        {"<container>": {"<card>": memory}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from aliquot.dialects.gpushare.names import (
    ALLOCATION,
    ASSIGNED,
    ASSUME_TIME,
    CARD_SIZE,
    CONTAINER_TOTAL,
    INDEX,
    POD_TOTAL,
    MemoryUnit,
    card_number,
)
from aliquot.model.claim import Claim, ContainerClaim, Role
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid


def parse_grant(annotations: JsonView, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid | None:
    """The grant from the peers' annotations, the newer form first. None if there is neither."""
    if claim.containers and claim.containers[0].slice.exclusive:  # a request that the peers do not have
        return None
    allocation = annotations.get(ALLOCATION)
    if allocation is not None:
        granted = _from_allocation(allocation, claim)
        if granted is not None:
            return granted
    index = annotations.get(INDEX)
    return None if index is None else _from_index(index, claim)


def _from_allocation(value: object, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid | None:
    field = f'metadata.annotations["{ALLOCATION}"]'
    try:
        wire = msgspec.json.decode(value if isinstance(value, str) else "", type=dict[str, dict[str, int]])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return Invalid(field, value, 'JSON as {"<container>": {"<card>": memory}}')
    if not any(wire.values()):
        return None
    cards: dict[int, tuple[Share, ...]] = {}
    for container in claim.containers:
        if container.role is not Role.MAIN:
            continue
        shares = _shares(wire.get(str(container.index), {}), container)
        if shares is None:
            return Invalid(
                field, value, f"the cards of container {container.name}, with the gpu-mem it requests in total"
            )
        cards[container.index] = shares
    # The annotation has no init containers: they run on the Pod's cards, like all its containers.
    indexes = sorted({share.card for shares in cards.values() for share in shares})
    if not indexes:
        return None
    return tuple(
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            cards[container.index] if container.role is Role.MAIN else _evenly(indexes, container),
        )
        for container in claim.containers
    )


def _shares(amounts: dict[str, int], container: ContainerClaim) -> tuple[Share, ...] | None:
    """The annotation has no unit; the container's request has, and both must be equal."""
    total, total_mib = sum(amounts.values()), container.slice.memory_mib * container.cards
    unit = next((unit.mib for unit in MemoryUnit if total * unit.mib == total_mib), None)
    if unit is None or any(amount < 0 for amount in amounts.values()):
        return None
    shares = []
    for key, amount in amounts.items():
        card = card_number(key)
        if card is None:
            return None
        if amount:
            shares.append(Share(card, amount * unit, container.slice.core_milli))
    return tuple(sorted(shares, key=lambda share: share.card))


def _evenly(cards: list[int], container: ContainerClaim) -> tuple[Share, ...]:
    mib = -(-container.slice.memory_mib * container.cards // len(cards))
    return tuple(Share(card, mib, container.slice.core_milli) for card in cards)


def _from_index(value: object, claim: Claim) -> tuple[ContainerGrant, ...] | Invalid:
    """A scheduler that writes only the old annotation uses one card for the whole Pod."""
    card = card_number(value) if isinstance(value, str) else None
    if card is None:
        return Invalid(f'metadata.annotations["{INDEX}"]', value, "the number of a card, 0 or more")
    granted = [
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            (Share(card, container.slice.memory_mib * container.cards, container.slice.core_milli),),
        )
        for container in claim.containers
    ]
    return tuple(granted)


def render_grant(grant: Grant, node: Node, now_ns: int, unit: MemoryUnit) -> dict[str, str]:
    """The peers' annotations of the grant, old and new. Not assigned yet: the agent sets that later."""
    allocation = {
        str(container.index): {str(share.card): share.memory_mib // unit.mib for share in container.shares}
        for container in grant.containers
        if container.role is Role.MAIN
    }
    return {
        **render_totals(grant, node, unit),
        ASSIGNED: "false",
        ASSUME_TIME: str(now_ns),
        ALLOCATION: json.dumps(allocation, separators=(",", ":")),
    }


def render_assigned() -> dict[str, str]:
    """The annotation of a Pod whose container runs on its cards."""
    return {ASSIGNED: "true"}


def render_env(totals: Mapping[str, str], granted: ContainerGrant, visible: str, unit: MemoryUnit) -> dict[str, str]:
    """The environment promised to the container. `totals`: see `render_totals`."""
    return {
        "NVIDIA_VISIBLE_DEVICES": visible,
        **totals,
        CONTAINER_TOTAL: str(sum(share.memory_mib for share in granted.shares) // unit.mib),
    }


def render_totals(grant: Grant, node: Node, unit: MemoryUnit) -> dict[str, str]:
    """What the whole Pod has: the same in the environment of each container, and in the annotations."""
    usage = grant.usage()
    first = min(usage)
    size = next((card.memory_mib for card in node.cards if card.index == first), 0)
    return {
        INDEX: str(first),
        CARD_SIZE: str(size // unit.mib),
        POD_TOTAL: str(sum(use.memory_mib for use in usage.values()) // unit.mib),
    }
