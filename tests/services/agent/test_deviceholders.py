"""Who holds the kubelet's devices is asked for now and then, and on which cards they are is told by the grants."""

from __future__ import annotations

from aliquot.services.agent.deviceholders import DeviceHolders
from kit.agentnode import House, a_qgpu_pod, play
from kit.manifests import QGPU_CORE


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_device_is_on_the_cards_that_its_holder_was_given(house: House) -> None:
    house.run(a_qgpu_pod(card=1))
    holdings = DeviceHolders(house.kubelet, house.tenants, Clock())
    play(holdings.refresh())
    held = holdings.cards[QGPU_CORE]
    assert held
    assert set(held.values()) == {frozenset({"GPU-1"})}


def test_the_kubelet_is_not_asked_each_second(house: House) -> None:
    clock = Clock()
    holdings = DeviceHolders(house.kubelet, house.tenants, clock)
    play(holdings.refresh())
    house.run(a_qgpu_pod())
    clock.now = 4.9
    play(holdings.refresh())
    assert not holdings.cards, "that was a moment ago"
    clock.now = 5.0
    play(holdings.refresh())
    assert holdings.cards
