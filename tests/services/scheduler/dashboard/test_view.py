"""The dashboard of a cluster: what the scheduler knows, sent as changes."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.node import Closed
from aliquot.model.status.dashboard import SERIES, Node, Timeline
from aliquot.model.status.messages import Message, MessageCode
from aliquot.model.tenant import State
from aliquot.services.dashboard.contract import FREE, MIXED, NORMAL, ONLINE, OUT, WHOLE
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from kit.clusters.watchobjects import a_cluster, as_node, claim_of, live_node, live_pod, node_json, unhealthy
from kit.machines.fakeview import JsonView, texts
from kit.values.manifests import APP_CLASS, MEM, QGPU_GREEDY, QGPU_MEMORY, T9K_CARDS

Json = dict[str, Any]
ON_CARD = {at: {"ALIYUN_COM_GPU_MEM_IDX": str(at)} for at in range(2)}


def a_view(cluster: Cluster, **around: Any) -> JsonView:
    surroundings = {"name": "lab", "leading": lambda: True, "metrics": lambda: b"", **around}
    return JsonView(ClusterView(cluster, Details(cluster), Surroundings(**surroundings)))


def put(cluster: Cluster, name: str, node: str, gib: int = 4, card: int = 0) -> None:
    cluster.set_pod(live_pod(name, {MEM: str(gib)}, on=node, annotations=ON_CARD[card]))


def column(page: Json, name: str) -> list[int]:
    return [*b64decode(page["cards"][name])]


def node_of(view: JsonView, name: str) -> Json | None:
    return view.node(name, 1000.0)


# --- the state -------------------------------------------------------------------------------------------------------


def test_state_sorts_nodes_naturally() -> None:
    cluster = a_cluster(live_node("n10"), live_node("n9"), live_node("m", 16, 16))
    nodes = a_view(cluster).state(1000.0)["nodes"]
    assert nodes["names"] == ["m", "n9", "n10"]
    assert nodes["cards"] == [2, 1, 1]
    assert nodes["kind"] == [0, 1, 1]


def test_state_leaves_out_nodes_without_cards_and_offers() -> None:
    bare = as_node({"metadata": {"name": "web"}, "status": {}})
    assert a_view(a_cluster(live_node("n1"), bare)).state(1000.0)["nodes"]["names"] == ["n1"]


def test_card_bytes_show_booked_memory() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    put(cluster, "p", "n1", 8, card=1)
    state = a_view(cluster).state(1000.0)
    assert column(state, "memory") == [0, 100]
    assert column(state, "class") == [FREE, NORMAL]


def test_card_bytes_show_classes_and_whole_cards() -> None:
    cluster = a_cluster(live_node("n1", 16), live_node("n2", 16), live_node("n3", 16))
    online = {QGPU_MEMORY: "4"}
    offline = {QGPU_GREEDY: "50", QGPU_MEMORY: "4"}
    for node in ("n1", "n2"):
        cluster.set_pod(live_pod(f"on-{node}", online, on=node, annotations={APP_CLASS: "online"}))
    cluster.set_pod(live_pod("off", offline, on="n1", annotations={APP_CLASS: "offline"}))
    cluster.set_pod(live_pod("all", {T9K_CARDS: "1"}, on="n3"))
    state = a_view(cluster).state(1000.0)
    assert column(state, "class") == [MIXED, ONLINE, WHOLE]
    assert state["totals"]["pods"] == {"online": 2, "offline": 1, "normal": 1}


def test_trouble_lists_sick_cards_cordoned_and_invalid_nodes() -> None:
    cordoned = as_node({**node_json("n2"), "spec": {"unschedulable": True}})
    not_ready = node_json("n3")
    not_ready["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    broken = live_node("n4", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"})
    cluster = a_cluster(live_node("n1", 16, 16), cordoned, as_node(not_ready), broken)
    cluster.set_unhealthy(unhealthy("n1", "1"))
    state = a_view(cluster).state(1000.0)
    trouble = state["nodes"]["trouble"]
    assert [texts(trouble[row]) for row in "012"] == [["1 card out"], ["cordoned"], ["not ready"]]
    assert [trouble[row][0]["code"] for row in "0123"] == ["cards-out", "cordoned", "not-ready", "invalid-node"]
    assert "typo" in trouble["3"][0]["text"]
    assert column(state, "class") == [FREE, OUT, FREE, FREE]
    assert state["totals"]["troubled"] == 4
    assert state["totals"]["cards_out"] == 1


def test_totals_cover_all_cards() -> None:
    cluster = a_cluster(live_node("n1", 16, 16), live_node("n2", 24))
    put(cluster, "p", "n1", 8)
    totals = a_view(cluster).state(1000.0)["totals"]
    assert (totals["nodes"], totals["cards"], totals["cards_free"]) == (2, 3, 2)
    assert (totals["memory_mib"], totals["memory_booked_mib"]) == (56 << 10, 8 << 10)
    assert totals["busy"] is None


def test_point_has_every_series() -> None:
    assert set(a_view(a_cluster(live_node("n1"))).point(1000.0)) == {"time", *SERIES}


# --- what changed ----------------------------------------------------------------------------------------------------


def test_tick_has_only_changed_nodes() -> None:
    cluster = a_cluster(*(live_node(f"n{at}", 16, 16) for at in range(5)))
    view = a_view(cluster)
    view.state(1000.0)
    put(cluster, "p", "n3", 4, card=1)
    tick = view.tick(1001.0)
    assert tick is not None
    assert tick["rows"] == [3]
    assert column(tick, "memory") == [0, 50]
    again = view.tick(1002.0)
    assert again is not None
    assert (again["rows"], again["waiting"], again["trouble"]) == ([], None, None)


def test_tick_leaves_out_what_changed_back() -> None:
    cluster = a_cluster(live_node("n1"))
    view = a_view(cluster)
    view.state(1000.0)
    view.tick(1000.0)
    put(cluster, "p", "n1")
    cluster.drop_pod("ns/p")
    tick = view.tick(1001.0)
    assert tick is not None
    assert tick["rows"] == []


def test_tick_has_what_changed_back_after_a_state() -> None:
    cluster = a_cluster(live_node("n1"))
    view = a_view(cluster)
    view.state(1000.0)
    view.tick(1001.0)
    put(cluster, "p", "n1")
    cluster.reported.closed["n1"] = (Closed.CORDONED,)
    view.state(1001.5)
    cluster.drop_pod("ns/p")
    del cluster.reported.closed["n1"]
    tick = view.tick(1002.0)
    assert tick is not None
    assert (tick["rows"], tick["trouble"]) == ([0], {})


def test_tick_is_none_when_nodes_or_cards_change() -> None:
    cluster = a_cluster(live_node("n1"))
    view = a_view(cluster)
    view.state(1000.0)
    typo = {"sched.tensorstack.dev/node-alloc-mode": "typo"}
    for node in (live_node("n2"), live_node("n2", 16, 16), None, live_node("n3", labels=typo)):
        assert view.tick(1001.0) is not None
        cluster.drop_node("n2") if node is None else cluster.set_node(node)
        assert view.tick(1002.0) is None


def test_tick_is_none_for_listeners_that_miss_a_new_node() -> None:
    cluster = a_cluster(live_node("n1"))
    view = a_view(cluster)
    view.state(1000.0)
    cluster.set_node(live_node("n2"))
    view.state(1000.5)  # somebody came in between
    assert view.tick(1001.0) is None


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 3), st.integers(0, 1)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0), st.just(0)),
        st.tuples(st.just("tick"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("join"), st.just(0), st.just(0), st.just(0)),
        st.tuples(st.just("node"), st.integers(0, 3), st.integers(1, 2), st.just(0)),
    ),
    max_size=30,
)


@given(_EVENTS)
def test_state_plus_ticks_equals_the_current_state(events: list[tuple[str, int, int, int]]) -> None:
    """All viewers see the same, whenever they connected."""
    cluster = a_cluster(*(live_node(f"n{at}", 16, 16) for at in range(4)))
    view = a_view(cluster)
    everybody = [view.state(0.0)]
    for now, (what, first, second, third) in enumerate([*events, ("tick", 0, 0, 0)], 1):
        match what:
            case "put":
                cluster.drop_pod(f"ns/p{first}")
                put(cluster, f"p{first}", f"n{second}", 1 + first, card=third)
            case "drop":
                cluster.drop_pod(f"ns/p{first}")
            case "node":
                cluster.set_node(live_node(f"n{first}", *[16] * second))
            case "join":
                everybody.append(view.state(float(now)))
            case "tick":
                tick = view.tick(float(now))
                everybody = [view.state(float(now)) if tick is None else _after(seen, tick) for seen in everybody]
    fresh = view.state(1e6)
    for seen in everybody:
        assert seen["nodes"]["names"] == fresh["nodes"]["names"]
        for name in ("memory", "core", "class"):
            assert column(seen, name) == column(fresh, name)


def _after(seen: Json, tick: Json) -> Json:
    """What a browser makes of a tick."""
    starts = [sum(seen["nodes"]["cards"][:at]) for at in range(len(seen["nodes"]["cards"]))]
    for name in ("memory", "core", "class"):
        cards, news = column(seen, name), column(tick, name)
        for row in tick["rows"]:
            count = seen["nodes"]["cards"][row]
            cards[starts[row] : starts[row] + count], news = news[:count], news[count:]
        assert news == []
        seen["cards"][name] = _packed(cards)
    return seen


def _packed(cards: list[int]) -> str:
    from base64 import b64encode

    return b64encode(bytes(cards)).decode()


# --- one of them -----------------------------------------------------------------------------------------------------


def test_node_shows_tenants_by_card() -> None:
    cluster = a_cluster(live_node("n1", 16, 16))
    put(cluster, "p", "n1", 4, card=1)
    node = node_of(a_view(cluster), "n1")
    assert node is not None
    assert [len(card["tenants"]) for card in node["cards"]] == [0, 1]
    tenant = node["cards"][1]["tenants"][0]
    assert (tenant["key"], tenant["dialect"], tenant["memory_mib"], tenant["share"]) == ("ns/p", "gpushare", 4096, None)


def test_invalid_node_shows_its_trouble() -> None:
    cluster = a_cluster(live_node("n1", labels={"sched.tensorstack.dev/node-alloc-mode": "typo"}))
    node = node_of(a_view(cluster), "n1")
    assert node is not None
    assert "typo" in node["trouble"][0]["text"]
    assert node_of(a_view(cluster), "nowhere") is None


def test_node_merges_the_live_view_of_its_agent() -> None:
    cluster = a_cluster(live_node("n1", 16))
    put(cluster, "p", "n1")
    plain = node_of(a_view(cluster), "n1")
    assert plain is not None
    live = msgspec.convert(plain, Node)
    live.release_delay_seconds, live.notes = 0.1, [Message(MessageCode.STRANGER, "odd")]
    live.timeline = Timeline(1.0, 0.1, 0, {})
    live.cards[0].busy, live.cards[0].memory_used_mib = 0.5, 77
    tenant = live.cards[0].tenants[0]
    tenant.share, tenant.memory_mib = 0.4, 1

    async def answer(name: str) -> Node | None:
        return live

    node = node_of(a_view(cluster, ask_agent=answer), "n1")
    assert node is not None
    assert (node["timeline"]["step"], texts(node["notes"])[-1]) == (0.1, "odd")
    assert (node["cards"][0]["busy"], node["cards"][0]["tenants"][0]["share"]) == (0.5, 0.4)
    assert node["cards"][0]["tenants"][0]["memory_mib"] == 4096

    async def silent(name: str) -> Node | None:
        return None

    assert node_of(a_view(cluster, ask_agent=silent), "n1") == plain
    tenant.state, tenant.paused_by, tenant.paused_seconds = State.PAUSED, "ns/serve", 7.0
    paused = a_view(cluster, ask_agent=answer).pod("ns/p", 1000.0)
    assert paused is not None
    assert texts(paused["why"])[0] == "Paused: ns/serve has card 0. Online work took 7s from it in all."
    unknown = a_view(cluster, ask_agent=silent).pod("ns/p", 1000.0)
    assert unknown is not None
    assert unknown["why"] == paused["why"][1:]


def test_placed_pod_shows_where_and_why() -> None:
    cluster = a_cluster(live_node("n1", 16))
    put(cluster, "p", "n1")
    pod = a_view(cluster).pod("ns/p", 1000.0)
    assert pod is not None
    assert (pod["phase"], pod["node"], pod["cards"][0]["uuid"]) == ("Running", "n1", "n1-0")
    assert pod["why"][0] == {
        "code": "requests",
        "text": "Requests 4 GiB (gpushare).",
        "wants": [{"memory_mib": 4096}],
        "dialect": "gpushare",
    }
    assert any("binpack" in text for text in texts(pod["why"]))
    assert a_view(cluster).pod("ns/nobody", 1000.0) is None


def test_placed_pod_shows_the_rule_for_its_class_not_the_policy() -> None:
    cluster = a_cluster(live_node("n1", 16))
    pod = live_pod("p", {QGPU_MEMORY: "4"}, annotations={APP_CLASS: "online"})
    cluster.set_pod(pod)
    assert not isinstance(cluster.assume(claim_of(cluster, pod), "n1"), list)
    shown = a_view(cluster).pod("ns/p", 1000.0)
    assert shown is not None
    assert [reason["name"] for reason in shown["why"] if reason["code"] == "chosen-by"] == ["online"]
    assert any(text.startswith("Chosen by the rule for online Pods: a card without") for text in texts(shown["why"]))


def test_waiting_pod_shows_every_reason_with_its_nodes() -> None:
    cluster = a_cluster(live_node("n1", 8), live_node("n2", 8), live_node("n3", 16))
    put(cluster, "full", "n3", 16)
    cluster.set_pod(live_pod("big", {MEM: "12"}, refused=True))
    view = a_view(cluster)
    pod = view.pod("ns/big", 1000.0)
    assert pod is not None
    memory = {"reason": "memory", "wanted": 12288}
    assert pod["refusals"] == [
        {
            **memory,
            "text": "GPU memory: needs 12 GiB per card; no card is that large",
            "never": True,
            "nodes": 2,
            "example": "n1",
        },
        {
            **memory,
            "text": "GPU memory: needs 12 GiB per card; no card has that much free",
            "nodes": 1,
            "example": "n3",
        },
    ]
    (entry,) = view.state(1000.0)["waiting"]["pods"]
    assert entry["wants"] == {"text": "12 GiB", "requests": [{"memory_mib": 12288}]}
    assert entry["reason"]["text"].startswith("fits none of 3 nodes. 2: GPU memory")
    assert (entry["reason"]["code"], entry["reason"]["count"]) == ("no-fitting-node", 3)


def test_invalid_pod_shows_the_broken_rule() -> None:
    cluster = a_cluster(live_node("n1"))
    cluster.set_pod(live_pod("bad", {MEM: "-1"}))
    view = a_view(cluster)
    (entry,) = view.state(1000.0)["waiting"]["pods"]
    assert entry["reason"]["text"].startswith("invalid Pod: ")
    pod = view.pod("ns/bad", 1000.0)
    assert pod is not None
    assert pod["why"][0]["code"] == "invalid-pod"


def test_waiting_list_computes_few_reasons_at_once() -> None:
    cluster = a_cluster(live_node("n1", 8))
    for gib in range(9, 29):
        cluster.set_pod(live_pod(f"p{gib}", {MEM: str(gib)}, refused=True))
    view = a_view(cluster)
    first = [pod["reason"]["code"] for pod in view.state(1000.0)["waiting"]["pods"]]
    assert first.count("working") == 16
    for now in range(1, 6):
        page = view.state(1000.0 + now)
    assert "working" not in [pod["reason"]["code"] for pod in page["waiting"]["pods"]]


def test_search_finds_nodes_and_pods() -> None:
    cluster = a_cluster(live_node("gpu-1"), live_node("gpu-2"))
    put(cluster, "train", "gpu-1")
    cluster.set_pod(live_pod("waits", {MEM: "99"}))
    cluster.set_pod(live_pod("web", {}, on="gpu-1"))
    found = a_view(cluster).search("", 50)
    assert found["nodes"] == ["gpu-1", "gpu-2"]
    assert {pod["key"]: (pod["node"], pod["phase"]) for pod in found["pods"]} == {
        "ns/train": ("gpu-1", "Running"),
        "ns/waits": (None, "Pending"),
    }
    assert a_view(cluster).search("GPU-2", 1)["nodes"] == ["gpu-2"]
