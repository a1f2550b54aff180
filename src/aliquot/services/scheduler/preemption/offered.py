"""Which Pods to evict for a more important one: kube-scheduler's choice where that frees the cards, else our own.

kube-scheduler adds up what a node has, and spares the most important Pods until the sum is just enough. What it would
free may then lie on several cards and be of no use: two Pods evicted, and the third waits all the same. So its
choice is kept only where the Pod would fit afterwards. Where it is right on no node, we examine a few nodes card by
card: take all lesser Pods away, then spare each that need not go, the most important first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aliquot.model.claim import Claim
from aliquot.services.scheduler.cluster import Cluster

_MOST_NODES = 8  # looked at card by card: one is enough, and each takes some milliseconds


def victims(
    cluster: Cluster, claim: Claim, priority: int, offered: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """The uids of the Pods to evict, by node; `offered` is kube-scheduler's choice. Nothing changes."""
    right = {name: uids for name, uids in offered.items() if cluster.fits_without(claim, name, uids)}
    if right:
        return right
    found: dict[str, Sequence[str]] = {}
    for name, lesser in _lesser(cluster, priority, offered).items():
        if len(found) == _MOST_NODES:
            break
        chosen = _fewest(cluster, claim, name, offered[name], lesser)
        if chosen:
            found[name] = chosen
    return found


def _lesser(cluster: Cluster, priority: int, names: Iterable[str]) -> dict[str, list[str]]:
    """The Pods on each of these nodes that may be evicted. Not those of the node itself, as a DaemonSet's."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for booking in cluster.ledger:
        if (
            booking.node in found
            and not cluster.is_tentative(booking.uid)
            and not booking.occupant.of_node
            and cluster.priorities.get(booking.uid, 0) < priority
        ):
            found[booking.node].append(booking.uid)
    return found


def _fewest(cluster: Cluster, claim: Claim, name: str, offered: Sequence[str], lesser: Sequence[str]) -> Sequence[str]:
    """The fewest of these Pods that have to go; none where even all of them are not enough."""
    going = [*dict.fromkeys([*offered, *lesser])]
    if not cluster.fits_without(claim, name, going):
        return []
    for uid in sorted(going, key=lambda uid: -cluster.priorities.get(uid, 0)):
        booking = cluster.ledger.get(uid)
        if uid in offered and (booking is None or not booking.occupant.usage):
            continue  # it holds no card: kube-scheduler has another reason to want it gone
        others = [other for other in going if other != uid]
        if cluster.fits_without(claim, name, others):
            going = others
    return going
