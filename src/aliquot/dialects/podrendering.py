"""A claim written as a Pod, in the words of one dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aliquot.model.claim import Claim, Role
from aliquot.model.decoding.openjson import JsonObject


@dataclass(frozen=True, slots=True)
class Words:
    """How a claim is spelled in one dialect: each container's resources by its name, and the Pod's own marks."""

    limits: Mapping[str, Mapping[str, int]]
    annotations: Mapping[str, str]


def render_pod(claim: Claim, words: Words) -> JsonObject:
    """A manifest that says the claim. Containers that ask for nothing fill the places the claim leaves out."""
    spec: dict[str, list[JsonObject]] = {"initContainers": [], "containers": []}
    taken = {container.name for container in claim.containers}
    for container in claim.containers:
        siblings = spec["containers" if container.role is Role.MAIN else "initContainers"]
        _fill(siblings, container.index, taken)
        limits = {resource: str(amount) for resource, amount in words.limits[container.name].items()}
        written: JsonObject = {"name": container.name, "image": "example", "resources": {"limits": limits}}
        if container.role is Role.SIDECAR:
            written["restartPolicy"] = "Always"
        siblings.append(written)
    _fill(spec["containers"], max(1, len(spec["containers"])), taken)
    # All of it in one container: then the sum is the peak.
    resources = spec["containers"][0].setdefault("resources", {})
    resources["requests"] = {"cpu": f"{claim.cpu_milli}m", "memory": f"{claim.memory_mib}Mi"}
    metadata: JsonObject = {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid}
    if words.annotations:
        metadata["annotations"] = dict(words.annotations)
    if claim.owner is not None:
        kind, _, name = claim.owner.split("/", 2)
        metadata["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {key: containers for key, containers in spec.items() if containers},
    }


def _fill(siblings: list[JsonObject], upto: int, taken: set[str]) -> None:
    while len(siblings) < upto:
        number = len(taken)
        while f"other-{number}" in taken:
            number += 1
        taken.add(f"other-{number}")
        siblings.append({"name": f"other-{number}", "image": "example"})
