"""Pods that a kubelet rejected while no agent answered: their node is closed, and their controllers make others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.events import ObjectRef
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.services.scheduler.rejectedpods import RejectedPods, is_unserved
from aliquot.services.scheduler.watches.sinks import PodSink
from kit.clusters.watchobjects import a_cluster, as_node, as_pod, bound_json, claim_of, live_node, node_json, pod_json
from kit.running.virtualclock import play
from kit.values.manifests import MEM, Json

ADMISSION = "UnexpectedAdmissionError"
NONE_HEALTHY = f"Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices {MEM}, which is unexpected"  # noqa: E501  # the kubelet's words
SET = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web", "controller": True}


class Rig:
    """A node with an agent, an API server that has the Pods, and what the scheduler does."""

    def __init__(self, *, agent: str | None = "1.0", deletes: bool = True) -> None:
        self.node = node_json("n1", 16, 16)
        self.node["metadata"]["resourceVersion"] = "7"
        if agent is not None:
            self.node["metadata"]["annotations"]["aliquot.dev/agent"] = agent
        self.cluster = a_cluster(live_node("n1", 16, 16))
        self.events: list[tuple[ObjectRef, str, str]] = []
        self.evicted: list[str] = []
        self.marks: list[Json] = []
        self.leads = True
        self.refuse: Callable[[str], Exception | None] = lambda path: None
        self.rejected = RejectedPods(
            cast(Kube, self),
            self.cluster,
            self,
            leading=lambda: self.leads,
            clock=asyncio.get_running_loop().time,
            deletes=deletes,
        )
        self.sink = PodSink(self.cluster, self.rejected)
        self.running = asyncio.create_task(self.rejected.run())

    # The API server

    async def get(self, path: str, *, into: type[NodeObject], timeout: float) -> NodeObject:
        self._refuse(path)
        return as_node(self.node)

    async def patch(self, path: str, body: Json, **_: Any) -> None:
        self._refuse(path)
        assert path == "/api/v1/nodes/n1/status"
        self.marks.append(body["metadata"])
        self.node["metadata"]["annotations"] |= body["metadata"]["annotations"]
        self.cluster.set_node(as_node(self.node))

    async def create(self, path: str, body: Json, **_: Any) -> None:
        await asyncio.sleep(0.01)
        self._refuse(path)
        assert path.endswith(f"/{body['metadata']['name']}/eviction")
        self.evicted.append(body["deleteOptions"]["preconditions"]["uid"])

    def _refuse(self, path: str) -> None:
        error = self.refuse(path)
        if error is not None:
            raise error

    def emit(self, about: ObjectRef, reason: str, message: str, *, type: str = "Warning", action: str = "") -> None:
        self.events.append((about, reason, message))

    # The cluster

    def place(self, name: str, *, owner: Json | None = SET) -> Json:
        """The Pod is bound by us, and the watch says so."""
        pod = pod_json(name, {MEM: "4"})
        if owner is not None:
            pod["metadata"]["ownerReferences"] = [owner]
        claim = claim_of(self.cluster, as_pod(pod))
        placed = self.cluster.assume(claim, "n1")
        assert not isinstance(placed, list)
        node = self.cluster.board.node("n1")
        assert node is not None
        bound = bound_json(pod, claim, placed.grant, node, self.cluster.rules)
        self.sink.changed(as_pod(bound))
        return bound

    def reject(self, pod: Json, reason: str = ADMISSION, message: str = NONE_HEALTHY) -> None:
        self.sink.changed(as_pod({**pod, "status": {"phase": "Failed", "reason": reason, "message": message}}))


def scene(what: Callable[[Rig], Any], **more: Any) -> Rig:
    """What happens, and five seconds more."""

    async def run() -> Rig:
        rig = Rig(**more)
        found = what(rig)
        if found is not None:
            await found
        await asyncio.sleep(5)
        assert not rig.running.done()
        rig.running.cancel()
        return rig

    return play(run())


def test_rejected_pod_is_deleted_with_an_event_on_its_controller() -> None:
    rig = scene(lambda rig: rig.reject(rig.place("web-1")))
    assert (rig.evicted, rig.rejected.deleted) == (["uid-web-1"], 1)
    ((about, reason, text),) = rig.events
    assert about == ObjectRef("ReplicaSet", "web", "ns", "uid-web", "apps/v1")
    assert reason == "PodRejected"
    assert text.startswith(
        "Pod web-1 is deleted, to be made again: the kubelet of n1 rejected it while no node agent answered (Pod was"
    )


def test_first_rejected_pod_closes_its_node_on_behalf_of_the_agent() -> None:
    def rejects(rig: Rig) -> None:
        for number in range(3):
            rig.reject(rig.place(f"web-{number}"))

    rig = scene(rejects)
    assert rig.marks == [{"resourceVersion": "7", "annotations": {"aliquot.dev/agent": "away"}}]
    claim = claim_of(rig.cluster, as_pod(pod_json("later")))
    assert isinstance(rig.cluster.assume(claim, "n1"), list)
    assert sorted(rig.evicted) == ["uid-web-0", "uid-web-1", "uid-web-2"]


def test_node_is_closed_before_its_pods_are_deleted() -> None:
    async def rejects(rig: Rig) -> None:
        marks_at_first: list[int] = []
        rig.refuse = lambda path: marks_at_first.append(len(rig.marks)) if "eviction" in path else None
        for pod in [rig.place(f"web-{number}") for number in range(8)]:
            rig.reject(pod)
        await asyncio.sleep(1)
        assert marks_at_first == [1] * 8

    assert len(scene(rejects).evicted) == 8


@pytest.mark.parametrize("agent", [None, "away"], ids=["none of ours", "announced"])
def test_node_without_an_agent_that_could_open_it_again_is_not_closed(agent: str | None) -> None:
    rig = scene(lambda rig: rig.reject(rig.place("web-1")), agent=agent)
    assert (rig.marks, rig.evicted) == ([], ["uid-web-1"])


def test_agent_that_is_there_all_the_same_has_the_last_word() -> None:
    """It writes its version again at once; a second rejection soon after closes nothing."""

    async def rejects(rig: Rig) -> None:
        first, second = rig.place("web-1"), rig.place("web-2")
        rig.reject(first)
        await asyncio.sleep(1)
        rig.node["metadata"]["annotations"]["aliquot.dev/agent"] = "1.0"
        rig.cluster.set_node(as_node(rig.node))
        rig.reject(second)

    assert len(scene(rejects).marks) == 1


def test_old_rejections_of_the_first_list_are_deleted_and_close_nothing() -> None:
    def listed(rig: Rig) -> None:
        pod = rig.place("web-1")
        rig.cluster.drop_pod("ns/web-1")  # as a scheduler that starts knows it: not at all
        rig.reject(pod)

    rig = scene(listed)
    assert (rig.marks, rig.evicted) == ([], ["uid-web-1"])


def test_bare_pods_and_pods_placed_by_others_stay() -> None:
    def rejects(rig: Rig) -> None:
        rig.reject(rig.place("bare", owner=None))
        rig.reject(rig.place("owned", owner={**SET, "controller": None}))
        others = pod_json("others", on="n1", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
        others["metadata"]["ownerReferences"] = [SET]
        rig.reject(others)

    rig = scene(rejects)
    assert (rig.evicted, rig.events, len(rig.marks)) == ([], [], 1)


def test_nothing_is_deleted_without_the_right_to_evict() -> None:
    rig = scene(lambda rig: rig.reject(rig.place("web-1")), deletes=False)
    assert (rig.evicted, len(rig.marks)) == ([], 1)


def test_follower_acts_when_it_leads_and_forgets_what_is_gone() -> None:
    async def rejects(rig: Rig) -> None:
        rig.leads = False
        pods = [rig.place(f"web-{number}") for number in range(3)]
        for pod in pods:
            rig.reject(pod)
        await asyncio.sleep(2)
        assert rig.evicted == []
        rig.sink.gone("ns/web-0")
        pods[1]["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
        rig.reject(pods[1])
        rig.leads = True

    rig = scene(rejects)
    assert rig.evicted == ["uid-web-2"]
    assert rig.marks == [], "that was long ago"


def test_refused_deletions_are_tried_again_only_where_that_may_help(caplog: pytest.LogCaptureFixture) -> None:
    tries: list[str] = []

    def rejects(rig: Rig) -> None:
        def refuse(path: str) -> Exception | None:
            tries.append(path.split("/")[-2])
            busy = Unreachable("no answer") if tries.count("busy") == 1 else ApiError(500, "InternalError", "etcd")
            answers = {"denied": ApiError(403, "Forbidden", "admission webhook says no")}
            answers["busy"] = busy if tries.count("busy") < 3 else None  # type: ignore[assignment]
            answers["norights"] = ApiError(403, "Forbidden", 'User "x" cannot create resource "pods/eviction"')
            return answers.get(tries[-1]) if "eviction" in path else None

        rig.refuse = refuse
        for name in ("busy", "denied", "norights"):
            rig.reject(rig.place(name))

    rig = scene(rejects)
    assert (rig.evicted, len(rig.events)) == (["uid-busy"], 1)
    assert {name: tries.count(name) for name in ("busy", "denied", "norights")} == {
        "busy": 3,
        "denied": 1,
        "norights": 1,
    }
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "rejected_pod_not_deleted"
    ]


@pytest.mark.parametrize("status", [409, 404, 403, None])
def test_node_that_cannot_be_closed_does_not_keep_pods_from_being_deleted(status: int | None) -> None:
    error = Unreachable("no answer") if status is None else ApiError(status, "", "no")

    def rejects(rig: Rig) -> None:
        rig.refuse = lambda path: error if path.endswith("n1/status") else None
        rig.reject(rig.place("web-1"))

    rig = scene(rejects)
    assert (rig.marks, rig.evicted) == ([], ["uid-web-1"])


def test_node_that_others_write_too_is_closed_with_the_next_try() -> None:
    tries: list[str] = []

    def rejects(rig: Rig) -> None:
        def conflict(path: str) -> Exception | None:
            tries.append(path)
            return ApiError(409, "Conflict", "no") if path.endswith("n1/status") and len(tries) < 6 else None

        rig.refuse = conflict
        rig.reject(rig.place("web-1"))

    assert len(scene(rejects).marks) == 1


def failed(reason: str | None, message: str, phase: str = "Failed") -> PodObject:
    return as_pod({**pod_json(), "status": {"phase": phase, "reason": reason, "message": message}})


@pytest.mark.parametrize(
    ("reason", "message", "unserved"),
    [
        (ADMISSION, NONE_HEALTHY, True),
        (ADMISSION, f"requested number of devices unavailable for {MEM}. Requested: 4, Available: 0", True),
        (ADMISSION, "Allocate failed due to rpc error: code = Unavailable desc = error reading: EOF", True),
        (ADMISSION, f"Allocate failed due to rpc error: code = FailedPrecondition desc = {MEM} no", False),
        (ADMISSION, "no healthy devices present; cannot allocate unhealthy devices example.com/nic", False),
        (f"OutOf{MEM}", "Node didn't have enough resource", True),
        ("OutOfnvidia.com/gpu", "Node didn't have enough resource", True),
        ("OutOfcpu", "Node didn't have enough resource", False),
        ("Evicted", NONE_HEALTHY, False),
        (None, NONE_HEALTHY, False),
    ],
)
def test_only_rejections_for_want_of_our_plugin_count(reason: str | None, message: str, unserved: bool) -> None:
    assert is_unserved(failed(reason, message)) is unserved
    assert not is_unserved(failed(reason, message, "Succeeded"))


@given(
    st.lists(
        st.tuples(st.sampled_from(["reject", "refuse", "run", "finish", "gone", "lead", "wait"]), st.integers(0, 3)),
        max_size=25,
    )
)
def test_whatever_happens_only_rejected_pods_are_deleted_each_of_them_once_and_none_stays(
    story: list[tuple[str, int]],
) -> None:
    async def happens(rig: Rig) -> set[str]:
        pods, fate = [rig.place(f"web-{number}") for number in range(4)], ["runs"] * 4
        for what, number in story:
            if what == "lead":
                rig.leads = not rig.leads
            elif what == "wait":
                await asyncio.sleep(0.7)
            elif fate[number] != "runs":
                pass  # it has ended
            elif what == "run":
                rig.sink.changed(as_pod({**pods[number], "status": {"phase": "Running"}}))
            elif what == "gone":
                fate[number] = what
                rig.sink.gone(f"ns/web-{number}")
            else:
                fate[number] = what
                words = {"reject": NONE_HEALTHY, "refuse": "rpc error: code = Internal", "finish": "Error"}
                rig.reject(pods[number], ADMISSION if what != "finish" else "", words[what])
        rig.leads = True
        return {f"uid-web-{number}" for number in range(4) if fate[number] == "reject"}

    async def run() -> None:
        rig = Rig()
        expected = await happens(rig)
        await asyncio.sleep(120)
        rig.running.cancel()
        assert sorted(rig.evicted) == sorted(expected)
        assert len(rig.marks) <= 1
        assert rig.rejected._left == {}

    play(run())
