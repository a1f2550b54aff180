"""What Pods and Nodes say of themselves in their status."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.native import AGENT, render_agent
from aliquot.dialects.wire.objects import asks_for
from aliquot.dialects.wire.ownpods import belongs_to_node
from aliquot.model.node import Closed
from kit.clusters.watchobjects import as_node, as_pod

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("status", "runs", "taken_up", "finished"),
    [
        (None, False, False, False),
        ({"phase": "Pending"}, False, False, False),
        ({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}, False, True, False),
        ({"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}, True, True, False),
        ({"phase": "Succeeded"}, False, False, True),
        ({"phase": "Failed"}, False, False, True),
    ],
)
def test_pod_by_its_phase_and_start(status: Json | None, runs: bool, taken_up: bool, finished: bool) -> None:
    pod = as_pod({"metadata": {"name": "p"}, "spec": {}, "status": status})
    assert (pod.runs, pod.taken_up, pod.finished) == (runs, taken_up, finished)


TRIED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


@pytest.mark.parametrize(
    ("conditions", "said"),
    [
        (None, ""),
        ([], ""),
        ([{"type": "Ready", "reason": "Unschedulable", "message": "x"}], ""),
        ([{**TRIED, "reason": "SchedulingGated", "message": "x"}], ""),
        ([{"type": "Ready"}, {**TRIED, "message": "0/2 nodes:  2 cordoned."}], "0/2 nodes: 2 cordoned"),
        ([{**TRIED, "message": "0/2 nodes: x. preemption: 0/2 help"}], "0/2 nodes: x"),
        ([{**TRIED, "message": "x. no new claims to deallocate, preemption: y"}], "x"),
        ([TRIED], ""),
    ],
)
def test_last_refusal_is_the_schedulers_without_its_remarks(conditions: Any, said: str) -> None:
    pod = as_pod({"metadata": {"name": "p"}, "spec": {}, "status": {"conditions": conditions}})
    assert pod.last_refusal == said
    assert as_pod({"metadata": {"name": "p"}, "spec": {}}).last_refusal == ""


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({}, False),
        ({"containers": [{"name": "a"}]}, False),
        ({"containers": [{"name": "a", "resources": {"limits": {"x": 1}}}]}, False),
        ({"containers": [{"name": "a"}, {"name": "b", "resources": {"limits": {"gpu": 1, "x": 1}}}]}, True),
        ({"initContainers": [{"name": "a", "resources": {"limits": {"other": 1}}}]}, True),
        ({"containers": [{"name": "a", "resources": {"requests": {"gpu": 1}}}]}, False),
    ],
)
def test_pod_asks_for_a_resource_by_any_limit(spec: Json, asks: bool) -> None:
    assert asks_for(as_pod({"metadata": {"name": "p"}, "spec": spec}), ("gpu", "other")) is asks


def test_address_of_a_node_is_the_internal_one() -> None:
    addresses = [{"type": "Hostname", "address": "h"}, {"type": "InternalIP", "address": "10.0.0.1"}]
    assert as_node({"metadata": {"name": "n"}, "status": {"addresses": addresses}}).address == "10.0.0.1"
    assert as_node({"metadata": {"name": "n"}, "status": {"addresses": addresses[:1]}}).address is None
    assert as_node({"metadata": {"name": "n"}}).address is None


@pytest.mark.parametrize(
    ("spec", "ready", "annotations", "closed"),
    [
        ({}, None, {}, ()),
        ({}, "True", {AGENT: "1.0"}, ()),
        ({"unschedulable": True}, "True", {}, (Closed.CORDONED,)),
        ({}, "False", {}, (Closed.NOT_READY,)),
        ({}, "Unknown", {}, (Closed.NOT_READY,)),
        ({}, "True", render_agent("1.0", here=False), (Closed.AGENT_AWAY,)),
        (
            {"unschedulable": True},
            "False",
            render_agent("1.0", here=False),
            (Closed.CORDONED, Closed.NOT_READY, Closed.AGENT_AWAY),
        ),
    ],
)
def test_why_a_node_gets_no_pods(spec: Json, ready: str | None, annotations: Any, closed: tuple[Closed, ...]) -> None:
    conditions = [{"type": "Ready", "status": ready}] if ready else None
    metadata = {"name": "n", "annotations": annotations}
    assert as_node({"metadata": metadata, "spec": spec, "status": {"conditions": conditions}}).closed == closed


DAEMON = {"kind": "DaemonSet", "name": "d", "controller": True}


@pytest.mark.parametrize(
    ("metadata", "account", "own", "belongs"),
    [
        ({}, "scheduler", "kube-system/scheduler", True),
        ({}, "scheduler", "other/scheduler", False),
        ({}, "scheduler", None, False),
        ({}, None, "kube-system/scheduler", False),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, None, None, True),
        ({"annotations": {"other": "x"}}, None, None, False),
        ({"ownerReferences": [DAEMON]}, None, None, True),
        ({"ownerReferences": [{**DAEMON, "controller": False}]}, None, None, False),
        ({"ownerReferences": [{**DAEMON, "kind": "ReplicaSet"}]}, None, None, False),
    ],
)
def test_pods_that_belong_to_their_node(metadata: Json, account: str | None, own: str | None, belongs: bool) -> None:
    whole = {"name": "p", "namespace": "kube-system", **metadata}
    pod = as_pod({"metadata": whole, "spec": {"serviceAccountName": account} if account else {}})
    assert belongs_to_node(pod, own) is belongs
