"""Whether a Pod that runs is the one of a manifest, or one that the manifest's Pod takes the place of."""

from __future__ import annotations

from dataclasses import replace

from aliquot import dialects
from aliquot.model.claim import Claim
from aliquot.placement.demand import Demand, demand_of
from aliquot.services.scheduler.cluster import Placed


def stays(running: Placed, claim: Claim, *, created: bool, going: bool) -> bool:
    """Whether the Pod that runs has all that `claim`, of the same name, asks for. `created`: the claim is of a Pod of
    the cluster; `going`: the one that runs was deleted.

    Webhooks and autoscalers may have given it more CPU and memory than its manifest says.
    """
    if _of_cards(claim) != _of_cards(running.claim):
        return False
    if created and claim.uid == running.claim.uid:
        return True
    enough = claim.cpu_milli <= running.claim.cpu_milli and claim.memory_mib <= running.claim.memory_mib
    return enough and not going


def _of_cards(claim: Claim) -> Demand:
    """What it asks for, but for CPU and memory; as the webhook leaves it."""
    return replace(demand_of(dialects.as_admitted(claim)), cpu_milli=0, memory_mib=0)
