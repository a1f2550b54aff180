"""How programs of ours stand, by what the API server tells of them."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.wire.workloads import not_ready, standing


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
def test_a_deployment_stands_when_all_are_new_and_available_and_no_old_one_is_left(
    status: dict[str, int], complete: bool
) -> None:
    assert standing(_deployment(**status)).complete is complete


def test_a_daemon_set_stands_when_every_node_has_the_new_one() -> None:
    status = {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1, "numberAvailable": 2}
    daemons = {"kind": "DaemonSet", "metadata": {"generation": 1}, "status": status}
    assert not standing(daemons).complete
    assert standing({**daemons, "status": {**status, "updatedNumberScheduled": 2}}).complete


def _pod(*containers: Any, **status: Any) -> Any:
    return {"metadata": {"name": "p"}, "status": {"containerStatuses": list(containers), **status}}


def test_why_a_pod_is_not_ready_is_its_containers_state() -> None:
    waiting = {"name": "agent", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    assert not_ready(_pod(waiting)) == "container agent: ErrImagePull: no such image"
    crash = {
        "name": "agent",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 2}},
    }
    assert not_ready(_pod(crash)) == "container agent: CrashLoopBackOff (it ended with code 2 before)"


def test_a_pod_without_a_node_says_what_the_scheduler_said() -> None:
    unplaced = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]
    assert not_ready(_pod(conditions=unplaced)) == "has no node: 0/2 nodes are available"


def test_a_pod_that_is_ready_has_no_reason() -> None:
    assert not_ready(_pod(conditions=[{"type": "Ready", "status": "True"}])) is None
