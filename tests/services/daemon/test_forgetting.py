"""What is gone is forgotten: agents and schedulers run for months, and Pods come and go by the thousand."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from aliquot.model.claim import AppClass
from aliquot.model.tenant import Allotment, Tenant
from aliquot.services.daemon.memory import collect_garbage
from aliquot.services.scheduler.cluster import Cluster
from kit.agents.agentnode import AgentNode
from kit.agents.grantedpods import a_qgpu_pod
from kit.cards.arbiterd import UUIDS, Rig, until
from kit.clusters.watchobjects import SHARED, as_pod, bound_json, claim_of, live_node, pod_json
from kit.running.leaks import keepers


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path, monkeypatch)
    yield made
    made.end()


def test_the_agent_keeps_nothing_of_a_pod_that_is_gone(agent_node: AgentNode) -> None:
    around = (agent_node, agent_node.kubelet, agent_node.api)
    for name in ("first", "leaver"):  # the first of a kind is kept as what its kind looks like
        agent_node.run(pod := a_qgpu_pod(name))
        assert keepers(agent_node.agent, pod["metadata"]["uid"], beside=around), "while it runs it is known"
        agent_node.deleted(pod)
        agent_node.agent.reporter._annotations.clear()  # those are written by a part that does not run here
    gc.collect()
    assert keepers(agent_node.agent, pod["metadata"]["uid"], beside=around) == []


def test_the_agent_collects_garbage_as_long_as_it_runs(agent_node: AgentNode) -> None:
    assert collect_garbage in [work.func for work in agent_node.agent._works() if isinstance(work, partial)]


def test_arbiterd_keeps_nothing_of_a_tenant_that_is_gone(rig: Rig) -> None:
    folder = rig.folder / "leaver"
    rig.daemon.add(Tenant("leaver", "ml/leaver", AppClass.NORMAL, (Allotment(UUIDS[0], 1 << 30, 500),), None), folder)
    shim = rig.registered(folder, client=7)
    shim.launch()
    around = (rig, rig.driver, rig.nvml)
    assert keepers(rig.daemon, "leaver", beside=around), "while it is there it is known"
    shim.close()
    rig.daemon.remove("leaver")
    until(lambda: not any(standing.tenant == "leaver" for standing in rig.daemon.standings()))
    until(lambda: not keepers(rig.daemon, "leaver", beside=around), "that it is forgotten")


def test_the_scheduler_keeps_nothing_of_a_pod_that_is_gone() -> None:
    cluster = Cluster("binpack", shortlist=1)
    cluster.set_node(live_node("n1", 16, labels=SHARED))
    for name in ("first", "leaver", "next"):  # the first of a kind, and the latest of all, are kept as examples
        pod = pod_json(name)
        cluster.set_pod(as_pod(pod))
        claim = claim_of(cluster, as_pod(pod))
        assert list(cluster.filter(claim, ["n1"]).fit) == ["n1"]
        _, best = cluster.rank(claim, ["n1"])
        assert best is not None
        cluster.hold(claim, best, 1.0)
        placed, node = cluster.assume(claim, "n1"), cluster.board.node("n1")
        assert not isinstance(placed, list)
        assert node is not None
        cluster.set_pod(as_pod(bound_json(pod, claim, placed.grant, node, cluster.rules)))
        assert keepers(cluster, f"uid-{name}"), "while it is there it is known"
        cluster.drop_pod(f"ns/{name}")
    assert keepers(cluster, "uid-leaver") == []


def test_the_scheduler_keeps_nothing_of_a_pending_pod_that_is_gone() -> None:
    cluster = Cluster("binpack", shortlist=1)
    cluster.set_node(live_node("n1", 2, labels=SHARED))
    for name in ("first", "leaver", "next"):
        cluster.set_pod(pod := as_pod(pod_json(name, refused=True)))
        assert list(cluster.filter(claim_of(cluster, pod), ["n1"]).fit) == []
        cluster.drop_pod(f"ns/{name}")
    assert keepers(cluster, "uid-leaver") == []
