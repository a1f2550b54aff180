"""Binding: one write; whatever its outcome, no card is booked twice and none stays booked without a Pod."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects import parse_grant
from aliquot.model.grant import Grant
from aliquot.services.scheduler.binder import Refused
from kit.clusters.binding import ON_CARD_0, Rig
from kit.clusters.watchobjects import as_pod, claim_of, live_node, pod_json
from kit.running.virtualclock import play
from kit.values.manifests import MEM


def test_bind_writes_the_grant_with_the_binding() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        await rig.bind()
        bound = rig.api.pods["p"]
        assert bound["spec"]["nodeName"] == "n1"
        assert bound["metadata"]["annotations"]["more"] == "yes"
        assert bound["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSUME_TIME"] == "7"
        claim = claim_of(rig.cluster, as_pod(bound))
        grant = parse_grant(as_pod(bound), claim, rig.cluster.board.node("n1"))
        assert isinstance(grant, Grant)
        assert rig.cluster.assumed["uid-p"].grant == grant
        assert rig.free == 12
        rig.cluster.set_pod(as_pod(bound))
        assert (rig.cluster.assumed, rig.free, rig.binds) == ({}, 12, 1)

    play(scene())


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422, "not sent"])
def test_bind_that_did_not_happen_frees_cards(status: Any) -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(status)
        with pytest.raises(Refused, match=str(status)):
            await rig.bind()
        assert (rig.free, rig.cluster.assumed, rig.binder.busy) == (16, {}, 0)

    play(scene())


def test_bind_conflict_with_earlier_success_succeeds() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        rig.api.put(pod_json(on="n1", annotations=ON_CARD_0))
        await rig.bind()
        assert (set(rig.cluster.placed), rig.free) == ({"uid-p"}, 12)

    play(scene())


def test_bind_conflict_with_another_node_is_refused_and_books_that_node() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"), watch=False)
        rig.pod()
        rig.api.put(pod_json(on="n2", annotations=ON_CARD_0))
        with pytest.raises(Refused):
            await rig.bind()
        assert rig.free == 16
        assert rig.cluster.placed["uid-p"].grant.node == "n2"

    play(scene())


@pytest.mark.parametrize("outcome", [("lost", None), 500, 429, 503], ids=str)
def test_bind_without_answer_holds_cards_until_it_can_no_longer_happen(outcome: Any) -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(outcome)
        with pytest.raises(Refused, match="aliquot will look up the outcome"):
            await rig.bind()
        assert (rig.free, rig.binder.busy) == (12, 1)
        await asyncio.sleep(5.5)
        assert rig.free == 12, "a write under way may still be done"
        with pytest.raises(Refused, match="is not known yet"):
            await rig.bind()
        await rig.binder.settle()
        assert (rig.free, rig.cluster.assumed, rig.binds) == (16, {}, 1)
        await rig.bind()
        assert rig.free == 12

    play(scene())


@pytest.mark.parametrize("watch", [True, False], ids=["the watch tells", "the watch is silent"])
@pytest.mark.parametrize("outcome", [("lost", 0.5), ("lost", 5.5), ("lost", 8.0), "done 500"], ids=str)
def test_bind_without_answer_that_happened_keeps_cards_booked(outcome: Any, watch: bool) -> None:
    async def scene() -> None:
        rig = Rig(watch=watch)
        rig.pod()
        rig.api.writes.append(outcome)
        with pytest.raises(Refused):
            await rig.bind()
        while rig.binder.busy:
            assert rig.free == 12
            await asyncio.sleep(0.05)
        assert (set(rig.cluster.placed), rig.cluster.assumed, rig.free) == ({"uid-p"}, {}, 12)

    play(scene())


def test_bind_holds_cards_while_api_server_is_unreachable() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        rig.api.writes.append(("lost", None))
        rig.api.looks.extend([Unreachable("refused"), ApiError(500, "", "down")] * 10)
        with pytest.raises(Refused):
            await rig.bind()
        while rig.api.looks:
            assert rig.free == 12
            await asyncio.sleep(1.0)
        assert rig.free == 12, "who could not answer may have had the write before it"
        await rig.binder.settle()
        assert rig.free == 16

    play(scene())


def test_bind_conflict_holds_cards_until_pod_can_be_read() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        rig.api.put(pod_json(on="n1", annotations=ON_CARD_0))
        rig.api.looks.append(Unreachable("refused"))
        with pytest.raises(Refused, match="aliquot will look up the outcome"):
            await rig.bind()
        assert rig.free == 12
        await rig.binder.settle()
        assert set(rig.cluster.placed) == {"uid-p"}

    play(scene())


def test_bind_of_pod_deleted_during_watch_outage_frees_cards() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        await rig.bind()
        rig.api.remove("p")
        await asyncio.sleep(30.0)
        await rig.binder.settle()
        assert (rig.free, rig.cluster.assumed) == (16, {})

    play(scene())


def test_bind_lookup_does_not_resurrect_deleted_pod() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(("lost", None))
        with pytest.raises(Refused):
            await rig.bind()
        rig.api.remove("p")
        await rig.binder.settle()
        assert (rig.free, rig.cluster.seen, len(rig.cluster.ledger)) == (16, {}, 0)

    play(scene())


@pytest.mark.parametrize("watch", [True, False], ids=["confirmed", "not confirmed yet"])
def test_repeated_bind_returns_first_outcome(watch: bool) -> None:
    async def scene() -> None:
        rig = Rig(watch=watch)
        rig.pod()
        for _ in range(3):
            await rig.bind()
        assert (rig.binds, rig.free) == (1, 12)
        with pytest.raises(Refused, match="ns/p is already bound to n1"):
            await rig.bind(node="n2")

    play(scene())


def test_concurrent_binds_of_one_pod_share_one_write() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"))
        rig.pod()
        outcomes = await asyncio.gather(rig.bind(), rig.bind(), rig.bind(node="n2"), rig.bind(), return_exceptions=True)
        assert [isinstance(outcome, Refused) for outcome in outcomes] == [False, False, True, False]
        assert (rig.binds, rig.free) == (1, 12)

    play(scene())


def test_concurrent_binds_of_one_pod_share_one_refusal() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(403)
        outcomes = await asyncio.gather(rig.bind(), rig.bind(), return_exceptions=True)
        assert all(isinstance(outcome, Refused) for outcome in outcomes)
        assert (rig.binds, rig.free) == (1, 16)

    play(scene())


def test_concurrent_binds_of_many_pods_never_overbook() -> None:
    async def scene() -> None:
        rig = Rig()
        for at in range(10):
            rig.pod(f"p{at}", {MEM: "5"})
        outcomes = await asyncio.gather(*(rig.bind(f"p{at}") for at in range(10)), return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 3
        refused = [str(outcome) for outcome in outcomes if outcome is not None]
        why = "GPU memory: needs 5 GiB per card; no card has that much free (aliquot:memory)"
        assert refused[0] == f"ns/p3 no longer fits on n1: {why}"
        assert rig.free == 1

    play(scene())


def test_bind_continues_after_caller_disconnects() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.pod("q")
        rig.api.writes.extend(["yes", 403])
        callers = [asyncio.create_task(rig.bind()), asyncio.create_task(rig.bind("q"))]
        await asyncio.sleep(0)
        for caller in callers:
            caller.cancel()
        await rig.binder.settle()
        assert rig.api.pods["p"]["spec"]["nodeName"] == "n1"
        assert (set(rig.cluster.placed), rig.free) == ({"uid-p"}, 12)
        del callers
        gc.collect()  # asyncio logs a failure that was not read when its task is collected

    play(scene())


def test_settle_waits_for_every_bind_outcome() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.pod("q")
        rig.api.writes.append(("lost", 1.0))
        asked = [asyncio.create_task(rig.bind(name)) for name in ("p", "q")]
        await asyncio.sleep(0.001)
        assert rig.binder.busy == 2
        await rig.binder.settle()
        assert rig.binder.busy == 0
        assert set(rig.cluster.placed) == {"uid-p", "uid-q"}
        await asyncio.gather(*asked, return_exceptions=True)

    play(scene())


outcomes = st.sampled_from(
    ["yes", "yes", "yes", "done 500", 409, 404, 500, 429, *(("lost", after) for after in (None, 0.1, 3.0, 5.5, 9.0))]
)


steps = st.tuples(
    st.sampled_from(["bind", "bind", "bind", "delete", "wait", "look fails"]),
    st.integers(0, 5),
    outcomes,
    st.sampled_from([0.0, 0.005, 1.0, 7.0]),
)


@settings(max_examples=100)
@given(st.lists(steps, max_size=30), st.booleans())
def test_random_bind_outcomes_never_overbook(story: list[tuple[str, int, Any, float]], watch: bool) -> None:
    async def scene() -> None:
        rig = Rig(watch=watch)
        for at in range(6):
            rig.pod(f"p{at}", {MEM: "6"})
        asked = []
        for step, at, outcome, pause in story:
            if step == "bind":
                rig.api.writes.append(outcome)
                asked.append(asyncio.create_task(rig.bind(f"p{at}")))
            elif step == "delete" and f"p{at}" in rig.api.pods and watch:
                rig.api.remove(f"p{at}")
            elif step == "look fails":
                rig.api.looks.append(Unreachable("refused"))
            await asyncio.sleep(pause)
            used = [pod for pod in rig.api.pods.values() if pod["spec"].get("nodeName")]
            assert len(used) <= 2, "the card has room for two"
        await asyncio.gather(*asked, return_exceptions=True)
        await rig.binder.settle()
        await asyncio.sleep(60.0)
        await rig.binder.settle()
        bound = {pod["metadata"]["uid"] for pod in rig.api.pods.values() if pod["spec"].get("nodeName")}
        assert set(rig.cluster.placed) == bound
        assert rig.cluster.assumed == {}
        assert rig.free == 16 - 6 * len(bound)

    play(scene())
