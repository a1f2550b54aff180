"""Pods that ask for cards by ResourceClaims, on the dashboard of a cluster: kube-scheduler places them. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.dialects.dra import DIALECT
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.requests import requested, requested_class
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import AppClass, Claim
from aliquot.model.node import Offer
from aliquot.model.status.dashboard import FoundPod, Pod, WaitingPod
from aliquot.model.status.messages import Message
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.claims import Claims, HeldClaim
from aliquot.services.scheduler.dashboard.parts import epoch, pod_cards, unplaced_pod
from aliquot.wording import messages


def page(cluster: Cluster, claims: Claims, key: str, uid: str) -> Pod | None:
    """The page of a Pod with claims; None: it has none, or none for cards."""
    used = claims.used_by(uid)
    if used:
        return _placed(cluster, claims, key, uid, used)
    pod = cluster.claimants.get(uid)
    return None if pod is None else _pending(cluster, claims, pod)


def found(cluster: Cluster, claims: Claims, key: str, uid: str) -> FoundPod | None:
    """The same as a line of a search's result."""
    view = page(cluster, claims, key, uid)
    return None if view is None else FoundPod(key, view.node, view.app_class, view.phase)


def waiting(cluster: Cluster, claims: Claims, pod: PodObject) -> WaitingPod:
    """A Pod of which a claim has no card, as a line of the list of those that wait."""
    named = [claim for _, claim in claims.named_by(pod) if claim is not None and not claim.allocated]
    asked = _asked(pod, named)
    return WaitingPod(
        key=asked.key,
        app_class=asked.app_class,
        dialect=DIALECT,
        since=epoch(pod.metadata.creation_timestamp),
        reason=_reason(cluster, pod),
        wants=messages.wants_of_claim(asked),
    )


def _placed(cluster: Cluster, claims: Claims, key: str, uid: str, used: Iterable[ClaimObject]) -> Pod:
    """kube-scheduler reserves claims for a Pod just before it binds it."""
    pod = unplaced_pod(key, None)
    pod.dialect, pod.phase = DIALECT, "Binding" if uid in cluster.claimants else "Running"
    for item in used:
        standing = claims.standing(item)
        pod.node = item.node
        pod.claims.append(item.metadata.name)
        pod.why.append(_words(item, standing))
        node = cluster.board.node(item.node)
        if isinstance(standing, HeldClaim) and node is not None:
            cards, pod.app_class = pod_cards(standing.usage, node), standing.claim.app_class
            pod.why.append(messages.promised(cards, pod.app_class, node.isolation))
            pod.cards += cards
    return pod


def _pending(cluster: Cluster, claims: Claims, pod: PodObject) -> Pod | None:
    named = claims.named_by(pod)
    if not named:
        return None
    waits = [claim for _, claim in named if claim is not None and not claim.allocated]
    asked = _asked(pod, waits)
    view = unplaced_pod(asked.key, asked)
    view.containers, view.claims = [], [name for name, _ in named]
    view.since = epoch(pod.metadata.creation_timestamp)
    view.why = [messages.requests(messages.wants_of_claim(asked), DIALECT)] if asked.containers else []
    view.why += [_standing(claims, name, claim) for name, claim in named]
    view.why.append(_reason(cluster, pod))
    return view


def _standing(claims: Claims, name: str, claim: ClaimObject | None) -> Message:
    if claim is None:
        return messages.claim_missing(name)
    return _words(claim, claims.standing(claim)) if claim.allocated else messages.claim_waits(name)


def _words(claim: ClaimObject, standing: HeldClaim | Message) -> Message:
    if isinstance(standing, Message):
        return standing
    users = [user.partition("/")[2] for user in standing.users]
    return messages.claim_holds(claim.metadata.name, claim.node, [*standing.usage], users)


def _reason(cluster: Cluster, pod: PodObject) -> Message:
    if not cluster.reported.by_claims:
        return messages.CLAIM_NOWHERE
    refusal = pod.last_refusal
    return messages.scheduler_said(refusal) if refusal else messages.NOT_TRIED


def _asked(pod: PodObject, claims: Iterable[ClaimObject]) -> Claim:
    """What the claims ask for, as if the Pod asked for it."""
    names, items = pod_names(pod), [*claims]
    containers = tuple(request for claim in items for request in requested(claim))
    app_class = requested_class(items[0]) if items else AppClass.NORMAL
    return Claim(names.uid, names.namespace, names.name, DIALECT, Offer.ANY, containers, app_class=app_class)
