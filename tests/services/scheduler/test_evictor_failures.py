"""Evictor: what goes wrong on the way: calls that are refused or lost, and Pods that change meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from aliquot.adapters.kubernetes.kube import ApiError, NotSent, Unreachable
from kit.clusters.evictions import Rig, scene
from kit.clusters.watchobjects import as_pod

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


@scene(16)
async def test_victims_that_go_by_themselves_meanwhile_are_not_evicted(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.put(name, 8)
    rig.wait("high", 16)

    def one_goes(verb: str, path: str) -> None:
        if (verb, path.endswith("/status")) == ("patch", True) and "a" in rig.pods:
            rig.gone("a")

    rig.refuse = one_goes
    await rig.rounds()
    assert rig.evicted == ["b"]
    assert "ns/a" not in rig.events[0][2]


@scene(16)
async def test_victims_that_go_by_themselves_during_the_trial_need_no_preemption(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.put(name, 8)
    rig.wait("high", 16)

    def both_go(verb: str, path: str) -> None:
        for name in ("a", "b"):
            if verb == "dry-run" and name in rig.pods:
                rig.gone(name)

    rig.refuse = both_go
    await rig.rounds()
    assert {verb for verb, _ in rig.calls} == {"dry-run"}
    assert rig.ask("high", 16)


@scene(16, 16)
async def test_promises_are_followed_between_two_preemptions(rig: Rig) -> None:
    for card in (0, 1):
        rig.put(f"low-{card}", 16, card)
    rig.wait("high-1", 16)
    rig.wait("high-2", 16)
    await asyncio.sleep(2)
    await rig.evictor.round()
    assert len(rig.evicted) == 1
    await rig.evictor.round()
    assert len(rig.evicted) == 2


@scene(16)
async def test_victim_that_was_refused_and_has_ended_is_not_evicted(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.wait("high", 16)
    last: list[str] = []

    def only_one_at_a_time(verb: str, path: str) -> Exception | None:
        if verb == "evict" and rig.evicted:
            last.append(path.split("/")[-2])
            return ApiError(429, "TooManyRequests", "Cannot evict pod")
        return None

    rig.refuse = only_one_at_a_time
    await rig.rounds(1.5)
    (refused,) = set(last)
    rig.cluster.set_pod(as_pod({**rig.pods[refused], "status": {"phase": "Succeeded"}}))
    tries = len(last)
    await rig.rounds(5.0)
    assert len(last) == tries, "it has ended: an eviction would delete it"


@scene(16, 16)
async def test_no_other_pod_is_evicted_once_the_room_is_there(rig: Rig) -> None:
    rig.put("a", 16)
    rig.put("b", 16, 1)
    rig.wait("high", 16)
    refused: list[str] = []

    def never(verb: str, path: str) -> Exception | None:
        if verb == "evict":
            refused.append(path.split("/")[-2])
            return ApiError(429, "TooManyRequests", "Cannot evict pod")
        return None

    rig.refuse = never
    await rig.rounds(1.5)
    (victim,) = set(refused)
    pod = rig.pods[victim]
    pod["metadata"]["annotations"] = {"ALIYUN_COM_GPU_MEM_IDX": "1"}  # its cards were a guess, and are corrected
    rig.cluster.set_pod(as_pod(pod))
    rig.cluster.reserved.renew_all()
    rig.refuse = lambda verb, path: None
    await rig.rounds(5.0)
    assert rig.evicted == []
    assert rig.retried


@scene(16)
async def test_no_other_pod_is_evicted_for_a_pod_that_is_gone(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.put(name, 8)
    rig.wait("high", 16)

    def preemptor_goes(verb: str, path: str) -> None:
        if verb == "evict" and "high" in rig.pods:
            rig.gone("high")

    rig.refuse = preemptor_goes
    await rig.rounds()
    assert len(rig.evicted) == 1


@scene(16)
async def test_nomination_whose_answer_was_lost_is_withdrawn_and_tried_again(rig: Rig) -> None:
    await _lose_answers(rig)


@scene(16)
async def test_nomination_that_was_written_and_answered_with_504_is_withdrawn_and_tried_again(rig: Rig) -> None:
    rig.no_answer = ApiError(504, "Timeout", "request did not complete within the allotted timeout")
    await _lose_answers(rig)


@scene(16)
async def test_nomination_that_was_written_and_answered_with_429_is_withdrawn_and_tried_again(rig: Rig) -> None:
    rig.no_answer = ApiError(429, "TooManyRequests", "too many requests")
    await _lose_answers(rig)


async def _lose_answers(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    rig.lost = {"nominate"}  # it is written all the same
    task = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(1.5)
    assert rig.nominated("high") == "n1"
    assert rig.evicted == []
    await asyncio.sleep(5)
    assert rig.nominated("high") == "n1", "nor is the answer to the withdrawal there"
    rig.lost = set()
    await asyncio.sleep(5)
    assert rig.nominated("high") is None
    assert rig.retried == ["high"], "kube-scheduler is to try it again"
    assert not rig.ask("high", 16)
    await asyncio.sleep(10)
    task.cancel()
    assert rig.evicted == ["a"]
    assert rig.nominated("high") == "n1"


@scene(16)
async def test_nomination_by_kube_scheduler_is_not_withdrawn_for_a_lost_one(rig: Rig) -> None:
    await _fail_before_another_nominates(rig, "patch", Unreachable("no answer"), node="n2")


@scene(16)
async def test_nomination_by_another_replica_is_not_withdrawn_after_a_failed_read(rig: Rig) -> None:
    await _fail_before_another_nominates(rig, "get", Unreachable("no answer"))


@scene(16)
async def test_nomination_by_another_replica_is_not_withdrawn_after_one_that_was_not_sent(rig: Rig) -> None:
    await _fail_before_another_nominates(rig, "patch", NotSent("no connection was free"))


async def _fail_before_another_nominates(rig: Rig, failing: str, error: Exception, node: str = "n1") -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    errors = iter([error])
    rig.refuse = lambda verb, path: next(errors, None) if verb == failing else None
    await asyncio.sleep(1.5)
    with pytest.raises(Unreachable):
        await rig.evictor.round()
    rig.set_status("high", nominatedNodeName=node)
    await rig.rounds(5.0)
    assert rig.nominated("high") == node


@scene(16)
async def test_withdrawal_is_repeated_until_the_pod_is_touched(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    rig.lost = {"nominate"}
    task = asyncio.create_task(rig.evictor.run())
    await asyncio.sleep(1.5)
    rig.lost = set()
    down = ApiError(503, "ServiceUnavailable", "etcd has no leader")
    rig.refuse = lambda verb, path: down if verb == "get" or path.endswith("/high") else None
    await asyncio.sleep(5)
    assert rig.nominated("high") == "n1", "it cannot be read"
    rig.refuse = lambda verb, path: down if verb == "patch" and path.endswith("/high") else None
    await asyncio.sleep(5)
    assert rig.nominated("high") is None
    assert rig.retried == []
    rig.refuse = lambda verb, path: None
    await asyncio.sleep(5)
    task.cancel()
    assert rig.retried == ["high"]


@scene(16)
async def test_withdrawal_whose_answer_was_lost_is_repeated(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    await rig.rounds()
    rig.gone("a")
    rig.refuse = lambda verb, path: Unreachable("no answer") if path.endswith("/status") else None
    await rig.rounds(40.0)
    assert rig.nominated("high") == "n1"
    rig.refuse = lambda verb, path: None
    await rig.rounds()
    assert rig.nominated("high") is None


@scene(16)
async def test_evictions_that_admission_denies_after_the_trial_become_rare(rig: Rig) -> None:
    for name in ("a", "b"):
        rig.put(name, 8)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", DENIED) if verb == "evict" else None
    rig.wait("high", 16)
    for _ in range(180):  # half an hour in which kube-scheduler tries the Pod every ten seconds
        await rig.rounds(10.0, every=1.0)
        rig.ask("high", 16)
    denied = [path for verb, path in rig.calls if verb == "evict"]
    assert 5 < len(denied) < 15
    assert len(set(denied)) == 1, "nobody else goes where one may not"
    assert DENIED in next(text for _, reason, text in rig.events if reason == "PreemptionBlocked")
    rig.refuse = lambda verb, path: None
    for _ in range(120):
        await rig.rounds(10.0, every=1.0)
        rig.ask("high", 16)
    assert sorted(rig.evicted) == ["a", "b"], "once they are allowed"


@scene(16)
async def test_trials_that_admission_denies_become_rare_for_all_that_wait(rig: Rig) -> None:
    rig.put("a", 16)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", DENIED) if verb == "dry-run" else None
    for number in range(5):
        rig.wait(f"high-{number}", 16)
        await rig.rounds(300.0, every=1.0)
    assert len(rig.calls) < 15


@scene(16)
async def test_webhook_that_is_down_does_not_protect_a_pod_for_long(rig: Rig) -> None:
    rig.put("a", 16)
    down = ApiError(500, "InternalError", 'failed calling webhook "keep.example.com": connection refused')
    rig.refuse = lambda verb, path: down if verb == "dry-run" else None
    for number in range(10):
        rig.wait(f"high-{number}", 16)
        await rig.rounds(60.0, every=1.0)
    assert rig.evicted == []
    rig.refuse = lambda verb, path: None
    rig.wait("new", 16)
    await rig.rounds(10.0, every=1.0)
    assert rig.evicted == ["a"]


@scene(16)
async def test_allowed_trial_ends_the_pauses_after_denied_ones(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    denied = ApiError(403, "Forbidden", DENIED)
    rig.refuse = lambda verb, path: denied if path.endswith("/a/eviction") else None
    for number in range(4):
        rig.wait(f"high-{number}", 16)
        await rig.rounds(100.0, every=1.0)
    rig.refuse, rig.protected = lambda verb, path: None, {"b"}
    await rig.rounds(600.0, every=1.0)  # a's trial is allowed; b stays, so nobody goes
    rig.refuse, rig.protected = lambda verb, path: denied if path.endswith("/a/eviction") else None, set()
    rig.wait("new", 16)
    await rig.rounds(4.0, every=1.0)
    rig.refuse = lambda verb, path: None
    rig.wait("newer", 16)
    await rig.rounds(10.0, every=1.0)
    assert sorted(rig.evicted) == ["a", "b"]


@scene(16)
async def test_pod_that_is_tried_often_is_considered_after_its_pause(rig: Rig) -> None:
    rig.put("a", 16)
    rig.protected = {"a"}
    rig.wait("high", 16)
    await rig.rounds(40.0)  # some failures: the pause is longer than the time between two tries
    rig.protected = set()
    for _ in range(60):
        rig.ask("high", 16)
        await rig.rounds(2.0, every=1.0)
    assert rig.evicted == ["a"]
