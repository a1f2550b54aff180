"""After an installation: does it lead, is its webhook asked, do nodes offer what they should. Doctor's own checks."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aliquot.services.doctor.findings import Finding, Level, grouped

if TYPE_CHECKING:
    from aliquot.adapters.kubernetes.kube import Kube
    from aliquot.services.doctor.scheduler import Probe

_LEASE = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/aliquot-scheduler"
_DEPLOYMENT = "/apis/apps/v1/namespaces/{namespace}/deployments/aliquot-scheduler"
_TRIALS = "/api/v1/namespaces/default/pods"
_AGAIN = 1.0  # seconds; the leader writes the webhook's configuration a moment after it is ready
_PATIENCE = 30.0


async def verify(kube: Kube, namespace: str, until: float) -> list[Finding]:
    """What is well and what is not, once nothing more is to be expected."""
    until = min(until, time.monotonic() + _PATIENCE)
    while True:
        findings = [each async for each in _examined(kube, namespace)]
        if time.monotonic() >= until or not any(finding.level is Level.FINDING for finding in findings):
            return grouped(findings)
        await asyncio.sleep(_AGAIN)


async def _examined(kube: Kube, namespace: str) -> Any:
    from aliquot import dialects
    from aliquot.dialects.native import INVENTORY
    from aliquot.dialects.wire.deployment import label_arguments
    from aliquot.dialects.wire.webhooks import CONFIGURATION, CONFIGURATIONS_PATH
    from aliquot.services.doctor.locate import served_by
    from aliquot.services.doctor.nodes import node_findings
    from aliquot.services.doctor.scheduler import broken_pod, exclusive_pod, lease_findings, webhook_findings
    from aliquot.services.explain.snapshot import take_snapshot

    lease = await _or_none(kube, _LEASE.format(namespace=namespace))
    for finding in lease_findings(lease, f"{namespace}/aliquot-scheduler", datetime.now(UTC)):
        yield finding
    webhook = await _or_none(kube, f"{CONFIGURATIONS_PATH}/{CONFIGURATION}")
    served = served_by(await _or_none(kube, _DEPLOYMENT.format(namespace=namespace)))
    trials = [await _trial(kube, pod) for pod in (broken_pod(served), exclusive_pod())]
    for finding in webhook_findings(webhook, None, *trials, served=served):
        yield finding
    listed = await kube.get("/api/v1/nodes", timeout=60.0)
    nodes = [{**node, "kind": "Node"} for node in listed.get("items") or ()]
    with_cards = [node for node in nodes if INVENTORY in (node["metadata"].get("annotations") or {})]
    if not with_cards:
        what = "no node has an agent yet: none has a label of the mode, or of node feature discovery"
        mode = "all" if len(served) > 1 else min(served)
        fix = f"kubectl label node NODE {label_arguments(mode)}, or --nodes with the names of those that have cards"
        yield Finding("nodes", Level.NOTE, (), what, fix)
    rules = dialects.Rules(gpushare_unit=dialects.guess_gpushare_unit(nodes), served=served)
    for finding in node_findings(take_snapshot(with_cards, policy="binpack", rules=rules)):
        yield finding


async def _or_none(kube: Kube, path: str) -> dict[str, Any] | None:
    from aliquot.adapters.kubernetes.kube import ApiError

    try:
        found: dict[str, Any] = await kube.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found


async def _trial(kube: Kube, pod: dict[str, Any]) -> Probe:
    """What the API server would make of the Pod; nothing is kept."""
    from aliquot.adapters.kubernetes.kube import ApiError
    from aliquot.services.doctor.scheduler import Probe

    try:
        return Probe(await kube.create(_TRIALS, pod, params={"dryRun": "All"}), None)
    except ApiError as error:
        return Probe(None, error.message)
