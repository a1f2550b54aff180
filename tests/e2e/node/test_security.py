"""What a Pod with a card needs, what it can get at, and what the agent itself needs (docs/agent.md)."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aliquot.adapters.gpu.player import simulation
from testbed import objects
from testbed.cards import MEM, QCORE, QMEM
from testbed.client import MERGE_PATCH, Refused
from testbed.judges.inside import granted
from testbed.programs.fleet import Fleet
from testbed.realnodes.nodes import RealNode, probe, restricted
from testbed.registries.images import programs

GIB = 1 << 30
HERE = {"kubernetes.io/hostname": "n1"}
TENANT = "/run/aliquot/tenant"
PLAYER = "/run/aliquot/player/sock"
CARD = "GPU-[0-9a-f-]+"

# A process whose bounding set is empty has no capability after its exec, root or not.
_POWERLESS = (
    "import ctypes, os, sys\n"
    "libc = ctypes.CDLL(None)\n"
    "for capability in range(64): libc.prctl(24, capability, 0, 0, 0)\n"
    "libc.prctl(38, 1, 0, 0, 0)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])\n"
)
_ROLE = [  # as docs/agent.md has it
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
]


# The Pod


def test_a_pod_of_the_restricted_level_gets_its_card_and_is_held_to_its_quota(fleet: Fleet) -> None:
    """Any user, no capability, nothing of the host, and a file system that it cannot write to."""
    fleet.plane.kubeconfig_for("guarded/default")  # makes both
    level = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    fleet.plane.api("PATCH", "/api/v1/namespaces/guarded", level, content_type=MERGE_PATCH)
    pod = restricted(probe("guarded", "fill", limits={QCORE: 30, QMEM: 5}, namespace="guarded"), user=1234)
    pod["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = True
    fleet.create(pod)
    report = fleet.report("guarded", namespace="guarded")
    (card,) = report["cuda"]["cards"]
    assert report["uid"] == 1234
    assert [card["uuid"]] == granted(objects.get_pod(fleet.plane, "guarded", "guarded"))["main"]
    assert card["total"] == 5 * GIB
    filled = fleet.line("guarded", "filled", namespace="guarded")
    assert filled["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert filled["bytes"] <= 5 * GIB
    made = objects.get_pod(fleet.plane, "guarded", "guarded")["spec"]
    assert [volume["name"] for volume in made["volumes"] if "hostPath" in volume] == []


def test_a_container_can_write_nothing_of_ours_but_its_own_page(fleet: Fleet) -> None:
    """As root with Docker's capabilities, which is what most images run with."""
    fleet.create(probe("one", limits={MEM: 2}))
    mounts = fleet.report("one")["mounts"]
    assert {path for path, mode in mounts.items() if mode == "rw"} == {f"{TENANT}/page"}
    ours = (f"{TENANT}/more", "/usr/local/lib/aliquot/libaliquot.so", "/etc/ld.so.preload")
    _, *tried = fleet.ask("one", *(word for path in ours for word in ("write", path)))
    assert {attempt["path"]: attempt["error"] for attempt in tried} == dict.fromkeys(ours, "EROFS")


def test_a_container_sees_its_own_pods_folder_and_no_other(fleet: Fleet) -> None:
    fleet.create(probe("one", limits={MEM: 2}, nodeSelector=HERE), probe("other", limits={MEM: 2}, nodeSelector=HERE))
    fleet.report("other")
    fleet.report("one")
    _, own, around, others = fleet.ask("one", "look", TENANT, "look", "/run/aliquot", "look", "/run/aliquot/t")
    assert sorted(own["names"]) == ["page", "sock"]
    assert sorted(around["names"]) == ["player", "tenant"]  # the first stands in for a driver
    assert others["error"] == "ENOENT"


def test_folders_of_pods_are_closed_to_ordinary_users_of_the_node(fleet: Fleet) -> None:
    fleet.create(probe("one", limits={MEM: 2}, nodeSelector=HERE))
    fleet.report("one")
    pod = probe("nosy", "look", "/tenants", nodeSelector=HERE)
    _mount(pod, tenants="/run/aliquot/t")
    pod["spec"]["securityContext"] = {"runAsUser": 1000}
    fleet.create(pod)
    assert fleet.line("nosy", "look")["error"] == "EACCES"


def test_a_pod_that_comes_to_anothers_socket_is_turned_away_by_its_cgroup(fleet: Fleet) -> None:
    """Even if an administrator of the node has mounted it there."""
    fleet.create(probe("victim", limits={MEM: 2}, nodeSelector=HERE))
    fleet.report("victim")
    uid = objects.get_pod(fleet.plane, "victim")["metadata"]["uid"]
    thief = probe("thief", "knock", "/victim/sock", limits={MEM: 2}, nodeSelector=HERE)
    _mount(thief, victim=f"/run/aliquot/t/{uid}")
    thief["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    fleet.create(thief)
    knocked = fleet.line("thief", "knock")
    assert (knocked["error"], knocked["kept"]) == (None, False)
    refused = r'"msg":"process_refused","tenant":"default/victim","pid":\d+,"why":"it belongs to tenant default/thief"'
    assert re.search(refused, fleet.agents["n1"].program.log)


def _mount(pod: dict[str, Any], **paths: str) -> None:
    """Folders of the node, each under its name."""
    (container,) = pod["spec"]["containers"]
    pod["spec"]["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in paths.items()]
    container["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in paths]


# Who is on a card and should not be


def _driver(folder: str) -> dict[str, str]:
    """What makes a program see the simulated cards, all of them."""
    return {
        "ALIQUOT_SIMGPU": PLAYER,
        "LD_LIBRARY_PATH": folder,
        "LD_PRELOAD": f"{folder}/libsimrm.so",
    }


def test_a_process_that_is_of_no_pod_shows_on_the_node(fleet: Fleet) -> None:
    stranger = fleet.nodes[0].run([programs()["probe"], "alloc", "1GiB"], environment=_driver(simulation()))
    try:
        message = fleet.wired.await_event(
            "n1", "GPUFinding", f"process {stranger.pid_there} ", "it belongs to no Pod", seconds=25
        )
        assert re.search(rf"card {CARD}: process \d+ uses the card without being a tenant", message)
    finally:
        stranger.kill()


def test_a_pod_on_a_card_that_it_was_not_given_gets_an_event(fleet: Fleet) -> None:
    """It has the driver by other ways than ours: it is privileged, say."""
    pod = probe("stranger", "alloc", "1GiB", nodeSelector=HERE)
    _mount(pod, driver=simulation(), run="/run/aliquot")
    (container,) = pod["spec"]["containers"]
    container["volumeMounts"][1]["mountPath"] = "/run/aliquot"
    container["env"] = [{"name": name, "value": value} for name, value in _driver("/driver").items()]
    fleet.create(pod)
    assert fleet.line("stranger", "alloc")["name"] == "CUDA_SUCCESS"
    uid = objects.get_pod(fleet.plane, "stranger")["metadata"]["uid"]
    fleet.wired.await_event("stranger", "GPUFinding", f"Pod {uid} was given no card here", seconds=10)


# The agent


@contextmanager
def _account(fleet: Fleet) -> Iterator[Path]:
    """A kubeconfig with the rights that are documented, and no others."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    metadata = {"name": "aliquot-agent"}
    kubeconfig = fleet.plane.kubeconfig_for("kube-system/aliquot-agent")
    subject = {"kind": "ServiceAccount", "name": "aliquot-agent", "namespace": "kube-system"}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "aliquot-agent"}
    fleet.plane.api("POST", f"{rbac}/clusterroles", {"metadata": metadata, "rules": _ROLE})
    binding = {"metadata": metadata, "roleRef": reference, "subjects": [subject]}
    fleet.plane.api("POST", f"{rbac}/clusterrolebindings", binding)
    try:
        with pytest.raises(Refused):
            fleet.plane.client_for(kubeconfig)("GET", "/api/v1/namespaces/kube-system/secrets")
        yield kubeconfig
    finally:
        for kind in ("clusterrolebindings", "clusterroles"):
            fleet.plane.api("DELETE", f"{rbac}/{kind}/aliquot-agent")


def test_an_agent_needs_no_capability_and_no_right_beyond_those_documented(fleet: Fleet) -> None:
    agent = fleet.agents["n1"]
    with _account(fleet) as kubeconfig:
        command = [word for word in agent.command if not word.startswith("--kubeconfig")]
        powerless = [sys.executable, "-c", _POWERLESS, *command, f"--kubeconfig={kubeconfig}"]
        with agent.instead(powerless):
            status = Path(f"/proc/{agent.program.pid}/status").read_text()
            assert re.findall(r"Cap(?:Prm|Eff|Bnd):\s*(\w+)", status) == ["0" * 16] * 3
            _lives(fleet, agent.node)
            fleet.tidy()
            assert "forbidden" not in agent.program.log.rpartition("agent_started")[2]


def _lives(fleet: Fleet, node: RealNode) -> None:
    """A Pod of root's and one of a user's have their cards and their quota; one without a grant is told."""
    fleet.create(probe("roots", "fill", limits={MEM: 3}, nodeSelector=HERE))
    fleet.create(restricted(probe("users", "fill", limits={QCORE: 20, QMEM: 4}, nodeSelector=HERE)))
    for name, gib in (("roots", 3), ("users", 4)):
        assert fleet.line(name, "filled")["bytes"] == pytest.approx(gib * GIB, rel=0.05)
    annotations = objects.get_pod(fleet.plane, "roots")["metadata"]["annotations"]
    assert annotations["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true"
    fleet.create(probe("past", limits={MEM: 1}, node=node.name))
    fleet.wired.await_event("past", "GPURefused", "aliquot granted no card to this Pod")
