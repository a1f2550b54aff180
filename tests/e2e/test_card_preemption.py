"""Where a node has enough in all and only its cards are short, kube-scheduler evicts no Pod, and ours does."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from kit.values.manifests import MIXED
from testbed import objects
from testbed.client import Refused
from testbed.gpus import offline_pod, online_pod, qgpu_node
from testbed.objects import Object
from testbed.programs.wired import Wired

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


def _priority_class(name: str, **more: Any) -> Object:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": 1000, **more}


@pytest.fixture
def full(cluster: Wired) -> Iterator[Wired]:
    """Two cards of 8 GiB, 6 taken of each: 4 GiB are free on the node and 2 on each card."""
    made = (_priority_class("urgent"), _priority_class("patient", preemptionPolicy="Never"))
    for kind in made:
        cluster.plane.api("POST", CLASSES, kind)
    cluster.create(qgpu_node("n", 8, 8, labels=MIXED))
    cluster.placed(
        online_pod("stays", 6, priorityClassName="urgent"),
        offline_pod("low", 6, labels={"app": "low"}, terminationGracePeriodSeconds=600),
    )
    yield cluster
    for kind in made:
        cluster.plane.api("DELETE", f"{CLASSES}/{kind['metadata']['name']}")


@contextmanager
def _churn(cluster: Wired) -> Iterator[None]:
    """Every 0.4 seconds Pods come and go, and a status, an annotation, a label and an amount of the node change:
    kube-scheduler tries refused Pods again at each of them."""
    end = threading.Event()

    def keep_changing() -> None:
        pods = "/api/v1/namespaces/default/pods"
        for number in itertools.count():
            with suppress(Refused):
                change = {"metadata": {"annotations": {"example.com/tick": str(number)}}}
                cluster.patch(f"{pods}/stays", change)
                cluster.patch(f"{pods}/high", {"metadata": {"labels": {"tick": str(number)}}})
                cluster.patch(f"{pods}/low/status", {"status": {"message": str(number)}})
                cluster.patch("/api/v1/nodes/n/status", {"status": {"allocatable": {"example.com/tick": str(number)}}})
                cluster.create(objects.pod(f"comes-{number}", {}))
                if number:
                    objects.delete_pod(cluster.plane, f"comes-{number - 1}")
            if end.wait(0.4):
                return

    changing = threading.Thread(target=keep_changing)
    changing.start()
    try:
        yield
    finally:
        end.set()
        changing.join()


def _nominated(cluster: Wired, name: str) -> str:
    return str(cluster.pod(name)["status"].get("nominatedNodeName", ""))


def test_high_priority_pod_takes_the_card_of_an_offline_one(full: Wired) -> None:
    (card,) = full.cards("low")
    full.create(online_pod("high", 4, priorityClassName="urgent"))
    full.await_event("high", "Preempting", "default/low (offline, priority 0)", f"card {card} of n", seconds=60)
    full.await_event("low", "Preempted", "default/high (online, priority 1000)", seconds=60)
    assert full.pod("low")["metadata"]["deletionTimestamp"], "it has its grace period"
    assert _nominated(full, "high") == "n"
    full.create(online_pod("other", 2))
    full.waits("other")
    full.restart_ours()  # nothing is remembered but in the API server
    objects.delete_pod(full.plane, "low")  # it has ended
    assert full.bound("high", seconds=60) == {"high": "n"}
    assert full.cards("high") == [card]
    assert "deletionTimestamp" not in full.pod("stays")["metadata"], "of equal priority"


def test_high_priority_pod_takes_a_card_while_everything_else_changes(full: Wired) -> None:
    full.create(online_pod("high", 4, priorityClassName="urgent"))
    with _churn(full):
        full.await_event("low", "Preempted", "default/high (online, priority 1000)", seconds=30)
        objects.delete_pod(full.plane, "low")  # it has ended
        assert full.bound("high", seconds=60) == {"high": "n"}
    assert "deletionTimestamp" not in full.pod("stays")["metadata"]


def test_budget_blocks_and_policy_never_waits(full: Wired) -> None:
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    full.patch("/api/v1/namespaces/default/pods/low/status", {"status": running})
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "low"}}}
    budget = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "low"}, "spec": spec}
    full.plane.api("POST", BUDGETS, budget)
    full.create(online_pod("patient", 4, priorityClassName="patient"))
    full.waits("patient")
    full.create(online_pod("high", 4, priorityClassName="urgent"))
    try:
        full.await_event("high", "PreemptionBlocked", "PodDisruptionBudget low", "default/low", seconds=60)
        assert "deletionTimestamp" not in full.pod("low")["metadata"]
        assert _nominated(full, "high") == ""
        reasons = {reason for reason, _ in objects.events_of(full.plane, "patient")}
        assert not reasons & {"Preempting", "PreemptionBlocked"}, "it asks for no eviction"
    finally:
        full.plane.api("DELETE", f"{BUDGETS}/low")
    full.await_event("low", "Preempted", "default/high", seconds=60)
    objects.delete_pod(full.plane, "low")
    assert full.bound("high", seconds=60) == {"high": "n"}
