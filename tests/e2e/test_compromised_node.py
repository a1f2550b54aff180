"""Whoever takes a node over has its agent's account: what that may do to other nodes and their Pods is nothing. And
whoever takes the scheduler's: no more than the scheduler does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.client import Client, Refused
from testbed.plane import HOST, ControlPlane
from testbed.processes import wait_until

SPACE, ACCOUNT, SCHEDULER = "aliquot-system", "aliquot-agent", "aliquot-scheduler"
RENDERED = Path(__file__).parents[2] / "deploy/install.yaml"
OF_THE_ACCOUNTS = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
GRANT = '{"v":1}'
INVENTORY = {"metadata": {"annotations": {"aliquot.dev/inventory": "{}"}}}
NODE, POD = "/api/v1/nodes/{}/status", "/api/v1/namespaces/default/pods/{}"


def patched(agent: Client, path: str, patch: Any) -> str:
    """Why it was refused; nothing: it was done."""
    try:
        agent("PATCH", path, patch, content_type="application/strategic-merge-patch+json")
    except Refused as refused:
        return str(refused)
    return ""


def token_of(plane: ControlPlane, account: str = ACCOUNT, **bound: Any) -> Client:
    """The account, as a token that was made for that Pod has it."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 3600, **bound},
    }
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
    return Client(HOST, plane.port, plane.ca_file, str(plane.api("POST", path, request)["status"]["token"]))


@pytest.fixture(scope="module")
def installed(plane: ControlPlane) -> Iterator[ControlPlane]:
    """What the installation makes for agents, and two nodes with a Pod each."""
    every = [item for item in yaml.safe_load_all(RENDERED.read_text()) if item]
    named = [item for item in every if item["metadata"]["name"] in (ACCOUNT, SCHEDULER)]
    ours = [item for item in named if item["kind"] in OF_THE_ACCOUNTS]
    assert [entry["kind"] for entry in ours].count("ValidatingAdmissionPolicy") == 2
    for account in (ACCOUNT, SCHEDULER):
        plane.kubeconfig_for(f"{SPACE}/{account}")  # makes both
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(ours))
    for name in ("mine", "theirs"):
        objects.create(plane, objects.node(name), objects.pod(f"on-{name}", node=name))
    objects.create(plane, objects.pod("agent", namespace=SPACE, node="mine", serviceAccountName=ACCOUNT))
    yield plane
    plane.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=yaml.safe_dump_all(ours))
    plane.kubectl("delete", "pod", "agent", "-n", SPACE, "--grace-period=0", "--force")
    objects.remove_all(plane)


@pytest.fixture(scope="module")
def agent(installed: ControlPlane) -> Client:
    """The account of the agent on node `mine`, once the API server holds it to the policy."""
    made = token_of(installed, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "agent"})
    wait_until(lambda: patched(made, NODE.format("theirs"), INVENTORY), 20, "the policy is heeded")
    return made


def test_agent_account_writes_its_own_node(agent: Client) -> None:
    assert patched(agent, NODE.format("mine"), INVENTORY) == ""


def test_agent_account_cannot_write_another_node(agent: Client) -> None:
    said = patched(agent, NODE.format("theirs"), INVENTORY)
    assert "an agent writes of its own node only: this one is of mine, and that is theirs" in said


def test_agent_account_marks_its_pod_assigned(agent: Client) -> None:
    assert patched(agent, POD.format("on-mine"), {"metadata": {"annotations": {ASSIGNED: "true"}}}) == ""


def test_agent_account_writes_grant_of_adopted_pod(agent: Client) -> None:
    grant = {"metadata": {"annotations": {"aliquot.dev/grant": GRANT}}}
    assert patched(agent, POD.format("on-mine"), grant) == ""
    assert "an agent writes of its own node only" in patched(agent, POD.format("on-theirs"), grant)


def test_agent_account_cannot_write_pods_of_another_node(agent: Client) -> None:
    said = patched(agent, POD.format("on-theirs"), {"metadata": {"annotations": {ASSIGNED: "true"}}})
    assert "an agent writes of its own node only" in said


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"app": "bank"}}},
        {"metadata": {"annotations": {"aliquot.dev/grant": "{}"}}},
        {"metadata": {"annotations": {"aliquot.dev/grant": None}}},
        {"metadata": {"annotations": {"note": None}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
    ],
    ids=["labels", "a grant", "that there is one", "an annotation of others", "finalizers", "the image"],
)
def test_agent_account_cannot_change_other_pod_fields(installed: ControlPlane, agent: Client, patch: Any) -> None:
    note = {"metadata": {"annotations": {"note": "the user's", "aliquot.dev/grant": GRANT}}}
    installed.api("PATCH", POD.format("on-mine"), note, content_type="application/merge-patch+json")
    assert "an agent " in patched(agent, POD.format("on-mine"), patch)


def test_agent_account_cannot_label_nodes(agent: Client) -> None:
    assert "leaves the labels" in patched(agent, NODE.format("mine"), {"metadata": {"labels": {"zone": "vault"}}})


def test_agent_account_cannot_remove_taints_or_bind_or_create_pods(installed: ControlPlane, agent: Client) -> None:
    assert patched(agent, "/api/v1/nodes/mine", {"spec": {"taints": []}})
    for path, body in (
        ("/api/v1/namespaces/default/pods", objects.pod("new")),
        ("/api/v1/namespaces/default/pods/on-mine/binding", {"target": {"kind": "Node", "name": "mine"}}),
    ):
        with pytest.raises(Refused) as refused:
            agent("POST", path, body)
        assert refused.value.status == 403


def test_agent_account_cannot_read_secrets(agent: Client) -> None:
    with pytest.raises(Refused) as refused:
        agent("GET", f"/api/v1/namespaces/{SPACE}/secrets")
    assert refused.value.status == 403


def test_agent_token_without_node_cannot_write(installed: ControlPlane, agent: Client) -> None:
    nowhere = token_of(installed)
    assert "an agent writes of its own node only" in patched(nowhere, NODE.format("mine"), INVENTORY)


# --- the scheduler's account -----------------------------------------------------------------------------------------

IMAGE = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
RETRIED = {"metadata": {"annotations": {"aliquot.dev/retried": "now"}}}
XGN = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def scheduler(installed: ControlPlane) -> Client:
    """Its account, once the API server holds it to the policy."""
    made = token_of(installed, SCHEDULER)
    wait_until(lambda: "the scheduler" in patched(made, POD.format("on-mine"), IMAGE), 20, "the policy is heeded")
    return made


def test_scheduler_account_annotates_pod_for_retry(scheduler: Client) -> None:
    assert patched(scheduler, POD.format("on-theirs"), RETRIED) == ""


@pytest.mark.parametrize(
    "patch",
    [
        IMAGE,
        {"metadata": {"labels": {"app": "bank"}}},
        {"metadata": {"labels": {"bank": ""}}},
        {"metadata": {"labels": {"aliquot.dev/webhook-slot": "0"}}},
        {"metadata": {"annotations": {"aliquot.dev/grant": "{}"}}},
    ],
    ids=["the image", "labels", "an empty label", "its own label elsewhere", "a grant"],
)
def test_scheduler_account_cannot_change_other_pod_fields(scheduler: Client, patch: Any) -> None:
    assert "the scheduler patches nothing of a Pod" in patched(scheduler, POD.format("on-mine"), patch)


def test_scheduler_account_writes_only_its_taints_and_labels(scheduler: Client) -> None:
    node = "/api/v1/nodes/mine"
    assert patched(scheduler, node, {"spec": {"taints": [XGN]}}) == ""
    assert patched(scheduler, node, {"metadata": {"labels": {"qgpu-device-enable": "enable"}}}) == ""
    assert "no label of a node" in patched(scheduler, node, {"metadata": {"labels": {"zone": "vault"}}})
    foreign = {"key": "dedicated", "value": "bank", "effect": "NoSchedule"}
    assert "no taint of a node" in patched(scheduler, node, {"spec": {"taints": [foreign]}})
    assert "no taint of a node" in patched(scheduler, node, {"spec": {"unschedulable": True}})
