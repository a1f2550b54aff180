"""The ground the other tests stand on: what is checked here is Kubernetes, and that the testbed is a real one."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testbed import objects
from testbed.build import VERSION
from testbed.client import Refused
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import Program, wait_until

CARDS = "example.com/cards"


def test_control_plane_version_matches_go_mod(plane: ControlPlane) -> None:
    assert plane.api("GET", "/version")["gitVersion"] == VERSION
    assert VERSION in plane.kubectl("version")


def test_a_plain_kube_scheduler_binds_a_pod_to_a_node_made_by_hand(
    clean: ControlPlane, kube_scheduler: Callable[..., KubeScheduler]
) -> None:
    kube_scheduler()
    objects.create(clean, objects.node("with", {CARDS: 8}), objects.node("without"), objects.pod("p", {CARDS: 2}))
    assert objects.wait_bound(clean, "p") == {"p": "with"}


def test_a_pod_that_fits_nowhere_waits_and_fits_once_the_node_has_more(
    clean: ControlPlane, kube_scheduler: Callable[..., KubeScheduler]
) -> None:
    kube_scheduler()
    objects.create(clean, objects.node("n", {CARDS: 1}), objects.pod("p", {CARDS: 2}))
    event_texts = wait_until(lambda: objects.events_of(clean, "p"), 10, "an event on p")
    assert event_texts[0][0] == "FailedScheduling"
    objects.set_resources(clean, "n", {CARDS: 2})
    assert objects.wait_bound(clean, "p") == {"p": "n"}


def test_failed_wait_names_pod_and_its_events(
    clean: ControlPlane, kube_scheduler: Callable[..., KubeScheduler]
) -> None:
    kube_scheduler()
    objects.create(clean, objects.node("n"), objects.pod("p", {CARDS: 1}))
    wait_until(lambda: objects.events_of(clean, "p"), 10, "an event on p")
    with pytest.raises(TimeoutError, match=r"1 Pods bound; last seen: .*'p'.*Insufficient example\.com/cards"):
        objects.wait_bound(clean, "p", seconds=0)


def test_the_annotations_of_a_binding_land_on_the_pod_in_the_same_write(clean: ControlPlane) -> None:
    (made,) = objects.create(clean, objects.node("n"), objects.pod("p", annotations={"kept": "yes"}))[1:]
    pods = "/api/v1/namespaces/default/pods"
    with clean.api.watch(pods, resourceVersion=made["metadata"]["resourceVersion"], timeout=10) as events:
        clean.api("POST", f"{pods}/p/binding", _binding("p", "n", uid=made["metadata"]["uid"], note="carried"))
        first = next(events)["object"]
    assert first["spec"]["nodeName"] == "n"
    assert first["metadata"]["annotations"] == {"kept": "yes", "note": "carried"}


def test_a_second_binding_and_one_of_another_uid_are_conflicts_that_change_nothing(clean: ControlPlane) -> None:
    objects.create(clean, objects.node("n"), objects.node("m"), objects.pod("p"))
    with pytest.raises(Refused) as other_uid:
        clean.api("POST", "/api/v1/namespaces/default/pods/p/binding", _binding("p", "n", uid="another", note="x"))
    assert other_uid.value.status == 409
    clean.api("POST", "/api/v1/namespaces/default/pods/p/binding", _binding("p", "n", note="first"))
    with pytest.raises(Refused) as second:
        clean.api("POST", "/api/v1/namespaces/default/pods/p/binding", _binding("p", "m", note="second"))
    assert second.value.status == 409
    found = objects.get_pod(clean, "p")
    assert (found["spec"]["nodeName"], found["metadata"]["annotations"]) == ("n", {"note": "first"})


def test_after_a_compaction_a_watch_and_a_list_from_before_are_gone(clean: ControlPlane) -> None:
    objects.create(clean, objects.node("n"))
    old = clean.api("GET", "/api/v1/nodes")["metadata"]["resourceVersion"]
    oldest = clean.compact()
    assert int(old) < oldest
    with clean.api.watch("/api/v1/nodes", resourceVersion=old, timeout=10) as events:
        answer = next(events)
    assert (answer["type"], answer["object"]["code"], answer["object"]["reason"]) == ("ERROR", 410, "Expired")
    exact = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
    with pytest.raises(Refused) as refused:
        clean.api("GET", "/api/v1/nodes", params=exact)
    assert (refused.value.status, refused.value.reason) == (410, "Expired")
    assert objects.get_node(clean, "n")["metadata"]["name"] == "n"  # what is, is still there


@pytest.mark.parametrize("kill", [False, True])
def test_a_restarted_api_server_has_its_data_and_its_url(clean: ControlPlane, kill: bool) -> None:
    (made,) = objects.create(clean, objects.node("n", {CARDS: 8}))
    clean.stop_apiserver(kill=kill)
    with pytest.raises(ConnectionRefusedError):
        objects.get_node(clean, "n")
    clean.start_apiserver()
    assert objects.get_node(clean, "n")["metadata"]["uid"] == made["metadata"]["uid"]
    assert "n" in clean.kubectl("get", "nodes", "-o", "name")


def test_a_service_account_may_do_what_its_role_says_and_nothing_else(clean: ControlPlane) -> None:
    objects.create(clean, objects.node("n"))
    reader = clean.kubeconfig_for("default/reader")
    api = clean.client_for(reader)
    with pytest.raises(Refused, match="403") as refused:
        api("GET", "/api/v1/nodes")
    assert refused.value.status == 403
    clean.kubectl("create", "clusterrole", "reads-nodes", "--verb=get,list", "--resource=nodes")
    clean.kubectl(
        "create", "clusterrolebinding", "reader", "--clusterrole=reads-nodes", "--serviceaccount=default:reader"
    )
    try:
        seen = wait_until(lambda: _or_none(lambda: api("GET", "/api/v1/nodes")), 10, "the role holds")
        assert [node["metadata"]["name"] for node in seen["items"]] == ["n"]
        assert "forbidden" in clean.kubectl("delete", "node", "n", check=False, kubeconfig=reader).lower()
    finally:
        clean.kubectl("delete", "clusterrolebinding/reader", "clusterrole/reads-nodes")


def test_a_user_has_the_groups_it_was_given(clean: ControlPlane) -> None:
    viewer = clean.client_for(clean.kubeconfig_for(user="jo", groups=["team-a", "team-b"]))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    who = viewer("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", review)["status"]["userInfo"]
    assert who["username"] == "jo"
    assert {"team-a", "team-b"} <= set(who["groups"])
    with pytest.raises(Refused, match="forbidden"):
        viewer("GET", "/api/v1/nodes")


def test_a_thousand_nodes_of_real_size_are_made_and_removed_within_seconds(clean: ControlPlane) -> None:
    began = time.monotonic()
    objects.create_many(clean, map(objects.fat, objects.nodes(1000, {CARDS: 8})))
    found = clean.api("GET", "/api/v1/nodes")["items"]
    assert len(found) == 1000
    assert found[0]["status"]["allocatable"][CARDS] == "8"
    objects.remove_all(clean)
    assert clean.api("GET", "/api/v1/nodes")["items"] == []
    assert time.monotonic() - began < 60


def test_what_a_test_made_is_gone_for_the_next_one(clean: ControlPlane) -> None:
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "ours"}, "spec": {}}
    clean.api("POST", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", lease)
    objects.create(clean, objects.node("n"), objects.pod("p", node="n", terminationGracePeriodSeconds=600))
    objects.create(clean, {"kind": "Secret", "metadata": {"name": "s", "namespace": "kube-system"}})
    objects.remove_all(clean)
    left = clean.kubectl("get", "nodes,pods,secrets,leases", "--all-namespaces", "-o", "name").split()
    assert [name for name in left if "/apiserver-" not in name] == []


def test_testbed_programs_end_with_the_test_run(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from testbed.processes import Program\n"
        f"program = Program(['sleep', '600'], Path({str(tmp_path / 'log')!r}))\n"
        "print(program.pid, flush=True); time.sleep(600)\n"
    )
    tests = str(Path(__file__).parent.parent)
    run = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env={"PYTHONPATH": tests}, text=True)
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    run.stdout.close()
    assert _alive(pid)
    run.kill()
    run.wait()
    wait_until(lambda: not _alive(pid), 10, f"process {pid} is gone")


def test_testbed_program_that_exits_is_reported_with_output(tmp_path: Path) -> None:
    program = Program(["sh", "-c", "echo no such flag; exit 3"], tmp_path / "log", name="it")
    with pytest.raises(RuntimeError, match="it ended with exit code 3:\nno such flag"):
        program.wait_ready(lambda: False, 10)


def _binding(pod: str, node: str, *, uid: str | None = None, **annotations: str) -> dict[str, Any]:
    metadata = {"name": pod, "annotations": annotations} | ({"uid": uid} if uid else {})
    return {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": {"kind": "Node", "name": node}}


def _or_none(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Refused:
        return None


def _alive(pid: int) -> bool:
    """Also not as a zombie: its parent may have ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
