"""What is read once for all Pods of a template."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from aliquot.dialects.registry import claim_for
from aliquot.dialects.wire.views import Names
from aliquot.model.claim import AppClass, CardFilter, Claim, Preference
from aliquot.model.node import Order
from kit.values.builders import a_claim, a_container, a_slice

OTHER: dict[str, Any] = {  # a value of its own for every field that has a default
    "app_class": AppClass.OFFLINE,
    "together": True,
    "whole_node": True,
    "models": frozenset({"H200"}),
    "cards": CardFilter(models=("H200",)),
    "preference": Preference(Order.SPREAD, Order.BINPACK),
    "owner": "ReplicaSet/ns/before",
    "cpu_milli": 1,
    "memory_mib": 2,
    "park_after": 3.0,
    "group": "g",
    "user": 4,
    "latency": 5.0,
}


def test_claim_of_another_pod_of_the_template_differs_in_its_names_alone() -> None:
    template = replace(a_claim(a_container(a_slice(2, 10))), **OTHER)
    optional = {field.name for field in fields(Claim)} - {"uid", "namespace", "name", "dialect", "offer", "containers"}
    assert optional == OTHER.keys(), "every field is tried"
    found = claim_for(Names("uid", "ns", "pod", "ReplicaSet/ns/owner"), template)
    assert found == replace(template, uid="uid", namespace="ns", name="pod", owner="ReplicaSet/ns/owner")
