"""Election: never two leaders at once, and none between two leaders for as long as a write may take."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.leases import LeaseObject
from aliquot.model.status.machine import CallStatus
from aliquot.services.scheduler.election import GIVE_UP, LEASE, RETRY, Election, Observation, may_take
from kit.running.virtualclock import play

Json = dict[str, Any]
PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


def lease(holder: str | None, seconds: int | None = 15) -> LeaseObject:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds}
    return msgspec.convert({"metadata": {"name": "l"}, "spec": spec}, type=LeaseObject)


@pytest.mark.parametrize(
    ("seen", "age", "may"),
    [
        (None, 0.0, True),
        (lease(None), 0.0, True),
        (lease(""), 0.0, True),
        (lease("me"), 0.0, True),
        (lease("other"), 0.0, False),
        (lease("other"), 14.9, False),
        (lease("other"), 15.0, True),
        (lease("other", 60), 59.0, False),
        (lease("other", 60), 60.0, True),
        (lease("other", None), 14.9, False),
        (lease("other", None), 15.0, True),
        (lease("other", 0), 14.9, False),
    ],
    ids=[
        "there is none",
        "nobody's",
        "given back",
        "our own",
        "another's",
        "another's, almost over",
        "another's, over",
        "another's, for longer",
        "another's, for longer, over",
        "no time told",
        "no time told, over",
        "a time of nothing",
    ],
)
def test_may_take_lease(seen: LeaseObject | None, age: float, may: bool) -> None:
    assert may_take(Observation(seen, 100.0), "me", 100.0 + age) is may


class Store:
    """The one Lease of an API server. Each call takes as long, and ends as, the caller's plan says."""

    def __init__(self) -> None:
        self.body: Json | None = None
        self.version = 0
        self.writes: list[str] = []

    def read(self) -> LeaseObject:
        if self.body is None:
            raise ApiError(404, "NotFound", "no such lease")
        return msgspec.convert(self.body, type=LeaseObject)

    def write(self, body: Json, *, new: bool) -> LeaseObject:
        if new and self.body is not None:
            raise ApiError(409, "AlreadyExists", "there is one")
        if not new:
            version = self.read().metadata.resource_version
            if body["metadata"]["resourceVersion"] != version:
                raise ApiError(409, "Conflict", "the object has been modified")
        self.version += 1
        self.body = json.loads(json.dumps(body))
        self.body["metadata"]["resourceVersion"] = str(self.version)
        self.writes.append(body["spec"]["holderIdentity"])
        return self.read()


class Client:
    """One scheduler's way to the store. A plan is (seconds to the server, what happens there, seconds back)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.plans: deque[tuple[float, str, float]] = deque()
        self.refuse: Callable[[str], Exception | None] = lambda verb: None

    async def _call(self, verb: str, act: Callable[[], LeaseObject], timeout: float) -> LeaseObject:
        error = self.refuse(verb)
        if error is not None:
            raise error
        there, outcome, back = self.plans.popleft() if self.plans else (0.01, "ok", 0.01)
        if outcome == "lost" or (outcome == "ok" and there + back > timeout):
            if there < 30.0:  # the server may act long after nobody waits any more
                asyncio.get_running_loop().call_later(there, self._late, act)
            await asyncio.sleep(timeout)
            raise Unreachable("no answer in time")
        await asyncio.sleep(there)
        if outcome == "500":
            raise ApiError(500, "InternalError", "etcd is down")
        try:
            found = act()
        finally:
            await asyncio.sleep(back)  # `slept`: however long, for we did not run either
        return found

    @staticmethod
    def _late(act: Callable[[], LeaseObject]) -> None:
        try:
            act()
        except ApiError:
            return

    async def get(self, path: str, *, timeout: float, into: Any) -> LeaseObject:
        assert path == f"{PATH}/aliquot-scheduler"
        return await self._call("get", self.store.read, timeout)

    async def create(self, path: str, body: Json, *, timeout: float, into: Any) -> LeaseObject:
        assert path == PATH
        return await self._call("create", lambda: self.store.write(body, new=True), timeout)

    async def replace(self, path: str, body: Json, *, timeout: float, into: Any = None) -> LeaseObject:
        assert path == f"{PATH}/aliquot-scheduler"
        return await self._call("replace", lambda: self.store.write(body, new=False), timeout)


class Candidate:
    """One scheduler that is a candidate."""

    def __init__(self, store: Store, name: str, refresh_seconds: float = 0.1) -> None:
        self.name, self.client = name, Client(store)
        self.refreshed: list[bool] = []
        self.refresh_seconds = refresh_seconds
        self.election = Election(
            cast(Kube, self.client),
            namespace="kube-system",
            name="aliquot-scheduler",
            identity=name,
            address=f"{name}:1",
            calls=lambda: {"filter": CallStatus(3)},
            refresh=self._refresh,
            clock=asyncio.get_running_loop().time,
        )
        self.running = asyncio.create_task(self.election.run())

    async def _refresh(self, others: bool) -> None:
        await asyncio.sleep(self.refresh_seconds)
        self.refreshed.append(others)

    @property
    def leading(self) -> bool:
        return self.election.leading

    def die(self) -> None:
        self.running.cancel()


async def until_leading(candidate: Candidate, seconds: float = 60.0) -> float:
    """How long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while not candidate.leading:
        assert loop.time() - began < seconds, "it does not come to lead"
        await asyncio.sleep(0.05)
    return loop.time() - began


async def leader_and_standby() -> tuple[Candidate, Candidate]:
    """A candidate that leads, and another that has waited for some seconds."""
    store = Store()
    one = Candidate(store, "one")
    await until_leading(one)
    two = Candidate(store, "two")
    await asyncio.sleep(5.0)
    return one, two


def test_single_candidate_leads_after_refresh() -> None:
    async def scene() -> None:
        store = Store()
        one = Candidate(store, "one", refresh_seconds=1.0)
        await asyncio.sleep(0.9)
        assert not one.leading
        await until_leading(one, 2.0)
        assert one.refreshed == [False]
        assert store.body is not None
        assert store.body["spec"]["holderIdentity"] == "one"
        assert store.body["spec"]["leaseDurationSeconds"] == LEASE
        assert store.body["metadata"]["annotations"]["aliquot.dev/address"] == "one:1"
        assert json.loads(store.body["metadata"]["annotations"]["aliquot.dev/calls"]) == {
            "filter": {"count": 3, "last": None}
        }
        one.die()

    play(scene())


def test_leader_renews_without_refresh() -> None:
    async def scene() -> None:
        store = Store()
        one, two = Candidate(store, "one"), Candidate(store, "two")
        await asyncio.sleep(5.0)
        leader, standby = (one, two) if one.leading else (two, one)
        for _ in range(600):
            await asyncio.sleep(1.0)
            assert leader.leading
            assert not standby.leading
        assert len(leader.refreshed) == 1
        assert (standby.election.leader, standby.election.leader_address) == (leader.name, f"{leader.name}:1")
        assert store.body is not None
        assert store.body["spec"]["leaseTransitions"] == 1
        one.die()
        two.die()

    play(scene())


def test_standby_leads_after_lease_expires() -> None:
    async def scene() -> None:
        one, two = await leader_and_standby()
        one.die()
        took = await until_leading(two)
        assert GIVE_UP < took <= LEASE + 2 * RETRY
        assert two.refreshed == [True], "what the first had written must be read"
        two.die()

    play(scene())


def test_released_lease_is_taken_by_another_candidate() -> None:
    async def scene() -> None:
        one, two = await leader_and_standby()
        await one.election.resign()
        assert not one.leading
        assert await until_leading(two) <= RETRY
        await asyncio.sleep(10.0)
        assert not one.leading
        assert one.running.done()
        two.die()

    play(scene())


def test_standby_resigns_without_a_write() -> None:
    async def scene() -> None:
        one, two = await leader_and_standby()
        await two.election.resign()
        await asyncio.sleep(5.0)
        assert one.leading
        assert "" not in one.client.store.writes
        one.die()

    play(scene())


@pytest.mark.parametrize("error", [Unreachable("refused"), ApiError(500, "", "down")], ids=["no answer", "500"])
def test_leader_that_cannot_renew_steps_down(error: Exception) -> None:
    async def scene() -> None:
        one = Candidate(Store(), "one")
        await until_leading(one)
        one.client.refuse = lambda verb: error
        await asyncio.sleep(GIVE_UP)
        assert not one.leading
        one.client.refuse = lambda verb: None
        await until_leading(one, 5.0)
        assert len(one.refreshed) == 2
        await one.election.resign()

    play(scene())


def test_resign_survives_api_server_failure() -> None:
    async def scene() -> None:
        one = Candidate(Store(), "one")
        await until_leading(one)
        one.client.refuse = lambda verb: Unreachable("refused")
        await one.election.resign()
        assert not one.leading

    play(scene())


def test_slow_refresh_does_not_make_two_leaders() -> None:
    async def scene() -> None:
        store = Store()
        one, two = Candidate(store, "one", refresh_seconds=20.0), Candidate(store, "two", refresh_seconds=20.0)
        for _ in range(2000):
            await asyncio.sleep(0.1)
            assert not (one.leading and two.leading)
        one.die()
        two.die()

    play(scene())


def test_election_is_disabled_without_lease_permission(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        one = Candidate(Store(), "one")
        one.client.refuse = lambda verb: ApiError(403, "Forbidden", "cannot get leases")
        await until_leading(one, 10.0)
        assert one.refreshed == [False]
        await asyncio.sleep(60.0)
        assert one.leading
        one.die()

    with caplog.at_level(logging.WARNING):
        play(scene())
    assert [record.message for record in caplog.records] == ["election_disabled"]


def test_election_starts_when_lease_permission_is_granted() -> None:
    async def scene() -> None:
        store = Store()
        one = Candidate(store, "one")
        await until_leading(one)
        two = Candidate(store, "two")
        two.client.refuse = lambda verb: ApiError(403, "Forbidden", "cannot get leases")
        await until_leading(two, 10.0)
        two.client.refuse = lambda verb: None
        await asyncio.sleep(2 * RETRY)
        assert one.leading
        assert not two.leading
        one.die()
        two.die()

    play(scene())


def test_standby_does_not_lead_when_lease_permission_is_revoked() -> None:
    async def scene() -> None:
        one, two = await leader_and_standby()
        two.client.refuse = lambda verb: ApiError(403, "Forbidden", "cannot get leases")
        await asyncio.sleep(60.0)
        assert one.leading
        assert not two.leading
        one.die()
        two.die()

    play(scene())


# --- whatever the network does ---------------------------------------------------------------------------------------

WRITE = 5.0  # seconds that a bind may be on its way after it was allowed (services/scheduler/binder.py)
quick = st.floats(0.0, 0.5)
plans = st.one_of(
    st.tuples(quick, st.just("ok"), quick),
    st.tuples(quick, st.just("ok"), quick),
    st.tuples(st.floats(0.0, 3.0), st.just("ok"), st.floats(0.0, 3.0)),
    st.tuples(st.sampled_from([0.0, 1.0, 5.0, 12.0, 100.0]), st.just("lost"), st.just(0.0)),
    st.tuples(quick, st.just("slept"), st.sampled_from([3.0, 9.0, 14.0, 40.0])),
    st.tuples(quick, st.just("500"), st.just(0.0)),
)
LOST = (100.0, "lost", 0.0)
# Calls one by one, long stretches in which all is well, and outages as long as a Lease.
stretches = st.one_of(
    st.lists(plans, min_size=1, max_size=6),
    st.integers(1, 12).map(lambda calls: [(0.01, "ok", 0.01)] * calls),
    st.integers(4, 9).map(lambda calls: [LOST] * calls),
    st.tuples(st.sampled_from([0.0, 1.9]), st.just("slept"), st.just(40.0)).map(lambda plan: [plan]),
)
networks = st.lists(stretches, max_size=8).map(lambda parts: [plan for part in parts for plan in part])


@settings(max_examples=60)
@given(st.lists(networks, min_size=2, max_size=3), st.lists(st.sampled_from([0.05, 1.0, 12.0]), min_size=3))
def test_election_never_has_two_leaders_on_any_network(
    networks: list[list[tuple[float, str, float]]], refreshes: list[float]
) -> None:
    async def scene() -> None:
        store, loop = Store(), asyncio.get_running_loop()
        candidates = [Candidate(store, f"c{at}", refreshes[at]) for at in range(len(networks))]
        for candidate, network in zip(candidates, networks, strict=True):
            candidate.client.plans.extend(network)
        last: dict[str, float] = {}
        while loop.time() < 1150.0:
            leaders = [candidate.name for candidate in candidates if candidate.leading]
            assert len(leaders) <= 1
            for name in leaders:
                last[name] = loop.time()
                others = [at for other, at in last.items() if other != name]
                assert all(loop.time() - at >= WRITE - 0.1 for at in others)
            await asyncio.sleep(0.05)
        for candidate in candidates:
            candidate.die()

    play(scene())


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
