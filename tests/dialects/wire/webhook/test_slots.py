"""Slots of the webhook's replicas: each takes a vacant one by itself, and keeps it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects.wire.webhook.slots import SLOT_LABEL, SLOTS, slot_to_take
from kit.values.strategies import anything

Json = dict[str, Any]


def replica(name: str, slot: str | None = None, *, leaves: bool = False, phase: str = "Running") -> Json:
    metadata: Json = {"name": name, "creationTimestamp": name, "labels": {} if slot is None else {SLOT_LABEL: slot}}
    if leaves:
        metadata["deletionTimestamp"] = "2026-11-16T00:00:00Z"
    return {"metadata": metadata, "status": {"phase": phase}}


def taken(*pods: Json) -> dict[str, str]:
    """What each takes that takes one."""
    slots = {name: slot_to_take({"items": list(pods)}, name) for name in (pod["metadata"]["name"] for pod in pods)}
    return {name: slot for name, slot in slots.items() if slot is not None}


def test_replicas_that_start_together_take_different_slots() -> None:
    assert taken(replica("b"), replica("a")) == {"a": "0", "b": "1"}
    assert taken(replica("a"), replica("b"), replica("c")) == {"a": "0", "b": "1"}


def test_a_killed_replica_keeps_its_slot() -> None:
    """Its container is restarted; until then the other slot answers."""
    assert taken(replica("a", "0"), replica("b", "1"), replica("c")) == {}


def test_the_slot_of_a_replica_that_leaves_is_taken() -> None:
    assert taken(replica("a", "0", leaves=True), replica("b", "1"), replica("c")) == {"c": "0"}
    assert taken(replica("a", "0", phase="Failed"), replica("b", "1"), replica("c")) == {"c": "0"}


def test_of_two_in_one_slot_the_younger_takes_the_other() -> None:
    assert taken(replica("a", "1"), replica("b", "1")) == {"b": "0"}


replicas = st.builds(
    replica, st.sampled_from("abcdef"), st.none() | st.sampled_from(["0", "1", "7"]), leaves=st.booleans()
)


@given(st.lists(replicas, max_size=6, unique_by=lambda pod: pod["metadata"]["name"]))
def test_all_slots_are_held_once_there_are_enough_replicas(pods: list[Json]) -> None:
    changes = taken(*pods)
    live = {pod["metadata"]["name"]: pod for pod in pods if "deletionTimestamp" not in pod["metadata"]}
    assert changes.keys() <= live.keys()
    for name, slot in changes.items():
        live[name]["metadata"]["labels"][SLOT_LABEL] = slot
    held = [pod["metadata"]["labels"].get(SLOT_LABEL) for pod in live.values()]
    assert len(set(held) & set(SLOTS)) == min(len(live), len(SLOTS))
    assert taken(*pods) == {}


@given(anything, st.text())
def test_any_json_is_taken(value: object, name: str) -> None:
    for pods in (value, {"items": value}, {"items": [value, {"metadata": value}]}):
        assert slot_to_take(pods, name) in (None, *SLOTS)
