"""Which Pods of a node may be evicted for another one, and what leaves the node anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from aliquot.model.claim import Claim
from aliquot.placement.board import Occupant
from aliquot.placement.preemption.victims import Outlook, Plan, Tenant, plan_on
from aliquot.services.scheduler.cluster import Cluster

_MOST_NODES = 64  # examined for one Pod: each takes some milliseconds


def nodes_to_examine(cluster: Cluster, claim: Claim, priority: int, names: Iterable[str]) -> dict[str, int]:
    """Of these nodes, those where less important Pods may make room, the least important first, and the priority of
    those."""
    lowest: dict[str, int] = {}
    for name in names:
        least = min(_lesser_priorities(cluster, claim, priority, name), default=priority)
        if least < priority:
            lowest[name] = least
    return {name: lowest[name] for name in sorted(lowest, key=lowest.__getitem__)[:_MOST_NODES]}


def _lesser_priorities(cluster: Cluster, claim: Claim, priority: int, node: str) -> Iterator[int]:
    """Of the Pods that may be evicted, that terminate, or for which room is kept."""
    kept = {reservation.uid: reservation.priority for reservation in cluster.reserved.on(node)}
    for booking in cluster.ledger.on(node):
        uid = booking.uid
        if uid in kept:
            found = kept[uid]
        elif _is_in_the_way(claim, booking.occupant) and not cluster.is_tentative(uid):
            found = cluster.priorities.get(uid, 0)
        else:
            continue
        if found < priority:
            yield found


def _is_in_the_way(claim: Claim, occupant: Occupant) -> bool:
    """Whether the claim could use its room: it has cards. For a whole node, all Pods but the node's own."""
    return bool(occupant.usage or claim.whole_node) and not occupant.of_node


def is_best(plan: Plan | None, least: int) -> bool:
    """Whether no node whose least important Pod is of that priority has a better plan."""
    return plan is not None and not plan.cost[0][0] and plan.cost[0][1] < least


def best_plan(cluster: Cluster, claim: Claim, priority: int, names: Iterable[str]) -> Plan | None:
    """The cheapest victims on these nodes; None where nothing helps. The evictor does the same with pauses."""
    best: Plan | None = None
    for name, least in nodes_to_examine(cluster, claim, priority, names).items():
        if is_best(best, least):
            break
        plan = plan_for(cluster, claim, priority, name, going=cluster.going)
        if plan is not None and (best is None or plan.cost < best.cost):
            best = plan
    return best


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
    """Less important Pods that are in the way of the claim."""
    return [
        Tenant(booking.uid, cluster.priorities.get(booking.uid, 0), booking.occupant, booking.uid in protected)
        for booking in cluster.ledger.on(node)
        if cluster.priorities.get(booking.uid, 0) < priority
        and _is_in_the_way(claim, booking.occupant)
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
