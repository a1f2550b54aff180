"""The doctor's checks after an installation, by our own API client: does it lead, is its webhook called, do nodes offer
what they should."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.native import INVENTORY
from aliquot.dialects.wire.install.deployment import label_arguments
from aliquot.dialects.wire.leases import leases_path, parse_lease
from aliquot.dialects.wire.webhook.configuration import CONFIGURATION, CONFIGURATIONS_PATH, read_configuration
from aliquot.model.decoding.openjson import JsonObject
from aliquot.services.doctor.findings import Finding, Level, grouped
from aliquot.services.doctor.locate import served_by
from aliquot.services.doctor.nodes import node_findings
from aliquot.services.doctor.scheduler import Control, Probe, control_findings, trial_pods
from aliquot.services.explain.snapshot import take_snapshot

_SCHEDULER = "aliquot-scheduler"
_TRIALS = "/api/v1/namespaces/default/pods"
_INTERVAL = 1.0  # seconds; the leader writes the webhook's configuration a moment after it is ready
_LONGEST = 30.0


async def verify(kube: Kube, namespace: str, until: float) -> list[Finding]:
    """All findings, as soon as nothing is wrong or when the time is over."""
    until = min(until, time.monotonic() + _LONGEST)
    while True:
        findings = await _examine(kube, namespace)
        if time.monotonic() >= until or not any(finding.level is Level.FINDING for finding in findings):
            return grouped(findings)
        await asyncio.sleep(_INTERVAL)


async def _examine(kube: Kube, namespace: str) -> list[Finding]:
    lease = await _get(kube, f"{leases_path(namespace)}/{_SCHEDULER}")
    webhook = await _get(kube, f"{CONFIGURATIONS_PATH}/{CONFIGURATION}")
    served = served_by(await _get(kube, f"/apis/apps/v1/namespaces/{namespace}/deployments/{_SCHEDULER}"))
    broken, exclusive = trial_pods(served)
    trials = (await _try(kube, broken), await _try(kube, exclusive))
    listed = await kube.get("/api/v1/nodes", timeout=60.0)
    nodes = [{**node, "kind": "Node"} for node in listed.get("items") or ()]
    with_agent = [node for node in nodes if INVENTORY in mapping(mapping(node.get("metadata")).get("annotations"))]
    rules = dialects.Rules(gpushare_unit=dialects.guess_gpushare_unit(nodes), served=served)
    snapshot = take_snapshot(with_agent, policy="binpack", rules=rules)
    control = Control(
        f"{namespace}/{_SCHEDULER}",
        None if lease is None else parse_lease(lease),
        None if webhook is None else read_configuration(webhook),
        trials,
    )
    findings = [*control_findings(control, snapshot, datetime.now(UTC), calls=False)]
    if not with_agent:
        what = "no node has an agent yet: none has a label of the mode, or of node feature discovery"
        mode = "all" if len(served) > 1 else min(served)  # with HAMi's, too: a label of any dialect will do
        fix = f"kubectl label node NODE {label_arguments(mode)}, or --nodes with the names of those that have cards"
        findings.append(Finding("nodes", Level.NOTE, (), what, fix))
    return [*findings, *node_findings(snapshot)]


async def _get(kube: Kube, path: str) -> JsonObject | None:
    try:
        found: JsonObject = await kube.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found


async def _try(kube: Kube, pod: JsonObject) -> Probe:
    """What the API server would make of the Pod; nothing is kept."""
    try:
        return Probe(await kube.create(_TRIALS, pod, params={"dryRun": "All"}), None)
    except ApiError as error:
        return Probe(None, error.message)
