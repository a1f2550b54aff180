"""The scheduler's two replicas as the chart runs them: on two nodes, ready whatever was deleted, and one of them is
enough for the webhook at the moment in which the other is killed."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from soak.faults import SCHEDULER, running
from testbed.background import Background
from testbed.cards import QCORE, QMEM
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.judges.traces import Traces, remove, until_gone
from testbed.processes import wait_until
from testbed.programs.shipping import NAMESPACE, install, uninstall
from testbed.realnodes.nodes import probe

SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/aliquot-webhook-tls"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
KILLS = 10
CREATORS = 4
EVERY = 0.05  # seconds between two Pods of a creator
BEFORE = 1.0  # seconds of creations before a kill: by then the API server knows what the Services do
AFTER = 3.0  # and after it


@pytest.fixture(scope="module")
def shipped(cluster: Cluster, untouched: Traces) -> Iterator[Cluster]:
    """The chart with its defaults, but for agents: there is nothing for them to do."""
    cluster.heal()
    install(cluster, "--set", "agent.enabled=false")
    yield cluster
    uninstall(cluster)
    found = until_gone(cluster, untouched)
    if found:
        remove(cluster, untouched)
        pytest.fail("left behind:\n  " + "\n  ".join(found), pytrace=False)


def replicas(cluster: Cluster) -> list[dict[str, Any]]:
    pods = cluster.pods(NAMESPACE)
    return [pod for pod in pods if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "scheduler"]


def ready(pod: dict[str, Any]) -> bool:
    conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def wait_ready(cluster: Cluster) -> None:
    def both() -> bool:
        return [ready(pod) for pod in replicas(cluster)] == [True, True]

    wait_until(both, 120, "two replicas are ready", saw=lambda: cluster.kubectl("describe", "pods", "-n", NAMESPACE))


def wait_served(cluster: Cluster) -> None:
    """Until each of the webhook's two slots leads to a replica of its own, and both are ready."""

    def served() -> bool:
        both = {pod["metadata"]["uid"] for pod in replicas(cluster) if ready(pod)}
        slots: dict[str, set[str]] = {"aliquot-webhook-0": set(), "aliquot-webhook-1": set()}
        for found in cluster.plane.api("GET", SLICES)["items"]:
            service = found["metadata"]["labels"]["kubernetes.io/service-name"]
            ends = [end for end in found.get("endpoints") or () if end["conditions"].get("ready")]
            slots.setdefault(service, set()).update(end["targetRef"]["uid"] for end in ends)
        one, other = slots["aliquot-webhook-0"], slots["aliquot-webhook-1"]
        return len(both) == 2 and len(one) == len(other) == 1 and one | other == both

    wait_until(served, 60, "each slot of the webhook has its replica", saw=lambda: cluster.plane.api("GET", SLICES))


def wait_gone(cluster: Cluster, uid: str) -> None:
    wait_until(lambda: uid not in [pod["metadata"]["uid"] for pod in replicas(cluster)], 120, "the replica is gone")


def create(cluster: Cluster, name: str) -> dict[str, Any]:
    """A Pod as the API server would store it."""
    pod = probe(name, limits={QCORE: 30, QMEM: 2})
    made: dict[str, Any] = cluster.plane.api("POST", "/api/v1/namespaces/default/pods", pod, params={"dryRun": "All"})
    return made


def test_replicas_are_on_two_nodes(shipped: Cluster) -> None:
    assert sorted(pod["spec"]["nodeName"] for pod in replicas(shipped)) == ["n1", "n2"]


def test_deleted_secret_comes_back_and_restarted_replicas_are_ready(shipped: Cluster) -> None:
    keys = shipped.plane.api("GET", SECRET)["data"]
    shipped.plane.api("DELETE", SECRET)

    def kept() -> Any:
        try:
            return shipped.plane.api("GET", SECRET).get("data")
        except Refused:
            return None

    assert wait_until(kept, 60, "the Secret is there again") == keys
    create(shipped, "reviewed")
    shipped.plane.api("DELETE", SECRET)
    shipped.kubectl("delete", "pods", "-n", NAMESPACE, "--all", "--grace-period=0", "--force")
    wait_ready(shipped)
    assert kept()
    wait_until(lambda: create(shipped, "reviewed"), 60, "the webhook answers")


def test_deleted_configuration_comes_back(shipped: Cluster) -> None:
    shipped.plane.api("DELETE", CONFIGURATION)

    def reviewed() -> bool:
        return bool(create(shipped, "reviewed")["spec"]["schedulerName"] == "aliquot-scheduler")

    wait_until(reviewed, 60, "the API server asks the webhook again")


class Creators(Background):
    """Threads that create Pods all the time, and what became of them."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(*(partial(self._create, f"c{number}") for number in range(CREATORS)))
        self._cluster = cluster
        self.created, self.slowest = 0, 0.0
        self.refused: list[str] = []

    def _create(self, name: str) -> None:
        for number in itertools.count():
            if self.stopping.wait(EVERY):
                return
            began = time.monotonic()
            try:
                spec = create(self._cluster, f"{name}-{number}")["spec"]
                if spec["schedulerName"] != "aliquot-scheduler":
                    self.refused.append(f"{name}-{number} was not reviewed")
            except Refused as error:
                self.refused.append(str(error))
            self.created += 1
            self.slowest = max(self.slowest, time.monotonic() - began)


def test_no_creation_is_refused_while_replicas_are_killed(shipped: Cluster) -> None:
    """The failure policy is the chart's: fail. A killed replica is replaced, because a container that was killed often
    is restarted late."""
    wait_ready(shipped)
    with Creators(shipped) as creators:
        for number in range(KILLS):
            victim = replicas(shipped)[number % 2]
            node = shipped.node(victim["spec"]["nodeName"])
            wait_served(shipped)
            time.sleep(BEFORE)
            (pid,) = running(node, SCHEDULER)
            os.kill(pid, signal.SIGKILL)
            time.sleep(AFTER)
            shipped.kubectl("delete", "pod", "-n", NAMESPACE, victim["metadata"]["name"], "--wait=false")
            wait_gone(shipped, victim["metadata"]["uid"])
            wait_ready(shipped)
    print(f"{creators.created} creations, {len(creators.refused)} refused, slowest {creators.slowest:.1f} s")
    assert creators.refused == []
    assert creators.created > 100
