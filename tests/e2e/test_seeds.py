"""Every manifest of the vendors' documents, applied by kubectl, lands where its document says.

They are in examples/seeds, as printed but for slips; the head of each file says what was put right.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.manifests import MIXED
from testbed import holdings, objects
from testbed.gpus import TOLERATION, gpushare_node, qgpu_node, sgn_node, xgn_node
from testbed.processes import wait_until
from testbed.wired import Wired

SEEDS = Path(__file__).parents[2] / "examples" / "seeds"
DEV_SERVER = gpushare_node("dev-server-153", *[23] * 8)  # of seed 004: eight A30


@pytest.fixture
def all_kinds(cluster: Wired) -> Wired:
    """A cluster with one node of every kind the documents know."""
    cluster.create(
        qgpu_node("qgpu", 32, 32),
        qgpu_node("mixed", 32, 32, labels=MIXED),
        xgn_node("xgn", 4),
        sgn_node("sgn", 4),
        DEV_SERVER,
    )
    return cluster


@pytest.mark.parametrize("name", ["offline", "online"])
def test_000_online_and_offline_pods_go_where_mixing_is_switched_on(all_kinds: Wired, name: str) -> None:
    all_kinds.apply(SEEDS / f"{name}-pod.yaml")
    assert all_kinds.bound(name) == {name: "mixed"}
    assert len(all_kinds.cards(name)) == 1


@pytest.mark.parametrize("name", ["common", "qgpu"])
def test_000_001_an_ordinary_pod_goes_where_qgpu_is_enabled(all_kinds: Wired, name: str) -> None:
    all_kinds.apply(SEEDS / f"{name}-pod.yaml")
    assert all_kinds.bound(name)[name] in ("qgpu", "mixed")
    assert [dict(use) for use in holdings.held(all_kinds.pod(name)).values()] == [
        {"memory_mib": 5 * 1024, "core_milli": 300, "greedy_milli": 0}
    ]


def test_000_requests_alone_as_printed_are_not_let_in_by_kubernetes_itself(all_kinds: Wired) -> None:
    printed = (SEEDS / "common-pod.yaml").read_text().replace("limits:", "requests:")
    answer = all_kinds.plane.kubectl("apply", "-f", "-", stdin=printed, check=False)
    assert "Limit must be set for non overcommitable resources" in answer


def test_000_the_agent_runs_on_every_qgpu_node_and_the_scheduler_once(all_kinds: Wired) -> None:
    try:
        for name in ("qgpu-manager", "qgpu-scheduler"):
            all_kinds.apply(SEEDS / f"{name}.yaml")

        def nodes(app: str) -> list[str]:
            pods = objects.list_pods(all_kinds.plane, "kube-system")
            mine = [pod["spec"].get("nodeName", "") for pod in pods if pod["metadata"]["labels"].get("app") == app]
            return sorted(filter(None, mine))

        wait_until(lambda: nodes("qgpu-manager") == ["mixed", "qgpu"], 20, "the agents run", saw=lambda: nodes("qgpu"))
        wait_until(lambda: len(nodes("qgpu-scheduler")) == 1, 20, "the scheduler runs")
    finally:
        for name in ("qgpu-manager", "qgpu-scheduler"):
            all_kinds.plane.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(SEEDS / f"{name}.yaml"))


def test_003_an_exclusive_pod_gets_two_cards_of_its_own_on_an_exclusive_node(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "exclusive-gpu.yaml")
    _tolerate(all_kinds, "exclusive-gpu")
    assert all_kinds.bound("exclusive-gpu") == {"exclusive-gpu": "xgn"}
    assert len(all_kinds.cards("exclusive-gpu")) == 2


def test_003_a_shared_pod_gets_30_percent_of_a_card_on_a_shared_node(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "shared-gpu.yaml")
    assert all_kinds.bound("shared-gpu") == {"shared-gpu": "sgn"}
    assert len(all_kinds.cards("shared-gpu")) == 1


def test_003_a_pod_that_asks_for_a_node_gets_all_of_its_cards(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "exclusive-node.yaml")
    _tolerate(all_kinds, "exlusive-node")
    assert all_kinds.bound("exlusive-node") == {"exlusive-node": "xgn"}
    assert all_kinds.cards("exlusive-node") == [0, 1, 2, 3]


def test_004_the_stateful_set_of_three_goes_onto_one_card(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "binpack-1.yaml")
    names = [f"binpack-1-{number}" for number in range(3)]
    wait_until(lambda: len(objects.list_pods(all_kinds.plane, "default")) == 3, 20, "the controller made three Pods")
    assert set(all_kinds.bound(*names).values()) == {"dev-server-153"}
    assert [all_kinds.cards(name) for name in names] == [[0]] * 3
    annotations = all_kinds.pod("binpack-1-0")["metadata"]["annotations"]
    peers = {key.removeprefix("ALIYUN_COM_GPU_MEM_"): value for key, value in annotations.items() if "ALIYUN" in key}
    assert int(peers.pop("ASSUME_TIME")) > 1e18
    assert peers == {"IDX": "0", "DEV": "23", "POD": "3", "ASSIGNED": "false"}
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"0":3}}'


def _tolerate(cluster: Wired, name: str) -> None:
    """What the webhook does by itself; it has tests of its own."""
    pod = cluster.pod(name)
    mine = [*pod["spec"].get("tolerations", []), TOLERATION]
    cluster.patch(f"/api/v1/namespaces/default/pods/{name}", {"spec": {"tolerations": mine}})
