"""Is our scheduler there, is it asked, is its webhook trusted: one planted fault after the other."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from aliquot import dialects
from aliquot.dialects import QgpuRules, Rules
from aliquot.dialects.wire.leases import LeaseObject, parse_lease
from aliquot.dialects.wire.webhook.configuration import read_configuration, webhook_configuration
from aliquot.model.refusal import Invalid
from aliquot.services.doctor.findings import Finding, Level
from aliquot.services.doctor.scheduler import (
    Probe,
    broken_pod,
    call_findings,
    exclusive_pod,
    lease_findings,
    webhook_findings,
)
from aliquot.services.explain.snapshot import Snapshot, take_snapshot
from kit.values.manifests import MEM, T9K_NODE, Json, a_pod, asking, gpushare_node, gpushare_pod, on_card

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)


def ago(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def a_lease(renewed: float = 1, holder: str = "aliquot-0", calls: object = None) -> LeaseObject:
    annotations = {"aliquot.dev/address": "10.0.0.7:12345"}
    if calls is not None:
        annotations["aliquot.dev/calls"] = calls if isinstance(calls, str) else json.dumps(calls)
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": ago(renewed)}
    return read_lease({"metadata": {"annotations": annotations}, "spec": spec})


def read_lease(item: Json) -> LeaseObject:
    found = parse_lease(item)
    assert isinstance(found, LeaseObject)
    return found


def asked(count: int, seconds_ago: float | None) -> Json:
    last = None if seconds_ago is None else ago(seconds_ago)
    return {"filter": {"count": count, "last": last}, "bind": {"count": count, "last": last}}


def waiting(pod: Json, seconds: float, message: str | None = "0/1 nodes are available") -> Json:
    """The Pod, made so long ago, and tried by kube-scheduler unless there is no message."""
    pod["metadata"]["creationTimestamp"] = ago(seconds)
    conditions = [] if message is None else [{"type": "PodScheduled", "status": "False", "message": message}]
    return {**pod, "status": {"phase": "Pending", "conditions": conditions}}


def snapshot(pods: list[Json]) -> Snapshot:
    return take_snapshot(pods, policy="binpack", rules=Rules())


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


# --- the Lease -------------------------------------------------------------------------------------------------------


def test_a_leader_that_renews_its_lease_is_well_and_its_address_is_reported() -> None:
    finding = only(lease_findings(a_lease(), "kube-system/aliquot-scheduler", NOW))
    assert (finding.level, finding.what) == (Level.OK, "aliquot-0 leads, at 10.0.0.7:12345")


@pytest.mark.parametrize(
    ("lease", "what"),
    [
        (None, "does not exist"),
        (a_lease(holder=""), "no replica holds it"),
        (a_lease(renewed=3600 * 5), "renewed it last 5h00m ago"),
        (a_lease(renewed=45), "renewed it last 45s ago"),
        (read_lease({"spec": {"holderIdentity": "x", "renewTime": "yesterday"}}), "renewed it last never"),
        (parse_lease({"spec": {"leaseDurationSeconds": "15"}}), "cannot be read, so it is not known whether a replica"),
    ],
)
def test_a_lease_without_a_holder_is_a_finding(lease: LeaseObject | Invalid | None, what: str) -> None:
    finding = only(lease_findings(lease, "kube-system/aliquot-scheduler", NOW))
    assert finding.level is Level.FINDING
    assert what in finding.what
    assert finding.fix


# --- is it asked -----------------------------------------------------------------------------------------------------


def test_an_extender_that_is_called_is_well() -> None:
    finding = only(call_findings(a_lease(calls=asked(1200, 3)), snapshot([]), NOW))
    assert finding.level is Level.OK
    assert finding.what.startswith("was asked 1,200 times")


def test_extender_never_called_is_a_note_without_pods() -> None:
    assert only(call_findings(a_lease(calls=asked(0, None)), snapshot([]), NOW)).level is Level.NOTE


def test_extender_not_asked_about_a_waiting_pod_is_a_finding() -> None:
    pods = [waiting(gpushare_pod("p"), 60)]
    finding = only(call_findings(a_lease(calls=asked(0, None)), snapshot(pods), NOW))
    assert finding.level is Level.FINDING
    assert "kube-scheduler has tried it without asking Aliquot (it says: 0/1 nodes are available)" in finding.what
    assert "aliquot manifests scheduler-config" in str(finding.fix)


def test_calls_from_before_the_pod_was_made_do_not_count() -> None:
    pods = [waiting(gpushare_pod("p"), 60)]
    assert only(call_findings(a_lease(calls=asked(9, 90)), snapshot(pods), NOW)).level is Level.FINDING
    assert only(call_findings(a_lease(calls=asked(9, 20)), snapshot(pods), NOW)).level is Level.OK


def test_extender_check_ignores_young_pods() -> None:
    pods = [waiting(gpushare_pod("p"), 20)]
    assert only(call_findings(a_lease(calls=asked(0, None)), snapshot(pods), NOW)).level is Level.NOTE


def test_a_scheduler_name_without_a_scheduler_is_reported() -> None:
    pods = [waiting(gpushare_pod("p", schedulerName="gpu-scheduler"), 60, message=None)]
    finding = only(call_findings(a_lease(calls=asked(9, 90)), snapshot(pods), NOW))
    assert finding.what.endswith("none serves its schedulerName gpu-scheduler")
    assert "--second" in str(finding.fix)


def test_default_scheduler_that_does_not_run_is_a_finding() -> None:
    pods = [waiting(gpushare_pod("p"), 60, message=None)]
    finding = only(call_findings(a_lease(calls=asked(9, 90)), snapshot(pods), NOW))
    assert str(finding.fix).startswith("is kube-scheduler running?")


def test_extender_not_asked_for_lack_of_advertised_resources() -> None:
    message = f"0/3 nodes are available: 3 Insufficient {MEM}. preemption: 0/3 nodes are available"
    finding = only(
        call_findings(a_lease(calls=asked(0, None)), snapshot([waiting(gpushare_pod("p"), 60, message)]), NOW)
    )
    assert f"no node has enough {MEM} left" in finding.what


def test_extender_asked_by_way_of_another_replica_is_ok() -> None:
    message = f"0/2 nodes are available: 1 GPU memory: needs 20 GiB ... (aliquot:memory), 1 Insufficient {MEM}."
    pods = [waiting(gpushare_pod("p"), 60, message)]
    finding = only(call_findings(a_lease(calls=asked(0, None)), snapshot(pods), NOW))
    assert (finding.level, finding.what) == (Level.OK, "is called, through a replica that does not lead; binds: 0")


def test_extender_binds_alone_are_ok() -> None:
    calls = {**asked(0, None), "bind": {"count": 7, "last": ago(3)}}
    finding = only(call_findings(a_lease(calls=calls), snapshot([]), NOW))
    assert (finding.level, finding.what) == (Level.OK, "is called, through a replica that does not lead; binds: 7")


def test_a_pod_behind_a_scheduling_gate_is_no_finding() -> None:
    pods = [waiting(gpushare_pod("p", schedulingGates=[{"name": "x"}]), 60, None)]
    assert next(iter(call_findings(a_lease(calls=asked(0, None)), snapshot(pods), NOW))).level is Level.NOTE


def test_a_pod_bound_without_a_grant_was_placed_past_us() -> None:
    finding = only(call_findings(a_lease(calls=asked(9, 1)), snapshot([gpushare_pod("p", on="n1")]), NOW))
    assert "placed without Aliquot" in finding.what
    assert finding.advice is not None
    assert finding.advice.startswith("kubectl delete pod p -n default")


@pytest.mark.parametrize(
    "pod",
    [
        on_card("p", 3, 0),
        asking({T9K_NODE: 1}, on="n1"),
        a_pod("web", on="n1"),
        gpushare_pod("p", on="n1", status={"phase": "Succeeded"}),
    ],
)
def test_bound_pods_with_grants_or_whole_nodes_are_ok(pod: Json) -> None:
    assert only(call_findings(a_lease(calls=asked(9, 1)), snapshot([pod]), NOW)).level is Level.OK


@pytest.mark.parametrize("calls", ["{", '{"filter": 3}', "[]"])
def test_counts_that_cannot_be_read_are_reported(calls: str) -> None:
    findings = list(call_findings(a_lease(calls=calls), snapshot([]), NOW))
    assert findings[0].level is Level.FINDING


# --- the webhook -----------------------------------------------------------------------------------------------------

CA = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
DENIED = (
    'The Pod "aliquot-doctor-breaks-a-rule" is invalid: '
    'spec.containers[0].resources.limits["tke.cloud.tencent.com/qgpu-memory"]: '
    "required with any other qGPU resource: whole GiB, at least 1, without a unit"
)
REFUSED = Probe(None, DENIED)


def tolerating() -> Probe:
    pod = exclusive_pod()
    claim = dialects.parse_pod(pod)
    pod["spec"]["tolerations"] = dialects.tolerations(claim)  # type: ignore[arg-type]
    return Probe(pod, None)


def looked(
    configuration: Json | None, broken: Probe = REFUSED, exclusive: Probe | None = None, ca: bytes | None = CA
) -> list[Finding]:
    secret = None if ca is None else base64.b64encode(ca).decode()
    read = None if configuration is None else read_configuration(configuration)
    return list(webhook_findings(read, secret, broken, exclusive or tolerating()))


CONFIGURED = webhook_configuration(CA + b"-----BEGIN CERTIFICATE-----\nolder\n", "https://10.0.0.1:9443")


def test_missing_webhook_where_kai_is_served_is_a_finding() -> None:
    (found,) = webhook_findings(None, None, REFUSED, REFUSED, served=frozenset({"kai"}))
    assert (found.level, "Pods of KAI's get no card" in found.what) == (Level.FINDING, True)
    (found,) = webhook_findings(None, None, REFUSED, REFUSED)
    assert found.level is Level.NOTE


def test_a_webhook_that_refuses_and_tolerates_is_well() -> None:
    assert [finding.level for finding in looked(CONFIGURED)] == [Level.OK, Level.OK]
    assert [finding.level for finding in looked(CONFIGURED, ca=None)] == [Level.OK, Level.OK]


@pytest.mark.parametrize(
    ("findings", "what"),
    [
        (looked(webhook_configuration(b"", "https://10.0.0.1")), "has no caBundle"),
        (looked(CONFIGURED, ca=b"another"), "is not of the authority"),
        (looked(CONFIGURED, broken=Probe({"kind": "Pod"}, None)), "let a Pod in that breaks a rule"),
        (
            looked(
                CONFIGURED, broken=Probe(None, 'failed calling webhook "pods.aliquot.dev": x509: unknown authority')
            ),
            "cannot be called, and keeps Pods out",
        ),
        (looked(CONFIGURED, exclusive=Probe(exclusive_pod(), None)), "without the toleration"),
    ],
)
def test_webhook_fault_is_a_finding_with_a_fix(findings: list[Finding], what: str) -> None:
    problems = [finding for finding in findings if finding.level is Level.FINDING]
    assert [what in finding.what for finding in problems] == [True]
    assert problems[0].fix


def test_webhook_that_cannot_be_read_is_a_finding() -> None:
    finding, *trials = looked({**CONFIGURED, "webhooks": {"name": "x"}})
    assert [trial.level for trial in trials] == [Level.OK, Level.OK]
    assert (finding.level, finding.what.startswith("cannot be read: webhooks")) == (Level.FINDING, True)


def test_missing_webhook_is_a_note() -> None:
    (problems,) = looked(None)
    assert problems.level is Level.NOTE
    assert "does not exist" in problems.what
    assert problems.fix


def test_webhook_trial_that_is_forbidden_is_unknown() -> None:
    forbidden = Probe(None, 'Error from server (Forbidden): pods is forbidden: User "x" cannot create')
    findings = looked(CONFIGURED, broken=forbidden, exclusive=forbidden)
    assert [finding.level for finding in findings] == [Level.UNKNOWN]


def test_trial_pods_break_a_rule_or_need_a_toleration() -> None:
    for rules in QgpuRules:
        assert isinstance(dialects.parse_pod(broken_pod(), Rules(rules)), tuple)
    for dialect in dialects.DIALECTS:
        served = frozenset({dialect})
        assert isinstance(dialects.parse_pod(broken_pod(served), Rules(served=served)), tuple)
    claim = dialects.parse_pod(exclusive_pod())
    assert dialects.tolerations(claim)  # type: ignore[arg-type]
    assert dialects.parse_node(gpushare_node())
