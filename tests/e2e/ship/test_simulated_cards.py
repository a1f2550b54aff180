"""Simulated cards as the documentation says to get them (agent.simulate): they survive the agent, as real ones do."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from testbed.cards import QCORE, QMEM
from testbed.cluster import Cluster
from testbed.processes import wait_until
from testbed.programs.shipping import NAMESPACE, install, label, uninstall
from testbed.realnodes.nodes import RealNode, probe

PLAYER = "simgpu/player"
PATIENCE = 60.0  # seconds; not a promise, the machine may be busy


def _work(node: RealNode) -> list[tuple[float, float]]:
    """The seconds since it began, and the milliseconds of work done by then: about one line a second."""
    lines = node.lines(f"burns-{node.name}")
    assert not [line for line in lines if line["event"] == "error"], lines
    return [(line["elapsed_s"], line["done_ms"]) for line in lines if line["event"] == "burn"]


def _goes_on(cluster: Cluster) -> None:
    """All of them get more done than they had."""
    before = {node.name: len(_work(node)) for node in cluster.nodes}
    wait_until(
        lambda: all(len(_work(node)) > before[node.name] + 1 for node in cluster.nodes),
        PATIENCE,
        "all of them go on",
        saw=lambda: {node.name: _work(node)[-3:] for node in cluster.nodes},
    )


def _players(node: RealNode) -> list[int]:
    return [pid for pid, command in node.processes() if command.split()[:1] and PLAYER in command.split()[0]]


def _uuids(cluster: Cluster) -> dict[str, str]:
    return {node.name: node.report(f"burns-{node.name}")["env"]["NVIDIA_VISIBLE_DEVICES"] for node in cluster.nodes}


@contextmanager
def _burning(cluster: Cluster) -> Iterator[None]:
    for node in cluster.nodes:
        only = {"kubernetes.io/hostname": node.name}
        cluster.apply(probe(f"burns-{node.name}", "burn", "0", "5", limits={QMEM: 2, QCORE: 20}, nodeSelector=only))
    wait_until(lambda: all(len(_work(node)) > 2 for node in cluster.nodes), PATIENCE, "all of them burn")
    yield
    for node in cluster.nodes:
        pod = cluster.plane.api("GET", f"/api/v1/namespaces/default/pods/burns-{node.name}")
        assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
        work = _work(node)
        silence = max(later - before - 1 for (before, _), (later, _) in itertools.pairwise(work))
        print(f"{node.name}: longest pause {max(0.0, silence):.2f} s")
        assert silence < PATIENCE
        cluster.kubectl("delete", "pod", f"burns-{node.name}")


def test_programs_on_simulated_cards_survive_agents_and_players(bare: Cluster) -> None:
    install(bare)
    label(bare, "qgpu-device-enable=enable")
    with _burning(bare):
        uuids = _uuids(bare)
        assert len(set(uuids.values())) == len(bare.nodes), "no two nodes have the same cards"

        bare.kubectl("rollout", "restart", "-n", NAMESPACE, "daemonset/aliquot-agent")
        bare.kubectl("rollout", "status", "-n", NAMESPACE, "daemonset/aliquot-agent", "--timeout=120s")
        _goes_on(bare)

        for node in bare.nodes:  # all at once: neither the one that plays nor the one that stands by is left
            for pid in _players(node):
                os.kill(pid, signal.SIGKILL)
        _goes_on(bare)

        cards = ("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/component=simulated-cards")
        bare.kubectl("delete", *cards)
        bare.kubectl("wait", *cards, "--for=condition=Ready", "--timeout=120s")
        _goes_on(bare)
        assert _uuids(bare) == uuids
    label(bare, "qgpu-device-enable-")
    uninstall(bare)
