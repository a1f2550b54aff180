"""What explain reads of one manifest, besides its claim."""

from __future__ import annotations

from dataclasses import replace

from aliquot.dialects import Rules, kai
from aliquot.dialects.kube.podterms import PodTerms, terms_of
from aliquot.dialects.native import PLACE
from aliquot.dialects.pods import read_pod
from aliquot.dialects.wire.schedulerconfig import known_schedulers
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.refusal import Invalid, show
from aliquot.services.explain.quotas import requested

# The fields of a Pod's spec by which kube-scheduler picks nodes.
NODE_FIELDS = ("nodeName", "nodeSelector", "affinity", "tolerations")
_SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


def other_scheduler(spec: JsonView, served: frozenset[str]) -> str | None:
    """What must hold for a Pod that names a scheduler of which our configurations say nothing."""
    name = spec.get("schedulerName")
    if not isinstance(name, str) or not name or name in known_schedulers(served):
        return None
    return f"only if scheduler {name} asks aliquot: its configuration must have Aliquot's extender"


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


def manifest_terms(manifest: JsonObject, claim: Claim, rules: Rules) -> PodTerms:
    view = read_pod(manifest)
    assert view is not None  # it has a claim
    terms, places = terms_of(view, view.spec), int(requested(view, claim, rules, PLACE))
    return replace(terms, amounts={**terms.amounts, PLACE: places}) if places else terms


def kind_of(terms: PodTerms, spec: JsonView) -> str | None:
    """Equal for Pods with equal terms that select the same nodes; None: nested deeper than Kubernetes would take."""
    try:
        return repr((terms, [spec.get(gate) for gate in NODE_FIELDS]))
    except (ValueError, RecursionError):
        return None


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
