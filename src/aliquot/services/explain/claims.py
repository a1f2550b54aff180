"""Pods with ResourceClaims: what each claim holds of our cards, and who uses it. kube-scheduler allocates them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aliquot.dialects.dra import LABEL
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.pods import claim_names, waits_for_card
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import AppClass
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.grant import Grant
from aliquot.model.node import Node


@dataclass(frozen=True, slots=True)
class PodClaim:
    """One claim of a Pod. Without a grant it has no card yet, or none that can be read: `why` says it."""

    name: str  # in the Pod's namespace; of a claim that is not made yet, its name in the Pod
    app_class: AppClass = AppClass.NORMAL
    grant: Grant | None = None
    users: tuple[str, ...] = ()  # names of the Pods that it is reserved for
    why: str = ""


class PodClaims:
    """The ResourceClaims of a cluster."""

    def __init__(self, objects: Iterable[object] = ()) -> None:
        """Objects that cannot be read are left out: they are no claims."""
        read = (read_object(item, ClaimObject, "claim") for item in objects)
        self.objects = tuple(item for item in read if isinstance(item, ClaimObject))
        self._by_key = {item.key: item for item in self.objects}

    def of(self, manifest: JsonObject, node_of: Callable[[str], Node | None], by_claims: bool) -> tuple[PodClaim, ...]:
        """The claims of a Pod that have our cards, or may get some. `by_claims`: some node hands out cards that way."""
        pod = read_object(manifest, PodObject, "pod")
        if not isinstance(pod, PodObject) or not pod.spec.resource_claims:
            return ()
        made, namespace = claim_names(pod), pod_names(pod).namespace
        found = []
        for name in (claim.name for claim in pod.spec.resource_claims):
            claim = self._by_key.get(f"{namespace}/{made.get(name, '')}")
            if claim is not None and claim.allocated:
                found.append(_allocated(claim, node_of))
            elif claim is not None and (claim.wants_ours or (by_claims and not claim.allocated_elsewhere)):
                found.append(PodClaim(claim.metadata.name, why=_not_allocated(by_claims)))
            elif claim is None and by_claims:
                found.append(PodClaim(made.get(name, name), why=_not_there(manifest, name, name in made)))
        return tuple(found)

    def wait(self, pod: PodObject) -> bool:
        """Whether a claim of the Pod asks for our cards and has none."""
        return waits_for_card(pod, self._by_key)


def _allocated(claim: ClaimObject, node_of: Callable[[str], Node | None]) -> PodClaim:
    name, users = claim.metadata.name, tuple(sorted(claim.pods.values()))
    node = node_of(claim.node)
    if node is None:
        return PodClaim(name, users=users, why=f"it has a card of node {claim.node}, which is not among those given")
    read = parse_claim(claim, node.name, node.cards)
    if isinstance(read, AllocatedClaim):
        return PodClaim(name, read.app_class, read.grant, users)
    return PodClaim(name, users=users, why=f"it cannot be read: {read[0].sentence()}")


def why_without_card(claims: Iterable[PodClaim], refusal: str) -> str:
    """Why a Pod with these claims waits; `refusal`: what kube-scheduler last said of it."""
    reasons = [f"claim {claim.name}: {claim.why}" for claim in claims if claim.why]
    return "; ".join([*reasons, *([f"kube-scheduler last said: {refusal}"] if refusal else [])])


def _not_there(manifest: JsonObject, name: str, made: bool) -> str:
    entries = map(mapping, sequence(mapping(manifest.get("spec")).get("resourceClaims")))
    template = next((entry.get("resourceClaimTemplateName") for entry in entries if entry.get("name") == name), None)
    if template and not made:
        return f"it is to be made from template {template}; then kube-scheduler chooses its cards"
    return (
        "it is not among the ResourceClaims that were read: create it, correct spec.resourceClaims, or have claims "
        "read too (kubectl get resourceclaims -A)"
    )


def _not_allocated(by_claims: bool) -> str:
    if by_claims:
        return "it has no card yet: kube-scheduler chooses one when a Pod that uses it is placed"
    return f"it has no card, and no node hands out cards by claims: kubectl label node NODE {LABEL}=true"
