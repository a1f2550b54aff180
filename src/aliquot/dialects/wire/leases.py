"""How a Lease is spelled (coordination.k8s.io/v1): who of several leads, and until when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


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
    """A Lease, as far as it is read."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


def leases_path(namespace: str) -> str:
    """Where the Leases of a namespace are."""
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
) -> dict[str, Any]:
    """The Lease that follows on the one `before`: taken `anew` by another holder, or renewed. `at` in RFC 3339."""
    times = (before.spec.lease_transitions or 0) if before else 0
    spec: dict[str, Any] = {
        "holderIdentity": holder,
        "leaseDurationSeconds": seconds,
        "renewTime": at,
        "leaseTransitions": times + anew,
        **({"acquireTime": at} if anew else {}),
    }
    kept = (before.metadata.annotations if before else None) or {}  # a chart's, that made it, beside ours
    metadata: dict[str, Any] = {"name": name, "namespace": namespace, "annotations": {**kept, **annotations}}
    if before is not None:
        metadata["resourceVersion"] = before.metadata.resource_version
        metadata["labels"] = before.metadata.labels or {}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
