"""Binding: one write; whatever its outcome, no card is booked twice and none stays booked without a Pod."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError, Kube, NotSent, Unreachable
from aliquot.dialects import parse_grant
from aliquot.dialects.wire.extender import Binding
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.grant import Grant
from aliquot.services.scheduler.binder import Binder, Refused
from kit.builders import GIB
from kit.manifests import MEM, Json
from kit.virtualclock import play
from kit.watchobjects import a_cluster, as_node, as_pod, claim_of, live_node, node_json, pod_json

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class Api:
    """An API server that knows Pods and bindings, and answers as planned.

    What it is told, per write: `yes`; a status, which is said without doing anything; `lost` with how long after the
    call the write happens (None: never), while the caller hears nothing; `done 500`: done, and told as failed.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
        self.nodes: dict[str, NodeObject] = {}
        self.version = 100
        self.writes: deque[Any] = deque()
        self.looks: deque[Exception] = deque()
        self.calls: list[tuple[str, str]] = []
        self.watch: Callable[[PodObject], None] = lambda pod: None
        self.gone: Callable[[str], None] = lambda key: None
        self.slow = 0.01  # seconds that a call takes

    def put(self, pod: Json) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.pods[pod["metadata"]["name"]] = pod
        self.watch(as_pod(pod))

    def remove(self, name: str) -> None:
        del self.pods[name]
        self.gone(f"ns/{name}")

    async def get(self, path: str, **_: object) -> PodObject | NodeObject:
        self.calls.append(("get", path))
        await asyncio.sleep(self.slow)
        if self.looks:
            raise self.looks.popleft()
        name = path.rpartition("/")[2]
        if path.startswith("/api/v1/nodes/"):
            if name == "nowhere":
                raise ApiError(404, "NotFound", f'nodes "{name}" not found')
            return self.nodes.get(name) or live_node(name)
        if name not in self.pods:
            raise ApiError(404, "NotFound", f'pods "{name}" not found')
        return as_pod(self.pods[name])

    async def create(self, path: str, body: Json, **_: object) -> Any:
        self.calls.append(("bind", path))
        outcome = self.writes.popleft() if self.writes else "yes"
        await asyncio.sleep(self.slow)
        match outcome:
            case "yes":
                self.bind(body)
            case "done 500":
                self.bind(body)
                raise ApiError(500, "InternalError", "etcd timed out")
            case int():
                raise ApiError(outcome, "No", "no")
            case "not sent":
                raise NotSent("not sent")
            case ("lost", after):
                if after is not None:
                    asyncio.get_running_loop().call_later(after, self._late, body)
                await asyncio.sleep(5.0)
                raise Unreachable("no answer in time")

    def _late(self, body: Json) -> None:
        try:
            self.bind(body)
        except ApiError:
            return

    def bind(self, body: Json) -> None:
        metadata = body["metadata"]
        pod = self.pods.get(metadata["name"])
        if pod is None:
            raise ApiError(404, "NotFound", f'pods "{metadata["name"]}" not found')
        if pod["spec"].get("nodeName") or metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            raise ApiError(409, "Conflict", f"pod {metadata['name']} is already assigned to a node")
        annotations = {**(pod["metadata"].get("annotations") or {}), **metadata["annotations"]}
        self.put(
            {
                **pod,
                "metadata": {**pod["metadata"], "annotations": annotations},
                "spec": {**pod["spec"], "nodeName": body["target"]["name"]},
            }
        )


class Rig:
    """A cluster of one node with one card of 16 GiB (or others), and a binder. The watch reports at once, or never."""

    def __init__(self, *nodes: Any, watch: bool = True, leading: bool = True) -> None:
        self.api, self.cluster, self.leading = Api(), a_cluster(*(nodes or (live_node(),))), leading
        if watch:
            self.api.watch, self.api.gone = self.cluster.set_pod, self.cluster.drop_pod
        self.binder = Binder(
            cast(Kube, self.api),
            self.cluster,
            may_write=lambda: self.leading,
            on_pod=self.cluster.set_pod,
            now_ns=lambda: 7,
            extra_annotations=lambda placed: {"more": "yes"},
        )

    def pod(self, name: str = "p", limits: Json | None = None, *, told: bool = True, **more: Any) -> Json:
        """A Pod that the API server has, and that the watch has told of."""
        pod = pod_json(name, limits, **more)
        self.api.put(pod)
        if told:
            self.cluster.set_pod(as_pod(pod))
        return pod

    async def bind(self, name: str = "p", node: str = "n1", uid: str | None = None) -> None:
        await self.binder.bind(Binding(name, "ns", f"uid-{name}" if uid is None else uid, node))

    @property
    def free(self) -> int:
        return int(self.cluster.board.room_memory[self.cluster.board.row_of["n1"], 0]) // GIB

    @property
    def binds(self) -> int:
        return sum(verb == "bind" for verb, _ in self.api.calls)


# --- the table of outcomes -------------------------------------------------------------------------------------------


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


# --- once ------------------------------------------------------------------------------------------------------------


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
        gc.collect()  # a failure that nobody looked at is told when its task is

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


# --- which Pod -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uid", ["uid-p", ""], ids=["", "no uid was said"])
def test_bind_reads_pod_that_watch_has_not_reported(uid: str) -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(told=False)
        await rig.bind(uid=uid)
        assert rig.api.pods["p"]["spec"]["nodeName"] == "n1"
        assert rig.free == 12

    play(scene())


def test_bind_does_not_bind_recreated_pod() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(told=False)
        binding = asyncio.create_task(rig.bind(uid=""))
        await asyncio.sleep(1.5 * rig.api.slow)  # looked up, and the write is on its way
        rig.pod(told=False, uid="another")
        with pytest.raises(Refused, match="409"):
            await binding
        assert "nodeName" not in rig.api.pods["p"]["spec"]
        assert rig.free == 16

    play(scene())


def test_bind_frees_cards_if_grant_cannot_be_rendered() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()

        def broken(placed: object) -> dict[str, str]:
            raise RuntimeError("broken")

        rig.binder._extra_annotations = broken
        with pytest.raises(RuntimeError, match="broken"):
            await rig.bind()
        assert (rig.binds, rig.free, rig.cluster.assumed) == (0, 16, {})

    play(scene())


@pytest.mark.parametrize(("uid", "there"), [("uid-p", False), ("another", True)], ids=["not there", "made anew"])
def test_bind_refuses_deleted_pod(uid: str, there: bool) -> None:
    async def scene() -> None:
        rig = Rig()
        if there:
            rig.pod()
        with pytest.raises(Refused, match="ns/p is gone"):
            await rig.bind(uid=uid)
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


def test_bind_refuses_pod_bound_elsewhere() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"), watch=False)
        rig.pod(told=False, on="n1", annotations=ON_CARD_0)
        await rig.bind()
        with pytest.raises(Refused, match="ns/p is already bound to n1"):
            await rig.bind(node="n2")
        assert (rig.binds, rig.free) == (0, 12)

    play(scene())


def test_bind_refuses_invalid_pod() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(limits={MEM: "5Gi"})
        with pytest.raises(Refused, match="whole GiB"):
            await rig.bind()
        assert rig.binds == 0

    play(scene())


def test_bind_refuses_pod_of_others_and_node_that_does_not_exist() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(limits={"cpu": "1"})
        with pytest.raises(Refused, match="asks for no resource of aliquot"):
            await rig.bind()
        rig.pod("zero", {MEM: "0"})
        with pytest.raises(Refused, match='no node "nowhere"'):
            await rig.bind("zero", node="nowhere")
        assert rig.binds == 0

    play(scene())


TAINT = {"key": "gpu", "value": "a", "effect": "NoSchedule"}
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
TAINTED = [
    ({"taints": [TAINT]}, [], "gpu=a:NoSchedule"),
    ({"taints": [TAINT]}, [{"key": "gpu", "value": "b"}], "gpu=a:NoSchedule"),
    ({"taints": [{**TAINT, "effect": "NoExecute"}]}, [{**TAINT}], "gpu=a:NoExecute"),
    ({"taints": [TAINT]}, [{"key": "gpu", "operator": "Exists"}], None),
    ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, [], None),
    ({"unschedulable": True}, [], f"{UNSCHEDULABLE}=:NoSchedule"),
    ({"unschedulable": True}, [{"operator": "Exists"}], None),
]


@pytest.mark.parametrize("amount", ["4", "0"])
@pytest.mark.parametrize("told", [True, False], ids=["watched", "not watched yet"])
@pytest.mark.parametrize(("spec", "tolerations", "refusal"), TAINTED)
def test_bind_refuses_node_whose_taint_the_pod_does_not_tolerate(
    spec: Json, tolerations: list[Json], refusal: str | None, told: bool, amount: str
) -> None:
    async def scene() -> None:
        node = as_node({**node_json("n1"), "spec": spec})
        rig = Rig(node, watch=told)
        rig.api.nodes["n1"] = node
        pod = pod_json("p", {MEM: amount})
        pod["spec"]["tolerations"] = tolerations
        rig.api.put(pod)
        if refusal is None:
            await rig.bind()
        else:
            with pytest.raises(Refused, match=f"ns/p does not tolerate {refusal} of n1"):
                await rig.bind()
        assert rig.binds == (refusal is None)

    play(scene())


def test_bind_accepts_pod_that_asks_for_no_card() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(limits={MEM: "0"})
        await rig.bind()
        assert rig.api.pods["p"]["metadata"]["annotations"] == {}
        await rig.bind()
        with pytest.raises(Refused):
            await rig.bind(node="n2")
        rig.pod("q", {MEM: "0"})
        rig.api.writes.append(403)
        with pytest.raises(Refused, match="403"):
            await rig.bind("q")

    play(scene())


def test_bind_holds_nothing_if_pod_cannot_be_read() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(told=False)
        rig.api.looks.append(Unreachable("refused"))
        rig.cluster.drop_pod("ns/p")
        with pytest.raises(Unreachable):
            await rig.bind()
        assert (rig.free, rig.binder.busy) == (16, 0)

    play(scene())


def test_bind_on_follower_writes_and_holds_nothing() -> None:
    async def scene() -> None:
        rig = Rig(leading=False)
        rig.pod()
        with pytest.raises(Refused, match="is no longer the leader"):
            await rig.bind()
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


@pytest.mark.parametrize("node", ["n2", "gone"])
def test_bind_refuses_unknown_node(node: str) -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("gone"))
        rig.cluster.drop_node("gone")
        rig.pod()
        with pytest.raises(Refused, match=f"ns/p no longer fits on {node}"):
            await rig.bind(node=node)
        assert rig.binds == 0

    play(scene())


# --- whatever happens ------------------------------------------------------------------------------------------------

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
