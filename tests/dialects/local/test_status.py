"""Local Pods as Kubernetes shows them."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.local.status import render_pod, render_workload, without_values
from aliquot.model.containers.localpod import Applier, ContainerState, LocalPod, Phase, PodState, Workload

SOMEBODY = Applier(1000, 1000, "/", {})
MANIFEST: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}


def a_pod(*containers: ContainerState, **state: Any) -> LocalPod:
    state = {"containers": containers, **state}
    return LocalPod("u", "default", "p", None, MANIFEST, "", SOMEBODY, 7.0, PodState(**state))


def rendered(pod: LocalPod, reason: str | None = None) -> Any:
    return render_pod(pod, MANIFEST, reason, lambda seconds: f"at {seconds:g}")


@pytest.mark.parametrize(
    ("state", "shown", "ready"),
    [
        ({"state": "running", "started": 8.0}, {"running": {"startedAt": "at 8"}}, True),
        ({"restarts": 0}, {"waiting": {"reason": "ContainerCreating"}}, False),
        ({"restarts": 1, "reason": "x"}, {"waiting": {"reason": "CrashLoopBackOff", "message": "x"}}, False),
    ],
)
def test_container_shows_whether_it_runs_or_why_it_waits(state: Any, shown: Any, ready: bool) -> None:
    (container,) = rendered(a_pod(ContainerState("c", "i", (), "", **state)))["status"]["containerStatuses"]
    assert (container["state"], container["ready"]) == (shown, ready)


@pytest.mark.parametrize(("code", "reason"), [(0, "Completed"), (1, "Error"), (-9, "Error")])
def test_container_shows_how_it_ended(code: int, reason: str) -> None:
    ended = [ContainerState("c", "i", (), "", init, "ended", code, 0, 8.0, 9.0) for init in (True, False)]
    status = rendered(a_pod(*ended))["status"]
    terminated = {"exitCode": code, "startedAt": "at 8", "finishedAt": "at 9", "reason": reason}
    for key, ready in (("initContainerStatuses", code == 0), ("containerStatuses", False)):
        (container,) = status[key]
        assert (container["state"], container["ready"]) == ({"terminated": terminated}, ready)


def test_pod_shows_why_it_waits_or_failed_and_where_it_is() -> None:
    waits, failed = rendered(a_pod(), "no room"), rendered(a_pod(phase=Phase.FAILED, node="n1", started=8.0), "x")
    assert waits["status"]["reason"] == "Waiting"
    assert "nodeName" not in waits["spec"]
    assert "startTime" not in waits["status"]
    assert (failed["status"]["reason"], failed["status"]["message"]) == ("Error", "x")
    assert (failed["spec"]["nodeName"], failed["status"]["startTime"]) == ("n1", "at 8")
    assert "reason" not in rendered(a_pod())["status"]


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_workload_counts_its_pods(kind: str) -> None:
    workload = Workload(kind, "default", "w", {"metadata": {}}, "", SOMEBODY, 7.0)
    pods = [a_pod(phase=phase) for phase in Phase]
    counts = {"active": 2, "succeeded": 1, "failed": 1} if kind == "Job" else {"replicas": 4, "readyReplicas": 1}
    assert render_workload(workload, pods, 1, str)["status"] == counts


def test_others_see_the_names_of_variables_but_not_what_they_are() -> None:
    shown = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "1"}, {"name": "B"}]}]}}
    hidden = {"spec": {"containers": [{"name": "main", "env": [{"name": "A", "value": "(hidden)"}, {"name": "B"}]}]}}
    assert without_values(shown) == hidden


def test_a_label_that_is_called_env_stays_as_it_is() -> None:
    shown = {"metadata": {"labels": {"env": "prod"}, "annotations": {"env": 5}}}
    assert without_values(shown) == shown


def test_job_counts_its_pods_by_phase() -> None:
    workload = Workload("Job", "default", "w", {"metadata": {}}, "", SOMEBODY, 7.0)
    phases = (Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED, Phase.FAILED)
    shown = render_workload(workload, [a_pod(phase=phase) for phase in phases], 1, lambda seconds: f"at {seconds:g}")
    assert shown["status"] == {"active": 2, "succeeded": 1, "failed": 2}
