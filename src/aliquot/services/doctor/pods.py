"""Do annotations and reality agree, and who waits why: objects in, findings out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from aliquot import dialects
from aliquot.dialects import gpushare
from aliquot.dialects.wire.views import pod_names
from aliquot.dialects.wire.workloads import KubeletPodStatus, read_pod
from aliquot.model.claim import Claim, Usage
from aliquot.model.device import CORE_MILLI
from aliquot.model.grant import Grant
from aliquot.services.doctor.findings import Finding, Level, found, moment, ok
from aliquot.services.doctor.scheduler import PATIENCE
from aliquot.services.explain.overview import Overview
from aliquot.services.explain.snapshot import ClusterPod, Snapshot
from aliquot.services.scheduler.cluster import Cluster
from aliquot.wording.amounts import needed_and_had, percent
from aliquot.wording.refusals import waiting_helps

_NOT_BY_CARDS = (
    "fix what kube-scheduler names: taints, CPU, resources that nodes do not advertise; a T9k Pod"
    " created without the webhook lacks its toleration: delete and apply it again once the webhook runs"
)
_GATED = "the program that set the gates removes them: kubectl get pod POD -o jsonpath={.spec.schedulingGates}"
_MOST_WAITING = 200  # Pods whose reasons are worked out; on 5,000 nodes each takes a tenth of a second
_ADMISSION = "UnexpectedAdmissionError"


def pod_findings(snapshot: Snapshot, now: datetime) -> Iterator[Finding]:
    """All that is wrong with Pods that have a node. What they hold is counted by their annotations alone."""
    cluster = snapshot.cluster
    held: dict[tuple[str, int], list[tuple[str, Usage]]] = {}
    ours = 0
    for pod in snapshot.pods:
        claim, name = cluster.read(pod.read), pod.read.spec.node_name
        if claim is None or not name:
            continue
        ours += 1
        if pod.read.finished:
            yield from _turned_away(pod)
            continue
        if not isinstance(claim, Claim):
            kept = cluster.placed.get(pod_names(pod.read).uid)
            counted = "is not counted" if kept is None else "stays booked by its grant"
            for card, use in kept.grant.usage().items() if kept else ():
                held.setdefault((name, card), []).append((pod.key, use))
            if kept is not None and not kept.grant.containers:
                counted = "cannot be read from its grant either: its node takes no other Pods"
            what = f"is bound although it breaks a rule, and its GPU {counted}: {claim[0].sentence()}"
            yield found("pods", pod.key, what, "correct its manifest and create it again: kubectl delete pod POD")
            continue
        grant = dialects.parse_grant(pod.read, claim, cluster.board.node(name))
        if isinstance(grant, Grant):
            for card, use in grant.usage().items():
                held.setdefault((name, card), []).append((claim.key, use))
        elif grant:
            what = f"the annotation with its cards cannot be read: {grant[0].sentence()}"
            yield found("pods", pod.key, what, "create it again: kubectl delete pod POD")
        yield from _unconfirmed(pod, now)
    crowded = False
    for finding in _crowded(held, cluster):
        crowded = True
        yield finding
    if not crowded:
        yield ok("pods", f"{ours:,} on nodes, no card given to too many Pods")


def _turned_away(pod: ClusterPod) -> Iterator[Finding]:
    status = read_pod(pod.manifest).status or KubeletPodStatus()
    reason = status.reason
    if isinstance(reason, str) and (reason == _ADMISSION or reason.startswith("OutOf")):
        message = (status.message or "")[:200]
        what = f"the kubelet rejected it after it was bound ({reason}: {message})"
        fix = "kubectl delete pod POD, and create it again if it has no controller; the node agent was away"
        yield found(
            "pods", pod.key, what, f"{fix} or not back when the kubelet restarted, or another scheduler bound it"
        )


def _unconfirmed(pod: ClusterPod, now: datetime) -> Iterator[Finding]:
    """gpushare's device plugin says "true" when the container has its card. A Pod that runs should have it."""
    started = moment(pod.read.status.start_time if pod.read.status else None)
    waited = started is None or now - started > PATIENCE
    assigned = (pod.read.metadata.annotations or {}).get(gpushare.ASSIGNED)
    if assigned == "false" and pod.read.runs and waited:
        what = f"runs, but {gpushare.ASSIGNED} is still false: no agent on its node has given it its card"
        fix = "is the node agent (or device plugin) running on its node? If so, kubectl delete pod POD"
        yield found("pods", pod.key, what, fix)


def _crowded(held: Mapping[tuple[str, int], list[tuple[str, Usage]]], cluster: Cluster) -> Iterator[Finding]:
    """Cards that are given away more than once."""
    for (name, index), uses in sorted(held.items()):
        node = cluster.board.node(name)
        if node is None:
            continue  # gone, or broken, which is a finding of its own
        total = sum((use for _, use in uses), start=Usage())
        card = next((card for card in node.cards if card.index == index), None)
        about, who = f"{name}, GPU {index}", ", ".join(key for key, _ in uses[:5])
        fix = f"delete one of its Pods ({who}), best one that does not run; and have one scheduler place them, not two"
        if card is None:
            yield found("over-allocated", about, f"is given to {who}, but the node has no such card", fix)
        elif total.memory_mib > card.bookable_mib:
            given, has = needed_and_had(total.memory_mib, card.bookable_mib)
            yield found("over-allocated", about, f"{given} of {has} are allocated", fix)
        elif total.core_milli > CORE_MILLI:
            yield found("over-allocated", about, f"{percent(total.core_milli)} of its compute is allocated", fix)
        elif total.exclusive and len(uses) > 1:
            yield found("over-allocated", about, f"is held whole by one Pod, and {len(uses)} are on it", fix)


def claim_findings(seen: Overview) -> Iterator[Finding]:
    """ResourceClaims that hold cards: which cannot be read, and cards of which they hold more than there is."""
    for node in seen.nodes:
        for wrong in node.unreadable:
            fix = "correct it and create it again, with its Pods: kubectl delete resourceclaim NAME"
            yield found("claims", node.name, f"{wrong}; it is not counted", fix)
        over = [card for card in node.cards if node.claims and card.used.memory_mib > card.card.bookable_mib]
        for standing in over:
            given, has = needed_and_had(standing.used.memory_mib, standing.card.bookable_mib)
            on_it = [claim.key for claim in node.claims if standing.card.index in claim.grant.usage()]
            fix = f"delete Pods of one of its claims: {', '.join(on_it[:5])}"
            about = f"{node.name}, GPU {standing.card.index}"
            yield found("over-allocated", about, f"{given} of {has} are allocated, also to ResourceClaims", fix)
    count = sum(len(node.claims) for node in seen.nodes)
    if count:
        yield ok("claims", f"{count:,} ResourceClaim{'s' * (count != 1)} with cards")


def waiting_findings(seen: Overview) -> Iterator[Finding]:
    """The Pods that wait, and why. Waiting for others to leave is no fault; waiting for what never comes is."""
    fix = "`aliquot explain POD` shows every reason"
    for pod in seen.waiting[:_MOST_WAITING]:
        verdict = seen.verdict(pod)
        if verdict.grant is not None:
            if pod.read.last_refusal:  # where it was not even tried, the extender's checks say why
                yield Finding("waiting", Level.NOTE, (pod.key,), seen.sentence(pod, verdict), _NOT_BY_CARDS)
            continue
        by_claims = bool(verdict.claims) and seen.snapshot.cluster.reported.by_claims
        hopeful = bool(verdict.gates) or by_claims or (bool(verdict.refusals) and waiting_helps(verdict.refusals))
        level = Level.NOTE if hopeful else Level.FINDING
        advice = "correct its manifest" if verdict.broken else _GATED if verdict.gates else fix
        yield Finding("waiting", level, (pod.key,), seen.sentence(pod, verdict), advice)
    if len(seen.waiting) > _MOST_WAITING:
        what = f"{len(seen.waiting) - _MOST_WAITING:,} more Pods wait"
        yield Finding("waiting", Level.NOTE, (), what, "`kubectl aliquot --pending` shows why each of them waits")
    elif not seen.waiting:
        yield ok("waiting", "no Pod waits for a GPU that Aliquot shares")
