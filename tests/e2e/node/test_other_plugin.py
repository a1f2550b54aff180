"""Beside another device plugin on a real kubelet: no card is given away twice, and its owner decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.dialects.wire.otherplugins import DEPLOY, SHARE
from simgpu import faults
from testbed import objects
from testbed.cards import QCORE, QMEM
from testbed.judges import holdings
from testbed.judges.inside import wait_running
from testbed.others.otherplugin import GPU, start_other_plugin
from testbed.processes import wait_until
from testbed.programs.doctor import Doctor
from testbed.programs.fleet import GPUSHARE, MIXED, Fleet
from testbed.realnodes.nodes import RealNode, probe

PATIENCE = 90.0
ENABLE = "qgpu-device-enable"


def _cards(node: RealNode) -> list[dict[str, Any]]:
    inventory = objects.get_node(node.plane, node.name)["metadata"]["annotations"][holdings.INVENTORY]
    found: list[dict[str, Any]] = json.loads(inventory)["cards"]
    return found


def _withheld(node: RealNode) -> dict[int, str]:
    """Of a card that is held, also by whom."""
    cards = {card["index"]: card for card in _cards(node) if card.get("withheld")}
    return {index: " ".join([card["withheld"], *_holder(card)]) for index, card in cards.items()}


def _holder(card: dict[str, Any]) -> list[str]:
    held_by = card.get("held_by")
    return [held_by["pod"], held_by["resource"]] if held_by else []


def _capacity(node: RealNode) -> str:
    return str(objects.get_node(node.plane, node.name)["status"]["capacity"].get(GPU, "0"))


def _labels(node: RealNode) -> dict[str, str]:
    return dict(objects.get_node(node.plane, node.name)["metadata"].get("labels") or {})


def _ours(node: RealNode, name: str) -> dict[str, Any]:
    """A Pod on that node that shares its card with no other such Pod."""
    return probe(name, limits={QCORE: 60, QMEM: 4}, nodeSelector={"kubernetes.io/hostname": node.name})


def _why_waits(fleet: Fleet, name: str) -> str:
    conditions = objects.get_pod(fleet.plane, name)["status"].get("conditions", [])
    return next((str(found.get("message", "")) for found in conditions if found["type"] == "PodScheduled"), "")


def _said(doctor: Doctor) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(doctor.call("-o", "json").stdout)
    return found


@pytest.fixture
def node(fleet: Fleet) -> Iterator[RealNode]:
    """A node on which another plugin advertises the first two of four cards, and a Pod holds both."""
    node = fleet.nodes[0]
    fleet.wired.label_node(node.name, {DEPLOY: None})
    program = start_other_plugin(node, [card["uuid"] for card in _cards(node)[:2]])
    try:
        wait_until(lambda: _capacity(node) == "2", PATIENCE, "the other plugin advertises", saw=program.tail)
        fleet.create(probe("theirs", limits={GPU: 2}, node=node.name))
        wait_running(fleet, ["theirs"], PATIENCE)
        yield node
    finally:
        fleet.wired.label_node(node.name, {SHARE: None, DEPLOY: "false"})  # its 0 stays, and means no more from here on
        program.stop()
        wait_until(lambda: _capacity(node) == "0", PATIENCE, "the other plugin is gone")


def test_node_of_another_plugin_is_not_labelled(fleet: Fleet, node: RealNode) -> None:
    other = fleet.nodes[1]
    for labelled in (node, other):
        fleet.label(labelled.name, {})
    wait_until(lambda: ENABLE in _labels(other), PATIENCE, "the node without another plugin is labelled")
    assert ENABLE not in _labels(node)


def test_node_of_another_plugin_stays_closed_after_a_restart_of_the_kubelet(fleet: Fleet, node: RealNode) -> None:
    node.restart_kubelet()
    wait_until(lambda: _capacity(node) == "0", PATIENCE, "the kubelet does not know the plugin any more")
    fleet.create(_ours(node, "ours"))
    wait_until(
        lambda: "(aliquot:other-plugin)" in _why_waits(fleet, "ours"),
        PATIENCE,
        "it says why it waits",
        saw=lambda: _why_waits(fleet, "ours"),
    )
    assert fleet.node_of("ours") is None


def test_cards_of_another_plugin_are_used_only_after_the_owner_opted_in_and_never_twice(
    fleet: Fleet, node: RealNode
) -> None:
    doctor = Doctor(node)
    fleet.create(*(_ours(node, f"ours-{number}") for number in range(3)))
    wait_until(
        lambda: "(aliquot:other-plugin)" in _why_waits(fleet, "ours-0"),
        PATIENCE,
        "it says why it waits",
        saw=lambda: _why_waits(fleet, "ours-0"),
    )
    assert not any(fleet.node_of(f"ours-{number}") for number in range(3))
    assert any(f"offers nothing: {GPU}" in finding["what"] for finding in doctor.wrong())

    fleet.wired.label_node(node.name, {SHARE: "true", **MIXED, **GPUSHARE})
    wait_until(lambda: set(_withheld(node)) == {0, 1}, PATIENCE, "held cards are reported", saw=lambda: _cards(node))
    assert set(_withheld(node).values()) == {f"held default/theirs {GPU}"}

    def placed() -> list[str]:
        return [name for name in ("ours-0", "ours-1", "ours-2") if fleet.node_of(name)]

    wait_until(lambda: len(placed()) == 2, PATIENCE, "two Pods have the two free cards", saw=placed)
    wait_running(fleet, placed(), PATIENCE)
    used = [holdings.cards_of(objects.get_pod(fleet.plane, name)) for name in placed()]
    assert sorted(card for cards in used for card in cards) == [2, 3]
    said = _said(doctor)
    assert not [
        finding
        for finding in said
        if finding["check"] in ("other-plugins", "over-allocated") and finding["level"] == "finding"
    ]
    assert any(finding["what"].startswith("is not offered: Pod default/theirs") for finding in said)

    node.plane.kubectl("delete", "pod", "theirs")
    wait_until(lambda: not _withheld(node), PATIENCE, "the cards are offered again", saw=lambda: _withheld(node))
    wait_running(fleet, ["ours-0", "ours-1", "ours-2"], PATIENCE)


def test_card_in_mig_mode_is_not_offered(fleet: Fleet) -> None:
    node = fleet.nodes[0]
    player = str(node.path("/run/aliquot/player/sock"))
    faults.set_mig(player, 3, on=True)
    try:
        wait_until(lambda: _withheld(node) == {3: "mig"}, PATIENCE, "it is reported")
        fleet.create(*(_ours(node, f"ours-{number}") for number in range(4)))
        wait_until(lambda: "(aliquot:" in " ".join(_why_waits(fleet, f"ours-{n}") for n in range(4)), PATIENCE, "waits")
        bound = [f"ours-{number}" for number in range(4) if fleet.node_of(f"ours-{number}")]
        wait_running(fleet, bound, PATIENCE)
        assert len(bound) <= 3
        used = [holdings.cards_of(objects.get_pod(fleet.plane, name)) for name in bound]
        assert 3 not in {card for cards in used for card in cards}
    finally:
        faults.set_mig(player, 3, on=False)
    wait_until(lambda: not _withheld(node), PATIENCE, "it is offered again")
    wait_running(fleet, [f"ours-{number}" for number in range(4)], PATIENCE)
