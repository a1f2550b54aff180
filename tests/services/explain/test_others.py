"""Why a Pod is not ours: the remark names what it asks another product for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from aliquot.dialects.rules import Rules
from aliquot.services.explain.others import why_not_ours
from kit.values.strategies import anything

Json = dict[str, Any]
WITH_ALL = Rules(served=frozenset({"qgpu", "t9k", "gpushare", "hami", "kai"}))


def a_pod(limits: Json | None = None, **spec: Any) -> Json:
    return {"metadata": {"annotations": {}}, "spec": {"containers": [{"resources": {"limits": limits or {}}}], **spec}}


@pytest.mark.parametrize(
    ("pod", "rules", "said"),
    [
        (a_pod({"nvidia.com/mig-1g.10gb": 1}), WITH_ALL, "to share cards without MIG, ask in one of its dialects"),
        (a_pod({"volcano.sh/vgpu-number": 1}), WITH_ALL, "nvidia.com/gpu with gpumem and gpucores, as in HAMi"),
        (a_pod({"nvidia.com/gpu": 1}), Rules(), "it would in mode hami or all+hami"),
        (a_pod({"nvidia.com/gpu": 1, "koordinator.sh/gpu": 1}), Rules(), "as in HAMi"),
        (a_pod(resourceClaims=[{"name": "gpu"}]), WITH_ALL, "asks by ResourceClaims"),
        ({"metadata": {"annotations": {"gpu-fraction": "0.5"}}}, Rules(), "unless its mode has kai"),
        (a_pod({"nvidia.com/gpu": 0, "cpu": 1}), Rules(), "requests no GPU in any of the dialects"),
        (a_pod({"nvidia.com/gpu": "0"}), Rules(), "requests no GPU in any of the dialects"),
    ],
)
def test_remark_names_what_is_asked_for_and_how_to_ask_aliquot(pod: Json, rules: Rules, said: str) -> None:
    assert said in why_not_ours(pod, rules)


def test_init_containers_and_requests_count_and_long_lists_are_cut() -> None:
    names = [f"volcano.sh/vgpu-{at}" for at in range(5)]
    pod = {"spec": {"initContainers": [{"resources": {"requests": dict.fromkeys(names, 1)}}]}}
    assert why_not_ours(pod, WITH_ALL).startswith(f"requests {', '.join(names[:3])} and 2 more, which another")


@given(anything)
def test_any_json_has_a_remark(value: object) -> None:
    for pod in (
        {"spec": value, "metadata": value},
        a_pod(),
        {"spec": {"containers": value, "initContainers": [value]}},
    ):
        assert why_not_ours(pod, Rules())
