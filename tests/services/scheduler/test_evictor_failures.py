"""Evictor: what goes wrong on the way: calls that are refused or lost, and Pods that change meanwhile."""

from __future__ import annotations

import asyncio

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from kit.evictions import Rig, scene

NO_RIGHT = (
    'pods "a" is forbidden: User "system:serviceaccount:kube-system:aliquot-scheduler" cannot create resource'
    ' "pods/eviction" in API group "" in the namespace "ns"'
)
DENIED = 'admission webhook "keep.example.com" denied the request: not during the day'


@scene(16)
async def test_missing_right_is_reported_once(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", NO_RIGHT) if "eviction" in path else None
    task = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(30)
    task.cancel()
    assert len(rig.calls) == 1, "not again and again"


@scene(16)
async def test_lost_answer_to_an_eviction_is_made_good(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.wait("high", 16)
    lost = iter([Unreachable("no answer")])
    rig.refuse = lambda verb, path: next(lost, None) if verb == "evict" else None
    task = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(10)
    task.cancel()
    assert sorted(rig.evicted) == ["a", "b"]


@scene(16, 16)
async def test_refusal_about_one_pod_does_not_stop_preemption(rig: Rig) -> None:
    rig.put("a", 16, 0)
    rig.put("b", 16, 1, priority=7)
    rig.wait("high", 16)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", DENIED) if path.endswith("/a/eviction") else None
    await rig.rounds()
    assert rig.evicted == ["b"], "a is protected, as by a budget"


@scene(16, 16)
async def test_promise_that_is_denied_for_one_pod_does_not_stop_preemption(rig: Rig) -> None:
    rig.put("a", 16, 0)
    rig.put("b", 16, 1)
    rig.wait("high", 16, priority=2000)
    rig.wait("other", 16)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", DENIED) if path.endswith("/high/status") else None
    task = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(10)
    task.cancel()
    assert len(rig.evicted) == 1
    assert rig.nominated("other") == "n1"
