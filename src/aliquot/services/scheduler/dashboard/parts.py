"""Parts of a node's and of a Pod's page that Pods and ResourceClaims have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from aliquot.model.claim import AppClass, Claim, Usage
from aliquot.model.node import Node as ModelNode
from aliquot.model.status.dashboard import Container, Pod, PodCard, Tenant


def unplaced_pod(key: str, claim: Claim | None) -> Pod:
    """A Pod without a place; `claim` None: it breaks a rule."""
    kind, _, rest = (claim.owner or "" if claim else "").partition("/")
    return Pod(
        key=key,
        kind="pod",
        app_class=AppClass.NORMAL if claim is None else claim.app_class,
        dialect=None if claim is None else claim.dialect,
        phase="Pending",
        containers=[] if claim is None else [Container(container.name, []) for container in claim.containers],
        owner=f"{kind}/{rest.partition('/')[2]}" if kind else None,
    )


def pod_cards(usage: Mapping[int, Usage], node: ModelNode | None) -> list[PodCard]:
    """What a Pod has of each of its cards."""
    uuids = {card.index: card.uuid for card in node.cards} if node else {}
    return [
        PodCard(slot, uuids.get(slot, ""), use.memory_mib, _core(use), use.greedy_milli > 0, bool(use.exclusive))
        for slot, use in usage.items()
    ]


def tenant_of(claim: Claim, use: Usage, users: Sequence[str] | None = None) -> Tenant:
    """What holds so much of a card; `users`: the Pods that use it, of a ResourceClaim."""
    return Tenant(
        key=claim.key,
        app_class=claim.app_class,
        dialect=claim.dialect,
        memory_mib=use.memory_mib,
        memory_used_mib=None,
        core=_core(use),
        greedy=use.greedy_milli > 0,
        exclusive=bool(use.exclusive),
        together=claim.group or None,
        users=None if users is None else [*users],
    )


def _core(use: Usage) -> float | None:
    """Compute that was asked for, of either kind."""
    core = use.greedy_milli or use.core_milli
    return core / 10 if core else None


def epoch(stamp: str | None) -> float | None:
    """A timestamp of the API server; None where it is not one."""
    try:
        return None if stamp is None else datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return None
