"""The kubelet says from time to time which Pods hold devices; the grants say on which cards."""

from __future__ import annotations

from aliquot.services.agent.devices.holders import DeviceHolders
from kit.agents.agentfakes import Clock
from kit.agents.agentnode import AgentNode, play
from kit.agents.grantedpods import a_qgpu_pod
from kit.values.manifests import QGPU_CORE


def test_device_holders_have_the_cards_of_the_grant(agent_node: AgentNode) -> None:
    agent_node.run(a_qgpu_pod(card=1))
    holdings = DeviceHolders(agent_node.kubelet, agent_node.tenants, Clock())
    play(holdings.refresh())
    held = holdings.cards[QGPU_CORE]
    assert held
    assert set(held.values()) == {frozenset({"GPU-1"})}


def test_device_holders_are_refreshed_at_most_every_five_seconds(agent_node: AgentNode) -> None:
    clock = Clock()
    holdings = DeviceHolders(agent_node.kubelet, agent_node.tenants, clock)
    play(holdings.refresh())
    agent_node.run(a_qgpu_pod())
    clock.now = 4.9
    play(holdings.refresh())
    assert not holdings.cards, "that was a moment ago"
    clock.now = 5.0
    play(holdings.refresh())
    assert holdings.cards
