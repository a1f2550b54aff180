"""Evictor: evictions where only a card is short: who goes, what is kept meanwhile, and when nobody goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, cast

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.events import ObjectRef
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.preemption.evictor import Evictor
from kit.manifests import MEM, Json
from kit.virtualclock import play
from kit.watchobjects import a_cluster, as_pod, claim_of, free, live_node, live_pod, pod_json

EPOCH = 1_800_000_000.0
BUDGET = {"causes": [{"message": "The disruption budget web needs 1 healthy pods and has 1 currently"}]}


class Rig:
    """Nodes, an API server that has the Pods, and the evictor on top."""

    def __init__(self, *cards_gib: int, enabled: bool = True) -> None:
        self.cluster: Cluster = a_cluster(live_node("n1", *(cards_gib or (16,))))
        self.pods: dict[str, Json] = {}
        self.protected: set[str] = set()
        self.events: list[tuple[str, str, str]] = []
        self.evicted: list[str] = []
        self.retried: list[str] = []
        self.calls: list[tuple[str, str]] = []
        self.refuse: Callable[[str, str], Exception | None] = lambda verb, path: None
        self.loop = asyncio.get_running_loop()
        self.start(enabled)

    def start(self, enabled: bool = True) -> None:
        """As after a crash: it knows only what the cluster does."""
        self.evictor = Evictor(
            cast(Kube, self),
            self.cluster,
            self,
            enabled=enabled,
            clock=self.loop.time,
            wall=lambda: EPOCH + self.loop.time(),
            stamp=lambda: "now",
        )

    # What happens in the cluster

    def put(self, name: str, gib: int, card: int = 0, *, priority: int = 0, on: str = "n1") -> None:
        annotations = {"ALIYUN_COM_GPU_MEM_IDX": str(card)}
        self._set(pod_json(name, {MEM: gib}, on=on, annotations=annotations, priority=priority))

    def wait(self, name: str, gib: int, *, priority: int = 1000, ask: bool = True, **spec: Any) -> None:
        """kube-scheduler has tried the Pod on n1, in vain."""
        self._set(pod_json(name, {MEM: gib}, refused=True, priority=priority, **spec))
        if ask:
            self.ask(name, gib)

    def ask(self, name: str, gib: int) -> bool:
        """kube-scheduler asks about n1, as the extender answers it."""
        claim = claim_of(self.cluster, live_pod(name, {MEM: gib}))
        found = self.cluster.filter(claim, ["n1"])
        if not found.fit:
            self.evictor.note_refused(claim.uid, ["n1"])
        return bool(found.fit)

    def gone(self, name: str) -> None:
        del self.pods[name]
        self.cluster.drop_pod(f"ns/{name}")

    def _set(self, pod: Json) -> None:
        pod["metadata"]["resourceVersion"] = str(len(self.calls))
        self.pods[pod["metadata"]["name"]] = pod
        self.cluster.set_pod(as_pod(pod))

    async def rounds(self, seconds: float = 3.0) -> None:
        until = self.loop.time() + seconds
        while self.loop.time() < until:
            await self.evictor.round()
            await asyncio.sleep(0.25)

    def nominated(self, name: str) -> str | None:
        found = self.pods[name].get("status", {}).get("nominatedNodeName")
        return None if found is None else str(found)

    # The API server

    async def get(self, path: str, **_: Any) -> Any:
        self._called("get", path)
        return as_pod(self._pod(path))

    async def patch(self, path: str, body: Json, **_: Any) -> None:
        self._called("patch", path)
        pod = self._pod(path.removesuffix("/status"))
        version = body["metadata"].get("resourceVersion")
        if version is not None and version != pod["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", path)
        if path.endswith("/status"):
            self._set({**pod, "status": {**pod.get("status", {}), **body["status"]}})
        else:
            self.retried.append(pod["metadata"]["name"])

    async def create(self, path: str, body: Json, *, params: Json | None = None, **_: Any) -> None:
        self._called("dry-run" if params else "evict", path)
        pod = self._pod(path.removesuffix("/eviction"))
        name = pod["metadata"]["name"]
        assert body["deleteOptions"]["preconditions"] == {"uid": f"uid-{name}"}
        if name in self.protected:
            raise ApiError(429, "TooManyRequests", "Cannot evict pod", BUDGET)
        if not params:
            self.evicted.append(name)
            until = datetime.fromtimestamp(EPOCH + self.loop.time() + 30, UTC).isoformat().replace("+00:00", "Z")
            self._set({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": until}})

    def _called(self, verb: str, path: str) -> None:
        self.calls.append((verb, path.split("/pods/")[1]))
        error = self.refuse(verb, path)
        if error is not None:
            raise error

    def _pod(self, path: str) -> Json:
        name = path.rpartition("/pods/")[2]
        if name not in self.pods:
            raise ApiError(404, "NotFound", path)
        return self.pods[name]

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((about.name, reason, message))


def scene(*cards_gib: int, enabled: bool = True) -> Callable[[Callable[[Rig], Awaitable[None]]], Callable[[], None]]:
    def wrap(play_it: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            await play_it(Rig(*cards_gib, enabled=enabled))

        def test() -> None:
            play(run())

        return test

    return wrap


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
async def test_nobody_is_evicted_while_a_budget_blocks(rig: Rig) -> None:
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
async def test_policy_never_and_equal_priority_evict_nobody(rig: Rig) -> None:
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
async def test_nobody_is_evicted_from_a_node_that_kube_scheduler_did_not_ask_about(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16, ask=False)
    rig.evictor.note_refused("uid-high", ["n2"])
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
            rig.pods["high"]["metadata"]["resourceVersion"] = "other"

    rig.refuse = other_replica
    await rig.rounds(2.0)
    assert rig.evicted == []


@scene(16)
async def test_missing_right_is_reported_once(rig: Rig) -> None:
    rig.put("a", 16)
    rig.wait("high", 16)
    rig.refuse = lambda verb, path: ApiError(403, "Forbidden", "no") if "eviction" in path else None
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


@scene(16)
async def test_pod_stuck_in_termination_is_not_waited_for(rig: Rig) -> None:
    rig.put("a", 8)
    rig.put("b", 8)
    rig.pods["a"]["metadata"]["deletionTimestamp"] = "2020-01-01T00:00:00Z"
    rig.cluster.set_pod(as_pod(rig.pods["a"]))
    rig.wait("high", 8)
    await rig.rounds()
    assert rig.evicted == ["b"], "a is not about to go"
