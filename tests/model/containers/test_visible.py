"""Which cards a process may see."""

from __future__ import annotations

from aliquot.model.containers.visible import visible_cards, visible_in_group
from aliquot.model.device import Card
from aliquot.model.withheld import MIG_MODE

BY_ADDRESS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
CARDS = [Card(index, 1024, uuid=f"GPU-{name}") for index, name in enumerate("abc")]


def test_cards_are_named_by_nvml_s_numbers_in_the_order_of_the_grant() -> None:
    assert visible_cards(["GPU-c", "GPU-a"], CARDS) == {"CUDA_VISIBLE_DEVICES": "2,0", **BY_ADDRESS}


def test_a_machine_with_some_of_its_cards_left_out_keeps_their_numbers() -> None:
    assert visible_cards(["GPU-c"], CARDS[1:]) == {"CUDA_VISIBLE_DEVICES": "2", **BY_ADDRESS}


def test_cards_beside_one_in_mig_mode_are_named_by_uuid() -> None:
    cards = [*CARDS, Card(3, 1024, uuid="GPU-d", withheld=MIG_MODE)]
    assert visible_cards(["GPU-b"], cards) == {"CUDA_VISIBLE_DEVICES": "GPU-b", **BY_ADDRESS}


def test_a_card_without_a_known_number_is_named_by_uuid() -> None:
    assert visible_cards(["GPU-a", "GPU-x"], CARDS) == {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-x", **BY_ADDRESS}


def test_a_client_of_mps_counts_its_server_s_cards() -> None:
    assert visible_in_group(2) == {"CUDA_VISIBLE_DEVICES": "0,1", **BY_ADDRESS}
