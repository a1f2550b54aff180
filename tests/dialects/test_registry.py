"""Rules for Pods of every dialect, and what is read once for all Pods of a template."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.dialects import PodReader, Rules, parse_pod, render_pod
from aliquot.dialects.registry import MOST_CONTAINERS, claim_for
from aliquot.dialects.wire.views import Names
from aliquot.model.claim import AppClass, CardFilter, Claim, ContainerClaim, Preference, Role, Slice
from aliquot.model.node import Offer, Order
from aliquot.model.refusal import Invalid
from kit.clusters.watchobjects import as_pod
from kit.values import manifests
from kit.values.builders import a_claim, a_container, a_slice
from kit.values.manifests import MEM, QGPU_MEMORY, T9K_PERCENT, Json, gpushare_pod

OTHER: dict[str, Any] = {  # a value of its own for every field that has a default
    "app_class": AppClass.OFFLINE,
    "together": True,
    "whole_node": True,
    "models": frozenset({"H200"}),
    "cards": CardFilter(models=("H200",)),
    "preference": Preference(Order.SPREAD, Order.BINPACK),
    "owner": "ReplicaSet/ns/before",
    "cpu_milli": 1,
    "memory_mib": 2,
    "park_after": 3.0,
    "group": "g",
    "user": 4,
    "latency": 5.0,
}


def test_claim_of_another_pod_of_the_template_differs_in_its_names_alone() -> None:
    template = replace(a_claim(a_container(a_slice(2, 10))), **OTHER)
    optional = {*Claim.__struct_fields__} - {"uid", "namespace", "name", "dialect", "offer", "containers"}
    assert optional == OTHER.keys(), "every field is tried"
    found = claim_for(Names("uid", "ns", "pod", "ReplicaSet/ns/owner"), template)
    assert found == replace(template, uid="uid", namespace="ns", name="pod", owner="ReplicaSet/ns/owner")


def _pod(containers: int, init: int, limits: Json) -> Json:
    """A Pod of so many containers, of which the last asks for that."""
    names = [f"c{at}" for at in range(containers)]
    asking = [manifests.a_container(name, limits if name == names[-1] else None) for name in names]
    return manifests.a_pod("p", *asking, init=[manifests.a_container(f"i{at}") for at in range(init)])


@pytest.mark.parametrize(
    "limits", [{QGPU_MEMORY: "1"}, {T9K_PERCENT: "10"}, {MEM: "1"}], ids=["qgpu", "t9k", "gpushare"]
)
@pytest.mark.parametrize("init", [0, 100])
def test_pod_with_gpus_has_at_most_256_containers(limits: Json, init: int) -> None:
    assert isinstance(parse_pod(_pod(MOST_CONTAINERS - init, init, limits)), Claim)
    refused = parse_pod(_pod(MOST_CONTAINERS - init + 1, init, limits))
    assert refused == (
        Invalid("spec.containers", 257, "at most 256 containers, with init containers, in a Pod that asks for GPUs"),
    )


def test_pod_without_gpus_may_have_any_number_of_containers() -> None:
    assert parse_pod(_pod(3000, 0, {"cpu": "1"})) is None


def test_rendered_pod_has_other_containers_where_the_claim_leaves_places() -> None:
    parts = (
        ContainerClaim("other-3", 2, Role.MAIN, Slice(memory_mib=1024)),
        ContainerClaim("first", 1, Role.INIT, Slice(memory_mib=1024)),
        ContainerClaim("other-5", 2, Role.SIDECAR, Slice(memory_mib=1024)),
    )
    spec = render_pod(Claim("u", "team", "p", "gpushare", Offer.GPUSHARE, parts))["spec"]
    mains, inits = ([container["name"] for container in spec[key]] for key in ("containers", "initContainers"))
    assert (mains[2:], inits[1], inits[2]) == (["other-3"], "first", "other-5")
    assert len({*mains, *inits}) == 6
    alone = render_pod(Claim("u", "team", "p", "gpushare", Offer.GPUSHARE, parts[1:2]))["spec"]
    assert (len(alone["containers"]), len(alone["initContainers"])) == (1, 2)


def test_claims_of_pods_are_kept_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PodReader(Rules())
    monkeypatch.setattr(PodReader, "_MOST", 2)
    kept = []
    for gib in (1, 2, 3):
        reader.read(as_pod(gpushare_pod("p", gib)))
        kept.append(len(reader._known))
    assert kept == [1, 2, 1]
