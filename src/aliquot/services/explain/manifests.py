"""What explain reads of one manifest, besides its claim."""

from __future__ import annotations

from aliquot.dialects import kai
from aliquot.dialects.kube.conditions import asked_of_kubernetes
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.pods import read_pod
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.schedulerconfig import known_schedulers
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid, show
from aliquot.services.explain.others import other_resources

# The fields of a Pod's spec by which kube-scheduler picks nodes.
NODE_FIELDS = ("nodeName", "nodeSelector", "affinity", "tolerations")
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def other_scheduler(spec: JsonView, served: frozenset[str]) -> str | None:
    """What must hold for a Pod that names a scheduler of which our configurations say nothing."""
    name = spec.get("schedulerName")
    if not isinstance(name, str) or not name or name in known_schedulers(served):
        return None
    return f"only if scheduler {name} asks aliquot: its configuration must have Aliquot's extender"


def left_to_kubernetes(manifest: JsonObject, *, created: bool) -> str | None:
    """Of a Pod that has a card: what kube-scheduler last said of it, or is still to decide."""
    pod = read_object(manifest, PodObject, "pod") if created else None
    if isinstance(pod, PodObject) and pod.last_refusal:
        return f"kube-scheduler last said: {pod.last_refusal}"
    spec = mapping(manifest.get("spec"))
    asked = [*asked_of_kubernetes(spec), *other_resources(spec)]
    return f"only if kube-scheduler finds the node right for its {' and '.join(asked)} too" if asked else None


def priority_of(spec: JsonView) -> int | None:
    """The Pod's priority; None where only the cluster knows what its class means."""
    priority, name = spec.get("priority"), spec.get("priorityClassName")
    if isinstance(priority, int) and not isinstance(priority, bool):
        return priority
    return _SYSTEM_PRIORITIES.get(name) if isinstance(name, str) and name else 0


def uncalled(manifest: JsonObject, claim: Claim) -> tuple[Invalid, ...]:
    """What a Pod of the cluster lacks so that kube-scheduler asks us about it."""
    view = read_pod(manifest) if claim.dialect == kai.DIALECT else None
    return () if view is None else tuple(kai.uncalled(view, claim))


def _metadata(obj: JsonObject) -> JsonObject:
    metadata = obj.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def name_of(obj: JsonObject) -> str:
    name = _metadata(obj).get("name")
    return name if isinstance(name, str) else ""


def pod_key(obj: JsonObject) -> str:
    """namespace/name of a manifest, even where they are not what they should be."""
    metadata = _metadata(obj)
    namespace, name = metadata.get("namespace"), metadata.get("name")
    name = metadata.get("generateName") if name in (None, "") else name
    return "/".join(
        part if isinstance(part, str) and part else missing if part in (None, "") else show(part)
        for part, missing in ((namespace, "default"), (name, "(no name)"))
    )
