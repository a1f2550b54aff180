"""The claims that a Pod uses, by the Pod's own fields. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names


def claim_names(pod: PodObject) -> dict[str, str]:
    """The names of its ResourceClaims, by their names in the Pod. One that is to be made from a template is missing."""
    status = pod.status
    made = {claim.name: claim.resource_claim_name for claim in (status.resource_claim_statuses if status else ()) or ()}
    named = {claim.name: claim.resource_claim_name or made.get(claim.name) for claim in pod.spec.resource_claims or ()}
    extended = status.extended_resource_claim_status if status else None
    if extended is not None:  # no container names it: the kubelet matches it by resources
        named[""] = extended.resource_claim_name
    return {name: claim for name, claim in named.items() if claim}


def waits_for_card(pod: PodObject, claims: Mapping[str, ClaimObject]) -> bool:
    """Whether a claim of the Pod asks for our cards and has none. `claims` by namespace/name."""
    namespace = pod_names(pod).namespace
    used = (claims.get(f"{namespace}/{name}") for name in claim_names(pod).values())
    return any(claim is not None and claim.wants_ours and not claim.allocated for claim in used)


def container_with_several(pod: PodObject, ours: Collection[str]) -> str | None:
    """The name of a container that uses two of these claims: a process has the limits of one tenant."""
    names = claim_names(pod)
    for container in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ())):
        used = (container.resources.claims if container.resources else None) or ()
        if len({names[claim.name] for claim in used if names.get(claim.name) in ours}) > 1:
            return str(container.name)
    return None
