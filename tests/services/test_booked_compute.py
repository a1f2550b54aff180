"""The same Pods give the same figure of booked compute in metrics, dashboard, status and `kubectl aliquot`."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.cluster.kubectl_aliquot import as_json
from aliquot.dialects import Rules
from aliquot.model.claim import AppClass
from aliquot.model.device import Card
from aliquot.model.grant import Share
from aliquot.model.status.machine import AgentStatus, DaemonStatus, Status
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import SharingRules
from aliquot.services.agent.api.status import NodeState
from aliquot.services.agent.api.status import status as agent_status
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.metrics import exposition
from aliquot.services.dashboard.nodeview import tenants_by_card
from aliquot.services.explain.overview import look
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from aliquot.services.scheduler.metrics import exposition as scheduler_exposition
from aliquot.services.scheduler.reports import status_answer
from kit.clusters.watchobjects import a_cluster, as_pod, live_node, node_json, pod_json
from kit.machines.fakeview import JsonView
from kit.values.manifests import QGPU_CORE, QGPU_MEMORY, T9K_CARDS

Json = dict[str, Any]
Quotas = list[int] | None  # percent of each Pod on the card; None: one Pod has the card whole
_cards = st.lists(st.none() | st.lists(st.integers(5, 30), max_size=3), min_size=1, max_size=3)


def booked(quotas: Quotas) -> int:
    return 100 if quotas is None else sum(quotas)


def pods(cards: list[Quotas]) -> list[Json]:
    """Each with the annotation that says which card it has."""
    found = []
    for index, quotas in enumerate(cards):
        whole = {"index": index, "memory_mib": 16 << 10, "exclusive": True}
        parts = [{"index": index, "memory_mib": 1024, "core_milli": 10 * quota} for quota in quotas or ()]
        for at, card in enumerate([whole] if quotas is None else parts):
            asked = {T9K_CARDS: "1"} if quotas is None else {QGPU_MEMORY: "1", QGPU_CORE: str(quotas[at])}
            pod = pod_json(f"p{index}-{at}", asked, on="n1")
            grant = {"v": 1, "node": "n1", "containers": [{"name": "main", "cards": [card]}]}
            pod["metadata"].setdefault("annotations", {})["aliquot.dev/grant"] = json.dumps(grant)
            found.append(pod)
    return found


def sample(text: bytes, name: str) -> list[float]:
    return [float(found) for found in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text.decode(), re.MULTILINE)]


@given(_cards)
def test_a_clusters_booked_compute_is_the_same_everywhere(cards: list[Quotas]) -> None:
    sizes, placed = (16,) * len(cards), pods(cards)
    cluster: Cluster = a_cluster(live_node("n1", *sizes))
    for pod in placed:
        cluster.set_pod(as_pod(pod))
    expected = [booked(quotas) for quotas in cards]

    surroundings = Surroundings(name="lab", leading=lambda: True, metrics=lambda: b"")
    view = JsonView(ClusterView(cluster, Details(cluster), surroundings))
    state, node = view.state(0.0), view.node("n1", 0.0)
    assert state["totals"]["core_booked"] == sum(expected)
    assert [byte / 2 for byte in b64decode(state["cards"]["core"])] == expected
    assert node is not None
    assert [card["core_booked"] for card in node["cards"]] == expected

    calls = Calls(lambda: "now")
    (ratio,) = sample(scheduler_exposition(cluster, calls, {}, {}), "aliquot_cards_core_booked_ratio")
    assert ratio * 100 == pytest.approx(sum(expected))
    (reported,) = status_answer(cluster, leading=True, calls=calls).nodes
    assert [card.used_core for card in reported.cards] == expected

    objects = [{"kind": "Node", **node_json("n1", *sizes)}, *({"kind": "Pod", **pod} for pod in placed)]
    seen = look(objects, Rules())
    (shown,) = as_json(seen, seen.nodes, pending=False)["nodes"]
    assert [card["core_used"] for card in shown["cards"]] == expected


def on_node(cards: list[Quotas]) -> Status:
    """What the node's agent reports of the same Pods."""
    shares = [
        Share(
            index,
            1024,
            uuid=f"GPU-{index}",
            core_milli=None if quotas is None else 10 * quota,
            exclusive=quotas is None,
        )
        for index, quotas in enumerate(cards)
        for quota in ([0] if quotas is None else quotas)
    ]
    node = NodeState(
        rules=SharingRules(),
        cards=[Card(index, 16 << 10, uuid=f"GPU-{index}") for index in range(len(cards))],
        why={},
        seen={},
        tenancies=[
            Tenancy(f"u{at}", "ml", f"p{at}", AppClass.NORMAL, (share,), 0.0) for at, share in enumerate(shares)
        ],
        ended=frozenset(),
        standings=[],
        findings=[],
    )
    return agent_status(node, 0.0, DaemonStatus(pid=1), AgentStatus(None, {}, 0, {}))


@given(_cards)
def test_a_nodes_booked_compute_is_the_same_in_status_and_metrics(cards: list[Quotas]) -> None:
    status, expected = on_node(cards), [booked(quotas) for quotas in cards]
    assert [card.core_booked for card in status.cards] == expected
    ratios = sample(exposition(status), "aliquot_card_core_booked_ratio")
    assert [ratio * 100 for ratio in ratios] == pytest.approx(expected)
    whole = [uuid for uuid, tenants in tenants_by_card(status).items() if any(tenant.exclusive for tenant in tenants)]
    assert whole == [f"GPU-{index}" for index, quotas in enumerate(cards) if quotas is None]
