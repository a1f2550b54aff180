"""The dashboard of a cluster shows ResourceClaims: what they hold, which Pods use them, and which wait."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aliquot.model.device import Card
from aliquot.services.daemon.calls import Calls
from aliquot.services.dashboard.contract import FREE, MIXED, NORMAL, OFFLINE, WHOLE
from aliquot.services.scheduler.reports import status_answer
from kit.agents.draclaims import a_claim, a_result
from kit.clusters.claimworld import BY_CLAIMS, World, column
from kit.clusters.watchobjects import live_node, live_pod
from kit.machines.fakeview import texts
from kit.values.manifests import MEM


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
