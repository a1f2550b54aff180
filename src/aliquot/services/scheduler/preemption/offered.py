"""Which Pods to evict for a more important one: kube-scheduler's choice where that frees the cards, else our own.

kube-scheduler adds up what a node has, and spares Pods, the most important first and then the oldest, until the sum is
just enough. What it would free may then lie on several cards and be of no use; and of equal Pods it may take many small
ones in place of one. So its choice is kept only where the Pod would fit afterwards, and where it is not a single Pod on
any node, we work out a few nodes card by card too: kube-scheduler takes the node with fewer victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from aliquot.model.claim import Claim
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.preemption.tenants import plan_for

_MOST_NODES = 8  # worked out card by card: each takes some milliseconds


def victims(
    cluster: Cluster, claim: Claim, priority: int, offered: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]]:
    """The uids of the Pods to evict, by node; `offered` is kube-scheduler's choice. Nothing changes."""
    found = {name: uids for name, uids in offered.items() if cluster.fits_without(claim, name, uids)}
    looked_at = 0
    for name in sorted(offered, key=lambda name: _fewest_on_a_card(cluster, name, priority)):
        if looked_at == _MOST_NODES or any(len(uids) == 1 for uids in found.values()):
            break
        chosen = _ours(cluster, claim, priority, name, offered[name])
        looked_at += bool(chosen)
        if chosen and (name not in found or len(chosen) < len(found[name])):
            found[name] = chosen
    return found


def _fewest_on_a_card(cluster: Cluster, name: str, priority: int) -> int:
    """Where to look first: how many Pods share the card of that node with the fewest, of those that may be evicted."""
    cards = Counter(
        card
        for booking in cluster.ledger.on(name)
        if cluster.priorities.get(booking.uid, 0) < priority and not cluster.is_tentative(booking.uid)
        for card in booking.occupant.usage
    )
    return min(cards.values(), default=len(cluster.seen))


def _ours(cluster: Cluster, claim: Claim, priority: int, name: str, offered: Sequence[str]) -> Sequence[str]:
    """The fewest of the least important Pods that have to go; none where even all of them are not enough."""
    plan = plan_for(cluster, claim, priority, name, going=cluster.going)
    if plan is None:
        return []
    own = [victim.uid for victim in plan.victims]
    # Those without a card: kube-scheduler has another reason to want them gone.
    others = [uid for uid in offered if (booking := cluster.ledger.get(uid)) is None or not booking.occupant.usage]
    return [*dict.fromkeys([*own, *others])] if own else []
