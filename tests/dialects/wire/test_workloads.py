"""How programs of ours stand, by what the API server tells of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.workloads import RolloutStatus, StartedPod, WorkloadObject, read_pod, read_workload
from aliquot.dialects.wire.workloads import not_ready as why_not_ready
from aliquot.dialects.wire.workloads import rollout_status as status_of
from aliquot.model.refusal import Invalid
from kit.values.anyjson import any_json


def rollout_status(obj: Any) -> RolloutStatus:
    read = read_workload(obj)
    assert isinstance(read, WorkloadObject)
    return status_of(read)


def not_ready(pod: Any) -> str | None:
    return why_not_ready(read_pod(pod))


def _deployment(**status: int) -> Any:
    return {"kind": "Deployment", "metadata": {"generation": 2}, "spec": {"replicas": 2}, "status": status}


@pytest.mark.parametrize(
    ("status", "complete"),
    [
        ({}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, True),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2, "availableReplicas": 3}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 1}, False),
    ],
)
def test_rollout_status_of_deployment(status: dict[str, int], complete: bool) -> None:
    assert rollout_status(_deployment(**status)).complete is complete


@given(st.integers(1, 5), st.integers(0, 2), st.integers(0, 5), st.integers(0, 5))
def test_ready_replicas_are_new_and_available_and_one_is_missing_while_old_ones_are_left(
    wanted: int, old: int, updated: int, available: int
) -> None:
    status = {"replicas": wanted + old, "updatedReplicas": updated, "availableReplicas": available}
    deployment = {"kind": "Deployment", "metadata": {}, "spec": {"replicas": wanted}, "status": status}
    found = rollout_status(deployment)
    assert (found.ready, found.wanted) == (min(updated, available, wanted - 1 if old else 5), wanted)


def test_deployment_of_no_replicas_is_complete_when_it_was_observed() -> None:
    assert rollout_status({"kind": "Deployment", "metadata": {}, "spec": {"replicas": 0}}).complete


def test_rollout_status_of_daemon_set() -> None:
    status = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2}
    daemons = {"kind": "DaemonSet", "metadata": {"generation": 1}, "status": status}
    assert not rollout_status(daemons).complete
    assert rollout_status({**daemons, "status": {**status, "updatedNumberScheduled": 2}}).complete


def _pod(*containers: Any, **status: Any) -> Any:
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": list(containers), **status}}


def test_not_ready_names_container_state() -> None:
    waiting = {"name": "agent", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    assert not_ready(_pod(waiting)) == "container agent: ErrImagePull: no such image"
    crash = {
        "name": "agent",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 2}},
    }
    assert not_ready(_pod(crash)) == "container agent: CrashLoopBackOff (its last exit code was 2)"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [(0, "container agent is running but not ready"), (3, "container first exited with code 3: x")],
)
def test_not_ready_names_only_containers_that_failed(code: int, sentence: str) -> None:
    first = {"name": "first", "ready": True, "state": {"terminated": {"exitCode": code, "reason": "x"}}}
    assert not_ready(_pod(first, {"name": "agent", "state": {"running": {"startedAt": "now"}}})) == sentence


def test_not_ready_reports_scheduler_message() -> None:
    unplaced = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]
    assert not_ready(_pod(conditions=unplaced)) == "not scheduled: 0/2 nodes are available"


def test_not_ready_is_none_for_ready_pod() -> None:
    assert not_ready(_pod(conditions=[{"type": "Ready", "status": "True"}])) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"metadata": {"namespace": None, "uid": None, "resourceVersion": None, "labels": {"a": None}}},
        {"spec": None},
        {"spec": {"containers": [{"name": None, "env": [{"name": "A", "valueFrom": {"fieldRef": None}}]}]}},
        {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": None, "memory": 1}, "claims": None}}]}},
        {"status": {"conditions": [{"type": "Ready", "status": None}], "containerStatuses": [{"name": None}]}},
        {"status": {"containerStatuses": [{"name": "c", "state": {"running": {"startedAt": None}}}]}},
    ],
)
def test_null_counts_as_absent_in_a_pod(odd: dict[str, Any]) -> None:
    """As it does for the API server. Of a Pod that cannot be read the state would be unknown."""
    pod = {"metadata": {"name": "p"} | odd.get("metadata", {}), "spec": odd.get("spec", {})}
    read = read_pod(pod | {"status": {"phase": "Running"} | odd.get("status", {})})
    assert (read.metadata.name, read.metadata.namespace, read.runs) == ("p", "", True)


def test_null_is_not_blamed_for_another_field() -> None:
    read = read_workload({"kind": "Deployment", "metadata": {"name": "a", "generateName": None, "namespace": 3}})
    assert isinstance(read, Invalid)
    assert (read.field, read.value) == ("metadata.namespace", 3)


def test_workload_that_cannot_be_read_is_a_broken_rule_with_its_field() -> None:
    read = read_workload({"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"replicas": "two"}})
    assert isinstance(read, Invalid)
    assert (read.field, read.value) == ("spec.replicas", "two")


@pytest.mark.parametrize("broken", [{"spec": {"containers": 7}}, {"status": []}, {"spec": {"nodeName": ["n"]}}])
def test_pod_that_cannot_be_read_keeps_its_name(broken: Any) -> None:
    """Otherwise it would count as gone, and what it holds as left behind."""
    pod = read_pod({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, **broken})
    assert (pod.metadata.name, pod.metadata.namespace, pod.metadata.uid, pod.finished) == ("p", "ns", "u", False)


@given(any_json())
def test_reading_a_pod_never_raises(value: Any) -> None:
    assert isinstance(read_pod(value), StartedPod)
    assert isinstance(read_pod({"metadata": value, "status": value}), StartedPod)
