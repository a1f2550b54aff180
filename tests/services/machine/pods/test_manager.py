"""Pods on one machine: they run, wait and end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from aliquot.adapters.host.control import AnswerError
from kit.machines.machine import FOREVER, PATIENCE, eventually
from kit.machines.machinepods import Pods, container, pod, processes_of_pods, workload
from kit.values.manifests import APP_CLASS, MEM, QGPU_GREEDY, QGPU_MEMORY, T9K_NODE

NOBODY = 65534


def test_pod_environment_has_dialect_and_tenant_variables(pods: Pods) -> None:
    script = 'echo "$ALIYUN_COM_GPU_MEM_POD $NVIDIA_VISIBLE_DEVICES $CUDA_VISIBLE_DEVICES $ALIQUOT_NAME $WHO"; pwd'
    variables = [{"name": "ME", "value": "you"}, {"name": "WHO", "value": "$(ME) on $(NODE)$$(ME)"}]
    node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    pods.apply(pod("p", container("main", "sh", "-c", script, env=[node, *variables]), restartPolicy="Never"))
    found = pods.until("p", "Succeeded")
    assert pods.log("p") == f"4 GPU-0 GPU-0 default/p you on {found['node']}$(ME)\n{pods.machine.home}\n"
    assert (found["dialect"], found["class"], found["containers"][0]["exit_code"]) == ("gpushare", "normal", 0)


def test_pod_is_tenant_and_stop_refers_to_delete(pods: Pods) -> None:
    pods.apply(pod("p"))
    pods.until("p")
    assert pods.machine.names() == ["default/p"]
    assert pods.booked() == 4
    with pytest.raises(AnswerError, match="aliquot delete"):
        pods.ask("stop", name="default/p")


def test_apply_notes_ignored_fields(pods: Pods) -> None:
    results = pods.apply(pod("p", container(image="x:1", ports=[{"containerPort": 80}]), nodeSelector={"a": "b"}))
    assert results[0]["notes"] == [
        "image x:1 is not used: containers are local processes",
        "nodeSelector is ignored: nodes have no labels here",
        "ports are those of this machine: two containers cannot listen on the same port",
    ]


def test_apply_is_all_or_nothing(pods: Pods) -> None:
    bad = workload("StatefulSet", "web", 2, {"name": "main", "resources": {"limits": {MEM: "lots"}}})
    with pytest.raises(AnswerError) as refused:
        pods.apply(pod("good"), bad)
    assert refused.value.details["kind"] == "invalid"
    field = f'StatefulSet default/web: spec.template.spec.containers[0].resources.limits["{MEM}"]'
    assert (refused.value.details["field"], refused.value.details["value"]) == (field, "lots")
    assert pods.all() == []


def test_apply_dry_run_changes_nothing(pods: Pods) -> None:
    assert pods.apply(pod("p"), dry_run=True)[0]["action"] == "created"
    assert pods.all() == []


def test_apply_again_replaces_only_changed_pods(pods: Pods) -> None:
    pods.apply(pod("p"))
    before = pods.until("p")["uid"]
    assert pods.apply(pod("p"))[0]["action"] == "unchanged"
    assert pods.one("p")["uid"] == before
    assert pods.apply(pod("p", container(gib=5)))[0]["action"] == "configured"
    assert pods.until("p")["uid"] != before
    assert pods.booked() == 5


def test_pods_and_runs_wait_in_one_queue(pods: Pods) -> None:
    pods.apply(pod("a", container(gib=24)), pod("b", container(gib=24)))
    pods.until_all(["Running", "Running"])
    pods.apply(pod("c", container(gib=20)))
    eventually(lambda: pods.machine.status()["queue"])
    reason = pods.one("c")["reason"]
    assert reason.startswith("number 1 of 1 in the queue: fits none of 1 node. 1 is busy: GPU memory: needs 20 GiB")
    run = pods.machine.detach("--memory", "20", "--", *FOREVER)
    assert [entry["name"] for entry in pods.machine.status()["queue"]] == ["default/c", run]
    pods.delete("Pod", "a")
    pods.until("c")
    pods.ask("stop", name=run)


def test_pods_are_placed_in_manifest_and_ordinal_order(pods: Pods) -> None:
    whole = container(gib=24)
    pods.apply(workload("StatefulSet", "web", 2, whole), pod("p", whole), workload("StatefulSet", "db", 3, whole))
    waiting = ["default/p", "default/db-0", "default/db-1", "default/db-2"]
    assert eventually(
        lambda: len(there := pods.machine.status()["queue"]) == 4 and [entry["name"] for entry in there]
    ) == (waiting)
    assert sorted(pods.machine.names()) == ["default/web-0", "default/web-1"]


def test_job_with_container_restarts_fails_at_backoff_limit(pods: Pods) -> None:
    job = workload("Job", "sums", 1, container("main", "false"), backoffLimit=1)
    job["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    pods.apply(job)
    found = eventually(lambda: [found for found in pods.all() if found["phase"] == "Failed"])[0]
    assert found["containers"][0]["restarts"] == 1
    assert found["reason"] == "container main: exited with code 1; the Job reached its backoffLimit (1)"
    assert len(pods.all()) == 1


def test_status_has_labels_of_pods_and_workloads(pods: Pods) -> None:
    labelled = pod("p")
    labelled["metadata"]["labels"] = {"app": "web", "long": "x" * 64}
    pods.apply(labelled)
    assert pods.one("p")["labels"] == {"app": "web"}


def test_missing_command_is_reason_while_restarting(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "no-such-program")))
    found = eventually(lambda: [found for found in pods.all() if found["containers"][0]["restarts"]])[0]
    assert found["reason"] == "container main: no-such-program: command not found on this machine"


def test_pod_without_cards_sees_no_card(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "sh", "-c", "echo :$CUDA_VISIBLE_DEVICES:", gib=None), restartPolicy="Never"))
    pods.until("p", "Succeeded")
    assert pods.log("p") == "::\n"
    assert pods.machine.names() == []


def test_pod_init_containers_run_first(pods: Pods) -> None:
    first = container("first", "sh", "-c", "sleep 0.2; echo 1 >> order", gib=None)
    second = container("second", "sh", "-c", "echo 2 >> order", gib=None)
    main = container("main", "sh", "-c", "echo 3 >> order; cat order")
    pods.apply({**pod("p", main, restartPolicy="Never"), "spec": {
        "containers": [main], "initContainers": [first, second], "restartPolicy": "Never"}})  # fmt: skip
    pods.until("p", "Succeeded")
    assert pods.log("p") == "1\n2\n3\n"


def test_container_restarts_are_counted(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "sh", "-c", "echo once more; exit 3")))
    found = eventually(lambda: [found for found in pods.all() if found["containers"][0]["restarts"] >= 2])[0]
    assert found["reason"].startswith("container main: exited with code 3; restarts in")
    assert pods.log("p").count("once more") >= 2


def test_missing_command_fails_pod_with_reason(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "no-such-program"), restartPolicy="Never"))
    found = pods.until("p", "Failed")
    assert found["reason"] == "container main: no-such-program: command not found on this machine"
    assert found["containers"][0]["exit_code"] == 127


def test_script_as_program_name_is_shortened_in_reason(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "x" * 100_000), restartPolicy="Never"))
    assert pods.until("p", "Failed")["reason"].startswith("container main: xxx")


def test_apply_of_shown_pod_is_unchanged(pods: Pods) -> None:
    pods.apply(pod("p"))
    before = pods.until("p")["uid"]
    assert pods.apply(pods.ask("object", kind="Pod", name="p")["object"])[0]["action"] == "unchanged"
    assert pods.one("p")["uid"] == before


def test_waiting_pods_are_scaled_changed_and_deleted(pods: Pods) -> None:
    pods.apply(pod("a", container(gib=24)), pod("b", container(gib=24)))
    pods.until_all(["Running", "Running"])
    pods.apply(workload("StatefulSet", "web", 3))
    eventually(lambda: len(pods.machine.status()["queue"]) == 3)
    pods.apply(workload("StatefulSet", "web", 1))
    eventually(lambda: [entry["name"] for entry in pods.machine.status()["queue"]] == ["default/web-0"])
    before = pods.one("web-0")["uid"]
    pods.apply(workload("StatefulSet", "web", 1, container(gib=5)))
    eventually(lambda: (there := pods.all()) and len(there) == 3 and there[-1]["uid"] != before)
    eventually(lambda: [entry["name"] for entry in pods.machine.status()["queue"]] == ["default/web-0"])
    pods.delete("Pod", "a")
    pods.until("web-0")
    assert pods.booked() == 29


def test_delete_sends_sigterm_then_sigkill(pods: Pods) -> None:
    polite = container("polite", "sh", "-c", "trap 'echo bye > goodbye; exit 0' TERM; sleep 600 & wait", gib=None)
    deaf = container("deaf", "sh", "-c", "trap '' TERM; (setsid sleep 600 &) ; while :; do sleep 1; done")
    pods.apply(pod("p", polite, deaf))
    pods.until("p")
    eventually(lambda: len(processes_of_pods(str(pods.machine.home))) >= 5)
    assert pods.delete("Pod", "p", grace=0.5) == ["default/p"]
    assert (pods.machine.home / "goodbye").read_text() == "bye\n"
    pods.check_clear()


def test_killed_supervisor_fails_its_pod(pods: Pods) -> None:
    pods.apply(pod("p", container("main", "sh", "-c", "(setsid sleep 600 &) ; sleep 600")))
    pods.until("p")
    (keeper,) = [tenant["pid"] for tenant in pods.machine.status()["tenants"]]
    os.kill(keeper, signal.SIGKILL)
    found = pods.until("p", "Failed")
    assert found["reason"] == "its supervisor was killed"
    eventually(lambda: pods.booked() == 0)
    assert processes_of_pods(str(pods.machine.home)) == set()


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
def test_workload_replaces_ended_and_deleted_pods(pods: Pods, kind: str) -> None:
    results = pods.apply(workload(kind, "web", 2))
    assert len(results[0]["pods"]) == 2
    first, second = pods.until_all(["Running", "Running"])
    os.kill(next(tenant["pid"] for tenant in pods.machine.status()["tenants"] if tenant["name"] == first["key"]), 9)
    pods.delete("Pod", second["name"])
    before = {first["uid"], second["uid"]}

    def replaced() -> bool:
        there = pods.all()
        return [item["phase"] for item in there] == ["Running"] * 2 and not before & {item["uid"] for item in there}

    eventually(replaced)
    assert pods.machine.status()["workloads"][0]["ready"] == 2
    if kind == "StatefulSet":
        assert {item["name"] for item in pods.all()} == {"web-0", "web-1"}


def test_workload_scales_and_rolls_template(pods: Pods) -> None:
    pods.apply(workload("StatefulSet", "web", 3))
    kept = pods.until_all(["Running"] * 3)[0]["uid"]
    assert pods.apply(workload("StatefulSet", "web", 1))[0]["action"] == "configured"
    eventually(lambda: [item["name"] for item in pods.all()] == ["web-0"])
    assert pods.one("web-0")["uid"] == kept
    pods.apply(workload("StatefulSet", "web", 1, container(gib=7)))
    eventually(lambda: (there := pods.all()) and there[0]["uid"] != kept and pods.booked() == 7)
    assert pods.delete("StatefulSet", "web") == ["default/web-0"]


def test_job_creates_pods_until_completions(pods: Pods) -> None:
    pods.apply(workload("Job", "sums", 2, container("main", "true"), completions=3))
    eventually(lambda: [item["phase"] for item in pods.all()] == ["Succeeded"] * 3)
    assert pods.machine.status()["workloads"][0]["ready"] == 3
    assert pods.ask("object", kind="Job", name="sums")["object"]["status"] == {
        "active": 0,
        "succeeded": 3,
        "failed": 0,
        "conditions": [{"type": "Complete", "status": "True"}],
    }


def test_apply_refuses_changed_job_template(pods: Pods) -> None:
    """As on Kubernetes: that it would not run again should not go unsaid."""
    pods.apply(workload("Job", "sums", 1, container("main", "true")))
    pods.until_all(["Succeeded"])
    with pytest.raises(AnswerError) as refused:
        pods.apply(workload("Job", "sums", 1, container("main", "echo")))
    assert refused.value.details["field"] == "Job default/sums: spec.template"


def test_job_stops_after_too_many_failures(pods: Pods) -> None:
    pods.apply(workload("Job", "sums", 1, container("main", "false"), backoffLimit=1))
    eventually(lambda: [item["phase"] for item in pods.all()] == ["Failed"])
    assert pods.machine.status()["workloads"][0]["phase"] in ("Pending", "Running")  # it is tried again
    eventually(lambda: [item["phase"] for item in pods.all()] == ["Failed"] * 2)
    assert pods.machine.status()["workloads"][0]["phase"] == "Failed"
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    assert pods.ask("object", kind="Job", name="sums")["object"]["status"]["conditions"] == [failed]


def test_offline_qgpu_pod_is_offline_tenant(pods: Pods) -> None:
    limits = {QGPU_GREEDY: 30, QGPU_MEMORY: 4}
    main = {"name": "main", "command": list(FOREVER), "resources": {"limits": limits}}
    asked = pod("p", main)
    asked["metadata"]["annotations"] = {APP_CLASS: "offline"}
    pods.apply(asked)
    found = pods.until("p")
    assert (found["dialect"], found["class"], found["cards"][0]["core"]) == ("qgpu", "offline", 30)


def test_whole_node_pod_gets_all_cards(pods: Pods) -> None:
    main = {"name": "main", "command": list(FOREVER), "resources": {"limits": {T9K_NODE: 1}}}
    pods.apply(pod("p", main))
    assert [card["exclusive"] for card in pods.until("p")["cards"]] == [True, True]
    pods.apply(pod("q"))
    eventually(lambda: "another Pod has the whole node" in (pods.one("q")["reason"] or ""))


def test_object_is_shown_like_kubernetes(pods: Pods) -> None:
    pods.apply(pod("p"))
    pods.until("p")
    found = pods.ask("object", kind="Pod", name="p")["object"]
    assert found["status"]["phase"] == "Running"
    assert list(found["status"]["containerStatuses"][0]["state"]) == ["running"]
    with pytest.raises(AnswerError) as refused:
        pods.ask("object", kind="Pod", name="other")
    assert (refused.value.kind, refused.value.details["names"]) == ("unknown-name", ["default/p"])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_users_cannot_change_objects_of_others(pods: Pods) -> None:
    pods.apply(pod("roots", container(env=[{"name": "KEY", "value": "secret"}])))
    script = f"""
import json, os, sys
from aliquot.adapters.host.control import AnswerError, ask
from aliquot.adapters.host.home import Home
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); os.chdir("/")
for request in json.loads(sys.argv[2]):
    try:
        print(json.dumps(ask([Home(sys.argv[1], sys.argv[1])], request, {PATIENCE})))
    except AnswerError as error:
        print(error.kind)
"""
    mine = pod("mine", container("main", "sh", "-c", "id -u; exec sleep 600"))
    requests = [
        {"op": "apply", "objects": [mine], "cwd": "/", "env": {"PATH": "/usr/bin:/bin"}},
        {"op": "delete", "kind": "Pod", "name": "roots", "grace": 0},
        {"op": "apply", "objects": [pod("roots", container(gib=1))], "cwd": "/", "env": {}},
        {"op": "object", "kind": "Pod", "name": "roots"},
    ]
    words = [sys.executable, "-c", script, str(pods.machine.home), json.dumps(requests)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    lines = result.stdout.splitlines()
    assert lines[1:3] == ["denied", "denied"], result.stderr
    assert json.loads(lines[3])["object"]["spec"]["containers"][0]["env"] == [{"name": "KEY", "value": "(hidden)"}]
    assert pods.until("mine")["user"] == NOBODY
    eventually(lambda: pods.log("mine") == f"{NOBODY}\n")
    assert pods.one("roots")["cards"][0]["memory_limit_bytes"] == 4 << 30
