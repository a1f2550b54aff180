"""Pods request cards in creation order, however their supervisors race."""

from __future__ import annotations

import asyncio

from aliquot.model.containers.localpod import Applier, LocalPod
from aliquot.services.machine.pods.startorder import StartOrder


def a_pod(uid: str, user: int = 0) -> LocalPod:
    return LocalPod(uid, "default", uid, None, {}, "", Applier(user, 0, "/", {}), 0.0)


def play(turns: StartOrder, *asking: str, gone: str | None = None) -> list[str]:
    """Who has its turn, in order, when they ask in that order; `gone` never asks."""
    done: list[str] = []

    async def ask(uid: str) -> None:
        await turns.wait_for_turn(uid)
        turns.end(uid)
        done.append(uid)

    async def act() -> None:
        async with asyncio.timeout(5.0):
            tasks = [asyncio.create_task(ask(uid)) for uid in asking]
            if gone is not None:
                await asyncio.sleep(0.05)
                assert done == []
                turns.end(gone)
            await asyncio.gather(*tasks)

    asyncio.run(act())
    return done


def begun(*pods: LocalPod) -> StartOrder:
    turns = StartOrder({pod.uid: pod for pod in pods})
    for pod in pods:
        turns.begin(pod.uid)
    return turns


def test_start_order_is_creation_order() -> None:
    assert play(begun(*map(a_pod, "abcd")), "d", "b", "c", "a") == ["a", "b", "c", "d"]


def test_start_order_skips_ended_supervisor() -> None:
    assert play(begun(*map(a_pod, "abc")), "c", "b", gone="a") == ["b", "c"]


def test_start_order_skips_silent_supervisor() -> None:
    now = 0.0
    pods = {uid: a_pod(uid) for uid in "ab"}
    turns = StartOrder(pods, clock=lambda: now)
    turns.begin("a")
    turns.begin("b")
    assert turns.by_user() == {0: 2}
    now = 11.0
    assert play(turns, "b") == ["b"]
    assert turns.by_user() == {}


def test_start_order_ignores_other_users() -> None:
    assert play(begun(a_pod("a", user=1), a_pod("b")), "b") == ["b"]
