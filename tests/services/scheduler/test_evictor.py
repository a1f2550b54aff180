"""Evictor: evictions where only a card is short: which Pods go, what is kept meanwhile, and when no Pod goes."""

from __future__ import annotations

from kit.clusters.evictions import Rig, scene
from kit.clusters.watchobjects import as_pod, claim_of, free, live_node, live_pod
from kit.values.manifests import MEM


@scene(16, 16)
async def test_the_least_important_pod_is_evicted_and_its_room_kept(rig: Rig) -> None:
    rig.put("a", 12, 0)
    rig.put("b", 12, 1, priority=5)
    rig.wait("high", 8)
    await rig.rounds()
    assert rig.evicted == ["a"]
    assert rig.nominated("high") == "n1"
    assert rig.events == [
        ("high", "Preempting", "evicts ns/a (normal, priority 0) from card 0 of n1; the room is kept for this Pod"),
        ("a", "Preempted", "evicted from card 0 of n1 for ns/high (normal, priority 1000)"),
    ]
    rig.gone("a")
    assert not rig.ask("other", 12), "the room is kept"
    assert rig.ask("other", 8), "what is not needed is free"
    await rig.rounds(1.0)
    assert set(rig.retried) == {"high"}
    assert rig.ask("high", 8)


@scene(16)
async def test_nothing_is_taken_while_victims_have_their_grace_period(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.wait("high", 16)
    await rig.rounds()
    assert sorted(rig.evicted) == ["a", "b"]
    rig.gone("a")
    assert not rig.ask("thief", 8)
    for _ in range(5):  # kube-scheduler tries, and is refused, while b has its grace period
        assert not rig.ask("high", 16)
        await rig.rounds(5.0)
        assert not rig.ask("thief", 4)
    assert len(rig.evicted) == 2
    rig.gone("b")
    await rig.rounds(1.0)
    assert rig.retried
    assert rig.ask("high", 16)


@scene(16)
async def test_room_that_is_not_taken_is_given_up(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    await rig.rounds()
    rig.gone("a")
    await rig.rounds(20.0)
    assert not rig.ask("other", 4)
    await rig.rounds(15.0)
    assert rig.nominated("high") is None
    assert free(rig.cluster) == 16
    assert rig.ask("other", 4)


@scene(16, 16)
async def test_protected_pod_is_avoided_where_another_can_go(rig: Rig) -> None:
    rig.put("a", 16, 0)
    rig.put("b", 16, 1, priority=7)
    rig.protected = {"a"}
    rig.wait("high", 16)
    await rig.rounds()
    assert rig.evicted == ["b"], "a protected Pod is avoided"


@scene(16)
async def test_no_pod_is_evicted_while_a_budget_blocks(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.protected = {"b"}
    rig.wait("high", 16)
    await rig.rounds()
    assert rig.evicted == [], "nobody goes unless all may"
    assert rig.nominated("high") is None
    (event,) = rig.events
    assert event[:2] == ("high", "PreemptionBlocked")
    assert "budget web needs 1 healthy pods" in event[2]
    rig.protected = set()
    await rig.rounds(40.0)
    assert sorted(rig.evicted) == ["a", "b"]


@scene(16)
async def test_policy_never_and_equal_priority_evict_no_pod(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16, preemptionPolicy="Never")
    rig.wait("equal", 16, priority=0)
    await rig.rounds(5.0)
    assert rig.calls == []


@scene(16, enabled=False)
async def test_preemption_can_be_switched_off(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    await rig.rounds(5.0)
    assert rig.calls == []


@scene(16)
async def test_kube_schedulers_own_preemption_has_precedence(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    rig.evictor.note_offered("uid-high")
    assert not rig.ask("high", 16), "it tries again while its victims leave"
    await rig.rounds(20.0)
    assert rig.calls == []
    await rig.rounds(20.0)
    assert rig.evicted == ["a"], "where that comes to nothing"


@scene(16)
async def test_no_pod_is_evicted_from_a_node_that_kube_scheduler_did_not_ask_about(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16, ask=False)
    rig.evictor.note_refused(claim_of(rig.cluster, live_pod("high", {MEM: 16})), ["n2"])
    await rig.rounds(5.0)
    assert rig.evicted == []


@scene(16, 16)
async def test_two_waiting_pods_do_not_share_victims(rig: Rig) -> None:
    for card in (0, 1):
        rig.put(f"low-{card}", 16, card)
    rig.wait("high-1", 16)
    rig.wait("high-2", 16)
    await rig.rounds()
    assert sorted(rig.evicted) == ["low-0", "low-1"], "each has a card of its own"


@scene(16)
async def test_kept_room_gives_way_to_a_more_important_pod(rig: Rig) -> None:
    rig.put("low", 16)
    rig.wait("middle", 16, priority=10)
    await rig.rounds()
    rig.gone("low")
    rig.wait("top", 16, priority=20)
    assert not rig.ask("top", 16), "kept for middle"
    await rig.rounds()
    assert rig.ask("top", 16)
    assert not rig.ask("middle", 16)
    assert rig.evicted == ["low"]


@scene(16)
async def test_reservation_survives_a_restart(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.wait("high", 16)
    await rig.rounds()
    rig.start()
    rig.cluster.reserved.drop("uid-high")
    await rig.rounds(0.5)
    rig.gone("a")
    assert not rig.ask("thief", 8), "nominatedNodeName says for whom the room is"
    rig.gone("b")
    await rig.rounds(1.0)
    assert rig.retried
    assert rig.ask("high", 16)
    assert len(rig.evicted) == 2


@scene(16)
async def test_preemption_goes_on_after_a_restart_without_nomination(rig: Rig) -> None:
    """kube-scheduler withdraws it when the extender does not answer."""
    rig.put("a", 16)
    rig.wait("high", 16)
    await rig.rounds()
    rig.start()
    rig.cluster.reserved.drop("uid-high")
    rig.wait("high", 16)
    assert rig.nominated("high") is None
    await rig.rounds()
    assert rig.nominated("high") == "n1"
    assert rig.evicted == ["a"]
    rig.gone("a")
    assert not rig.ask("thief", 8)
    assert rig.ask("high", 16)


@scene(16)
async def test_of_two_replicas_one_acts(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)

    def other_replica(verb: str, path: str) -> None:
        if verb == "patch":  # between our read and our write
            rig.set_status("high", nominatedNodeName="n1")

    rig.refuse = other_replica
    await rig.rounds(2.0)
    assert rig.evicted == []


@scene(16)
async def test_pod_stuck_in_termination_is_not_waited_for(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.pods["a"]["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
    rig.cluster.set_pod(as_pod(rig.pods["a"]))
    rig.wait("high", 8)
    await rig.rounds()
    assert rig.evicted == ["b"], "a is not about to go"


@scene(8, 8)
async def test_no_pod_is_evicted_for_a_claim_that_the_pod_does_not_make(rig: Rig) -> None:
    """A client that may call the verbs can send any claim under any uid."""
    rig.cluster.set_node(live_node("n2", 8))
    rig.put("a", 8, 0)
    rig.put("b", 8, 1)
    rig.put("c", 8, on="n2")
    rig.wait("high", 4)
    assert not rig.ask("high", 8, ["n2"])
    await rig.rounds()
    assert len(rig.evicted) == 1
    assert rig.nominated("high") == "n1", "as the real Pod asked, not as the forged call did"


@scene(8)
async def test_claim_that_was_sent_before_the_pod_was_read_is_checked_then(rig: Rig) -> None:
    rig.put("a", 8)
    assert not rig.ask("early", 4), "kube-scheduler's watch is ahead of ours"
    assert not rig.ask("forged", 8)
    await rig.rounds(0.5)
    rig.wait("early", 4, ask=False)
    rig.wait("forged", 4, ask=False)
    await rig.rounds()
    assert rig.nominated("early") == "n1"
    assert rig.nominated("forged") is None
