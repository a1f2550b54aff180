"""The cards of a node as ResourceSlices."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.dra.slices import (
    PublishedSlice,
    device_name,
    generation_of,
    is_published,
    render_devices,
    render_slices,
)
from aliquot.model.device import Card
from aliquot.model.node import Isolation
from aliquot.model.withheld import MIG_MODE


def devices(*cards: Card) -> list[dict[str, Any]]:
    return render_devices(cards, driver="580.95.05", policy=Isolation.BEST_EFFORT, control={}, simulated=False)


def published(*slices: dict[str, Any]) -> list[PublishedSlice]:
    named = [{**slice_, "metadata": {"name": f"s{at}"}} for at, slice_ in enumerate(slices)]
    return [msgspec.convert(copy.deepcopy(slice_), PublishedSlice) for slice_ in named]


def test_card_is_a_device_that_claims_share() -> None:
    (device,) = devices(Card(3, 23028, "GPU-5c1f3a2e-0000-4000-8000-000000000001", "NVIDIA A10", numa=1))
    assert device["name"] == "gpu-5c1f3a2e-0000-4000-8000-000000000001"
    assert device["allowMultipleAllocations"] is True
    memory, core = device["capacity"]["memory"], device["capacity"]["core"]
    assert memory == {
        "value": "23028Mi",
        "requestPolicy": {"default": "23028Mi", "validRange": {"min": "1Mi", "step": "1Mi"}},
    }
    assert core == {"value": "100", "requestPolicy": {"default": "0", "validRange": {"min": "0", "step": "1"}}}
    attributes = device["attributes"]
    assert attributes["uuid"] == {"string": "GPU-5c1f3a2e-0000-4000-8000-000000000001"}
    assert attributes["model"] == {"string": "NVIDIA A10"}
    assert attributes["driverVersion"] == {"string": "580.95.05"}
    assert attributes["memoryMiB"] == {"int": 23028}
    assert (attributes["numa"], attributes["control"]) == ({"int": 1}, {"string": "unknown"})


def test_cards_that_are_out_are_not_published() -> None:
    cards = (
        Card(0, 16384, "GPU-0", healthy=False),
        Card(1, 16384, "GPU-1", withheld=MIG_MODE),
        Card(2, 16384, "GPU-2"),
    )
    assert [device["name"] for device in devices(*cards)] == ["gpu-2"]


def test_slices_are_owned_by_the_node_and_say_how_many_they_are() -> None:
    cards = [Card(at, 16384, f"GPU-{at}") for at in range(130)]
    slices = render_slices("n1", "node-uid", devices(*cards), 7)
    assert [len(slice_["spec"]["devices"]) for slice_ in slices] == [128, 2]
    assert {slice_["spec"]["pool"]["resourceSliceCount"] for slice_ in slices} == {2}
    assert slices[0]["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert generation_of(published(*slices)) == 7


def test_slices_are_compared_by_value_and_not_by_spelling() -> None:
    wanted = devices(Card(0, 16384, "GPU-0"))
    (slice_,) = render_slices("n1", "u", wanted, 1)
    there = copy.deepcopy(slice_)
    there["spec"]["devices"][0]["capacity"]["memory"] = {"value": "16Gi"}  # as the API server writes it
    assert is_published(published(there), wanted)
    there["spec"]["devices"][0]["capacity"]["memory"] = {"value": "15Gi"}
    assert not is_published(published(there), wanted)


def test_half_of_the_slices_or_two_generations_are_not_published() -> None:
    wanted = devices(*[Card(at, 16384, f"GPU-{at}") for at in range(130)])
    first, second = render_slices("n1", "u", wanted, 1)
    assert is_published(published(first, second), wanted)
    assert not is_published(published(first), wanted)
    assert not is_published(published(first, render_slices("n1", "u", wanted, 2)[1]), wanted)
    assert not is_published(published(first, second, second), wanted)
    assert is_published([], [])
    assert not is_published(published(first), [])


@given(st.text(min_size=1, max_size=80))
def test_device_names_are_dns_labels(uuid: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device_name(uuid))


@given(st.lists(st.tuples(st.integers(2, 200_000), st.booleans()), max_size=20), st.integers(1, 9))
def test_what_was_published_is_published(sizes: list[tuple[int, bool]], generation: int) -> None:
    cards = [Card(at, memory, f"GPU-{at}", healthy=healthy) for at, (memory, healthy) in enumerate(sizes)]
    wanted = devices(*cards)
    assert is_published(published(*render_slices("n1", "u", wanted, generation)), wanted)
    assert [device["attributes"]["index"]["int"] for device in wanted] == [card.index for card in cards if card.healthy]


def test_other_number_of_slices_is_not_what_was_published() -> None:
    (found,) = published(*render_slices("n1", "uid", devices(Card(0, 1024, "GPU-0")), 1))
    wanted = devices(Card(0, 1024, "GPU-0"))
    assert is_published([found], wanted) is True
    assert is_published([], wanted) is False
    assert is_published([found, found], wanted) is False
    strange = copy.deepcopy(found)
    strange.spec["devices"][0]["capacity"]["memory"]["value"] = "much"
    assert is_published([strange], wanted) is False
    assert is_published([strange], strange.spec["devices"]) is True


def test_newest_generation() -> None:
    def of(*generations: object) -> list[PublishedSlice]:
        return published(
            *({"metadata": {"name": "s"}, "spec": {"pool": {"generation": number}}} for number in generations)
        )

    assert [generation_of(of()), generation_of(of("x")), generation_of(of(3, 7, 5))] == [0, 0, 7]


def test_slices_that_count_themselves_wrongly_are_not_published() -> None:
    wanted = devices(Card(0, 1024, "GPU-0"))
    (right,) = render_slices("n1", "u", wanted, 1)
    for pool in ({**right["spec"]["pool"], "resourceSliceCount": 2}, "pool", None):
        assert is_published(published({**right, "spec": {**right["spec"], "pool": pool}}), wanted) is False
