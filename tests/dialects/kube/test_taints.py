"""Taints that keep Pods from a node."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.dialects.kube.conditions import closing_taints, selects_node, untolerated
from aliquot.dialects.pods import tolerates
from aliquot.dialects.wire.objects import NodeSpec

CORDON = {"key": "node.kubernetes.io/unschedulable", "value": "", "effect": "NoSchedule"}
HARD, GOING, SOFT = ({"key": "k", "value": "v", "effect": effect} for effect in ("NoSchedule", "NoExecute", "Prefer"))


@pytest.mark.parametrize(
    ("spec", "closing"),
    [
        ({}, ()),
        ({"taints": []}, ()),
        ({"taints": [SOFT]}, ()),
        ({"taints": [SOFT, HARD, GOING]}, (HARD, GOING)),
        ({"unschedulable": True}, (CORDON,)),
        ({"unschedulable": False, "taints": [HARD]}, (HARD,)),
        ({"unschedulable": True, "taints": [HARD]}, (HARD, CORDON)),
        ({"unschedulable": True, "taints": [CORDON, HARD]}, (CORDON, HARD)),
    ],
)
def test_taints_that_close_a_node(spec: dict[str, Any], closing: tuple[object, ...]) -> None:
    assert closing_taints(msgspec.convert(spec, NodeSpec)) == closing


@pytest.mark.parametrize(
    ("taints", "tolerations", "named"),
    [
        ([], None, None),
        ([HARD], None, "k=v:NoSchedule"),
        ([CORDON], [], "node.kubernetes.io/unschedulable=:NoSchedule"),
        ([HARD], [{"key": "other", "operator": "Exists"}, {"key": "k", "operator": "Exists"}], None),
        ([HARD, CORDON], [{"key": "k", "operator": "Exists"}], "node.kubernetes.io/unschedulable=:NoSchedule"),
        ([{"key": "k", "effect": "NoExecute"}], [], "k=:NoExecute"),
    ],
)
def test_first_taint_that_is_not_tolerated(taints: Any, tolerations: Any, named: str | None) -> None:
    assert untolerated(taints, tolerations) == named


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ("k", False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k"}, False),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "value": "v", "operator": "Equal"}, True),
        ({"key": "k", "value": "w"}, False),
        ({"key": "k", "value": "v", "operator": "Other"}, False),
        ({"key": "k", "operator": "Gt", "value": "1"}, True),
        ({"value": "v"}, False),
    ],
)
def test_toleration_of_a_taint(toleration: object, tolerated: bool) -> None:
    assert tolerates(toleration, HARD) is tolerated


@pytest.mark.parametrize(
    ("terms", "selected"),
    [
        ([], False),
        ([{}], False),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}], True),
        ([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}], False),
        ([{}, {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}], True),
        ([{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]}, {}], False),
    ],
)
def test_node_selector_selects_by_one_of_its_terms(terms: list[Any], selected: bool) -> None:
    assert selects_node({"nodeSelectorTerms": terms}, "n1", {"zone": "a"}) is selected
