"""Binding: one write, and whatever becomes of it, no card is given twice and none is kept for nobody."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import parse_grant
from aliquot.dialects.wire.extender import Binding
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.grant import Grant
from aliquot.services.scheduler.binder import Binder, Refused
from kit.builders import GIB
from kit.manifests import MEM, Json
from kit.virtualclock import play
from kit.watchobjects import a_cluster, as_pod, claim_of, live_node, pod_json

ON_CARD_0 = {"ALIYUN_COM_GPU_MEM_IDX": "0"}


class Api:
    """An API server that knows Pods and bindings, and answers as it is told to.

    What it is told, per write: `yes`; a status, which is said without doing anything; `lost` with how long after the
    call the write happens (None: never), while the caller hears nothing; `done 500`: done, and told as failed.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Json] = {}
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

    async def get(self, path: str, **_: object) -> PodObject:
        self.calls.append(("get", path))
        await asyncio.sleep(self.slow)
        if self.looks:
            raise self.looks.popleft()
        name = path.rpartition("/")[2]
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
    """A cluster of one node with one card of 16 GiB (or others), and a binder. The watch tells at once, or never."""

    def __init__(self, *nodes: Any, watch: bool = True, leading: bool = True) -> None:
        self.api, self.cluster, self.leading = Api(), a_cluster(*(nodes or (live_node(),))), leading
        if watch:
            self.api.watch, self.api.gone = self.cluster.set_pod, self.cluster.drop_pod
        self.binder = Binder(
            cast(Kube, self.api),
            self.cluster,
            may_write=lambda: self.leading,
            heard=self.cluster.set_pod,
            now_ns=lambda: 7,
            more_annotations=lambda placed: {"more": "yes"},
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


def test_yes_is_bound_with_the_grant_in_the_same_write() -> None:
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


@pytest.mark.parametrize("status", [400, 403, 404, 409, 422])
def test_no_gives_the_cards_back_at_once(status: int) -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(status)
        with pytest.raises(Refused, match=str(status)):
            await rig.bind()
        assert (rig.free, rig.cluster.assumed, rig.binder.busy) == (16, {}, 0)

    play(scene())


def test_a_conflict_with_a_bind_that_had_happened_is_a_yes() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        rig.api.put(pod_json(on="n1", annotations=ON_CARD_0))
        await rig.bind()
        assert (set(rig.cluster.placed), rig.free) == ({"uid-p"}, 12)

    play(scene())


def test_a_conflict_with_a_bind_to_another_node_is_a_no_and_that_node_is_charged() -> None:
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
def test_what_did_not_happen_and_was_not_told_is_held_until_it_can_no_longer_happen(outcome: Any) -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(outcome)
        with pytest.raises(Refused, match="its outcome will be looked up"):
            await rig.bind()
        assert (rig.free, rig.binder.busy) == (12, 1)
        await asyncio.sleep(5.5)
        assert rig.free == 12, "a write under way may still be done"
        with pytest.raises(Refused, match="has not told its outcome yet"):
            await rig.bind()
        await rig.binder.settle()
        assert (rig.free, rig.cluster.assumed, rig.binds) == (16, {}, 1)
        await rig.bind()
        assert rig.free == 12

    play(scene())


@pytest.mark.parametrize("watch", [True, False], ids=["the watch tells", "the watch is silent"])
@pytest.mark.parametrize("outcome", [("lost", 0.5), ("lost", 5.5), ("lost", 8.0), "done 500"], ids=str)
def test_what_happened_and_was_not_told_is_found_out_and_never_free_in_between(outcome: Any, watch: bool) -> None:
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


def test_as_long_as_the_api_server_does_not_answer_the_cards_are_held() -> None:
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


def test_a_conflict_whose_cause_cannot_be_looked_up_is_held_until_it_can() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        rig.api.put(pod_json(on="n1", annotations=ON_CARD_0))
        rig.api.looks.append(Unreachable("refused"))
        with pytest.raises(Refused, match="its outcome will be looked up"):
            await rig.bind()
        assert rig.free == 12
        await rig.binder.settle()
        assert set(rig.cluster.placed) == {"uid-p"}

    play(scene())


def test_a_pod_that_was_bound_and_deleted_without_the_watch_telling_frees_its_cards() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod()
        await rig.bind()
        rig.api.remove("p")
        await asyncio.sleep(30.0)
        await rig.binder.settle()
        assert (rig.free, rig.cluster.assumed) == (16, {})

    play(scene())


def test_a_pod_that_is_deleted_while_its_outcome_is_looked_up_is_not_brought_back() -> None:
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
def test_a_bind_that_comes_again_is_answered_with_the_outcome_of_the_first(watch: bool) -> None:
    async def scene() -> None:
        rig = Rig(watch=watch)
        rig.pod()
        for _ in range(3):
            await rig.bind()
        assert (rig.binds, rig.free) == (1, 12)
        with pytest.raises(Refused, match="ns/p is bound to n1 already"):
            await rig.bind(node="n2")

    play(scene())


def test_binds_of_one_pod_at_once_are_one_write() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"))
        rig.pod()
        outcomes = await asyncio.gather(rig.bind(), rig.bind(), rig.bind(node="n2"), rig.bind(), return_exceptions=True)
        assert [isinstance(outcome, Refused) for outcome in outcomes] == [False, False, True, False]
        assert (rig.binds, rig.free) == (1, 12)

    play(scene())


def test_binds_of_one_pod_at_once_share_a_no() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()
        rig.api.writes.append(403)
        outcomes = await asyncio.gather(rig.bind(), rig.bind(), return_exceptions=True)
        assert all(isinstance(outcome, Refused) for outcome in outcomes)
        assert (rig.binds, rig.free) == (1, 16)

    play(scene())


def test_of_many_pods_that_come_at_once_as_many_are_bound_as_have_room() -> None:
    async def scene() -> None:
        rig = Rig()
        for at in range(10):
            rig.pod(f"p{at}", {MEM: "5"})
        outcomes = await asyncio.gather(*(rig.bind(f"p{at}") for at in range(10)), return_exceptions=True)
        assert sum(outcome is None for outcome in outcomes) == 3
        refused = [str(outcome) for outcome in outcomes if outcome is not None]
        assert refused[0] == ("n1 does not take ns/p3 any more: GPU memory: 5 GiB wanted, no card has that much free")
        assert rig.free == 1

    play(scene())


def test_a_caller_that_goes_away_does_not_take_the_write_with_it() -> None:
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


def test_the_process_ends_only_when_every_outcome_is_known() -> None:
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
def test_a_pod_that_the_watch_has_not_told_of_is_looked_up(uid: str) -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(told=False)
        await rig.bind(uid=uid)
        assert rig.api.pods["p"]["spec"]["nodeName"] == "n1"
        assert rig.free == 12

    play(scene())


def test_a_pod_made_anew_after_it_was_looked_up_is_not_bound_in_the_place_of_the_one_before() -> None:
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


def test_what_could_not_be_written_down_holds_nothing() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod()

        def broken(placed: object) -> dict[str, str]:
            raise RuntimeError("broken")

        rig.binder._more = broken
        with pytest.raises(RuntimeError, match="broken"):
            await rig.bind()
        assert (rig.binds, rig.free, rig.cluster.assumed) == (0, 16, {})

    play(scene())


@pytest.mark.parametrize(("uid", "there"), [("uid-p", False), ("another", True)], ids=["not there", "made anew"])
def test_a_pod_that_is_gone_is_not_bound(uid: str, there: bool) -> None:
    async def scene() -> None:
        rig = Rig()
        if there:
            rig.pod()
        with pytest.raises(Refused, match="ns/p is gone"):
            await rig.bind(uid=uid)
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


def test_a_pod_that_is_bound_already_is_not_bound_again() -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("n2"), watch=False)
        rig.pod(told=False, on="n1", annotations=ON_CARD_0)
        await rig.bind()
        with pytest.raises(Refused, match="ns/p is bound to n1 already"):
            await rig.bind(node="n2")
        assert (rig.binds, rig.free) == (0, 12)

    play(scene())


def test_a_pod_that_breaks_a_rule_is_told_so() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(limits={MEM: "5Gi"})
        with pytest.raises(Refused, match="whole GiB"):
            await rig.bind()
        assert rig.binds == 0

    play(scene())


def test_a_pod_that_is_not_ours_is_bound_all_the_same() -> None:
    async def scene() -> None:
        rig = Rig(watch=False)
        rig.pod(limits={"cpu": "1"})
        await rig.bind()
        assert rig.api.pods["p"]["metadata"]["annotations"] == {}
        await rig.bind()
        with pytest.raises(Refused):
            await rig.bind(node="n2")
        rig.pod("q", {"cpu": "1"})
        rig.api.writes.append(403)
        with pytest.raises(Refused, match="403"):
            await rig.bind("q")

    play(scene())


def test_an_api_server_that_cannot_be_asked_is_told_and_nothing_is_held() -> None:
    async def scene() -> None:
        rig = Rig()
        rig.pod(told=False)
        rig.api.looks.append(Unreachable("refused"))
        rig.cluster.drop_pod("ns/p")
        with pytest.raises(Unreachable):
            await rig.bind()
        assert (rig.free, rig.binder.busy) == (16, 0)

    play(scene())


def test_one_that_does_not_lead_writes_nothing_and_holds_nothing() -> None:
    async def scene() -> None:
        rig = Rig(leading=False)
        rig.pod()
        with pytest.raises(Refused, match="does not lead any more"):
            await rig.bind()
        assert (rig.binds, rig.free) == (0, 16)

    play(scene())


@pytest.mark.parametrize("node", ["n2", "gone"])
def test_a_node_that_is_not_there_takes_nothing(node: str) -> None:
    async def scene() -> None:
        rig = Rig(live_node(), live_node("gone"))
        rig.cluster.drop_node("gone")
        rig.pod()
        with pytest.raises(Refused, match=f"{node} does not take ns/p any more"):
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
def test_whatever_happens_no_card_is_given_twice_and_all_that_is_bound_is_known(
    story: list[tuple[str, int, Any, float]], watch: bool
) -> None:
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
