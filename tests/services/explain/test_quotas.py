"""A new Pod counts as the API server would count it, and is refused where a quota is used up."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.dialects import Rules, parse_pod
from aliquot.model.claim import Claim
from aliquot.services.explain.quotas import Quotas, namespaces_of
from kit.values.manifests import a_container, a_pod

Json = dict[str, Any]
RULES = Rules(served=frozenset({"qgpu", "gpushare", "hami", "kai"}))
MEM, GPU, GPUMEM = "aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/gpumem"


def quota(hard: Json, used: Json | None = None, **spec: Any) -> Quotas:
    quotas = Quotas()
    namespace = a_pod("p")["metadata"].get("namespace", "default")
    metadata = {"name": "q", "namespace": namespace}
    assert quotas.add({"metadata": metadata, "spec": {"hard": hard, **spec}, "status": {"used": used or {}}}) is None
    return quotas


def admit(quotas: Quotas, *limits: Json, keep: bool = True, **more: Any) -> list[str]:
    pod = a_pod("p", *(a_container(f"c{at}", amounts) for at, amounts in enumerate(limits)), **more)
    claim = parse_pod(pod, RULES)
    assert isinstance(claim, Claim), claim
    return [invalid.sentence() for invalid in quotas.admit(pod, claim, RULES, keep=keep)]


def test_pod_over_the_quota_is_refused_with_what_is_left() -> None:
    quotas = quota({f"requests.{MEM}": "8"}, {f"requests.{MEM}": "5"})
    (said,) = admit(quotas, {MEM: 2}, {MEM: 2})
    assert said.startswith(
        f'spec.containers[0].resources.limits["{MEM}"]: "requests.{MEM} 4" is not allowed: at most 3: '
    )
    assert said.endswith("allows 8 in all, and 5 are used")
    assert admit(quotas, {MEM: 3}) == []
    assert admit(quotas, {MEM: 1}) != [], "the Pod before counts"


def test_pod_that_is_not_kept_does_not_count() -> None:
    quotas = quota({f"requests.{MEM}": "3"})
    assert admit(quotas, {MEM: 3}, keep=False) == admit(quotas, {MEM: 3}) == []


def test_what_is_not_named_is_not_counted() -> None:
    assert admit(quota({"requests.tke.cloud.tencent.com/qgpu-memory": "0", f"limits.{MEM}": "0"}), {MEM: 3}) == []


@pytest.mark.parametrize(
    ("hard", "limits", "annotations"),
    [
        ({"pods": "0"}, {MEM: 1}, {}),
        ({"count/pods": "0"}, {MEM: 1}, {}),
        ({"requests.cpu": "500m"}, {MEM: 1, "cpu": "501m"}, {}),
        ({"cpu": "1"}, {MEM: 1, "cpu": "1500m"}, {}),
        ({"memory": "1Gi"}, {MEM: 1, "memory": "2Gi"}, {}),
        ({f"requests.{GPU}": "0"}, {GPUMEM: 1000}, {}),
        ({"requests.aliquot.dev/card-place": "1"}, {}, {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}),
    ],
    ids=str,
)
def test_everything_that_a_quota_names_is_counted(hard: Json, limits: Json, annotations: dict[str, str]) -> None:
    """Also what the webhook adds."""
    assert len(admit(quota(hard), limits, annotations=annotations)) == 1


def test_what_the_webhook_adds_counts_once_for_containers_that_run_one_after_the_other() -> None:
    hard = {f"requests.{GPU}": "1"}
    assert admit(quota(hard), {GPUMEM: 1000}, init=[a_container("init", {GPUMEM: 1000})]) == []
    assert len(admit(quota(hard), {GPUMEM: 1000}, {GPUMEM: 1000})) == 1
    assert len(admit(quota(hard), {GPUMEM: 1000}, init=[a_container("init", {GPU: 2})])) == 1


@pytest.mark.parametrize(
    ("limits", "requests", "unsaid"),
    [
        ({}, {}, "limits.memory and requests.cpu"),
        ({"memory": "1Gi"}, {"cpu": "0"}, None),
        ({"cpu": "1", "memory": "1Gi"}, {}, None),
        ({"cpu": "1"}, {"memory": "1Gi"}, "limits.memory"),
        ({"memory": "1Gi"}, {}, "requests.cpu"),
    ],
    ids=str,
)
def test_quota_of_cpu_or_memory_wants_every_container_to_say_it(
    limits: Json, requests: Json, unsaid: str | None
) -> None:
    quotas = quota(
        {"requests.cpu": "10", "limits.memory": "10Gi", f"requests.{MEM}": "8", "limits.ephemeral-storage": 1}
    )
    said = a_container("said", {MEM: 3, "cpu": "1", "memory": "1Gi"})
    for pod in (a_pod("p", said, one := a_container("c", limits, requests=requests)), a_pod("p", said, init=[one])):
        claim = parse_pod(pod, RULES)
        assert isinstance(claim, Claim)
        assert quotas.unsaid(pod, claim) == (
            f"only if a LimitRange sets {unsaid}: without it ResourceQuota q of namespace default refuses the Pod"
            if unsaid
            else None
        )
        pod["spec"]["resources"] = {"requests": {"cpu": "2"}}
        assert quotas.unsaid(pod, claim) is None, "the Pod itself says some"


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"scopes": ["BestEffort"]}, "it has scopes"),
        ({"scopeSelector": {"matchExpressions": [{}]}, "hard": {"pods": "0"}}, "it has scopes"),
        ({"hard": {"pods": "many"}}, "a value of spec.hard: a number is wanted"),
    ],
)
def test_quota_that_cannot_be_heeded_is_named(spec: Json, why: str) -> None:
    said = Quotas().add({"spec": spec})
    assert said is not None
    assert said.startswith("is ignored: ")
    assert why in said


def test_limits_of_hami_in_a_quota_are_named_and_the_rest_is_heeded() -> None:
    """Only HAMi's scheduler counts them."""
    hard = {"limits.cpu": "1", "limits.nvidia.com/gpu": "1", "limits.nvidia.com/gpumem": "8", f"requests.{GPU}": "1"}
    quotas, namespace = Quotas(), a_pod("p")["metadata"].get("namespace", "default")
    assert quotas.add({"metadata": {"name": "q", "namespace": namespace}, "spec": {"hard": hard}}) == (
        "limits.nvidia.com/gpu, limits.nvidia.com/gpumem limits nothing: write requests.nvidia.com/gpu, "
        "requests.nvidia.com/gpumem"
    )
    assert len(admit(quotas, {GPU: 2})) == 1


def test_namespaces_are_those_of_the_pods() -> None:
    pods: list[Json] = [{"metadata": {"namespace": "b"}}, {"metadata": {}}, {}, {"metadata": {"namespace": 7}}]
    assert namespaces_of(pods) == ["b", "default"]
