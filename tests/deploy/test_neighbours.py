"""Nodes and Pods of others: AMD's and Huawei's of seed 003, and those of users who do not use Aliquot."""

from __future__ import annotations

import json

import pytest

from aliquot.dialects import Rules, parse_node, parse_pod
from aliquot.dialects.t9k import TAINT
from aliquot.dialects.wire.schedulerconfig import KubeSchedulerSettings, render_config
from aliquot.dialects.wire.upkeep import may_need_upkeep, upkeep
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, review
from aliquot.dialects.wire.webhook.configuration import ServiceRef, webhook_configuration
from kit.values.chart import Json, installed, runs_on
from kit.values.manifests import QGPU, SGN, XGN, a_container, a_node, a_pod

ACCELERATOR, MODE = "sched.tensorstack.dev/accelerator", "sched.tensorstack.dev/node-alloc-mode"
LINUX = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
AMD = {ACCELERATOR: "amd-gpu"}
HUAWEI = {ACCELERATOR: "huawei-npu"}
THEIRS = ("amd.com/gpu", "huawei.com/Ascend910", "huawei.com/Ascend310")
FOUND_BY_NFD = ({"nvidia.com/gpu.present": "true"}, {"feature.node.kubernetes.io/pci-10de.present": "true"})
NOW = "2026-01-01T00:00:00Z"


@pytest.fixture(scope="module")
def agent() -> Json:
    return installed().pods()["aliquot-agent"]


@pytest.mark.parametrize("labels", [QGPU, SGN, XGN, {"gpushare": "true"}, *FOUND_BY_NFD], ids=str)
def test_the_agent_runs_on_nodes_of_every_dialect_and_on_those_with_nvidias_cards(agent: Json, labels: Json) -> None:
    assert runs_on(agent, {**LINUX, **labels})


@pytest.mark.parametrize("labels", [{}, AMD, HUAWEI, {"gpushare": "false"}, {"qgpu-device-enable": "disable"}], ids=str)
def test_the_agent_runs_nowhere_else(agent: Json, labels: Json) -> None:
    assert not runs_on(agent, {**LINUX, **labels})


@pytest.mark.parametrize("theirs", [AMD, HUAWEI], ids=str)
@pytest.mark.parametrize("labels", [QGPU, {"gpushare": "true"}, *FOUND_BY_NFD], ids=str)
def test_agent_avoids_nodes_labelled_amd_or_huawei(agent: Json, theirs: Json, labels: Json) -> None:
    assert not runs_on(agent, {**LINUX, **labels, **theirs})


@pytest.mark.parametrize("labels", FOUND_BY_NFD, ids=str)
def test_agent_avoids_nodes_of_the_gpu_operators_device_plugin(agent: Json, labels: Json) -> None:
    theirs = {**LINUX, **labels, "nvidia.com/gpu.deploy.device-plugin": "true"}
    share = "aliquot.dev/share-cards-with-other-plugins"
    assert not runs_on(agent, theirs)
    assert runs_on(agent, {**theirs, "nvidia.com/gpu.deploy.device-plugin": "false"})
    assert runs_on(agent, {**theirs, share: "true"})
    assert not runs_on(agent, {**theirs, **QGPU, share: "false"})


@pytest.mark.parametrize(
    "machines",
    [
        {"nvidia.com/gpu.deploy.sandbox-validator": "true"},
        {"nvidia.com/gpu.deploy.sandbox-validator": "paused-for-vgpu-change"},
        {"nvidia.com/gpu.workload.config": "vm-passthrough"},
        {"nvidia.com/gpu.workload.config": "vm-vgpu"},
    ],
    ids=str,
)
@pytest.mark.parametrize("labels", FOUND_BY_NFD, ids=str)
def test_agent_avoids_nodes_whose_cards_virtual_machines_have(agent: Json, labels: Json, machines: Json) -> None:
    assert not runs_on(agent, {**LINUX, **labels, **machines})
    assert runs_on(agent, {**LINUX, **labels, "nvidia.com/gpu.workload.config": "container"})


PAUSES = ("paused-for-driver-upgrade", "paused-for-mig-change")


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("labels", FOUND_BY_NFD, ids=str)
def test_agent_does_not_come_while_the_gpu_operator_pauses_its_device_plugin(
    agent: Json, labels: Json, pause: str
) -> None:
    """It would hold the driver that the operator is about to unload, or the card whose MIG mode it changes."""
    assert not runs_on(agent, {**LINUX, **labels, "nvidia.com/gpu.deploy.device-plugin": pause})


@pytest.mark.parametrize("pause", PAUSES)
@pytest.mark.parametrize("part", ["client", "gpu-feature-discovery"])
@pytest.mark.parametrize("labels", [QGPU, SGN, {"gpushare": "true"}, *FOUND_BY_NFD], ids=str)
def test_agent_leaves_its_node_while_the_gpu_operator_works_on_driver_or_mig(
    agent: Json, labels: Json, part: str, pause: str
) -> None:
    own = {**LINUX, **labels, "nvidia.com/gpu.deploy.device-plugin": "false"}
    assert runs_on(agent, {**own, f"nvidia.com/gpu.deploy.{part}": "true"})
    assert not runs_on(agent, {**own, f"nvidia.com/gpu.deploy.{part}": pause})


@pytest.mark.parametrize("machine", [{"kubernetes.io/arch": "s390x"}, {"kubernetes.io/os": "windows"}], ids=str)
def test_the_agent_runs_on_machines_that_it_is_built_for(agent: Json, machine: Json) -> None:
    assert runs_on(agent, {**LINUX, **QGPU, "kubernetes.io/arch": "arm64"})
    assert not runs_on(agent, {**LINUX, **QGPU, **machine})


def test_the_taints_of_gpu_nodes_do_not_keep_the_agent_away(agent: Json) -> None:
    taints = (TAINT, {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"})
    assert runs_on(agent, {**LINUX, **XGN}, taints)
    assert not runs_on(agent, {**LINUX, **XGN}, [{"key": "dedicated", "value": "bank", "effect": "NoSchedule"}])


@pytest.mark.parametrize("resource", THEIRS)
def test_pods_of_other_vendors_are_ignored(resource: str) -> None:
    assert parse_pod(a_pod("theirs", a_container(limits={resource: 1}), nodeSelector=AMD)) is None


@pytest.mark.parametrize("resource", THEIRS)
def test_webhook_passes_pods_of_other_vendors(resource: str) -> None:
    pod = a_pod("theirs", a_container(limits={resource: 1}))
    request = {"uid": "u", "kind": {"group": "", "kind": "Pod"}, "operation": "CREATE", "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    said = review(body, Rules(), AdmissionSettings("aliquot-scheduler"))
    assert isinstance(said, dict)
    assert said["response"] == {"uid": "u", "allowed": True}


def test_configurations_exclude_other_vendors() -> None:
    text = json.dumps(
        [
            webhook_configuration(b"CA", ServiceRef("aliquot-system", "aliquot-webhook")),
            render_config(KubeSchedulerSettings(version=(1, 36), url="http://127.0.0.1:12345/aliquot", second=True)),
        ]
    )
    assert not any(resource.partition("/")[0] in text for resource in THEIRS)


@pytest.mark.parametrize("labels", [AMD, HUAWEI, {**AMD, MODE: "sgn"}], ids=str)
def test_upkeep_ignores_nodes_of_other_vendors(labels: Json) -> None:
    node = a_node("theirs", labels=labels, capacity={"amd.com/gpu": "8", "huawei.com/Ascend910": "8"})
    assert not may_need_upkeep(labels, {}, (), ())
    assert not upkeep(node, NOW).needed


@pytest.mark.parametrize("labels", [AMD, HUAWEI], ids=str)
def test_nodes_of_other_vendors_offer_nothing(labels: Json) -> None:
    node = parse_node(a_node("theirs", labels=labels, capacity={"amd.com/gpu": "8"}))
    assert not isinstance(node, tuple)
    assert (node.cards, node.offers) == ((), frozenset())
