"""Evictor: a Pod is considered within seconds of its first refusal, whatever else happens in the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError
from kit.clusters.evictions import Rig, scene
from kit.running.virtualclock import play

SOON = 3.0  # seconds

# What happens between two tries of the Pod: seconds until then, and what changes meanwhile.
EVENTS = ("nothing", "write the Pod", "come", "go", "ask for others")
STEPS = st.lists(st.tuples(st.floats(0.02, 1.4), st.sampled_from(EVENTS)), min_size=1, max_size=60)


async def _churn(rig: Rig, steps: list[tuple[float, str]]) -> None:
    """Try the Pod in this pattern until it has room or its time is over."""
    until, number = rig.loop.time() + SOON, 0
    while rig.loop.time() < until and not rig.evicted:
        gap, event = steps[number % len(steps)]
        number += 1
        await asyncio.sleep(min(gap, until - rig.loop.time()))
        if event == "write the Pod":
            rig.set_status("high", message=str(number))
        elif event == "come":
            rig.put(f"small-{number}", 1, 1)
        elif event == "go" and f"small-{number - 1}" in rig.pods:
            rig.gone(f"small-{number - 1}")
        elif event == "ask for others":
            rig.wait(f"huge-{number}", 64, priority=2000)
        rig.ask("high", 16)


@given(STEPS)
def test_pod_is_helped_within_seconds_however_often_it_is_tried(steps: list[tuple[float, str]]) -> None:
    async def run() -> None:
        rig = Rig(16, 16)
        rig.put("stays", 12, 1, priority=1000)
        rig.put("low", 12, 0)
        running = asyncio.create_task(rig.evictor.run())
        rig.wait("high", 16)
        await _churn(rig, steps)
        running.cancel()
        assert rig.evicted == ["low"]
        assert rig.nominated("high") == "n1"

    play(run())


@scene(16)
async def test_pod_is_helped_though_hundreds_of_more_important_ones_wait_in_vain(rig: Rig) -> None:
    rig.put("low", 16)
    running = asyncio.create_task(rig.evictor.run())
    for number in range(150):
        rig.wait(f"huge-{number}", 32, priority=2000)
    await asyncio.sleep(1.5)
    rig.wait("high", 16)
    for _ in range(20):
        await asyncio.sleep(SOON / 20)
        for number in range(150):
            rig.ask(f"huge-{number}", 32)
    running.cancel()
    assert rig.evicted == ["low"]


@scene(16)
async def test_important_pod_is_not_forgotten_where_more_wait_than_we_remember(rig: Rig) -> None:
    rig.put("low", 16)
    rig.wait("high", 16)
    for number in range(400):
        rig.wait(f"other-{number}", 16, priority=1)
    await rig.rounds()
    assert rig.evicted == ["low"]
    assert rig.nominated("high") == "n1"


@scene(16)
async def test_nomination_is_written_again_where_another_client_wrote_the_pod(rig: Rig) -> None:
    rig.put("low", 16)
    rig.wait("high", 16)
    writes = iter(range(2))

    def another_client(verb: str, path: str) -> None:
        if path.endswith("/status") and next(writes, None) is not None:
            rig.set_status("high", message="written between our read and our write")

    rig.refuse = another_client
    await rig.rounds()
    assert rig.evicted == ["low"]


@scene(16, 16)
async def test_plan_is_made_anew_at_once_where_the_board_changed_during_the_trial(rig: Rig) -> None:
    rig.put("low", 12, 0)
    rig.put("stays", 12, 1, priority=1000)
    rig.wait("high", 16)
    names: list[str] = []

    def another_comes(verb: str, path: str) -> None:
        if verb == "dry-run" and len(names) < 3:
            names.append(f"late-{len(names)}")
            rig.put(names[-1], 1, 0)

    rig.refuse = another_comes
    await rig.rounds()
    assert sorted(rig.evicted) == ["late-0", "late-1", "late-2", "low"]


@scene(16)
async def test_pod_is_considered_again_after_a_failed_call_though_nobody_asks(rig: Rig) -> None:
    rig.put("low", 16)
    rig.wait("high", 16)
    down: Any = iter([ApiError(503, "ServiceUnavailable", "etcd has no leader")])
    rig.refuse = lambda verb, path: next(down, None) if verb == "get" else None
    running = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(SOON)
    running.cancel()
    assert rig.evicted == ["low"]


@scene(16)
async def test_pod_is_considered_though_our_watch_saw_it_late(rig: Rig) -> None:
    rig.put("low", 16)
    assert not rig.ask("high", 16)
    await rig.rounds(5.0)
    rig.wait("high", 16, ask=False)
    await rig.rounds(1.0)
    assert rig.evicted == ["low"]


@scene(16)
async def test_offers_of_kube_scheduler_that_come_to_nothing_do_not_delay_for_ever(rig: Rig) -> None:
    rig.put("low", 16)
    rig.wait("high", 16)
    for _ in range(20):  # it offers at each try, and its evictions fail
        rig.evictor.note_offered("uid-high")
        rig.ask("high", 16)
        await rig.rounds(2.0)
    assert rig.evicted == ["low"]


@scene(*[16] * 12)
async def test_event_names_the_budget_that_protects_more_pods_than_are_tried_at_once(rig: Rig) -> None:
    for card in range(12):
        rig.put(f"web-{card}", 16, card)
        rig.protected.add(f"web-{card}")
    rig.wait("high", 16)
    await rig.rounds()
    assert rig.evicted == []
    assert {reason for _, reason, _ in rig.events} == {"PreemptionBlocked"}
    assert "PodDisruptionBudget web" in rig.events[0][2]
