"""The dashboard of a cluster shows ResourceClaims: what they hold, which Pods use them, and which wait."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.dialects.dra import CLAIMS, LABEL
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.model.device import Card
from aliquot.model.status.dashboard import Node
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.tasks import run_forever
from aliquot.services.dashboard.contract import FREE, MIXED, NORMAL, OFFLINE, WHOLE
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard import resourceclaims
from aliquot.services.scheduler.dashboard.claims import Claims
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.resourceclaims import ResourceClaims
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from aliquot.services.scheduler.reports import status_answer
from kit.agents.draclaims import a_claim, a_config, a_request, a_result, a_waiting_claim, parameters
from kit.clusters.apiserver import until
from kit.clusters.watchobjects import a_cluster, as_pod, live_node, live_pod, pod_json
from kit.machines.fakeview import JsonView, texts
from kit.values.manifests import MEM

Json = dict[str, Any]
BY_CLAIMS = {LABEL: "true"}
REFUSAL = "0/1 nodes are available: 1 cannot allocate all claims."


class World:
    """A cluster with node n1 of two cards, which go to claims, and its dashboard."""

    def __init__(self, **around: Any) -> None:
        self.cluster = a_cluster(live_node("n1", 16, 16, labels=BY_CLAIMS), live_node("n2", 16))
        self.claims = Claims(self.cluster)
        surroundings = Surroundings(**{"name": "lab", "leading": lambda: True, "metrics": lambda: b"", **around})
        self.view = JsonView(ClusterView(self.cluster, Details(self.cluster, self.claims), surroundings))

    def card(self, index: int, node: str = "n1") -> Card:
        found = self.cluster.board.node(node)
        assert found is not None
        return found.cards[index]

    def hold(self, name: str, card: int, gib: float | None, core: int = 0, of: str = "", users: str = "") -> None:
        """A claim with that much of a card of n1, of that class, for these Pods."""
        result = a_result(self.card(card), None if gib is None else int(gib * 1024), core)
        config = [a_config(parameters(class_=of))] if of else []
        pods = {f"uid-{user}": user for user in users.split()}
        self.put(a_claim(result, config=config, name=name, uid=f"uid-{name}", namespace="ns", pods=pods))

    def put(self, claim: Json) -> None:
        self.claims.put(msgspec.convert(claim, ClaimObject))

    def add_pod(self, name: str, claim: str | None, *, on: str = "", refused: str = "") -> None:
        """A Pod that uses a claim; None: one from a template that is not made yet."""
        source = {"resourceClaimTemplateName": "t"} if claim is None else {"resourceClaimName": claim}
        pod = pod_json(name, {}, on=on)
        pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
        if refused:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": refused}
            pod["status"] = {"conditions": [condition]}
        self.cluster.set_pod(as_pod(pod))

    def node(self, name: str = "n1") -> Json:
        found = self.view.node(name, 1000.0)
        assert found is not None
        return found

    def pod(self, name: str) -> Json:
        found = self.view.pod(f"ns/{name}", 1000.0)
        assert found is not None
        return found


def column(answer: Json, name: str) -> list[int]:
    return [*b64decode(answer["cards"][name])]


def test_status_of_the_scheduler_counts_what_claims_hold() -> None:
    world = World()
    world.hold("serve", 1, 4, 30, of="online", users="b a")
    calls = Calls(lambda: "now")
    n1, n2 = status_answer(world.cluster, leading=True, calls=calls, claims=world.claims).nodes
    assert [(card.used_memory_mib, card.used_core) for card in n1.cards] == [(0, 0), (4096, 30)]
    (held,) = n1.claims
    assert (held.claim, held.app_class, held.pods) == ("ns/serve", "online", ["ns/a", "ns/b"])
    assert [(use.index, use.memory_mib, use.core) for use in held.cards] == [(1, 4096, 30)]
    assert n2.claims == []
    assert [node.claims for node in status_answer(world.cluster, leading=True, calls=calls).nodes] == [[], []]


# --- cards -----------------------------------------------------------------------------------------------------------


def test_a_card_lists_the_claims_that_hold_it_and_their_pods() -> None:
    world = World()
    world.hold("serve", 1, 4, 30, of="online", users="b a")
    first, second = world.node()["cards"]
    assert (first["tenants"], first["memory_booked_mib"]) == ([], 0)
    assert (second["memory_booked_mib"], second["core_booked"]) == (4096, 30.0)
    (tenant,) = second["tenants"]
    shown = {name: tenant[name] for name in ("key", "class", "dialect", "memory_mib", "core", "exclusive", "users")}
    assert shown == {
        "key": "ns/serve",
        "class": "online",
        "dialect": "claims",
        "memory_mib": 4096,
        "core": 30.0,
        "exclusive": False,
        "users": ["ns/a", "ns/b"],
    }


def test_a_pods_tenant_has_no_users() -> None:
    world = World()
    world.cluster.set_pod(live_pod("p", {MEM: "4"}, on="n2", annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    assert world.node("n2")["cards"][0]["tenants"][0]["users"] is None


def test_nodes_whose_cards_go_to_claims_offer_claims() -> None:
    world = World()
    state = world.view.state(1000.0)
    assert [state["kinds"][kind]["offers"][-1:] == ["claims"] for kind in state["nodes"]["kind"]] == [True, False]
    assert world.node()["offers"] == ["claims"]
    world.cluster.set_node(live_node("n1", 16, 16, labels={}))
    assert world.view.tick(1001.0) is None, "the kinds of nodes are sent anew"
    assert world.node()["offers"] == []


def test_state_and_totals_count_claims() -> None:
    world = World()
    world.hold("on", 0, 4, of="online", users="a b")
    world.hold("off", 0, 4, 20, of="offline", users="c")
    world.hold("all", 1, None)
    state = world.view.state(1000.0)
    assert column(state, "memory") == [100, 200, 0]
    assert column(state, "core") == [0, 200, 0]
    assert column(state, "class") == [MIXED, WHOLE, FREE]
    totals = state["totals"]
    assert totals["pods"] == {"online": 2, "offline": 1, "normal": 0}
    assert (totals["cards_free"], totals["memory_booked_mib"], totals["core_booked"]) == (1, 24 << 10, 100.0)


def test_ticks_have_the_nodes_whose_claims_changed() -> None:
    world = World()
    world.view.state(1000.0)
    world.view.tick(1000.5)
    world.hold("a", 0, 8)
    tick = world.view.tick(1001.0)
    assert tick is not None
    assert (tick["rows"], column(tick, "memory"), column(tick, "class")) == ([0], [100, 0], [NORMAL, FREE])
    assert tick["totals"]["memory_booked_mib"] == 8 << 10
    world.claims.drop("ns/a")
    tick = world.view.tick(1002.0)
    assert tick is not None
    assert (tick["rows"], column(tick, "class")) == ([0], [FREE, FREE])
    quiet = world.view.tick(1003.0)
    assert quiet is not None
    assert quiet["rows"] == []


def test_a_claim_follows_its_card_when_numbers_change() -> None:
    world = World()
    world.hold("a", 0, 8, of="offline")
    assert column(world.view.state(1000.0), "class") == [OFFLINE, FREE, FREE]
    swapped = live_node("n1", 16, 16, labels=BY_CLAIMS)
    annotations = swapped.metadata.annotations or {}
    inventory = msgspec.json.decode(annotations["aliquot.dev/inventory"])
    for card in inventory["cards"]:
        card["uuid"] = f"n1-{1 - card['index']}"
    annotations["aliquot.dev/inventory"] = msgspec.json.encode(inventory).decode()
    world.cluster.set_node(swapped)
    assert column(world.view.state(1001.0), "class") == [FREE, OFFLINE, FREE]


def test_a_claim_that_came_before_its_node_counts_when_the_node_comes() -> None:
    world = World()
    card = Card(0, 16384, "n3-0")
    world.put(a_claim(a_result(card, 8192, node="n3"), name="early", namespace="ns"))
    assert column(world.view.state(1000.0), "memory") == [0, 0, 0]
    world.cluster.set_node(live_node("n3", 16, labels=BY_CLAIMS))
    assert world.view.tick(1001.0) is None
    assert column(world.view.state(1001.0), "memory") == [0, 0, 0, 100]


def test_claims_of_a_node_that_is_gone_are_not_counted() -> None:
    world = World()
    world.hold("serve", 1, 4, users="a")
    world.hold("odd", 0, 99)
    world.add_pod("a", "serve", on="n1")
    assert world.view.state(1000.0)["totals"]["pods"]["normal"] == 1
    world.cluster.drop_node("n1")
    totals = world.view.state(1001.0)["totals"]
    assert (totals["pods"]["normal"], totals["memory_booked_mib"], totals["troubled"]) == (0, 0, 0)
    assert texts(world.pod("a")["why"]) == ["n1 is gone; the Pod counts there until Kubernetes removes it."]
    world.cluster.set_node(live_node("n1", 16, 16, labels=BY_CLAIMS))
    totals = world.view.state(1002.0)["totals"]
    assert (totals["pods"]["normal"], totals["memory_booked_mib"], totals["troubled"]) == (1, 4096, 1)


def test_a_claim_that_cannot_be_read_is_trouble_of_its_node() -> None:
    world = World()
    world.hold("odd", 0, 99)
    world.add_pod("p", "odd", on="n1")
    state = world.view.state(1000.0)
    (trouble,) = state["nodes"]["trouble"]["0"]
    assert (trouble["code"], trouble["name"]) == ("claim-unreadable", "ns/odd")
    assert 'consumedCapacity["memory"]' in trouble["detail"]
    assert world.node()["trouble"] == [trouble]
    assert state["totals"]["troubled"] == 1
    assert column(state, "memory") == [0, 0, 0]


def test_claims_of_other_drivers_are_left_out() -> None:
    world = World()
    world.put(a_claim({"request": "r", "driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0"}, namespace="ns"))
    world.add_pod("p", "claim")
    assert world.view.state(1000.0)["waiting"]["count"] == 0
    assert world.view.pod("ns/p", 1000.0) is None


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(1, 16) | st.none(), st.booleans()), max_size=12
    )
)
def test_ticks_add_up_to_the_state(steps: list[tuple[str, int, int | None, bool]]) -> None:
    """Whatever claims came, changed and went: a page that followed the ticks shows what a new one shows."""
    world = World()
    state = world.view.state(1000.0)
    shown = {name: column(state, name) for name in ("memory", "core", "class")}
    for at, (name, card, gib, goes) in enumerate(steps):
        if goes:
            world.claims.drop(f"ns/{name}")
        else:
            world.hold(name, card, gib, of=("online", "offline", "normal")[card])
        tick = world.view.tick(1001.0 + at)
        assert tick is not None
        for key, values in shown.items():
            if tick["rows"] == [0]:
                values[:2] = column(tick, key)
    final = world.view.state(2000.0)
    assert shown == {name: column(final, name) for name in shown}


# --- Pods ------------------------------------------------------------------------------------------------------------


def test_a_pod_with_a_claim_has_a_page() -> None:
    world = World()
    world.hold("serve", 1, 4, 30, of="online", users="a b")
    world.add_pod("a", "serve", on="n1")
    pod = world.pod("a")
    assert (pod["phase"], pod["node"], pod["class"], pod["claims"]) == ("Running", "n1", "online", ["serve"])
    assert [(card["index"], card["memory_mib"], card["core"]) for card in pod["cards"]] == [(1, 4096, 30.0)]
    holds, promised = pod["why"]
    assert holds == {
        "code": "claim-holds",
        "text": "Claim serve has card 1 of n1; used by a, b.",
        "name": "serve",
        "node": "n1",
        "cards": [1],
        "names": ["a", "b"],
    }
    assert promised["code"] == "promised"
    (found,) = world.view.search("ns/a", 9)["pods"]
    assert (found["node"], found["class"], found["phase"]) == ("n1", "online", "Running")


def test_a_pod_says_who_has_the_card_while_its_claim_is_paused() -> None:
    world = World()
    world.hold("batch", 0, 4, of="offline", users="a")
    world.add_pod("a", "batch", on="n1")
    live: Json = world.node()
    live["cards"][0]["tenants"][0] |= {"paused_by": "ns/serve", "paused_seconds": 7.0, "memory_used_mib": 99}

    async def agent(name: str) -> Node:
        return msgspec.convert(live, Node)

    asking = World(ask_agent=agent)
    asking.hold("batch", 0, 4, of="offline", users="a")
    asking.add_pod("a", "batch", on="n1")
    assert asking.pod("a")["why"][0]["code"] == "paused"
    tenant = asking.node()["cards"][0]["tenants"][0]
    assert (tenant["memory_used_mib"], tenant["users"]) == (99, ["ns/a"])


def test_a_pod_whose_claim_has_no_card_waits_with_what_kube_scheduler_said() -> None:
    world = World()
    world.put(a_waiting_claim("train", a_request("offline.aliquot.dev", memory="2Gi", core="30"), namespace="ns"))
    world.add_pod("p", "train", refused=REFUSAL)
    state = world.view.state(1000.0)
    assert (state["waiting"]["count"], state["totals"]["waiting"]) == (1, 1)
    (waiting,) = state["waiting"]["pods"]
    assert (waiting["key"], waiting["class"], waiting["dialect"]) == ("ns/p", "offline", "claims")
    assert waiting["wants"] == {
        "text": "2 GiB, 30% offline",
        "requests": [{"memory_mib": 2048, "core": 30.0, "offline": True}],
    }
    said = REFUSAL.rstrip(".")
    assert waiting["reason"] == {
        "code": "scheduler-said",
        "text": f"kube-scheduler last said: {said}",
        "detail": said,
    }
    pod = world.pod("p")
    assert (pod["phase"], pod["node"], pod["claims"]) == ("Pending", None, ["train"])
    assert [message["code"] for message in pod["why"]] == ["requests", "claim-waits", "scheduler-said"]
    assert world.view.search("ns/p", 9)["pods"][0]["phase"] == "Pending"


def test_waiting_ends_when_the_claim_is_allocated() -> None:
    world = World()
    world.put(a_waiting_claim("train", a_request(memory="2Gi"), namespace="ns"))
    world.add_pod("p", "train")
    (waiting,) = world.view.state(1000.0)["waiting"]["pods"]
    assert waiting["reason"]["code"] == "not-tried"
    world.hold("train", 0, 2, users="p")
    tick = world.view.tick(1001.0)
    assert tick is not None
    assert (tick["waiting"], tick["totals"]["waiting"]) == ({"count": 0, "pods": []}, 0)
    assert world.pod("p")["phase"] == "Binding"
    world.add_pod("p", "train", on="n1")
    assert world.pod("p")["phase"] == "Running"


def test_a_pod_that_waits_names_claims_that_are_shared_or_missing() -> None:
    world = World()
    world.hold("serve", 1, 4, of="online", users="a")
    world.add_pod("b", "serve", refused=REFUSAL)
    world.add_pod("c", "nowhere")
    world.add_pod("d", None)
    assert [message["code"] for message in world.pod("b")["why"]] == ["claim-holds", "scheduler-said"]
    assert texts(world.pod("c")["why"])[0].startswith("Claim nowhere is not there: create it")
    assert world.pod("d")["claims"] == ["gpu"]
    assert world.view.state(1000.0)["waiting"]["count"] == 0, "none of them asks for a card that it lacks"


def test_without_a_node_for_claims_the_reason_says_how_to_label_one() -> None:
    world = World()
    world.cluster.set_node(live_node("n1", 16, 16, labels={}))
    world.put(a_waiting_claim("train", a_request(), namespace="ns"))
    world.add_pod("p", "train", refused=REFUSAL)
    (waiting,) = world.view.state(1000.0)["waiting"]["pods"]
    assert waiting["reason"]["code"] == "claim-nowhere"
    assert f"kubectl label node NODE {LABEL}=true" in waiting["reason"]["text"]


def test_pods_in_our_dialects_come_first_in_the_list() -> None:
    world = World()
    world.put(a_waiting_claim("train", a_request(), namespace="ns"))
    world.add_pod("p", "train")
    world.cluster.set_pod(live_pod("q", refused=True))
    assert [pod["key"] for pod in world.view.state(1000.0)["waiting"]["pods"]] == ["ns/q", "ns/p"]
    world.cluster.drop_pod("ns/p")
    assert world.view.state(1010.0)["waiting"]["count"] == 1


# --- what the API server sends ---------------------------------------------------------------------------------------


async def follow(cluster: Cluster, status: int, *, label_later: bool = False) -> tuple[ResourceClaims, list[str]]:
    """Until the claims of an API server that answers with this status are known, or cannot be."""
    asked: list[str] = []
    ended = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if status != 200:
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if request.query.get("watch"):
            await ended.wait()
        items = [a_waiting_claim("train", a_request(), namespace="ns")]
        return web.json_response({"metadata": {"resourceVersion": "9"}, "items": items})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with Kube(Server(f"http://127.0.0.1:{runner.addresses[0][1]}"), agent="test") as kube:
        claims = ResourceClaims(kube, cluster)
        running = asyncio.create_task(claims.run())
        try:
            if label_later:
                await asyncio.sleep(0.05)
                assert not asked
                cluster.set_node(live_node("n1", labels=BY_CLAIMS))
            async with asyncio.timeout(60):
                await claims.answered.wait()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    ended.set()
    await runner.cleanup()
    return claims, asked


def test_claims_are_read_from_the_api_server() -> None:
    world = World()
    world.add_pod("p", "train")
    claims, asked = asyncio.run(follow(world.cluster, 200))
    assert [*claims.known.waiting()] == ["uid-p"]
    assert {*asked} == {CLAIMS}


def test_nothing_is_asked_before_a_node_is_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resourceclaims, "_LOOK", 0.01)
    _, asked = asyncio.run(follow(a_cluster(live_node("n1")), 200, label_later=True))
    assert {*asked} == {CLAIMS}


def test_without_the_right_to_read_claims_there_are_none(caplog: pytest.LogCaptureFixture) -> None:
    """Rights help only where the API server has claims: before Kubernetes 1.34 it has not."""
    fixes = {403: "helm upgrade with dra.enabled=true", 404: "Kubernetes 1.34 and newer serve it"}
    for status, fix in fixes.items():
        caplog.clear()
        world = World()
        world.add_pod("p", "train")
        claims, _ = asyncio.run(follow(world.cluster, status))
        assert not claims.known.waiting()
        (line,) = (record for record in caplog.records if record.message.startswith("resource_claims_not_"))
        assert fix in line.data["fix"]  # type: ignore[attr-defined]


class ClaimServer:
    """An API server with these claims, which are listed as they are then; a watch gets `event`, once."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.event = asyncio.Queue[Json]()
        self.ended = asyncio.Event()
        self.faults: list[int] = []  # statuses of the next answers
        self.version = 9

    def claim(self, name: str) -> Json:
        made = a_waiting_claim(name, a_request(), namespace="ns")
        made["metadata"]["resourceVersion"] = "5"
        return made

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.faults:
            status = self.faults.pop(0)
            return web.json_response({"kind": "Status", "code": status}, status=status)
        if not request.query.get("watch"):
            items = [self.claim(name) for name in self.names]
            return web.json_response({"metadata": {"resourceVersion": str(self.version)}, "items": items})
        answer = web.StreamResponse()
        await answer.prepare(request)
        event = asyncio.ensure_future(self.event.get())
        await asyncio.wait({event, asyncio.ensure_future(self.ended.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if event.done():
            await answer.write(msgspec.json.encode({"type": "MODIFIED", "object": event.result()}) + b"\n")
        event.cancel()
        return answer

    async def play(self, scene: Callable[[ResourceClaims], Awaitable[None]]) -> None:
        """The scene, with claims that are followed as the scheduler follows them."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with Kube(Server(f"http://127.0.0.1:{runner.addresses[0][1]}"), agent="test") as kube:
            claims = ResourceClaims(kube, a_cluster(live_node("n1", 16, labels=BY_CLAIMS)))
            running = asyncio.create_task(run_forever(claims.run))
            try:
                async with asyncio.timeout(30):
                    await scene(claims)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                self.ended.set()
        await runner.cleanup()


def fail_once(claims: ResourceClaims, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next claim that comes cannot be taken in."""
    put = claims.known.put

    def failing(item: ClaimObject) -> None:
        monkeypatch.setattr(claims.known, "put", put)
        raise RuntimeError("made to fail")

    monkeypatch.setattr(claims.known, "put", failing)


def test_claims_deleted_while_their_follower_starts_again_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ClaimServer("train", "eval")

    async def scene(claims: ResourceClaims) -> None:
        await claims.answered.wait()
        assert sorted(claims.known._by_key) == ["ns/eval", "ns/train"]
        fail_once(claims, monkeypatch)
        server.names, server.version = ["train"], 12
        changed = server.claim("train")
        changed["metadata"]["resourceVersion"] = "10"
        server.event.put_nowait(changed)
        await until(lambda: sorted(claims.known._by_key) == ["ns/train"])

    asyncio.run(server.play(scene))


def test_claims_are_read_again_where_the_first_list_could_not_be_taken_in(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(claims: ResourceClaims) -> None:
        fail_once(claims, monkeypatch)
        await until(lambda: sorted(claims.known._by_key) == ["ns/train"])

    asyncio.run(ClaimServer("train").play(scene))


def test_api_server_that_is_overloaded_is_asked_again_at_once() -> None:
    server = ClaimServer("train")
    server.faults = [503, 429, 500]

    async def scene(claims: ResourceClaims) -> None:
        await claims.answered.wait()
        assert sorted(claims.known._by_key) == ["ns/train"], "the first list was not refused"

    asyncio.run(server.play(scene))
