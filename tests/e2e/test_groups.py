"""PodGroups on a real control plane: members are bound together or not at all, whatever kube-scheduler does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kit.values.manifests import MEM
from testbed.gpus import gpushare_node
from testbed.objects import Object, delete_pod, pod
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.wired import Wired

API = "scheduler.tensorstack.dev"
LABEL = f"{API}/group-name"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="module", autouse=True)
def pod_groups(plane: ControlPlane) -> Iterator[None]:
    """T9k's kind, before ours starts."""
    names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{API}"},
        "spec": {"group": API, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    plane.api("POST", CRDS, crd)

    def served() -> bool:
        return API in [group["name"] for group in plane.api("GET", "/apis")["groups"]]

    wait_until(served, 60, "PodGroups are served", every=0.1)
    yield
    plane.api("DELETE", f"{CRDS}/podgroups.{API}")


@pytest.fixture(autouse=True)
def no_groups_left(plane: ControlPlane) -> Iterator[None]:
    """A test that is repeated makes its groups again."""
    yield
    plane.api("DELETE", f"/apis/{API}/v1beta1/namespaces/default/podgroups")


def group(cluster: Wired, name: str, needed: int, **spec: Any) -> None:
    thing = {
        "apiVersion": f"{API}/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": needed, **spec},
    }
    cluster.plane.api("POST", f"/apis/{API}/v1beta1/namespaces/default/podgroups", thing)


def member(name: str, of: str, gib: int = 6, **more: Any) -> Object:
    return pod(name, {MEM: gib}, labels={LABEL: of}, **more)


def test_a_group_waits_until_all_that_it_needs_have_room_and_says_what_it_lacks(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 8, 8))
    group(cluster, "three", 3)
    cluster.create(*(member(f"m{at}", "three") for at in range(3)))
    words = "PodGroup default/three needs 3 members in their places at once: has 2 that would fit now, lacks room for 1"
    for at in range(3):
        cluster.waits(f"m{at}", words, "(aliquot:group)")
    assert "fits none of 1 node" in cluster.await_event("m0", "WaitingForGPU", words)
    assert cluster.bound_among("m0", "m1", "m2") == []
    cluster.create(gpushare_node("n2", 8))
    cluster.bound("m0", "m1", "m2", seconds=60)


def test_of_two_groups_that_want_the_same_cards_one_gets_all_and_then_the_other(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 8, 8), gpushare_node("n2", 8, 8))
    for name in ("x", "y"):
        group(cluster, name, 3)
    for at in range(3):
        cluster.create(member(f"x{at}", "x"), member(f"y{at}", "y"))
    xs, ys = ([f"{name}{at}" for at in range(3)] for name in "xy")
    wait_until(lambda: len(cluster.bound_among(*xs, *ys)) >= 3, 60, "one group is bound", every=0.1)
    first, second = (xs, ys) if cluster.bound_among(*xs) else (ys, xs)
    assert cluster.bound_among(*first, *second) == first
    cluster.waits(second[0], "lacks room for 2 more")
    assert cluster.bound_among(*second) == []
    for name in first:
        delete_pod(cluster.plane, name)
    cluster.bound(*second, seconds=60)


def test_no_member_is_bound_while_kube_scheduler_keeps_one_of_those_needed_away(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 8, 8))
    group(cluster, "pair", 2)
    cluster.create(member("far", "pair", nodeSelector={"zone": "far"}), member("near", "pair"))
    cluster.await_event("near", "FailedScheduling", "1 came within 3 s, so none is bound", seconds=60)
    assert cluster.bound_among("far", "near") == []
    cluster.label_node("n1", {"zone": "far"})
    cluster.bound("far", "near", seconds=60)


def test_a_group_name_without_a_group_is_reported_once_and_changes_nothing(cluster: Wired) -> None:
    cluster.create(gpushare_node("n1", 8), member("alone", "nothing"))
    cluster.bound("alone")
    cluster.await_event("alone", "NoPodGroup", 'there is no PodGroup "nothing" in this namespace')
