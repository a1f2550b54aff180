"""What a claim asks for before it has a card."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given

from aliquot.dialects.dra import DRIVER
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.requests import requested, requested_class
from aliquot.model.claim import AppClass, ContainerClaim, Role, Slice
from kit.agents.draclaims import a_request, a_waiting_claim, parameters
from kit.values.anyjson import any_json

Json = dict[str, Any]


def read(*requests: Json, **more: Any) -> ClaimObject:
    return msgspec.convert(a_waiting_claim("c", *requests, **more), ClaimObject)


def slices(claim: ClaimObject) -> list[Slice]:
    return [request.slice for request in requested(claim)]


def test_memory_and_core_are_a_part_of_a_card() -> None:
    claim = read(a_request(memory="2Gi", core="30"))
    assert requested(claim) == (ContainerClaim("gpu", 0, Role.MAIN, Slice(2048, core_milli=300)),)


def test_without_memory_the_card_is_the_claims_alone() -> None:
    assert slices(read(a_request())) == [Slice(exclusive=True)]


def test_offline_claims_ask_for_spare_compute() -> None:
    claim = read(a_request("offline.aliquot.dev", memory="1500Ki", core=20))
    assert slices(claim) == [Slice(2, greedy_milli=200)]


def test_first_choice_of_a_prioritized_list_counts() -> None:
    choices = [a_request(memory=size)["exactly"] for size in ("8Gi", "2Gi")]
    assert slices(read({"name": "gpu", "firstAvailable": choices})) == [Slice(8192)]


def test_count_and_every_card() -> None:
    claim = read(a_request(count=2), a_request(name="b", allocationMode="All"), a_request("gpu.nvidia.com", name="c"))
    assert [(request.name, request.count) for request in requested(claim)] == [("gpu", 2), ("b", None)]


@pytest.mark.parametrize(
    ("device_class", "config", "found"),
    [
        ("aliquot.dev", {}, AppClass.NORMAL),
        ("online.aliquot.dev", {}, AppClass.ONLINE),
        ("offline.aliquot.dev", {}, AppClass.OFFLINE),
        ("aliquot.dev", parameters(class_="offline"), AppClass.OFFLINE),
        ("aliquot.dev", parameters(class_="typo"), AppClass.NORMAL),
        ("own", parameters(class_="online"), AppClass.ONLINE),
    ],
)
def test_class_is_that_of_the_device_class_or_of_the_configuration(
    device_class: str, config: Json, found: AppClass
) -> None:
    claim = read(a_request(device_class), config=[{"opaque": {"driver": DRIVER, "parameters": config}}])
    assert requested_class(claim) is found


WORDS = ["devices", "requests", "exactly", "firstAvailable", "capacity", "memory", "count", "config", "name"]


@given(spec=any_json(keys=WORDS, most=None, leaves=20))
def test_any_spec_can_be_read(spec: object) -> None:
    claim = msgspec.convert({"metadata": {"name": "c", "namespace": "ns", "uid": "u"}, "spec": spec}, ClaimObject)
    requested(claim)
    requested_class(claim)


@pytest.mark.parametrize("name", [["aliquot.dev"], {"aliquot.dev": 1}, 7, None])
def test_device_class_that_is_no_name_is_none_of_ours(name: Any) -> None:
    claim = read({"name": "gpu", "exactly": {"deviceClassName": name}})
    assert requested(claim) == ()
    assert requested_class(claim) is AppClass.NORMAL


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({}, 1),
        ({"count": 1}, 1),
        ({"count": 3}, 3),
        ({"count": 0}, 1),
        ({"count": "3"}, 1),
        ({"allocationMode": "All"}, None),
    ],
)
def test_number_of_cards_of_a_request(fields: Json, count: int | None) -> None:
    (container,) = requested(read(a_request(**fields)))
    assert container.count == count
