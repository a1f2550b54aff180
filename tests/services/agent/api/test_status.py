"""How a node's agent stands: the same shape as a machine's daemon, with Pods for tenants."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from aliquot.cli.machine.ps import _running
from aliquot.cli.machine.top import view
from aliquot.dialects.wire.advertising import Token
from aliquot.model.cardstate.control import PROVEN, CardControl, ControlLevel, ControlReason
from aliquot.model.status.machine import AgentStatus, DaemonStatus, ResourceStatus, Status
from aliquot.model.tenant import Finding, FindingKind, SharingRules
from aliquot.services.agent.api.status import NodeState, resource_statuses, status
from aliquot.services.daemon.metrics import PODS, exposition
from aliquot.wording.messages import control
from kit.agents.fakeagent import CARDS, RESOURCE, RUNS_ON_A, STRANGER, FakeAgent, a_scene


def of(node: NodeState, now: float) -> Status:
    return status(node, now, DaemonStatus(pid=1), AgentStatus(None, {}, 0, {}))


def test_status_names_tenants_by_namespace_and_pod() -> None:
    train, _ = of(a_scene(), 1060.0).tenants
    assert (train.name, train.namespace, train.pod, train.uid) == ("ml/train-0", "ml", "train-0", "u1")
    assert (train.app_class, train.age_seconds, train.ended) == ("offline", 60.0, False)


def test_status_shows_promise_and_use_of_a_pod() -> None:
    train, serve = of(a_scene(), 1060.0).tenants
    (card,) = train.cards
    assert (card.index, card.uuid, card.core, card.memory_limit_bytes) == (0, "GPU-a", 30.0, 4096 << 20)
    assert (card.state, card.share, card.paused_seconds, card.preemptions) == ("paused", 0.25, 1.5, 3)
    assert (card.memory_used_bytes, card.refused_allocations, card.pids) == (5 << 20, 2, [41, 42])
    assert (serve.cards[0].state, serve.cards[0].memory_used_bytes) == ("idle", 0)


def test_status_marks_ended_pods_with_processes() -> None:
    assert [tenant.ended for tenant in of(a_scene(ended=frozenset({"u2"})), 0.0).tenants] == [False, True]


def test_status_of_a_card_shows_bookings_and_use() -> None:
    card, _ = of(a_scene(), 1060.0).cards
    assert (card.memory_booked_bytes, card.core_booked, card.tenants) == (12288 << 20, 80.0, 2)
    assert (card.memory_used_bytes, card.utilisation) == (6 << 20, 0.5)
    assert (card.healthy, card.why_out) == (True, None)


def test_status_of_a_card_that_is_out_shows_why() -> None:
    _, card = of(a_scene(), 1060.0).cards
    assert (card.healthy, card.why_out) == (False, "Xid 79: it has fallen off the bus")
    assert (card.memory_used_bytes, card.utilisation, card.tenants) == (None, None, 0)


def test_status_findings_have_a_kind_and_the_queue_is_empty() -> None:
    reported = of(a_scene(), 1060.0)
    assert msgspec.to_builtins(reported.findings) == [
        {
            "uuid": "GPU-a",
            "pid": 77,
            "text": "uses the card without being a tenant: it belongs to no Pod",
            "kind": "stranger",
        }
    ]
    assert reported.queue == []


def test_status_shows_memory_that_nothing_limits_and_tenants_over_their_limit() -> None:
    findings = [
        replace(STRANGER, memory=3 << 30),
        Finding("GPU-a", 78, FindingKind.UNREGISTERED, "has not registered", "u2", 1 << 30),
        Finding("GPU-a", None, FindingKind.OVERUSE, "tenant ml/train-0 uses 6 GiB", "u1", 2 << 30),
    ]
    reported = of(a_scene(findings=findings, standings=[replace(RUNS_ON_A, memory_over=2 << 30)]), 1060.0)
    assert [card.memory_unregistered_bytes for card in reported.cards] == [4 << 30, 0]
    assert [finding.memory_bytes for finding in reported.findings] == [3 << 30, 1 << 30, 2 << 30]
    assert reported.tenants[0].cards[0].memory_over_bytes == 2 << 30
    shown = view(reported)
    assert "4 GiB by processes that nothing limits" in shown
    assert "found on card 0: process 77 (3 GiB) uses the card without being a tenant" in shown
    assert "found on card 0: tenant ml/train-0 uses 6 GiB" in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("ml/train-0")]
    assert "5 MiB / 4 GiB OVER" in line


def test_top_says_that_processes_over_their_limit_are_ended() -> None:
    reported = of(a_scene(rules=SharingRules(kill_after=10)), 0.0)
    assert reported.rules.kill_after_seconds == 10
    assert view(reported).splitlines()[0].endswith("ends processes over their memory limit after 10s")


def test_resource_status_counts_devices_and_registration() -> None:
    tokens = (Token("a-_-0", True, None), Token("a-_-1", False, None))
    assert resource_statuses({RESOURCE: tokens}, frozenset()) == {
        RESOURCE: ResourceStatus(devices=2, unhealthy=1, registered=False)
    }


def test_top_shows_an_agent_and_a_card_that_is_out() -> None:
    shown = view(FakeAgent(waits_for="the kubelet has not accepted it").status()).splitlines()
    assert shown[0] == "node n1, policy best-effort, release delay 100ms"
    assert shown[1] == "not ready: the kubelet has not accepted it"
    (line,) = [line for line in shown if "ml/train-0" in line]
    assert line.split()[1:4] == ["offline", "30%", "25.0%"]
    assert any(line.endswith("booked, OUT: Xid 79: it has fallen off the bus") for line in shown)
    assert shown[-1] == "found on card 0: process 77 uses the card without being a tenant: it belongs to no Pod"


def test_top_of_a_ready_agent_has_no_readiness_line() -> None:
    assert "not ready" not in view(FakeAgent().status())


def test_ps_shows_a_pod_without_a_process_id() -> None:
    train = FakeAgent().status().tenants[0]
    assert _running(train)[:7] == ("ml/train-0", "-", "offline", "-", "0", "4 GiB", "30%")


def test_status_keeps_the_order_of_cards() -> None:
    assert [card.index for card in of(a_scene(tenancies=[]), 0.0).cards] == [card.index for card in CARDS]


def test_top_shows_refused_allocations() -> None:
    head, train, serve = view(FakeAgent().status()).splitlines()[3:6]
    assert head.endswith("PAUSED  REFUSED  STATE")
    assert [line.split()[-2] for line in (train, serve)] == ["2", "0"]


def test_status_and_top_name_the_group_of_a_pod() -> None:
    train, serve = a_scene().tenancies
    found = of(a_scene(tenancies=[replace(train, group="llm"), serve]), 1060.0)
    assert [tenant.together for tenant in found.tenants] == ["llm", None]
    lines = view(found).splitlines()[3:6]
    assert lines[0].startswith("NAME")
    assert [line.split()[1] for line in lines] == ["TOGETHER", "llm", "-"]
    assert "TOGETHER" not in view(of(a_scene(), 1060.0))


def test_top_hides_refused_allocations_without_any() -> None:
    quiet = FakeAgent(scene=a_scene(standings=[replace(RUNS_ON_A, refused=0)]))
    assert "REFUSED" not in view(quiet.status())


def test_status_metrics_and_dashboard_show_what_controls_a_card() -> None:
    inert = CardControl(ControlLevel.GATE, ControlReason.SLICES_INERT)
    found = of(a_scene(controls={"GPU-a": inert, "GPU-b": PROVEN}), 1060.0)
    assert [msgspec.to_builtins(card.control) for card in found.cards] == [
        {"level": "gate", "reason": "slices_inert"},
        {"level": "proven", "reason": None},
    ]
    shown = view(found)
    assert "booked, gate: time slices have no effect on this card" in shown
    assert "booked, hardware (proven)" in shown
    metrics = exposition(found, PODS).decode()
    labels = 'card="0",level="gate",model="A30",reason="slices_inert",uuid="GPU-a"'
    assert f"aliquot_card_control{{{labels}}} 1.0" in metrics
    messages = [control(card) for card in found.cards]
    assert [(one.code, one.name) for one in messages if one is not None] == [
        ("control-gate", "slices_inert"),
        ("control-proven", None),
    ]
