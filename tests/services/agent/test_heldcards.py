"""Cards that Pods of other device plugins hold are not offered, and no new Pod starts on them."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.model.withheld import MIG_MODE
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.heldcards import ClaimedDevices, HeldCards
from aliquot.wording.withheld import withheld_words
from kit.agents.agentfakes import Clock
from kit.agents.agentnode import AgentNode, play
from kit.agents.grantedpods import CARDS, Json, a_qgpu_pod
from kit.values.manifests import QGPU_CORE, a_container, a_pod

GPU = "nvidia.com/gpu"
DRA = "DRA driver gpu.nvidia.com"
HELD = "Pod default/theirs holds it by nvidia.com/gpu"


def theirs(agent_node: AgentNode, *devices: str, resource: str = GPU, role: str = "main", phase: str = "") -> Json:
    """A Pod of another plugin that holds these devices."""
    uses = a_container("uses", {resource: len(devices)})
    pod = a_pod("theirs", a_container("main"), init=[uses]) if role == "init" else a_pod("theirs", uses)
    pod["metadata"] |= {"namespace": "default", "uid": "uid-theirs"}
    pod["spec"]["nodeName"] = "n1"
    if phase:
        pod["status"] = {"phase": phase}
    agent_node.bound(pod)
    agent_node.kubelet.pods["uid-theirs"] = pod
    agent_node.kubelet.held["uid-theirs"] = {("uses", resource): frozenset(devices)}
    return pod


def held(agent_node: AgentNode, **more: Any) -> HeldCards:
    agent = agent_node.agent
    settings: dict[str, Any] = {"minors": {}, "beside_others": lambda: True, "clock": Clock(), **more}
    settings.setdefault("claimed", ClaimedDevices(agent_node.agent.kube, "n1", clock=settings["clock"]))
    return HeldCards(agent_node.kubelet, agent.pod_cache, lambda: agent_node.health.cards, **settings)


def why(agent_node: AgentNode) -> dict[str, str]:
    found = held(agent_node)
    play(found.refresh())
    return words(found)


def words(found: HeldCards) -> dict[str, str]:
    return {uuid: withheld_words(why) for uuid, why in found.why.items()}


@pytest.mark.parametrize("device", ["GPU-1", "GPU-1::0", "1"])
def test_card_of_another_plugins_pod_is_held(agent_node: AgentNode, device: str) -> None:
    theirs(agent_node, device)
    assert why(agent_node) == {"GPU-1": HELD}


def test_card_stays_held_while_no_file_is_left_to_read_the_checkpoint(
    agent_node: AgentNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An init container of another plugin's Pod is only there."""
    theirs(agent_node, "GPU-1", role="init")
    clock = Clock()
    found = held(agent_node, clock=clock)
    play(found.refresh())
    assert words(found) == {"GPU-1": HELD}

    def lacks_files() -> None:
        raise KubeletError("kubelet_internal_checkpoint: Too many open files")

    monkeypatch.setattr(agent_node.kubelet, "checkpoint", lacks_files)
    clock.now += 600
    play(found.refresh())
    assert words(found) == {"GPU-1": HELD}


def test_our_own_devices_of_nvidia_gpu_hold_no_card_against_us(agent_node: AgentNode) -> None:
    theirs(agent_node, "GPU-1-_-7")
    assert why(agent_node) == {}
    theirs(agent_node, "GPU-1-_-7", "GPU-0-3")  # HAMi's form
    assert why(agent_node) == {"GPU-0": HELD}


def test_device_that_cannot_be_matched_withholds_all_cards(agent_node: AgentNode) -> None:
    theirs(agent_node, "strange")
    assert why(agent_node) == {"GPU-0": HELD, "GPU-1": HELD}


def a_device(name: str, **strings: str) -> Json:
    return {"name": name, "attributes": {key: {"string": value} for key, value in strings.items()}}


def publish(agent_node: AgentNode, *devices: Json) -> None:
    """A DRA driver publishes these devices."""
    agent_node.api.slices = [{"metadata": {"name": "s"}, "spec": {"driver": "gpu.nvidia.com", "devices": devices}}]


def test_claim_of_a_dra_driver_holds_the_cards_it_names(agent_node: AgentNode) -> None:
    publish(agent_node, a_device("gpu-0", uuid="GPU-0"), a_device("gpu-1", type="gpu", uuid="GPU-1"))
    theirs(agent_node, "gpu-1", resource=DRA)
    assert why(agent_node) == {"GPU-1": f"Pod default/theirs holds it by {DRA}"}


def test_claim_of_a_part_of_a_card_holds_its_card(agent_node: AgentNode) -> None:
    publish(agent_node, a_device("gpu-0-mig-9-4-4", uuid="MIG-2222", parentUUID="GPU-0"))
    theirs(agent_node, "gpu-0-mig-9-4-4", resource=DRA)
    assert set(why(agent_node)) == {"GPU-0"}


@pytest.mark.parametrize("attributes", [None, {}, {"uuid": "GPU-9"}, {"uuid": "other"}])
def test_claim_of_a_dra_driver_without_known_uuid_withholds_all_cards(
    agent_node: AgentNode, attributes: dict[str, str] | None
) -> None:
    if attributes is not None:
        publish(agent_node, a_device("gpu-0", uuid="GPU-0"), a_device("gpu-1", **attributes))
    theirs(agent_node, "gpu-1", resource=DRA)
    assert set(why(agent_node)) == {"GPU-0", "GPU-1"}


def test_resource_slices_are_read_only_for_unknown_names_and_seldom(agent_node: AgentNode) -> None:
    clock = Clock()
    found = held(agent_node, clock=clock)

    def later(seconds: float) -> int:
        """How often the API server is asked then."""
        clock.now += seconds
        before = agent_node.api.gets
        play(found.refresh())
        return agent_node.api.gets - before

    assert later(20) == 0, "no claim is held"
    theirs(agent_node, "gpu-1", resource=DRA)
    agent_node.api.away = True
    assert later(20) == 1
    assert set(found.why) == {"GPU-0", "GPU-1"}
    assert later(3) == 0
    agent_node.api.away = False
    publish(agent_node, a_device("gpu-1", uuid="GPU-1"))
    assert later(10) == 2
    assert set(found.why) == {"GPU-1"}
    assert later(20) == 0
    assert set(found.why) == {"GPU-1"}
    theirs(agent_node, "gpu-1", "gpu-7", resource=DRA)
    assert later(20) == 2
    assert set(found.why) == {"GPU-0", "GPU-1"}
    assert later(20) == 0, "no slice has gpu-7"
    assert later(600) == 2


def test_init_container_of_another_plugins_pod_holds_its_card(agent_node: AgentNode) -> None:
    theirs(agent_node, "GPU-0", role="init")
    assert why(agent_node) == {"GPU-0": HELD}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_pod_that_has_ended_holds_nothing(agent_node: AgentNode, phase: str) -> None:
    theirs(agent_node, "GPU-0", phase=phase)
    assert why(agent_node) == {}


def test_own_pods_and_other_resources_hold_nothing(agent_node: AgentNode) -> None:
    agent_node.run(a_qgpu_pod(card=1))
    theirs(agent_node, "1", resource="rdma/hca")
    assert why(agent_node) == {}


def test_kubelet_is_asked_every_two_seconds_beside_others_and_seldom_elsewhere(agent_node: AgentNode) -> None:
    for beside, interval in ((True, 2.0), (False, 10.0)):
        clock = Clock()
        cards = held(agent_node, clock=clock, beside_others=lambda beside=beside: beside)
        play(cards.refresh())
        theirs(agent_node, "GPU-0")
        clock.now = interval - 0.1
        play(cards.refresh())
        assert not cards.why
        clock.now = interval
        play(cards.refresh())
        assert cards.why
        agent_node.kubelet.forget("uid-theirs")


def test_last_answer_holds_while_the_kubelet_is_away(agent_node: AgentNode) -> None:
    clock = Clock()
    cards = held(agent_node, clock=clock)
    theirs(agent_node, "GPU-0")
    play(cards.refresh())
    agent_node.kubelet.unreachable, clock.now = True, 5.0
    play(cards.refresh())
    assert words(cards) == {"GPU-0": HELD}


def test_all_cards_are_withheld_while_the_kubelet_never_answered(agent_node: AgentNode) -> None:
    agent_node.kubelet.unreachable = True
    assert set(why(agent_node)) == {"GPU-0", "GPU-1"}


# In the agent.


def test_new_pod_does_not_start_on_a_held_card(agent_node: AgentNode) -> None:
    theirs(agent_node, "GPU-1")
    pod = agent_node.admitted(agent_node.bound(a_qgpu_pod(card=1)))
    with pytest.raises(Refused, match=f"card 1 .GPU-1. is not offered: {HELD}"):
        agent_node.started(pod)
    assert agent_node.started(agent_node.admitted(agent_node.bound(a_qgpu_pod("free", card=0)))).cards == "GPU-0"


def test_held_card_is_found_right_before_the_start_and_not_only_by_and_by(agent_node: AgentNode) -> None:
    pod = agent_node.admitted(agent_node.bound(a_qgpu_pod(card=1)))
    assert not agent_node.agent.held_cards.why
    theirs(agent_node, "GPU-1")
    with pytest.raises(Refused):
        agent_node.started(pod)
    assert set(agent_node.agent.held_cards.why) == {"GPU-1"}


def test_pod_that_has_the_card_may_restart_its_containers(agent_node: AgentNode) -> None:
    pod = a_qgpu_pod(card=1)
    agent_node.run(pod)
    theirs(agent_node, "GPU-1")
    assert agent_node.started(pod).cards == "GPU-1"


def test_new_pod_does_not_start_on_a_card_in_mig_mode(agent_node: AgentNode) -> None:
    agent_node.health.cards = (replace(CARDS[0], withheld=MIG_MODE), CARDS[1])
    pod = agent_node.admitted(agent_node.bound(a_qgpu_pod(card=0)))
    with pytest.raises(Refused, match="MIG mode is on"):
        agent_node.started(pod)


def test_held_card_is_in_the_inventory_the_status_and_the_kubelets_devices(agent_node: AgentNode) -> None:
    theirs(agent_node, "GPU-1")
    agent = agent_node.agent
    agent.held_cards.update(play(agent_node.kubelet.holders()))
    agent.reporter.publish(agent.cards, here=True)
    holder = '"withheld":"held","held_by":{"pod":"default/theirs","resource":"nvidia.com/gpu","more":0}'
    assert holder in agent.reporter._inventory["aliquot.dev/inventory"]
    assert [(card.is_out, card.why_out) for card in agent.status().cards] == [(False, None), (True, HELD)]
    play(agent.upkeep.advertise())
    offered = agent.advertiser.offered[QGPU_CORE]
    assert sum(token.healthy for token in offered) == len(offered) // 2
