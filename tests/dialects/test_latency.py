"""The latency that online work accepts, as a Pod of any dialect says it; and qGPU's own release delay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.dialects import PodReader, Rules, parse_pod, release_delay
from aliquot.dialects.latency import LATENCY
from aliquot.dialects.rules import EVERY
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim

FIELD = f'metadata.annotations["{LATENCY}"]'
ONLINE = {"tke.cloud.tencent.com/app-class": "online"}
QGPU, T9K, GPUSHARE = (
    {"tke.cloud.tencent.com/qgpu-memory": 8},
    {"tensorstack.dev/nvidia-gpu-percent": 25},
    {"aliyun.com/gpu-mem": 8},
)
HAMI = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/priority": 0}
ALL = Rules(served=frozenset(EVERY))


def a_pod(latency: object, limits: dict[str, int] = QGPU, annotations: dict[str, str] = ONLINE) -> dict[str, Any]:
    noted = {**annotations, **({} if latency is None else {LATENCY: latency})}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": noted}
    return {"metadata": metadata, "spec": {"containers": [container]}}


def accepted(pod: dict[str, Any]) -> float | None:
    claim = parse_pod(pod, ALL)
    assert isinstance(claim, Claim), claim
    return claim.latency


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("2ms", 0.002), ("0.1ms", 0.0001), ("100us", 0.0001), ("1.5s", 1.5), ("10s", 10.0)],
)
def test_latency_annotation_takes_times_with_a_unit(text: str | None, seconds: float | None) -> None:
    assert accepted(a_pod(text)) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize("text", ["soon", "", "2", "-1ms", "11s", "1e3ms", "2 ms", "0ms", "99us", "1m", 2])
def test_bad_latency_annotation_is_refused_by_field_value_and_what_is_allowed(text: object) -> None:
    refused = parse_pod(a_pod(text))
    assert isinstance(refused, tuple)
    assert [rule.field for rule in refused] == [FIELD]
    assert refused[0].sentence().endswith('is not allowed: a time from 0.1ms to 10s, for example "2ms"')


def test_latency_annotation_of_online_pods_of_hami_counts_too() -> None:
    assert accepted(a_pod("2ms", HAMI, {})) == pytest.approx(0.002)


@pytest.mark.parametrize("limits", [QGPU, T9K, GPUSHARE])
def test_latency_annotation_is_refused_where_a_pod_is_not_online(limits: dict[str, int]) -> None:
    refused = parse_pod(a_pod("2ms", limits, {}))
    assert isinstance(refused, tuple)
    assert [rule.field for rule in refused] == [FIELD]
    assert "not online" in refused[0].sentence()
    assert "app-class: online" in refused[0].sentence()


def test_misspelled_latency_annotation_is_refused_with_what_was_meant() -> None:
    pod = a_pod(None)
    pod["metadata"]["annotations"]["aliquot.dev/latncy"] = "2ms"
    refused = parse_pod(pod)
    assert isinstance(refused, tuple)
    assert refused[0].sentence().endswith(f"did you mean {LATENCY}?")


def test_two_pods_of_one_template_but_for_their_latency_are_not_mistaken_for_each_other() -> None:
    reader = PodReader(Rules())

    def read(text: str | None) -> float | None:
        pod = read_object(a_pod(text), PodObject, "pod")
        assert isinstance(pod, PodObject)
        claim = reader.read(pod).claim
        assert isinstance(claim, Claim)
        return claim.latency

    assert [read(text) for text in ("2ms", "5ms", None, "2ms")] == [0.002, 0.005, None, 0.002]


def test_only_pods_of_qgpu_bring_a_release_delay_of_their_own() -> None:
    claims = [parse_pod(a_pod(None, limits, {})) for limits in (QGPU, T9K)]
    assert [release_delay(claim) for claim in claims if isinstance(claim, Claim)] == [0.1, None]


@given(st.text(max_size=12) | st.integers() | st.none())
def test_any_latency_is_accepted_within_its_bounds_or_refused(text: object) -> None:
    found = parse_pod(a_pod(text))
    if isinstance(found, Claim):
        assert found.latency is None or 0.0001 <= found.latency <= 10
    else:
        assert found
        assert found[0].field == FIELD
