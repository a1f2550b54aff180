"""What a Pod asks of one machine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import DEFAULT_RULES, QgpuRules
from aliquot.dialects.hami import CARDS
from aliquot.dialects.local.claims import accepted_claim, chosen_cards, largest_request, parse_local_pod
from aliquot.model.claim import Claim, Role
from kit.values.manifests import MEM, QGPU_CORE, QGPU_MEMORY

Y2026 = replace(DEFAULT_RULES, qgpu=QgpuRules.Y2026)


def a_pod(*limits: dict[str, Any], **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{at}", "resources": {"limits": limit}} for at, limit in enumerate(limits)]
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers, **spec}}


@pytest.mark.parametrize("count", [1, 2, "8"])
def test_nvidia_gpus_are_as_many_whole_cards(count: object) -> None:
    claim = parse_local_pod(a_pod({CARDS: count}))
    assert isinstance(claim, Claim)
    (container,) = claim.containers
    assert (container.slice.exclusive, container.slice.memory_percent, container.count) == (True, 100, int(str(count)))
    assert claim.dialect == "hami"


def test_each_container_has_its_own_nvidia_gpus() -> None:
    init = {"name": "first", "resources": {"requests": {CARDS: 1}}}
    claim = parse_local_pod(a_pod({CARDS: 2}, {}, {CARDS: 1}, initContainers=[init]))
    assert isinstance(claim, Claim)
    found = [(container.name, container.role, container.count) for container in claim.containers]
    assert found == [("first", Role.INIT, 1), ("c0", Role.MAIN, 2), ("c2", Role.MAIN, 1)]


@pytest.mark.parametrize("limits", [{}, {"cpu": 1}, {CARDS: 0}, {"nvidia.com/mig-1g.5gb": 1}])
def test_pod_without_nvidia_gpus_asks_for_no_card(limits: dict[str, Any]) -> None:
    assert parse_local_pod(a_pod(limits)) is None


@pytest.mark.parametrize("count", ["1.5", -1, "many", None])
def test_part_of_an_nvidia_gpu_is_refused(count: object) -> None:
    found = parse_local_pod(a_pod({CARDS: count}))
    assert isinstance(found, tuple)
    assert found[0].field == f'spec.containers[0].resources.limits["{CARDS}"]'


def test_nvidia_gpus_beside_another_dialect_are_refused() -> None:
    found = parse_local_pod(a_pod({MEM: 3}, {CARDS: 1}))
    assert isinstance(found, tuple)
    assert [invalid.field for invalid in found] == [f'spec.containers[1].resources.limits["{CARDS}"]']
    assert "already uses gpushare" in found[0].allowed


@given(st.integers(1, 400), st.integers(1, 64))
def test_claim_accepted_under_either_version_of_the_rules_is_read_back(core: int, memory: int) -> None:
    pod = a_pod({QGPU_CORE: core, QGPU_MEMORY: memory})
    accepted = [claim for rules in (DEFAULT_RULES, Y2026) if isinstance(claim := parse_local_pod(pod, rules), Claim)]
    assert all(claim == accepted[0] for claim in accepted)
    assert accepted_claim(pod) == (accepted[0] if accepted else None)


@pytest.mark.parametrize(
    ("annotations", "chosen"),
    [
        ({}, None),
        ({"other": "x"}, None),
        ({"nvidia.com/use-gpuuuid": "GPU-0"}, ('metadata.annotations["nvidia.com/use-gpuuuid"]', "GPU-0")),
        ({"aliquot.dev/card-models": "H200"}, ('metadata.annotations["aliquot.dev/card-models"]', "H200")),
        (
            {"aliquot.dev/card-models": "H200", "nvidia.com/use-gpuuuid": "GPU-0"},
            ('metadata.annotations["nvidia.com/use-gpuuuid"]', "GPU-0"),
        ),
    ],
)
def test_annotation_that_chooses_cards(annotations: dict[str, str], chosen: object) -> None:
    pod = a_pod({CARDS: 1})
    pod["metadata"]["annotations"] = annotations
    assert chosen_cards(pod) == chosen
    assert chosen_cards(7) is None


@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        ([{MEM: 3}], (0, MEM, 3)),
        ([{MEM: 3}, {MEM: 4}, {"cpu": 1}], (1, MEM, 4)),
        ([{MEM: 4}, {MEM: 3}], (0, MEM, 4)),
        ([{CARDS: 1}, {CARDS: 3}], (1, CARDS, 3)),
        ([{CARDS: 3}, {CARDS: 1}], (0, CARDS, 3)),
    ],
)
def test_largest_request_is_named_by_its_field(limits: list[dict[str, Any]], largest: tuple[int, str, int]) -> None:
    pod = a_pod(*limits)
    claim = parse_local_pod(pod)
    assert isinstance(claim, Claim)
    at, resource, value = largest
    assert largest_request(pod, claim) == (f'spec.containers[{at}].resources.limits["{resource}"]', value)
    assert largest_request({}, claim) == ("spec.containers", f"c{at}")
