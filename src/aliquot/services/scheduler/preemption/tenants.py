"""Which Pods of a node may be evicted for another one, and what leaves the node anyway."""

from __future__ import annotations

from collections.abc import Collection

from aliquot.model.claim import Claim
from aliquot.placement.victims import Outlook, Plan, Tenant, plan_on
from aliquot.services.scheduler.cluster import Cluster


def plan_for(
    cluster: Cluster, claim: Claim, priority: int, node: str, *, going: Collection[str], protected: Collection[str] = ()
) -> Plan | None:
    """The victims on that node. `going`: Pods about to be gone; `protected`: by a PodDisruptionBudget."""
    tenants = _tenants(cluster, claim, priority, node, protected)
    outlook = outlook_on(cluster, claim.uid, priority, node, going=going)
    if not tenants and not outlook.leaving:
        return None
    return plan_on(cluster.chooser, claim, node, tenants, outlook)


def _tenants(cluster: Cluster, claim: Claim, priority: int, node: str, protected: Collection[str]) -> list[Tenant]:
    """Less important Pods with cards; for a whole node, all less important Pods but the node's own."""
    return [
        Tenant(booking.uid, cluster.priorities.get(booking.uid, 0), booking.occupant, booking.uid in protected)
        for booking in cluster.ledger.on(node)
        if cluster.priorities.get(booking.uid, 0) < priority
        and (booking.occupant.usage or claim.whole_node)
        and not booking.occupant.of_node
        and booking.uid not in cluster.going
        and not cluster.is_tentative(booking.uid)
    ]


def outlook_on(cluster: Cluster, uid: str, priority: int, node: str, *, going: Collection[str]) -> Outlook:
    """As the Pod of that uid and priority sees it: others terminate, what is kept for less important Pods is free, and
    what is kept for more important ones will be taken in full."""
    kept = {reservation.uid: reservation for reservation in cluster.reserved.on(node)}
    return Outlook(
        tuple(booking.occupant for booking in cluster.ledger.on(node) if booking.uid in kept or booking.uid in going),
        tuple(other.occupant for other in kept.values() if other.uid != uid and other.priority >= priority),
    )
