"""What the extender's verbs answer, as functions of the cluster and the question: no IO, no clock of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.dialects.wire import extender
from aliquot.dialects.wire.extender import Args, Preemption, Victim, Victims
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.placement.verdicts import verdict_of
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.groups.admission import admit_to_names, waiting_groups
from aliquot.services.scheduler.preemption.offered import victims as victims_of
from aliquot.wording.groups import coded_waiting
from aliquot.wording.refusals import UNKNOWN_NODE, coded_reason, invalid_node, invalid_pod

# Out of 10. With the extender's weight of 1 that is 20 points, where a preferred node has 200 and a node without the
# eighth replica of a Deployment still has 20: those decide, and we where they do not.
COARSE = 2
# For profiles whose plugins have a multiple of their weights (schedulerconfig): a rank for each node.
FINE = 999


@dataclass(frozen=True, slots=True)
class FilterOutcome:
    """The outcome of a filter call: how many nodes were asked about, how many fit, and what the Pod will get, where
    that is certain enough."""

    asked: int
    fit: int
    claim: Claim | None = None
    likely: Grant | None = None
    names: Sequence[str] = ()


def filter_answer(cluster: Cluster, args: Args, *, now: float = 0.0, keep: bool = False) -> tuple[bytes, FilterOutcome]:
    """The answer, and what it came to. With `keep`, the places of a whole PodGroup are held from `now` on."""
    names = extender.requested_names(args)
    claim = cluster.read(args.Pod)
    if claim is None:  # not ours: nothing to object
        return extender.render_filtered(args, names, names, {}, {}), FilterOutcome(len(names), len(names))
    if not isinstance(claim, Claim):
        never = dict.fromkeys(names, invalid_pod(claim))
        return extender.render_filtered(args, names, [], {}, never), FilterOutcome(len(names), 0)
    admitted = admit_to_names(cluster, args.Pod, claim, names, now=now, keep=keep)
    if isinstance(admitted, Grant):
        outcome = FilterOutcome(len(names), 1, claim, admitted)
        return extender.render_filtered(args, names, [admitted.node], {}, {}), outcome
    found = cluster.filter(claim, names)
    busy: dict[str, str] = {}
    never = {}
    if found.codes or found.unknown:
        sentences = {code: coded_reason(*verdict_of(code), claim) for code in set(found.codes.values())}
        busy = {name: sentences[code] for name, code in found.codes.items() if not code & 1}
        never = {name: sentences[code] for name, code in found.codes.items() if code & 1}
        for name in found.unknown:
            broken_node = cluster.reported.unusable.get(name)
            if broken_node:
                never[name] = invalid_node(broken_node)
            else:
                busy[name] = UNKNOWN_NODE
    if admitted is not None:
        busy |= dict.fromkeys(found.fit, coded_waiting(admitted))
        return extender.render_filtered(args, names, [], busy, never), FilterOutcome(len(names), 0, claim)
    outcome = FilterOutcome(len(names), len(found.fit), claim, found.likely, names)
    return extender.render_filtered(args, names, found.fit, busy, never), outcome


def scores_answer(cluster: Cluster, args: Args, top: int = COARSE) -> tuple[bytes, Claim | None, Grant | None]:
    """The answer, and the place that will be taken if kube-scheduler heeds it."""
    names = extender.requested_names(args)
    claim = cluster.read(args.Pod)
    if not isinstance(claim, Claim):
        return extender.render_scores(names, [0] * len(names)), None, None
    ranks, best = cluster.rank(claim, names, top)
    return extender.render_scores(names, ranks.tolist()), claim, best


def preemption_answer(cluster: Cluster, asked: Preemption) -> dict[str, Victims]:
    """Where Pods would have to go for this one, and which: only where that frees the cards it needs."""
    offered = extender.offered_victims(asked)
    claim = cluster.read(asked.Pod)
    if claim is None:
        return offered
    if not isinstance(claim, Claim) or claim.uid in cluster.reserved:  # its victims leave already
        return {}
    if waiting_groups(cluster, [claim.uid]):  # its group might wait all the same
        return {}
    uids = {name: [pod.UID for pod in victims.Pods or ()] for name, victims in offered.items()}
    chosen = victims_of(cluster, claim, asked.Pod.spec.priority or 0, uids)
    return {
        name: Victims([Victim(uid) for uid in gone], offered[name].NumPDBViolations) for name, gone in chosen.items()
    }
