"""The pages of Pods with ResourceClaims, and why they wait."""

from __future__ import annotations

import msgspec

from aliquot.dialects.dra import LABEL
from aliquot.model.status.dashboard import Node
from kit.agents.draclaims import a_request, a_waiting_claim
from kit.clusters.claimworld import REFUSAL, Json, World
from kit.clusters.watchobjects import live_node, live_pod
from kit.machines.fakeview import texts


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
