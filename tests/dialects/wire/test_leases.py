"""Leases: where they are, and how one is taken and renewed."""

from __future__ import annotations

import msgspec
import pytest

from aliquot.dialects.wire.leases import LeaseObject, leases_path, parse_lease, render_lease
from aliquot.model.refusal import Invalid

AT = "2026-01-01T00:00:00Z"


def rendered(before: LeaseObject | None, *, anew: bool, **annotations: str) -> LeaseObject:
    made = render_lease("team", "l", before, holder="me", anew=anew, seconds=15, at=AT, annotations=annotations)
    assert made["spec"].get("acquireTime") == (AT if anew else None)
    read = parse_lease(made)
    assert isinstance(read, LeaseObject)
    assert (read.spec.holder_identity, read.spec.lease_duration_seconds, read.spec.renew_time) == ("me", 15, AT)
    return read


@pytest.mark.parametrize(
    ("before", "anew", "transitions"), [(None, True, 1), (None, False, 0), (3, True, 4), (3, False, 3)]
)
def test_transitions_count_the_holders(before: int | None, anew: bool, transitions: int) -> None:
    there = {"metadata": {"resourceVersion": "7"}, "spec": {"leaseTransitions": before}}
    lease = rendered(msgspec.convert(there, LeaseObject), anew=anew)
    assert lease.spec.lease_transitions == transitions
    assert lease.metadata.resource_version == "7"


def test_first_lease_has_no_version() -> None:
    lease = render_lease("team", "l", None, holder="me", anew=True, seconds=15, at=AT, annotations={})
    assert lease["metadata"] == {"name": "l", "namespace": "team", "annotations": {}}
    assert lease["spec"]["leaseTransitions"] == 1


def test_labels_and_annotations_of_others_stay() -> None:
    there = {"metadata": {"resourceVersion": "7", "labels": {"l": "x"}, "annotations": {"a": "x", "b": "x"}}}
    lease = rendered(msgspec.convert(there, LeaseObject), anew=False, b="ours")
    assert lease.metadata.labels == {"l": "x"}
    assert lease.metadata.annotations == {"a": "x", "b": "ours"}


def test_path_and_what_is_no_lease() -> None:
    assert leases_path("team") == "/apis/coordination.k8s.io/v1/namespaces/team/leases"
    assert isinstance(parse_lease({"spec": {"leaseTransitions": "x"}}), Invalid)
    assert isinstance(parse_lease(None), Invalid)
