"""Is what was installed there, ready, and of one release: one planted fault after the other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.workloads import read_pods, read_workload
from aliquot.services.doctor import install
from aliquot.services.doctor.findings import Finding, Level

RELEASE = "0.1.0"


def installation_findings(workloads: list[Any], pods: list[Any], nodes: list[Any], version: str) -> list[Finding]:
    read = [msgspec.convert(node, NodeObject) for node in nodes]
    objects = map(read_workload, workloads)
    return [*install.installation_findings(objects, read_pods(pods), read, version, frozenset({"qgpu", "gpushare"}))]


def _workload(
    kind: str, component: str, *, ready: int = 2, image: str = "aliquot:0.1.0", version: str = RELEASE
) -> Any:
    labels = {"app.kubernetes.io/component": component, "app.kubernetes.io/version": version}
    counts = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": ready}
    if kind == "DaemonSet":
        counts = {"desiredNumberScheduled": 2, "updatedNumberScheduled": 2, "numberAvailable": ready}
    return {
        "kind": kind,
        "metadata": {"name": f"aliquot-{component}", "namespace": "a", "generation": 1, "labels": labels},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"image": image}]}}},
        "status": {"observedGeneration": 1, **counts},
    }


def _both(**agent: Any) -> list[Any]:
    return [_workload("Deployment", "scheduler"), _workload("DaemonSet", "agent", **agent)]


def _node(agent_mark: str | None) -> Any:
    return {"metadata": {"name": "n1", "annotations": {} if agent_mark is None else {"aliquot.dev/agent": agent_mark}}}


def test_complete_installation_is_one_line() -> None:
    (finding,) = installation_findings(_both(), [], [_node(RELEASE), _node(None)], RELEASE)
    assert finding.level is Level.OK
    assert finding.what == "0.1.0: 2 of 2 schedulers ready, 2 of 2 agents ready"


def test_installation_without_our_labels_has_no_findings() -> None:
    assert list(installation_findings([], [], [_node(RELEASE)], RELEASE)) == []


def test_a_program_that_is_not_ready_is_reported_with_the_pod_that_says_why() -> None:
    waiting = {"name": "agent", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    pod = {"metadata": {"name": "aliquot-agent-x", "namespace": "a"}, "status": {"containerStatuses": [waiting]}}
    (finding,) = installation_findings(_both(ready=1), [pod], [], RELEASE)
    assert finding.about == ("DaemonSet a/aliquot-agent",)
    assert finding.what == "1 of 2 agents ready: aliquot-agent-x: container agent: ErrImagePull: no such image"
    assert finding.fix is not None
    assert "kubectl describe pod aliquot-agent-x -n a" in finding.fix


def test_a_program_without_pods_points_to_its_own_events() -> None:
    (finding,) = installation_findings(_both(ready=0), [], [], RELEASE)
    assert finding.what == "0 of 2 agents ready, and no Pod of it says why"


def test_deployment_whose_pods_are_refused_says_by_what() -> None:
    deployment = _workload("Deployment", "scheduler", ready=0)
    why = 'pods "aliquot-scheduler-x" is forbidden: violates PodSecurity "restricted"'
    deployment["status"]["conditions"] = [{"type": "ReplicaFailure", "status": "True", "message": why}]
    (finding,) = installation_findings([deployment, _workload("DaemonSet", "agent")], [], [], RELEASE)
    assert finding.what == f"0 of 2 schedulers ready: {why}"


def test_scheduler_and_agents_of_different_images_are_reported() -> None:
    (finding,) = installation_findings(_both(image="aliquot:0.0.9"), [], [], RELEASE)
    assert "aliquot-agent aliquot:0.0.9, aliquot-scheduler aliquot:0.1.0" in finding.what


@pytest.mark.parametrize(
    ("agent_mark", "words"), [("0.0.9", "its agent is of release 0.0.9"), ("away", "its agent is away")]
)
def test_a_node_whose_agent_is_away_or_of_another_release_is_reported(agent_mark: str, words: str) -> None:
    (finding,) = installation_findings(_both(), [], [_node(agent_mark)], RELEASE)
    assert finding.about == ("n1",)
    assert finding.what.startswith(words)


def test_a_program_of_another_release_than_the_cluster_is_a_note() -> None:
    *_, finding = installation_findings(_both(), [], [], "0.2.0")
    assert finding.level is Level.NOTE
    assert finding.what.startswith("is of release 0.1.0, this program of 0.2.0")


def test_workload_that_cannot_be_read_is_a_finding() -> None:
    broken = {**_workload("DaemonSet", "agent"), "status": {"numberAvailable": "many"}}
    finding, well = installation_findings([_workload("Deployment", "scheduler"), broken], [], [], RELEASE)
    assert (finding.level, well.level) == (Level.FINDING, Level.OK)
    assert finding.what.startswith("cannot be read: status.numberAvailable")


def _running(name: str, node: str | None = "n1", phase: str = "Running") -> Any:
    spec = {} if node is None else {"nodeName": node}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec, "status": {"phase": phase}}


AGENT = _running("aliquot-agent-x")


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([_running("gpushare-schd-extender-7d-x")], "schedules the same Pods as Aliquot"),
        ([_running("qgpu-scheduler-7d-x")], "schedules the same Pods as Aliquot"),
        ([_running("gpushare-device-plugin-ds-x"), AGENT], "runs on n1 together with Aliquot's agent"),
        ([_running("hami-device-plugin-x"), AGENT], "runs on n1 together with Aliquot's agent"),
    ],
)
def test_a_product_that_gives_away_the_same_cards_is_reported(pods: list[Any], said: str) -> None:
    (finding,) = installation_findings(_both(), pods, [], RELEASE)
    assert finding.about == (f"kube-system/{pods[0]['metadata']['name']}",)
    assert said in finding.what


@pytest.mark.parametrize(
    "pods",
    [
        [_running("hami-scheduler-7d-x")],  # its Pods are not ours in this mode
        [_running("gpushare-schd-extender-7d-x", node=None)],
        [_running("gpushare-schd-extender-7d-x", phase="Succeeded")],
        [_running("gpushare-device-plugin-ds-x", node="n2"), AGENT],  # a node that is not taken over yet
        [_running("hami-webui-x"), AGENT],
    ],
)
def test_products_beside_us_that_give_away_other_cards_are_not_reported(pods: list[Any]) -> None:
    (finding,) = installation_findings(_both(), pods, [], RELEASE)
    assert finding.level is Level.OK


def test_products_are_not_reported_before_an_installation() -> None:
    assert installation_findings([], [_running("gpushare-schd-extender-7d-x")], [], RELEASE) == []
