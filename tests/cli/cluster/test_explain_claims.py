"""`aliquot explain` and `kubectl aliquot` of Pods that get their cards by ResourceClaims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from aliquot.cli.cluster.doctor import doctor
from aliquot.cli.cluster.explain import explain
from aliquot.cli.cluster.kubectl_aliquot import aliquot
from aliquot.dialects import render_inventory
from aliquot.model.device import Card
from aliquot.services.explain.claims import PodClaims
from kit.agents.draclaims import a_claim, a_config, a_result, parameters
from kit.clusters.explain import explained, run
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import a_container, a_node, a_pod
from kit.values.strategies import anything

Json = dict[str, Any]
CARDS = [Card(at, 16384, f"GPU-{at}") for at in range(2)]
ONLINE = a_config(parameters(class_="online"), source="FromClass")


def a_dra_node() -> Json:
    node = a_node("n1", 16, 16, labels={"aliquot.dev/dra": "true"})
    node["metadata"]["annotations"] |= render_inventory(CARDS)
    return node


def a_claiming_pod(name: str, **source: str) -> Json:
    pod = a_pod(name, a_container("main", {}))
    pod["metadata"]["namespace"] = "ml"
    pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
    return pod


def claim(*results: Json, of: str = "aliquot.dev", **more: Any) -> Json:
    found = a_claim(*results, name="train", **more) | {"kind": "ResourceClaim"}
    found["spec"] = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": of}}]}}
    return found if results else found | {"status": {}}


def test_pod_with_an_allocated_claim_is_explained_by_its_cards_and_users(tmp_path: Path) -> None:
    held = claim(a_result(CARDS[1], 4096, 30), config=[ONLINE], pods={"u1": "p", "u2": "q"})
    pods = [a_claiming_pod("p", resourceClaimName="train")]
    result = run(tmp_path, pods, [a_dra_node(), held])
    assert result.stdout.splitlines() == [
        "ml/p  n1  claim train (online): gpu: GPU 1 (4 GiB, 30%); used by p, q",
        "",
        "1 by ResourceClaims",
    ]
    (entry,) = explained(tmp_path, pods, [a_dra_node(), held])
    share = {"card": 1, "memory_gib": 4, "core": 30, "core_greedy": None, "whole": False}
    assert entry["claims"] == [
        {"claim": "train", "node": "n1", "class": "online", "requests": {"gpu": [share]}, "pods": ["p", "q"],
         "error": None}
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("source", "objects", "said"),
    [
        ({"resourceClaimName": "train"}, [a_dra_node(), claim()], "claim train: it has no card yet: kube-scheduler"),
        ({"resourceClaimName": "train"}, [a_node("n1", 16), claim()], "kubectl label node NODE aliquot.dev/dra=true"),
        (
            {"resourceClaimName": "train"},
            [a_dra_node()],
            "claim train: it is not among the ResourceClaims that were read: create it",
        ),
        ({"resourceClaimTemplateName": "one"}, [a_dra_node()], "claim gpu: it is to be made from template one"),
        (
            {"resourceClaimName": "train"},
            [a_dra_node(), claim(a_result(Card(7, 16384, "GPU-7"), 4096))],
            "claim train: it cannot be read: status.allocation.devices.results[0].device",
        ),
        (
            {"resourceClaimName": "train"},
            [a_node("n1", 16), claim(a_result(CARDS[0], 4096, node="n2"))],
            "it has a card of node n2, which is not among those given",
        ),
    ],
)
def test_pod_with_a_claim_without_a_card_is_explained(
    tmp_path: Path, source: dict[str, str], objects: list[Json], said: str
) -> None:
    result = run(tmp_path, [a_claiming_pod("p", **source)], objects)
    assert said in result.stdout
    assert "no shared GPU" not in result.stdout


def test_pod_with_a_claim_of_another_driver_is_not_ours(tmp_path: Path) -> None:
    other = a_result(CARDS[0], 4096) | {"driver": "nic.example.com"}
    pods = [a_claiming_pod("p", resourceClaimName="train")]
    assert "no shared GPU" in run(tmp_path, pods, [a_dra_node(), claim(other, of="nic")]).stdout
    assert "no shared GPU" in run(tmp_path, pods, [a_node("n1", 16), claim(of="nic")]).stdout


def test_waiting_pod_with_a_claim_is_listed_with_the_reason(cluster: FakeCluster) -> None:
    waiting = a_claiming_pod("p", resourceClaimName="train")
    message = "0/1 nodes are available: 1 cannot allocate all claims. no new claims to deallocate"
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    waiting["status"] = {"phase": "Pending", "conditions": [refused]}
    cluster.show(a_dra_node(), waiting)
    cluster.answer("/apis/resource.k8s.io/v1/resourceclaims", [claim()])
    said = invoked(aliquot).stdout
    assert "ml/p" in said
    assert "kube-scheduler last said: 0/1 nodes are available: 1 cannot allocate all claims" in said
    assert "claim train: it has no card yet" in invoked(explain, "p", "-n", "ml").stdout


def test_doctor_counts_claims_and_names_those_that_cannot_be_read(cluster: FakeCluster) -> None:
    held = claim(a_result(CARDS[1], 10240), pods={"u1": "p"})
    lost = claim(a_result(Card(7, 16384, "GPU-7"), 4096)) | {"metadata": {"name": "lost", "namespace": "ml"}}
    second = held | {"metadata": {"name": "second", "namespace": "ml", "uid": "second"}}
    cluster.show(a_dra_node(), a_claiming_pod("p", resourceClaimName="lost"))
    cluster.answer("/apis/resource.k8s.io/v1/resourceclaims", [held, lost, second])
    cluster.answer("/version", {"gitVersion": "v1.36.4"})
    said = " ".join(invoked(doctor).stdout.split())
    assert "ResourceClaim ml/lost cannot be read: status.allocation.devices.results[0].device" in said
    assert "20 GiB of 16 GiB are allocated, also to ResourceClaims" in said
    assert "2 ResourceClaims with cards" in said
    assert "no node offers GPUs" not in said


@given(anything, anything)
def test_any_claim_and_any_pod_are_explained_or_passed_over(found: object, pod: object) -> None:
    manifest = pod if isinstance(pod, dict) else {"metadata": {"name": "p"}, "spec": pod}
    claims = PodClaims([found, {"metadata": {"name": "c"}, "spec": found, "status": found}])
    claims.of(manifest, lambda name: None, True)
    for item in claims.objects:
        assert item.wants_ours in (True, False)


def test_claims_that_may_not_be_read_are_noted(cluster: FakeCluster) -> None:
    cluster.show(a_dra_node())
    cluster.answer(
        "/apis/resource.k8s.io/v1/resourceclaims", "Error from server (Forbidden): resourceclaims is forbidden"
    )
    done = invoked(aliquot)
    assert done.exit_code == 0
    assert "note: ResourceClaims cannot be read, so cards held by them are not known" in done.stderr
