"""How a node's agent stands: the same shape as a machine's daemon, with Pods for tenants."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from aliquot.cli.machine.ps import _running
from aliquot.cli.machine.top import view
from aliquot.dialects.wire.advertising import Token
from aliquot.model.status.machine import AgentStatus, DaemonStatus, ResourceStatus, Status
from aliquot.services.agent.status import NodeState, resource_statuses, status
from kit.fakeagent import CARDS, RESOURCE, RUNS_ON_A, PaperAgent, a_scene


def of(node: NodeState, now: float) -> Status:
    return status(node, now, DaemonStatus(pid=1), AgentStatus(None, {}, 0, {}))


def test_a_pod_is_a_tenant_named_by_its_namespace_and_name() -> None:
    train, _ = of(a_scene(), 1060.0).tenants
    assert (train.name, train.namespace, train.pod, train.uid) == ("ml/train-0", "ml", "train-0", "u1")
    assert (train.app_class, train.age_seconds, train.ended) == ("offline", 60.0, False)


def test_what_a_pod_was_promised_stands_beside_what_it_does() -> None:
    train, serve = of(a_scene(), 1060.0).tenants
    (card,) = train.cards
    assert (card.index, card.uuid, card.core, card.memory_limit_bytes) == (0, "GPU-a", 30.0, 4096 << 20)
    assert (card.state, card.share, card.paused_seconds, card.preemptions) == ("paused", 0.25, 1.5, 3)
    assert (card.memory_used_bytes, card.refused_allocations, card.pids) == (5 << 20, 2, [41, 42])
    assert (serve.cards[0].state, serve.cards[0].memory_used_bytes) == ("idle", 0)


def test_a_pod_that_has_ended_but_whose_processes_have_not_is_told_as_that() -> None:
    assert [tenant.ended for tenant in of(a_scene(ended=frozenset({"u2"})), 0.0).tenants] == [False, True]


def test_a_card_tells_what_is_booked_in_use_and_who_is_on_it() -> None:
    card, _ = of(a_scene(), 1060.0).cards
    assert (card.memory_booked_bytes, card.core_booked, card.tenants) == (12288 << 20, 80.0, 2)
    assert (card.memory_used_bytes, card.utilisation) == (6 << 20, 0.5)
    assert (card.healthy, card.why_out) == (True, None)


def test_a_card_that_is_out_says_why_and_what_nobody_measured_is_unknown() -> None:
    _, card = of(a_scene(), 1060.0).cards
    assert (card.healthy, card.why_out) == (False, "Xid 79: it has fallen off the bus")
    assert (card.memory_used_bytes, card.utilisation, card.tenants) == (None, None, 0)


def test_a_finding_has_its_kind_and_nobody_queues() -> None:
    told = of(a_scene(), 1060.0)
    assert msgspec.to_builtins(told.findings) == [
        {
            "uuid": "GPU-a",
            "pid": 77,
            "text": "uses the card without being a tenant: it is of no Pod",
            "kind": "stranger",
        }
    ]
    assert told.queue == []


def test_a_resource_tells_how_many_devices_and_whether_the_kubelet_took_it() -> None:
    tokens = (Token("a-_-0", True, None), Token("a-_-1", False, None))
    assert resource_statuses({RESOURCE: tokens}, frozenset()) == {
        RESOURCE: ResourceStatus(devices=2, unhealthy=1, registered=False)
    }


def test_top_shows_an_agent_as_it_shows_a_daemon_and_a_card_that_is_out() -> None:
    shown = view(PaperAgent(waits_for="the kubelet has not accepted it").status()).splitlines()
    assert shown[0] == "node n1, policy best-effort, release delay 100ms"
    assert shown[1] == "not ready: the kubelet has not accepted it"
    (line,) = [line for line in shown if "ml/train-0" in line]
    assert line.split()[1:4] == ["offline", "30%", "25.0%"]
    assert any(line.endswith("booked, OUT: Xid 79: it has fallen off the bus") for line in shown)
    assert shown[-1] == "found on card 0: process 77 uses the card without being a tenant: it is of no Pod"


def test_top_says_nothing_of_readiness_when_all_is_in_order() -> None:
    assert "not ready" not in view(PaperAgent().status())


def test_ps_shows_a_pod_without_a_process_id() -> None:
    train = PaperAgent().status().tenants[0]
    assert _running(train)[:6] == ("ml/train-0", "offline", "-", "0", "4 GiB", "30%")


def test_cards_are_told_in_their_order() -> None:
    assert [card.index for card in of(a_scene(tenancies=[]), 0.0).cards] == [card.index for card in CARDS]


def test_refused_allocations_are_shown_where_there_are_any() -> None:
    head, train, serve = view(PaperAgent().status()).splitlines()[3:6]
    assert head.endswith("PREEMPTED  REFUSED")
    assert [line.split()[-1] for line in (train, serve)] == ["2", "0"]


def test_refused_allocations_are_not_shown_where_there_are_none() -> None:
    quiet = PaperAgent(scene=a_scene(standings=[replace(RUNS_ON_A, refused=0)]))
    assert "REFUSED" not in view(quiet.status())
