"""Beside Kubernetes' own gang scheduling: `make e2e-versions RELEASES=1.36`, outside CI. Its feature gates are off by
default, so this takes a control plane of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.values.manifests import MEM
from testbed import objects
from testbed.build import RELEASE
from testbed.gpus import gpushare_node
from testbed.objects import Object, delete_pod, pod
from testbed.plane import ControlPlane
from testbed.processes import wait_until
from testbed.programs.wired import Wired

pytestmark = pytest.mark.skipif(RELEASE < (1, 36), reason="Kubernetes has PodGroups since 1.36")

API = "scheduling.k8s.io/v1alpha2"
COSCHEDULING = "scheduling.x-k8s.io"


@pytest.fixture(scope="module")
def gang_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """With Kubernetes' own PodGroups, and with those of the coscheduling plugin, which only ours reads here."""
    folder, flags = tmp_path_factory.mktemp("plane"), [f"--runtime-config={API}=true"]
    gates = "GenericWorkload=true,GangScheduling=true"
    with ControlPlane(folder, apiserver_flags=flags, feature_gates=gates) as plane:
        names = {"plural": "podgroups", "singular": "podgroup", "kind": "PodGroup", "listKind": "PodGroupList"}
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        version = {"name": "v1alpha1", "served": True, "storage": True, "schema": schema}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": f"podgroups.{COSCHEDULING}",
                # The API server guards names below k8s.io.
                "annotations": {
                    "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
                },
            },
            "spec": {"group": COSCHEDULING, "scope": "Namespaced", "names": names, "versions": [version]},
        }
        plane.api("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)

        def served() -> bool:
            return COSCHEDULING in [group["name"] for group in plane.api("GET", "/apis")["groups"]]

        wait_until(served, 60, "PodGroups of the plugin are served", every=0.1)
        yield plane


@pytest.fixture
def gangs(gang_plane: ControlPlane, tmp_path: Path) -> Iterator[Wired]:
    wired = Wired(gang_plane, tmp_path)
    yield wired
    wired.stop()
    objects.remove_all(gang_plane)
    for api in (API, f"{COSCHEDULING}/v1alpha1"):
        remove_groups(gang_plane, f"/apis/{api}/namespaces/default/podgroups")


def remove_groups(plane: ControlPlane, path: str) -> None:
    """A test that is repeated makes its groups again."""
    plane.api("DELETE", path)
    wait_until(lambda: not plane.api("GET", path)["items"], 60, "no PodGroup is left", every=0.1)


def gang(cluster: Wired, name: str, needed: int) -> None:
    thing = {
        "apiVersion": API,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": needed}}},
    }
    cluster.plane.api("POST", f"/apis/{API}/namespaces/default/podgroups", thing)


def member(name: str, of: str, gib: int = 6, **more: Any) -> Object:
    return pod(name, {MEM: gib}, schedulingGroup={"podGroupName": of}, **more)


def _until_three_are_bound(cluster: Wired, names: list[str]) -> None:
    wait_until(lambda: len(cluster.bound_among(*names)) >= 3, 180, "a group is bound", every=0.2)


def test_a_gang_whose_cards_are_short_waits_and_starts_together(gangs: Wired) -> None:
    """The node's total has room for three: only our plan knows that no card has it for the third."""
    gangs.create(gpushare_node("n1", 9, 9))
    gang(gangs, "three", 3)
    names = [f"m{at}" for at in range(3)]
    gangs.create(*(member(name, "three") for name in names))
    assert gangs.plane.api("GET", "/api/v1/namespaces/default/pods/m0")["spec"]["schedulingGroup"]  # the gate is on
    gangs.await_event(
        "m0", "WaitingForGPU", "PodGroup default/three needs 3 members in their places at once", seconds=90
    )
    assert gangs.bound_among(*names) == []
    gangs.create(gpushare_node("n2", 9))
    gangs.bound(*names, seconds=120)


def test_two_gangs_and_a_group_of_the_plugin_that_want_the_same_cards_all_get_their_turn(gangs: Wired) -> None:
    gangs.create(gpushare_node("n1", 8, 8), gpushare_node("n2", 8, 8))
    for name in "xy":
        gang(gangs, name, 3)
    plugin = {"metadata": {"name": "z"}, "spec": {"minMember": 3}}
    version = f"{COSCHEDULING}/v1alpha1"
    plugin |= {"apiVersion": version, "kind": "PodGroup"}
    gangs.plane.api("POST", f"/apis/{version}/namespaces/default/podgroups", plugin)
    for at in range(3):
        labelled = pod(f"z{at}", {MEM: 6}, labels={f"{COSCHEDULING}/pod-group": "z"})
        gangs.create(member(f"x{at}", "x"), labelled, member(f"y{at}", "y"))
    left = {name: [f"{name}{at}" for at in range(3)] for name in "xyz"}
    while left:
        everyone = [name for names in left.values() for name in names]
        _until_three_are_bound(gangs, everyone)
        (whole,) = [key for key, names in left.items() if gangs.bound_among(*names)]
        assert gangs.bound_among(*everyone) == left[whole]
        for name in left.pop(whole):
            delete_pod(gangs.plane, name)


def test_a_gang_of_which_one_member_fits_no_node_binds_nothing_and_leaves_the_cards_to_others(gangs: Wired) -> None:
    gangs.create(gpushare_node("n1", 8, 8))
    gang(gangs, "pair", 2)
    gangs.create(member("near", "pair"), member("far", "pair", nodeSelector={"zone": "far"}))
    gangs.await_event("far", "FailedScheduling", seconds=90)
    gangs.create(pod("single", {MEM: 8}))
    gangs.bound("single", seconds=180)
    assert gangs.bound_among("near", "far") == []
    delete_pod(gangs.plane, "single")
    gangs.label_node("n1", {"zone": "far"})
    gangs.bound("near", "far", seconds=180)
