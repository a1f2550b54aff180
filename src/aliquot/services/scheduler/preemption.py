"""Who would have to go for an important Pod: kube-scheduler's choice where that frees the cards, else our own.

kube-scheduler adds up what a node has, and spares the most important Pods until the sum is just enough. What it would
free may then lie on several cards and be of use to nobody: two Pods driven away, and the third waits all the same. So
its choice is kept only where the Pod would fit afterwards. Where it is right on no node, a few nodes are looked at card
by card: all lesser Pods away, and each that need not go spared again, the most important first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aliquot.model.claim import Claim
from aliquot.services.scheduler.cluster import Cluster

_MOST_NODES = 8  # looked at card by card: one is enough, and each takes some milliseconds


def victims(
    cluster: Cluster, claim: Claim, priority: int, offered: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """By node the uids of those who would have to go; `offered` is kube-scheduler's choice. Nothing changes."""
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
    """The Pods on each of these nodes that may be driven away. Not those that a DaemonSet would put there again."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for each in cluster.ledger:
        if (
            each.node in found
            and each.uid not in cluster.assumed  # not there yet: kube-scheduler could not evict it
            and each.uid not in cluster.held
            and not each.occupant.daemon
            and cluster.priorities.get(each.uid, 0) < priority
        ):
            found[each.node].append(each.uid)
    return found


def _fewest(cluster: Cluster, claim: Claim, name: str, offered: Sequence[str], lesser: Sequence[str]) -> Sequence[str]:
    """Of all those the ones who have to go, none of them without need; nobody where even all are not enough."""
    going = [*dict.fromkeys([*offered, *lesser])]
    if not cluster.fits_without(claim, name, going):
        return []
    for uid in sorted(going, key=lambda uid: -cluster.priorities.get(uid, 0)):
        booking = cluster.ledger.get(uid)
        if uid in offered and (booking is None or not booking.occupant.usage):
            continue  # it holds no card: kube-scheduler has another reason to want it gone
        others = [each for each in going if each != uid]
        if cluster.fits_without(claim, name, others):
            going = others
    return going
