"""What an attacker can write who has the account of an agent (root of a node), the scheduler, or a Pod's author."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.dialects import registry
from aliquot.dialects.wire.webhook.admission import GRANT_ANNOTATIONS
from testbed import objects
from testbed.client import Client, Refused
from testbed.plane import HOST, ControlPlane
from testbed.processes import wait_until

SPACE, ACCOUNT, SCHEDULER, GRANTS = "aliquot-system", "aliquot-agent", "aliquot-scheduler", "aliquot-grants"
KUBE_SCHEDULER = "aliquot-kube-scheduler"  # the rights of the scheduler's own kube-scheduler, with the same account
RENDERED = Path(__file__).parents[2] / "deploy/install.yaml"
OF_THE_ACCOUNTS = ("ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
GRANT = '{"v":1}'
GONE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "name": "gone",
    "uid": "0" * 8,
}  # the garbage collector deletes its dependants
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
    named = [item for item in every if item["metadata"]["name"] in (ACCOUNT, SCHEDULER, GRANTS, KUBE_SCHEDULER)]
    ours = [item for item in named if item["kind"] in OF_THE_ACCOUNTS]
    assert [entry["kind"] for entry in ours].count("ValidatingAdmissionPolicy") == 3
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
        {"metadata": {"annotations": {"bank": ""}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
    ],
    ids=[
        "labels",
        "a grant",
        "that there is one",
        "an annotation of others",
        "empty annotation",
        "finalizers",
        "the image",
    ],
)
def test_agent_account_cannot_change_other_pod_fields(installed: ControlPlane, agent: Client, patch: Any) -> None:
    note = {"metadata": {"annotations": {"note": "the user's"}}}
    installed.api("PATCH", POD.format("on-mine"), note, content_type="application/merge-patch+json")
    patched(agent, POD.format("on-mine"), {"metadata": {"annotations": {"aliquot.dev/grant": GRANT}}})
    assert "an agent " in patched(agent, POD.format("on-mine"), patch)


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"zone": "vault"}}},
        {"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}}},
        {"metadata": {"annotations": {"bank": ""}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"metadata": {"ownerReferences": [GONE]}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]}},
        {"status": {"capacity": {"example.com/gold": "9"}}},
        {"status": {"allocatable": {"example.com/gold": "9"}}},
        {"status": {"capacity": {"cpu": None}}},
        {"status": {"capacity": {"aliyun.com/gpu-mem": "9", "aliyun.com/gpu-count": "9"}}},
    ],
    ids=[
        "labels",
        "an annotation of others",
        "empty annotation",
        "finalizers",
        "an owner",
        "addresses",
        "capacity",
        "allocatable",
        "that there is one",
        "one too many",
    ],
)
def test_agent_account_writes_only_our_annotations_of_its_node(agent: Client, patch: Any) -> None:
    assert "an agent " in patched(agent, NODE.format("mine"), patch)


def test_agent_account_writes_the_amount_of_gpu_mem_of_its_own_node(installed: ControlPlane, agent: Client) -> None:
    """Where it is more than the kubelet handles as devices."""
    for amount in ("655360", "573440", None):
        status = {"status": {side: {"aliyun.com/gpu-mem": amount} for side in ("capacity", "allocatable")}}
        assert patched(agent, NODE.format("mine"), status) == ""
        found = objects.get_node(installed, "mine")["status"]
        assert found["capacity"].get("aliyun.com/gpu-mem") == found["allocatable"].get("aliyun.com/gpu-mem") == amount
    theirs = {"status": {"capacity": {"aliyun.com/gpu-mem": "655360"}}}
    assert "an agent writes of its own node only" in patched(agent, NODE.format("theirs"), theirs)


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
        {"metadata": {"annotations": {"bank": ""}}},
        {"metadata": {"finalizers": ["example.com/mine"]}},
        {"metadata": {"ownerReferences": [GONE]}},
    ],
    ids=[
        "image",
        "labels",
        "empty label",
        "its own label elsewhere",
        "a grant",
        "empty annotation",
        "finalizer",
        "owner",
    ],
)
def test_scheduler_account_cannot_change_other_pod_fields(scheduler: Client, patch: Any) -> None:
    assert "the scheduler " in patched(scheduler, POD.format("on-mine"), patch)
    kept = patch is IMAGE or "ownerReferences" in patch["metadata"]  # by the API server, in a write of the status
    if not kept:  # kube-scheduler's rights, which the account has too, include the status
        assert "the scheduler " in patched(scheduler, POD.format("on-mine") + "/status", patch)


def test_scheduler_account_writes_only_kube_schedulers_part_of_a_pods_status(
    installed: ControlPlane, scheduler: Client
) -> None:
    objects.create(installed, objects.pod("nominated", schedulerName="none"))
    status = POD.format("nominated") + "/status"
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no card"}
    assert patched(scheduler, status, {"status": {"conditions": [waits], "nominatedNodeName": "mine"}}) == ""
    assert patched(scheduler, status, {"status": {"nominatedNodeName": None}}) == ""
    for forged in (
        {"phase": "Failed"},
        {"podIP": "192.0.2.9", "podIPs": [{"ip": "192.0.2.9"}]},
        {"conditions": [{"type": "Ready", "status": "True"}]},
    ):
        assert "the scheduler changes nothing in the status" in patched(scheduler, status, {"status": forged}), forged


def test_scheduler_account_writes_its_own_part_of_a_node(scheduler: Client, agent: Client) -> None:
    node = "/api/v1/nodes/mine"
    assert patched(scheduler, node, {"spec": {"taints": [XGN]}}) == ""
    assert patched(scheduler, node, {"metadata": {"labels": {"qgpu-device-enable": "enable"}}}) == ""
    assert patched(scheduler, f"{node}/status", {"metadata": {"annotations": {"aliquot.dev/seen": "true"}}}) == ""
    assert patched(agent, f"{node}/status", {"metadata": {"annotations": {"aliquot.dev/agent": "1.0"}}}) == ""
    away = {"metadata": {"annotations": {"aliquot.dev/agent": "away"}}}
    assert patched(scheduler, f"{node}/status", away) == "", "the agent was killed"
    for state in ("False", "True"):
        sick = {"type": "GPUHealthy", "status": state, "reason": "Card", "message": "card 0"}
        assert patched(scheduler, f"{node}/status", {"status": {"conditions": [sick]}}) == ""
    assert patched(scheduler, node, {"spec": {"taints": None}}) == ""
    assert patched(scheduler, node, {"metadata": {"labels": {"qgpu-device-enable": None}}}) == ""


@pytest.mark.parametrize("sub", ["", "/status"], ids=["node", "status"])
@pytest.mark.parametrize(
    "metadata",
    [
        {"labels": {"zone": "vault"}},
        {"labels": {"zone": ""}},
        {"labels": {"kubernetes.io/hostname": None}},
        {"annotations": {"aliquot.dev/inventory": "forged"}},
        {"annotations": {"aliquot.dev/agent": "9.9"}},
        {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}},
        {"finalizers": ["example.com/mine"]},
        {"ownerReferences": [GONE]},
    ],
    ids=[
        "label",
        "empty label",
        "label removed",
        "our inventory",
        "an agent",
        "annotation of others",
        "finalizer",
        "owner",
    ],
)
def test_scheduler_account_cannot_change_other_metadata_of_a_node(scheduler: Client, metadata: Any, sub: str) -> None:
    assert "the scheduler writes no " in patched(scheduler, f"/api/v1/nodes/mine{sub}", {"metadata": metadata})


@pytest.mark.parametrize(
    "spec",
    [
        {"taints": [{"key": "dedicated", "value": "bank", "effect": "NoSchedule"}]},
        {"taints": [{**XGN, "effect": "NoExecute"}]},
        {"unschedulable": True},
        {"podCIDR": "192.0.2.0/24", "podCIDRs": ["192.0.2.0/24"]},
        {"providerID": "vendor://other"},
    ],
    ids=["taint", "taint that ends Pods", "unschedulable", "podCIDR", "providerID"],
)
def test_scheduler_account_cannot_change_other_fields_of_a_nodes_spec(scheduler: Client, spec: Any) -> None:
    assert "the scheduler changes nothing in the spec" in patched(scheduler, "/api/v1/nodes/mine", {"spec": spec})


@pytest.mark.parametrize(
    "status",
    [
        {"addresses": [{"type": "InternalIP", "address": "192.0.2.9"}]},
        {"capacity": {"example.com/gold": "9"}},
        {"allocatable": {"cpu": "0"}},
        {"conditions": [{"type": "Ready", "status": "False"}]},
        {"conditions": [{"type": "Other", "status": "True"}]},
        {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}},
        {"volumesInUse": ["other"]},
    ],
    ids=["addresses", "capacity", "allocatable", "ready", "a condition of others", "port", "volumes"],
)
def test_scheduler_account_cannot_change_other_fields_of_a_nodes_status(scheduler: Client, status: Any) -> None:
    assert "changes nothing in the status of a node" in patched(scheduler, NODE.format("mine"), {"status": status})


# --- the account of a Pod's author -----------------------------------------------------------------------------------

WRITES_PODS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "writes-pods"},
    "rules": [
        {
            "apiGroups": [""],
            "resources": ["pods", "pods/status", "pods/binding", "bindings", "pods/resize"],
            "verbs": ["create", "patch", "update", "get"],
        }
    ],
}
AUTHOR_WRITES_PODS = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "writes-pods"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "writes-pods"},
    "subjects": [{"kind": "ServiceAccount", "name": "author", "namespace": "default"}],
}


@pytest.fixture(scope="module")
def author(installed: ControlPlane, agent: Client) -> Iterator[Client]:
    """May do anything to Pods; the Pod on-mine has cards."""
    made = [WRITES_PODS, AUTHOR_WRITES_PODS]
    installed.kubeconfig_for("default/author")
    installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))
    patched(agent, POD.format("on-mine"), {"metadata": {"annotations": {"aliquot.dev/grant": GRANT, ASSIGNED: "true"}}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = installed.api("POST", "/api/v1/namespaces/default/serviceaccounts/author/token", request)["status"]["token"]
    client = Client(HOST, installed.port, installed.ca_file, str(token))
    wait_until(lambda: patched(client, POD.format("on-mine"), MOVED), 20, "the policy is heeded")
    yield client
    installed.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(made))


REQUEST = (*registry.MARKS, "nvidia.com/container.main.gpu-memory.limit")
MOVED = {"metadata": {"annotations": {"aliquot.dev/grant": '{"v":1,"node":"theirs"}'}}}


@pytest.mark.parametrize("sub", ["", "/status"], ids=["pod", "status"])
@pytest.mark.parametrize(
    "annotations",
    [
        {"aliquot.dev/grant": '{"v":1,"node":"theirs"}'},
        {"aliquot.dev/grant": None},
        {"aliquot.dev/reviewed": None, "aliquot.dev/grant": None},
        {"env.aliquot.dev/main.NVIDIA_VISIBLE_DEVICES": "all"},
        *({key: "2"} for key in (*GRANT_ANNOTATIONS, *REQUEST)),
    ],
    ids=lambda annotations: ", ".join(f"no {key}" if value is None else key for key, value in annotations.items()),
)
def test_pod_author_cannot_change_what_a_running_pod_has(author: Client, annotations: Any, sub: str) -> None:
    patch = {"metadata": {"annotations": annotations}}
    assert "only Aliquot writes the annotation" in patched(author, POD.format("on-mine") + sub, patch)


def test_pod_author_cannot_change_a_running_pods_count_by_label(author: Client) -> None:
    refused = patched(author, POD.format("on-mine"), {"metadata": {"labels": {"aliyun.com/gpu-count": "2"}}})
    assert "says how many cards it has" in refused


def test_pod_author_cannot_bring_a_grant_by_a_binding(installed: ControlPlane, author: Client) -> None:
    objects.create(installed, objects.pod("waits", schedulerName="none"))
    for path in (POD.format("waits") + "/binding", "/api/v1/namespaces/default/bindings"):
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "waits", "annotations": {"aliquot.dev/grant": GRANT}},
            "target": {"kind": "Node", "name": "mine"},
        }
        with pytest.raises(Refused) as refused:
            author("POST", path, body)
        assert "only Aliquot writes the annotation aliquot.dev/grant" in str(refused.value)
    assert patched(author, POD.format("waits"), MOVED)  # before it is bound, too


def test_pod_author_cannot_bring_a_grant_in_a_new_pod(author: Client) -> None:
    """The webhook sees only Pods that ask for GPUs. Without a node, the peers' annotations pass: whoever binds the Pod
    writes them anew, and controllers may have copied them."""
    path = "/api/v1/namespaces/default/pods"
    peers = [key for key in GRANT_ANNOTATIONS if key != "aliquot.dev/grant"]
    always = ("aliquot.dev/grant", "env.aliquot.dev/main.NVIDIA_VISIBLE_DEVICES")
    for node, keys in (("", always), ("mine", (*always, *peers))):
        for key in keys:
            with pytest.raises(Refused) as refused:
                author("POST", path, objects.pod("new", node=node or None, annotations={key: "0"}))
            assert f"only Aliquot writes the annotation {key} of a Pod: remove it from the manifest" in str(
                refused.value
            )
    free = dict.fromkeys((*peers, *REQUEST, "aliquot.dev/reviewed", "note"), "1")
    author("POST", path, objects.pod("copy", annotations=free, schedulerName="none"))
    author("POST", path, objects.pod("daemon", node="mine", annotations={"aliquot.dev/reviewed": "true", "note": "1"}))


def test_pod_author_changes_everything_else(installed: ControlPlane, author: Client) -> None:
    for sub in ("", "/status"):
        free = {
            "metadata": {"annotations": {"note": sub or "mine", "aliquot.example/grant": "x"}, "labels": {"app": "a"}}
        }
        assert patched(author, POD.format("on-mine") + sub, free) == ""
    names = {*GRANT_ANNOTATIONS, *REQUEST} - {"aliquot.dev/grant"}
    of_others = {"metadata": {"annotations": dict.fromkeys(names, "1")}}
    assert patched(author, POD.format("on-theirs"), of_others) == ""  # a Pod that Aliquot has no part in
