"""gpushare with live Pods, taken over by the chart as docs/migration.md says, given back, and at last all taken away.

What the programs themselves do at a takeover: test_takeover.py. Here they are in containers, by Helm, with the chart's
rights; gpushare is its stand-in (testbed/others/gpushare.py), beside the cluster's own kube-scheduler, which asks it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed import objects
from testbed.client import MERGE_PATCH
from testbed.cluster import Cluster
from testbed.judges import bookings
from testbed.judges.inside import allocatable
from testbed.others.gpushare import COUNT, MEM, Peer
from testbed.processes import wait_until
from testbed.programs.shipping import install, label, report, uninstall
from testbed.realnodes.nodes import probe

SIZES = (3, 5, 4, 6, 2)  # GiB
LIVE = 20
CARD = 16  # GiB
SOCKET = "/var/lib/kubelet/device-plugins/aliyungpushare.sock"
MARK = "aliquot.dev/left-behind"


@contextmanager
def _gpushare(cluster: Cluster, folder: Path) -> Iterator[Peer]:
    """On both nodes, behind the cluster's own kube-scheduler; what it leaves there is no concern of ours."""
    label(cluster, "gpushare=true")
    assert cluster.default_scheduler is not None
    cluster.default_scheduler.stop(patience=3)
    peer = Peer(cluster.plane, cluster.nodes, folder)
    try:
        yield peer
    finally:
        peer.stop()
        peer.remove_accounts()
        label(cluster, "gpushare-")
        for node in cluster.nodes:
            node.call([sys.executable, "-m", "aliquot", "down"])  # the cards that its plugin started
            node.path(SOCKET).unlink(missing_ok=True)
            gone = {"status": {"capacity": {COUNT: None}, "allocatable": {COUNT: None}}}
            cluster.plane.api("PATCH", f"/api/v1/nodes/{node.name}/status", gone, content_type=MERGE_PATCH)


def _run_live(cluster: Cluster) -> list[str]:
    names = [f"live-{n}" for n in range(LIVE)]
    for at, name in enumerate(names):
        objects.create(cluster.plane, probe(name, "idle", limits={MEM: SIZES[at % len(SIZES)]}))
        objects.wait_bound(cluster.plane, name)
    _wait_run(cluster, names)
    return names


def _wait_run(cluster: Cluster, names: list[str]) -> None:
    plane = cluster.plane
    wait_until(lambda: bookings.all_run(plane, names), 60, "the Pods run", saw=lambda: bookings.not_running(plane))


def _processes(cluster: Cluster) -> dict[str, dict[int, str]]:
    return {node.name: bookings.processes(node) for node in cluster.nodes}


def _marked(cluster: Cluster) -> list[str]:
    nodes = cluster.plane.api("GET", "/api/v1/nodes")["items"]
    return [node["metadata"]["name"] for node in nodes if MARK in node["metadata"].get("annotations", {})]


def _waits(cluster: Cluster, name: str) -> None:
    def messages() -> Any:
        return [text for reason, text in objects.events_of(cluster.plane, name) if reason == "WaitingForGPU"]

    wait_until(messages, 20, f"{name} is told why it waits", saw=lambda: objects.events_of(cluster.plane, name))
    assert "nodeName" not in objects.get_pod(cluster.plane, name)["spec"]


def test_live_pods_of_gpushare_run_on_through_the_chart_and_back_and_at_last_nothing_is_left(
    bare: Cluster, tmp_path: Path
) -> None:
    plane = bare.plane
    with _gpushare(bare, tmp_path) as peer:
        live = _run_live(bare)
        processes, table, booked = _processes(bare), bookings.table(plane), bookings.by_card(peer.inspect())

        # All at once: its two programs are deleted, ours are installed.
        peer.leave()
        install(bare, "--set", "mode=gpushare")
        wait_until(
            lambda: bookings.table(plane) == table, 30, "the same bookings", saw=lambda: (bookings.table(plane), table)
        )
        assert _processes(bare) == processes
        assert [bookings.restarts(plane, name) for name in live] == [0] * LIVE

        fits = CARD - min(booked.values())
        bare.apply(probe("new", "idle", limits={MEM: fits}), probe("too-large", limits={MEM: fits + 1}))
        assert report(bare, "new")["shim_loaded"]
        _waits(bare, "too-large")
        assert bookings.overbooked(plane) == []

        # Back: ours go first, and their Pods stay.
        bare.kubectl("delete", "pod", "too-large")
        processes = _processes(bare)
        _uninstall_keeping(bare)
        assert _marked(bare) == ["n1", "n2"]
        peer.come_back()
        wait_until(lambda: {allocatable(node, MEM) for node in bare.nodes} == {64}, 30, "gpushare offers both nodes")
        assert sum(bookings.by_card(peer.inspect()).values()) == sum(booked.values()) + fits
        left = CARD - min(bookings.by_card(peer.inspect()).values())
        objects.create(plane, probe("after", "idle", limits={MEM: left}))
        _wait_run(bare, ["after", "new", *live])
        now = _processes(bare)
        assert all(processes[node].items() <= now[node].items() for node in processes), "nobody was ended"
        assert report(bare, "new")["cuda"]["cards"][0]["total"] == fits << 30, "even held to its memory"
        assert bookings.overbooked(plane) == []

        # And at last: what the Pods of ours needed goes with them, gpushare goes on.
        refused = bare.aliquot("uninstall", "--nodes-only")
        assert refused.returncode == 1
        assert "1 Pod uses shared cards: default/new" in refused.stderr
        bare.kubectl("delete", "pods", "--all", "--wait=true")
        done = bare.aliquot("uninstall", "--nodes-only", "--timeout", "60s")
        assert done.returncode == 0, done.stderr
        assert _marked(bare) == []
        assert {allocatable(node, MEM) for node in bare.nodes} == {64}
        assert {COUNT: "4"}.items() <= objects.get_node(plane, "n1")["status"]["capacity"].items()


def _uninstall_keeping(cluster: Cluster) -> None:
    install(cluster, "--reuse-values", "--set", "uninstall.runningPods=keep", verb="upgrade")
    uninstall(cluster)
