"""What `aliquot apply` does with suspended Jobs, DaemonSets, CronJobs, gated Pods, and Pods that can never fit."""

from __future__ import annotations

import time
from typing import Any

import pytest

from aliquot.adapters.host.control import AnswerError
from kit.machines.machine import eventually
from kit.machines.machinepods import Json, Pods, container, pod, workload
from kit.values.manifests import MEM, QGPU_MEMORY, T9K_CARDS


def refused(pods: Pods, *objects: Json) -> Json:
    with pytest.raises(AnswerError) as caught:
        pods.apply(*objects)
    assert caught.value.kind == "invalid"
    return dict(caught.value.details)


# --- Pods that can never fit -----------------------------------------------------------------------------------------


def test_a_pod_that_never_fits_is_refused_and_nothing_of_the_file_starts(pods: Pods) -> None:
    details = refused(pods, pod("small"), pod("huge", container(gib=25)))
    assert details["field"] == f'Pod default/huge: spec.containers[0].resources.limits["{MEM}"]'
    assert details["value"] == 25
    assert details["allowed"] == (
        "this machine has 2 cards of 24 GiB; fits none of 1 node. 1 will not take it: GPU memory: needs 25 GiB per"
        " card, the largest card has 24 GiB (2 cards)"
    )
    assert pods.all() == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job"])
def test_a_workload_whose_pods_never_fit_is_refused(pods: Pods, kind: str) -> None:
    whole = {"name": "main", "command": ["sleep", "600"], "resources": {"limits": {T9K_CARDS: 3}}}
    details = refused(pods, workload(kind, "web", 1, whole))
    assert details["field"].startswith(f"{kind} default/web: spec.template.spec.containers[0].resources")


@pytest.mark.parametrize("key", ["nvidia.com/use-gputype", "nvidia.com/use-gpuuuid", "aliquot.dev/card-models"])
def test_a_choice_of_cards_that_are_not_here_is_refused_with_its_annotation(pods: Pods, key: str) -> None:
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
    manifest = pod("p", {"name": "main", "command": ["sleep", "600"], "resources": {"limits": limits}})
    manifest["metadata"]["annotations"] = {key: "A100"}
    details = refused(pods, manifest)
    assert (details["field"], details["value"]) == (f'Pod default/p: metadata.annotations["{key}"]', "A100")
    assert details["allowed"].startswith("this machine has Paper 1000 (GPU-0), Paper 1000 (GPU-1); ")
    assert "needs another model or UUID" in details["allowed"]


def test_a_pod_that_only_has_to_wait_is_accepted(pods: Pods) -> None:
    pods.apply(pod("first", container(gib=24)), pod("second", container(gib=24)), pod("third", container(gib=24)))
    pods.until("second")
    assert pods.one("third")["phase"] == "Pending"


def test_a_misspelled_resource_is_refused(pods: Pods) -> None:
    wrong = {"name": "main", "command": ["sleep", "600"], "resources": {"limits": {"aliyun.com/gpumem": 4}}}
    assert "did you mean aliyun.com/gpu-mem?" in refused(pods, pod("p", wrong))["allowed"]


def test_a_request_of_0_gets_no_card(pods: Pods) -> None:
    none = {"name": "main", "command": ["sleep", "600"], "resources": {"limits": {QGPU_MEMORY: 0}}}
    pods.apply(pod("p", none))
    assert pods.until("p")["cards"] == []


# --- held back -------------------------------------------------------------------------------------------------------


def test_a_pod_with_scheduling_gates_starts_when_they_are_gone(pods: Pods) -> None:
    pods.apply(pod("p", schedulingGates=[{"name": "example.com/quota"}]), pod("other"))
    pods.until("other")
    held = pods.one("p")
    assert (held["phase"], held["reason"]) == (
        "Pending",
        "is held back by its scheduling gates: example.com/quota",
    )
    pods.apply(pod("p"))
    assert pods.until("p")["reason"] is None


def test_a_suspended_job_starts_nothing_until_it_is_resumed(pods: Pods) -> None:
    job = workload("Job", "sums", 1, container("main", "sleep", "600"))
    pods.apply({**job, "spec": {**job["spec"], "suspend": True}}, pod("other"))
    pods.until("other")
    assert [found["name"] for found in pods.all()] == ["other"]
    assert [found["suspended"] for found in pods.machine.status()["workloads"]] == [True]
    pods.apply(job)
    (name,) = [found["name"] for found in pods.all() if found["name"] != "other"]
    pods.until(name)
    pods.apply({**job, "spec": {**job["spec"], "suspend": True}})
    eventually(lambda: [found["name"] for found in pods.all()] == ["other"])


def test_a_daemon_set_runs_one_pod(pods: Pods) -> None:
    pods.apply(workload("DaemonSet", "agent", 1))
    pods.until_all(["Running"])
    assert pods.delete("DaemonSet", "agent") != []


# --- CronJobs --------------------------------------------------------------------------------------------------------


def cron_job(name: str = "nightly", *command: str, **spec: Any) -> Json:
    template = workload("Job", name, 1, container("main", *command))["spec"]
    return {
        "kind": "CronJob",
        "metadata": {"name": name},
        "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": template}, **spec},
    }


def test_a_cron_job_whose_pods_never_fit_is_refused(pods: Pods) -> None:
    huge = cron_job()
    huge["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"] = [container(gib=25)]
    path = "spec.jobTemplate.spec.template.spec.containers[0]"
    assert refused(pods, huge)["field"].startswith(f"CronJob default/nightly: {path}")


def test_a_cron_job_runs_at_its_time_and_goes_with_its_jobs(pods: Pods) -> None:
    pods.apply(cron_job("often", "sleep", "600"), cron_job("held", "true", suspend=True))
    assert pods.all() == []
    deadline = time.monotonic() + 150
    while not (found := [pod for pod in pods.all() if pod["phase"] == "Running"]):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert found[0]["owner"]["kind"] == "Job"
    assert found[0]["owner"]["name"].startswith("often-")
    statuses = {entry["name"]: entry for entry in pods.machine.status()["workloads"] if entry["kind"] == "CronJob"}
    assert statuses["often"]["ready"] >= 1
    assert statuses["often"]["next_run"] > time.time() - 5
    assert found[0]["created"] - 60 < statuses["often"]["last_run"] <= found[0]["created"]
    shown = pods.ask("object", kind="CronJob", namespace="default", name="often")["object"]["status"]
    assert shown["active"][0]["name"] == found[0]["owner"]["name"]
    assert shown["lastScheduleTime"].endswith(":00Z")
    assert (statuses["held"]["suspended"], statuses["held"]["next_run"], statuses["held"]["replicas"]) == (
        True,
        None,
        0,
    )
    assert statuses["held"]["last_run"] is None
    pods.delete("CronJob", "often")
    assert pods.all() == []
    assert [entry["kind"] for entry in pods.machine.status()["workloads"]] == ["CronJob"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"schedule": "61 * * * *"}, "spec.schedule"),
        ({"schedule": None}, "spec.schedule"),
        ({"timeZone": "Mars/Olympus"}, "spec.timeZone"),
        ({"timeZone": 5}, "spec.timeZone"),
        ({"concurrencyPolicy": "Maybe"}, "spec.concurrencyPolicy"),
        ({"suspend": "yes"}, "spec.suspend"),
        ({"failedJobsHistoryLimit": -1}, "spec.failedJobsHistoryLimit"),
        ({"jobTemplate": {}}, "spec.jobTemplate"),
    ],
)
def test_a_broken_cron_job_is_refused(pods: Pods, change: dict[str, Any], field: str) -> None:
    assert refused(pods, cron_job(**change))["field"] == f"CronJob default/nightly: {field}"
