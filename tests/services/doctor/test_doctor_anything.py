"""Whatever the API server's objects look like, the views and the doctor have an answer."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.cli.cluster.clustertables import details, tables, waiting_lines
from aliquot.cli.cluster.kubectl_aliquot import as_json
from aliquot.cli.cluster.kubectl_inspect import detailed, shared_nodes, summary
from aliquot.dialects import Rules
from aliquot.dialects.wire.leases import parse_lease
from aliquot.dialects.wire.webhook.configuration import read_configuration
from aliquot.model.refusal import Invalid
from aliquot.services.doctor.findings import grouped
from aliquot.services.doctor.nodes import node_findings
from aliquot.services.doctor.pods import pod_findings, waiting_findings
from aliquot.services.doctor.scheduler import Probe, call_findings, lease_findings, webhook_findings
from aliquot.services.explain.overview import look
from kit.values.anyjson import any_json, places_in
from kit.values.manifests import (
    COUNT,
    MEM,
    QGPU_CORE,
    QGPU_MEMORY,
    T9K_CARDS,
    XGN,
    Json,
    a_node,
    asking,
    gpushare_pod,
    on_card,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)

anything = any_json(
    st.none()
    | st.booleans()
    | st.integers()
    | st.just(10**400)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["n1", "9999-12-31T23:59:59+00:00", "0001-01-01T00:00:00Z", "\x1b[31m"]),
    leaves=5,
)

NODE = {
    **a_node("n1", 16, 16, labels={"gpushare": "true", **XGN}, capacity={MEM: "32", COUNT: "2", T9K_CARDS: "2"}),
    "spec": {"taints": [{"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule"}]},
}
OBJECTS: list[Json] = [
    NODE,
    on_card("old", 3, 0, status={"phase": "Running", "startTime": "2026-11-14T00:00:00Z"}),
    gpushare_pod("waits", 3, status={"conditions": [{"type": "PodScheduled", "message": "x"}]}),
    asking({QGPU_MEMORY: 1, QGPU_CORE: 10}, "q", on="n1", annotations={"aliquot.dev/grant": "{}"}),
    {"kind": "ConfigMap", "metadata": {"name": "unhealthy-gpu-n1", "namespace": "kube-system"}, "data": {"gpus": "0"}},
]
LEASE = {
    "metadata": {"annotations": {"aliquot.dev/calls": '{"filter": {"count": 3, "last": "2026-11-14T00:00:00Z"}}'}},
    "spec": {"holderIdentity": "x", "renewTime": "2026-11-14T00:00:00Z", "leaseDurationSeconds": 15},
}
OBJECTS[2]["metadata"]["creationTimestamp"] = "2026-11-14T12:00:00Z"
WEBHOOK = {"webhooks": [{"clientConfig": {"caBundle": "eA=="}}]}


def changed(value: Any, path: tuple[Any, ...], to: object) -> Any:
    if not path:
        return to
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(copy[path[0]], path[1:], to)
    return copy


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_cluster_findings_and_views_for_any_changed_value(data: st.DataObject) -> None:
    whole: Any = {"objects": OBJECTS, "lease": LEASE, "webhook": WEBHOOK}
    places = [path for path in places_in(whole) if len(path) > 2 and path[-1] != "kind"]
    whole = changed(whole, data.draw(st.sampled_from(places)), data.draw(anything))
    nodes, pods = ([item for item in whole["objects"] if item.get("kind") == kind] for kind in ("Node", "Pod"))
    rules = Rules()

    shared, unit, _ = shared_nodes(nodes, pods)
    assert summary(shared, unit).endswith("\n")
    assert detailed(shared).endswith("\n")

    seen = look(whole["objects"], rules)
    assert list(tables(seen, seen.nodes, wide=True, alone=False))
    assert list(waiting_lines(seen, None))
    list(details(seen.nodes))
    assert as_json(seen, seen.nodes, pending=False)["nodes"] is not None

    lease = parse_lease(whole["lease"])
    findings = [
        *lease_findings(lease, "l", NOW),
        *call_findings(None if isinstance(lease, Invalid) else lease, seen.snapshot, NOW),
        *webhook_findings(read_configuration(whole["webhook"]), "eA==", Probe(None, "no"), Probe(None, "no")),
        *node_findings(seen.snapshot),
        *pod_findings(seen.snapshot, NOW),
        *waiting_findings(seen),
    ]
    assert all(group.what and (group.whom or True) for group in grouped(findings))
    assert all(group.advice is None or group.advice for group in grouped(findings))
