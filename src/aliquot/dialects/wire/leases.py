"""Leases (coordination.k8s.io/v1)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.dialects.wire.objectreading import read_object
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class LeaseObject(msgspec.Struct):
    """The fields of a Lease that we read."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    spec: _Spec = msgspec.field(default_factory=_Spec)


def parse_lease(item: object) -> LeaseObject | Invalid:
    """A Lease as it came from the API server."""
    return read_object(item, LeaseObject, "lease")


def leases_path(namespace: str) -> str:
    """The path of the namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


def render_lease(
    namespace: str,
    name: str,
    before: LeaseObject | None,
    *,
    holder: str,
    anew: bool,
    seconds: int,
    at: str,
    annotations: Mapping[str, str],
) -> JsonObject:
    """The successor of the Lease `before`: acquired by a new holder (`anew`), or renewed. `at` in RFC 3339."""
    transitions = (before.spec.lease_transitions or 0) if before else 0
    spec: JsonObject = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": at,
        "leaseTransitions": transitions + anew,
        **({"acquireTime": at} if anew else {}),
    }
    kept = (before.metadata.annotations if before else None) or {}  # e.g. of the chart that created it
    metadata: JsonObject = {"name": name, "namespace": namespace, "annotations": {**kept, **annotations}}
    if before is not None:
        metadata["resourceVersion"] = before.metadata.resource_version
        metadata["labels"] = before.metadata.labels or {}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
