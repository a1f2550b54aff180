"""From one version to the next and back, while Pods run and arrive: none lost, none on a card twice, none held up."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from testbed import objects
from testbed.background import Background
from testbed.cards import QCORE, QMEM
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.judges.holdings import overbooked
from testbed.judges.inside import longest_silence
from testbed.processes import wait_until
from testbed.programs.shipping import install, label, uninstall
from testbed.realnodes.nodes import probe

SMALL = {QCORE: 10, QMEM: 2}
FIFTH = {QCORE: 20, QMEM: 4}
OURS = "aliquot-scheduler"
EVERY = 0.3  # seconds between two Pods that arrive, at the soonest
MOST = 12  # that have not run to their end: a machine with two cores is not to be drowned


def _upgrade(cluster: Cluster, image: str) -> None:
    """To the version of that image. The cards' own DaemonSet is not replaced, and Helm 4 would wait for that."""
    version = image.rpartition(":")[2]
    words = ("--reuse-values", "--wait=legacy", "--timeout", "170s", "--set", f"image.tag={version}")
    install(cluster, *words, verb="upgrade")
    wait_until(
        lambda: _version(cluster) == {version}, 90, "the last agent is replaced: Helm does not wait for that one"
    )


def _version(cluster: Cluster) -> set[str]:
    nodes = cluster.plane.api("GET", "/api/v1/nodes")["items"]
    return {node["metadata"]["annotations"]["aliquot.dev/agent"] for node in nodes}


class Churn(Background):
    """Pods that nobody would make anew, one after the other, and what became of each; looked at all along."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(self._arrive, self._watch)
        self._cluster = cluster
        self.made: list[str] = []
        self.refused = 0  # while no webhook answered in time; nothing was made
        self.overbooked: list[str] = []

    def _arrive(self) -> None:
        for number in itertools.count():
            while self.stopping.wait(EVERY) or len(self.states()) >= MOST:
                if self.stopping.is_set():
                    return
            name = f"comes-{number}"
            # A Pod that names no scheduler is sent to ours by the webhook, or not, where that does not answer in time.
            pod = probe(name, "sleep", "1", "exit", "0", limits=SMALL, restartPolicy="Never", schedulerName=OURS)
            try:
                objects.create(self._cluster.plane, pod)
            except Refused as error:  # who makes it is told at once, and tries again, as controllers do
                if "failed calling webhook" not in str(error):
                    raise
                self.refused += 1
                continue
            self.made.append(name)

    def _watch(self) -> None:
        while not self.stopping.wait(0.5):
            self.overbooked += overbooked(self._cluster.plane)

    def states(self) -> dict[str, str]:
        """Of those that are not well, by name: where they stand."""
        found = {}
        for pod in objects.list_pods(self._cluster.plane, "default"):
            status = pod["status"]
            if pod["metadata"]["name"] in self.made and status["phase"] != "Succeeded":
                found[pod["metadata"]["name"]] = (
                    f"{status['phase']} {status.get('reason', '')} {status.get('message', '')}"
                )
        return found

    def settle(self) -> None:
        """All have run to their end; those that failed are reported."""
        self.stopping.set()
        wait_until(lambda: all(text.startswith("Failed") for text in self.states().values()), 90, "all Pods have run")
        assert self.states() == {}


@contextmanager
def _burning(cluster: Cluster) -> Iterator[list[tuple[Any, str]]]:
    """Two Pods on a node that share a card, each held to its share all the time."""
    pods = [(node, f"burns-{node.name}-{at}") for node in cluster.nodes for at in range(2)]
    for node, name in pods:
        only = {"kubernetes.io/hostname": node.name}
        cluster.apply(probe(name, "burn", "0", "5", limits=FIFTH, nodeSelector=only))
    wait_until(lambda: all(len(_work(*pod)) > 2 for pod in pods), 60, "all of them burn")
    yield pods
    for _, name in pods:
        cluster.kubectl("delete", "pod", name)


def _work(node: Any, name: str) -> list[tuple[float, float]]:
    """The seconds since it began, and the milliseconds of work done by then: about one line a second."""
    return [(line["elapsed_s"], line["done_ms"]) for line in node.lines(name) if line["event"] == "burn"]


def test_an_upgrade_and_a_rollback_lose_no_pod_and_delay_none(bare: Cluster) -> None:
    first, then = bare.image, bare.next_image
    label(bare, "qgpu-device-enable=enable")
    install(bare)
    assert _version(bare) == {first.rpartition(":")[2]}
    with _burning(bare) as pods:
        with Churn(bare) as churn:
            _upgrade(bare, then)
            _upgrade(bare, first)
        churn.settle()
        print(f"{len(churn.made)} Pods came meanwhile, {churn.refused} were refused for the webhook")
        assert len(churn.made) > 10
        assert churn.refused <= len(churn.made) // 5
        assert churn.overbooked == []
        silences = {name: longest_silence(_work(node, name)) for node, name in pods}
        print(f"longest silences: {silences}")
        assert max(silences.values()) < 10.0  # 0.2 s on a quiet machine; an upgrade takes longer than that
        for _, name in pods:
            pod = bare.plane.api("GET", f"/api/v1/namespaces/default/pods/{name}")
            assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    bare.kubectl("delete", "pods", "--all")
    uninstall(bare)
    label(bare, "qgpu-device-enable-")
