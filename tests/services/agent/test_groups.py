"""Pods of a group on a node, with the stand-in for nvidia-cuda-mps-control: who is in one group, what its containers
get, and when its control starts and ends."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.adapters.gpu import mpslauncher, player
from aliquot.adapters.gpu.mps import CONTROL, Mps, preloaded, too_long
from aliquot.adapters.host.process import processes
from aliquot.dialects.wire.objects import NodeObject
from aliquot.model.tenancy import Tenancy
from aliquot.services.agent.devices.plugins import Refused
from kit.agents.agentnode import AgentNode
from kit.agents.grantedpods import NODE, Json, a_qgpu_pod

USER = 65533  # not root, and nobody on any machine


class Rig:
    """A node whose agent runs groups, and their controls."""

    def __init__(self, node: AgentNode, folder: Path) -> None:
        self.node, self.folder = node, folder / "g"
        folder.chmod(0o755)
        programs = folder / "programs"  # every user can execute them
        programs.mkdir(mode=0o755)
        shutil.copy(Path(player.simulation()) / CONTROL, programs)
        self.mps = Mps({"ALIQUOT_SIMGPU": str(folder)}, {"LD_PRELOAD": []}, str(programs))
        node.together, node.mps = True, (self.folder, self.mps)
        self.restart()

    def restart(self) -> None:
        self.node.restart()

    def member(self, name: str, group: str = "team", *, namespace: str = "ml", user: int = USER, **more: Any) -> Json:
        pod = a_qgpu_pod(name, **{"gib": 2, **more})
        pod["metadata"]["namespace"] = namespace
        pod["metadata"]["annotations"]["aliquot.dev/together"] = group
        pod["spec"]["securityContext"] = {"runAsUser": user}
        return pod

    def tenancy(self, pod: Json) -> Tenancy:
        return self.node.tenants.tenancies[pod["metadata"]["uid"]]

    def control(self, pod: Json) -> tuple[int, int] | None:
        return self.mps.running(self.folder / self.tenancy(pod).group_id)

    def quota(self, pod: Json) -> int | None:
        self.node.agent.groups.settle()
        return self.node.arbiter.tenants[self.tenancy(pod).group_id].allotments[0].quota_milli

    def deleted(self, pod: Json) -> None:
        self.node.deleted(pod)
        self.node.agent.groups.settle()

    def close(self) -> None:
        for entry in self.folder.glob("*.json"):
            self.mps.stop(entry.with_suffix(""))


@pytest.fixture
def rig(agent_node: AgentNode) -> Iterator[Rig]:
    if not os.path.exists(player.shim()):
        pytest.skip("the libraries are not built")
    with tempfile.TemporaryDirectory(prefix="alq") as folder:
        made = Rig(agent_node, Path(folder))
        yield made
        made.close()


def test_members_get_the_pipes_of_one_control_and_their_own_tenancies(rig: Rig) -> None:
    pods = [rig.member("a"), rig.member("b")]
    seen = [rig.node.run(pod)["main"] for pod in pods]
    pipes = {one.env["CUDA_MPS_PIPE_DIRECTORY"] for one in seen}
    assert pipes == {f"{rig.folder}/{rig.tenancy(pods[0]).group_id}/p"}
    assert {one.mounts[pipes.copy().pop()] for one in seen} == pipes, "at the same path as on the host"
    assert {one.mounts["/dev/shm"] for one in seen} == {f"{rig.folder}/{rig.tenancy(pods[0]).group_id}/s"}
    assert len({one.mounts["/run/aliquot/tenant"] for one in seen}) == 2
    assert all("CUDA_MPS_LOG_DIRECTORY" not in one.env for one in seen)
    group = rig.node.arbiter.tenants[rig.tenancy(pods[0]).group_id]
    assert (group.is_group, group.root) == (True, (rig.control(pods[0]) or (None,))[0])
    if os.geteuid() == 0:
        assert processes.uid_of(group.root or 0) == USER


def test_pod_in_no_group_gets_none_of_it(rig: Rig) -> None:
    seen = rig.node.run(a_qgpu_pod())["main"]
    assert "CUDA_MPS_PIPE_DIRECTORY" not in seen.env
    assert "/dev/shm" not in seen.mounts


def test_only_a_group_has_the_user(rig: Rig) -> None:
    """Containers of a member may run as others, and processes of another user than a tenant's are spared."""
    rig.node.run(pod := rig.member("a"))
    rig.restart()
    tenants = rig.node.arbiter.tenants
    assert (tenants[pod["metadata"]["uid"]].uid, tenants[rig.tenancy(pod).group_id].uid) == (None, USER)


def test_group_of_another_namespace_that_has_its_id_is_not_joined(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.node.run(pod := rig.member("a"))
    assert len(rig.tenancy(pod).group_id) == 32
    assert too_long(Path("/run/aliquot/g") / rig.tenancy(pod).group_id) == 0
    monkeypatch.setattr(Tenancy, "group_id", property(lambda tenancy: "0" * 32))
    with pytest.raises(Refused, match="group b/other/normal has the id of another owner's group: give it another name"):
        rig.node.run(rig.member("b", "other", namespace="b"))


def test_user_that_is_an_account_of_the_node_is_refused(rig: Rig) -> None:
    rig.node.run(known := rig.member("a"))
    rig.node.agent.groups.account_of = {USER: "alice"}.get
    with pytest.raises(Refused, match=f"runAsUser {USER} is the account alice of this node, .* 70000"):
        rig.node.run(rig.member("b"))
    rig.node.started(known)


@pytest.mark.parametrize("other", [{"group": "b"}, {"namespace": "b"}, {"user": USER - 1}, {"card": 1}])
def test_another_name_namespace_user_or_card_has_a_control_of_its_own(rig: Rig, other: dict[str, Any]) -> None:
    pods = [rig.member("a"), rig.member("b", **other)]
    for pod in pods:
        rig.node.run(pod)
    controls = {rig.control(pod) for pod in pods}
    assert len(controls) == 2
    assert None not in controls


def test_group_has_the_sum_of_its_members_quotas(rig: Rig) -> None:
    pods = [rig.member("a", core=30), rig.member("b", core=40)]
    for pod in pods:
        rig.node.run(pod)
    assert rig.quota(pods[0]) == 700
    rig.deleted(pods[1])
    assert rig.quota(pods[0]) == 300


def test_control_outlives_the_agent_and_ends_with_the_last_member(rig: Rig) -> None:
    pods = [rig.member("a"), rig.member("b")]
    for pod in pods:
        rig.node.run(pod)
    control = rig.control(pods[0])
    assert control is not None
    rig.restart()
    assert rig.control(pods[0]) == control
    assert rig.node.arbiter.tenants[rig.tenancy(pods[0]).group_id].root == control[0]
    assert rig.tenancy(pods[0]).user == USER
    rig.deleted(pods[0])
    assert rig.control(pods[1]) == control
    rig.deleted(pods[1])
    assert not processes.lives(*control)
    assert list(rig.folder.iterdir()) == []


def test_group_whose_members_ended_while_no_agent_ran_is_ended_by_the_next(rig: Rig) -> None:
    rig.node.run(pod := rig.member("a"))
    control = rig.control(pod)
    assert control is not None
    rig.node.deleted(pod, quietly=True)
    rig.restart()
    rig.node.agent.groups.settle()
    assert not processes.lives(*control)


def test_control_that_no_member_is_left_of_is_ended_by_the_next_agent(rig: Rig) -> None:
    """The agent was killed between the start of the control and the write of its first member."""
    (rig.folder).mkdir(mode=0o711, exist_ok=True)
    folder = rig.folder / "0123456789"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, USER, -1)
    control = rig.mps.start(folder, USER, [])
    rig.restart()
    assert not processes.lives(*control)
    assert not folder.exists()


def test_control_that_died_is_replaced_when_a_member_s_container_restarts(rig: Rig) -> None:
    rig.node.run(pod := rig.member("a"))
    control = rig.control(pod)
    assert control is not None
    os.kill(control[0], signal.SIGKILL)
    _until(lambda: rig.control(pod) is None)
    rig.node.started(pod)
    replaced = rig.control(pod)
    assert replaced is not None
    assert replaced != control
    rig.node.agent.groups.settle()
    assert rig.node.arbiter.tenants[rig.tenancy(pod).group_id].root == replaced[0]


def test_member_is_refused_with_the_chart_value_where_it_is_off(rig: Rig) -> None:
    rig.node.run(known := rig.member("a"))
    rig.node.together = False
    rig.restart()
    assert rig.node.started(known).env["CUDA_MPS_PIPE_DIRECTORY"], "what runs goes on"
    with pytest.raises(Refused, match=r"agent\.together\.enabled=true .*\(aliquot:together\)"):
        rig.node.run(rig.member("b"))


def test_tenant_of_no_group_cannot_join_one_by_its_annotation_where_it_is_off(rig: Rig) -> None:
    rig.node.together = False
    rig.restart()
    pod = rig.member("a")
    del pod["metadata"]["annotations"]["aliquot.dev/together"]
    rig.node.run(pod)
    pod["metadata"]["annotations"]["aliquot.dev/together"] = "team"
    rig.node.bound(pod)
    with pytest.raises(Refused, match="aliquot:together"):
        rig.node.started(pod)


def test_node_says_whether_its_agent_runs_groups(rig: Rig) -> None:
    assert _says(rig) == "true"
    rig.node.cdi = None
    rig.restart()
    assert _says(rig) == "false", "not before its runtime is known to have CDI"
    runtime = {"containerRuntimeVersion": "containerd://2.1.0", "kubeletVersion": "v1.34.0"}
    node = {"metadata": {"name": NODE}, "status": {"nodeInfo": runtime}}
    rig.node.agent.reporter.changed(msgspec.convert(node, NodeObject))
    assert _says(rig) == "true"
    rig.node.cdi, rig.node.mps = True, (rig.folder, Mps({}, {}, "/nonexistent"))
    rig.restart()
    assert _says(rig) == "false"


def test_member_whose_control_cannot_start_is_refused_and_leaves_nothing(rig: Rig) -> None:
    rig.node.mps = (rig.folder, Mps({}, {}, "/nonexistent"))
    rig.restart()
    rig.node.agent.groups.serves = True
    with pytest.raises(Refused, match=f"cannot start the Pod's group: {CONTROL} is not installed"):
        rig.node.run(rig.member("a"))
    rig.node.agent.groups.settle()
    assert rig.node.tenants.tenancies == {}
    assert not any(tenant.is_group for tenant in rig.node.arbiter.tenants.values())


def test_member_without_cdi_is_refused_with_what_to_do(rig: Rig) -> None:
    rig.node.cdi = False
    rig.restart()
    with pytest.raises(Refused, match="needs it: enable CDI"):
        rig.node.run(rig.member("a"))
    assert list(rig.folder.glob("*")) == [], "no control was started for it"


def test_groups_go_on_where_the_database_was_lost(rig: Rig) -> None:
    rig.node.run(pod := rig.member("a"))
    control = rig.control(pod)
    assert control is not None
    rig.node.store.remove(pod["metadata"]["uid"])
    rig.restart()
    assert rig.control(pod) == control
    assert rig.node.arbiter.tenants[rig.tenancy(pod).group_id].root == control[0]


def test_libraries_of_a_control_are_known_as_long_as_it_runs(rig: Rig) -> None:
    mps = Mps(rig.mps.environment, {"LD_PRELOAD": []}, rig.mps.simulation)
    rig.node.run(pod := rig.member("a"))
    assert preloaded(rig.folder) == set()
    record = rig.folder / f"{rig.tenancy(pod).group_id}.json"
    record.write_text(record.read_text().replace('"preload": []', '"preload": ["/lib/1/libaliquot.so"]'))
    assert preloaded(rig.folder) == {Path("/lib/1/libaliquot.so")}
    assert mps.running(rig.folder / rig.tenancy(pod).group_id) is not None


def test_control_of_pods_has_the_group_s_shared_memory_and_user_and_leaves_the_agent_s_cgroup(rig: Rig) -> None:
    if os.geteuid() != 0 or os.system("unshare -m true 2>/dev/null") != 0:
        pytest.skip("needs root that may mount")
    mps = Mps(rig.mps.environment, {}, rig.mps.simulation, of_pods=True)
    rig.node.mps = (rig.folder, mps)
    rig.restart()
    rig.node.run(pod := rig.member("a"))
    control = rig.control(pod)
    assert control is not None
    group = (rig.folder / rig.tenancy(pod).group_id).stat()
    assert (group.st_uid, group.st_mode & 0o7777) == (0, 0o711), "its user cannot put a link there, which root mounts"
    inside = Path(f"/proc/{control[0]}/root/dev/shm")
    assert inside.stat().st_ino == (rig.folder / rig.tenancy(pod).group_id / "s").stat().st_ino
    assert Path("/dev/shm").stat().st_ino != inside.stat().st_ino
    assert (inside.stat().st_uid, processes.uid_of(control[0])) == (USER, USER)
    if os.access("/sys/fs/cgroup/cgroup.procs", os.W_OK):
        assert Path(f"/proc/{control[0]}/cgroup").read_text().strip().endswith(Path(mpslauncher.CGROUP).name)
    rig.deleted(pod)
    assert not processes.lives(*control)


def _says(rig: Rig) -> str:
    rig.node.agent.reporter.publish((), here=True)
    return rig.node.agent.reporter._inventory["aliquot.dev/together"]


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
