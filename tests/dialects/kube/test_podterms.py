"""Terms about other Pods: which of them a selector means."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects.kube.podterms import PodTerms, terms_of
from aliquot.dialects.pods import read_pod
from dialects.kube.test_conditions import pod

RULE = "requiredDuringSchedulingIgnoredDuringExecution"


def terms(labels: dict[str, str], **spec: Any) -> PodTerms:
    made = pod(**spec)
    made["metadata"]["labels"] = labels
    view = read_pod(made)
    assert view is not None
    return terms_of(view, view.spec)


@pytest.mark.parametrize(
    ("keys", "conditions"),
    [
        ({"matchLabelKeys": ["hash"]}, [{"key": "hash", "operator": "In", "values": ["7f"]}]),
        ({"mismatchLabelKeys": ["hash"]}, [{"key": "hash", "operator": "NotIn", "values": ["7f"]}]),
        ({"matchLabelKeys": ["not there", 5, None]}, []),
        ({"matchLabelKeys": "hash"}, []),
        ({}, []),
    ],
    ids=["the same", "another", "without the label", "no list", "none"],
)
def test_label_keys_stand_for_the_pods_own_values(keys: dict[str, Any], conditions: list[dict[str, Any]]) -> None:
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}, **keys}
    own = {"key": "app", "operator": "In", "values": ["web"]}
    found = terms({"hash": "7f"}, affinity={"podAntiAffinity": {RULE: [term]}})
    assert [each.selector.conditions for each in found.anti_affinity] == [(own, *conditions)]
