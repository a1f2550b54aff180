"""The webhook adds resources by which the kubelet calls us for a container."""

from __future__ import annotations

import pytest

from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.wire.webhook.admission import (
    AdmissionSettings,
)
from kit.values.manifests import (
    a_pod,
)
from kit.values.reviews import Json, answer, asked, patched

KAI = Rules(served=frozenset({"kai"}))


HAMI = Rules(served=frozenset({"hami"}))


@pytest.mark.parametrize("resources", [{}, {"limits": {"cpu": "1"}}, {"requests": {"cpu": "1"}}, None])
def test_container_of_kai_gets_the_resource_by_which_the_kubelet_calls_us(resources: Json | None) -> None:
    container = {"name": "main", **({} if resources is None else {"resources": resources})}
    annotations = {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}
    pod = a_pod("p", container, {"name": "other"}, annotations=annotations, schedulerName="kai-scheduler")
    chosen = AdmissionSettings(scheduler_name="aliquot-scheduler")
    found = patched(pod, answer(asked(pod), chosen, KAI))
    limits = {**(resources or {}).get("limits", {}), "aliquot.dev/card-place": "2"}
    assert found["spec"]["containers"][0]["resources"]["limits"] == limits
    assert "resources" not in found["spec"]["containers"][1]
    assert found["spec"]["schedulerName"] == "kai-scheduler"
    assert patched(found, answer(asked(found), chosen, KAI)) == found


@pytest.mark.parametrize("by", ["limits", "requests"])
@pytest.mark.parametrize("part", ["nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"])
def test_container_of_hami_with_only_a_part_of_a_card_gets_one_card(part: str, by: str) -> None:
    main, counted = {"name": "main", "resources": {by: {part: "30"}}}, {"nvidia.com/gpu": "2", part: "30"}
    shared = {"nvidia.com/gpu.shared": "1", part: "30"}
    pod = a_pod("p", main, {"name": "two", "resources": {by: counted}}, {"name": "none"}, init=[{**main, "name": "i"}])
    pod["spec"]["containers"].append({"name": "shared", "resources": {by: shared}})
    found = patched(pod, answer(asked(pod), AdmissionSettings(), HAMI))
    one, two, none, other = found["spec"]["containers"]
    assert one["resources"]["limits"] == {part: "30", "nvidia.com/gpu": "1"}
    assert found["spec"]["initContainers"][0]["resources"]["limits"] == one["resources"]["limits"]
    assert (two["resources"]["limits"], other["resources"]["limits"]) == (counted, shared)
    assert "resources" not in none
    assert patched(found, answer(asked(found), AdmissionSettings(), HAMI)) == found


# gpushare in MiB, with a node that counts more of it than the kubelet handles as devices.

COUNTED = Rules(gpushare_unit=MemoryUnit.MIB, counted=True)


@pytest.mark.parametrize("by", ["limits", "requests"])
def test_containers_of_gpushare_in_mib_get_the_resource_by_which_the_kubelet_calls_us(by: str) -> None:
    first = {"name": "first", "resources": {by: {"aliyun.com/gpu-mem": "4096"}}}
    pod = a_pod("p", {"name": "main", "resources": {by: {"aliyun.com/gpu-mem": "70000"}}}, {"name": "o"}, init=[first])
    found = patched(pod, answer(asked(pod), AdmissionSettings(), COUNTED))["spec"]
    place = {"aliquot.dev/card-place": "1"}
    assert found["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "70000", **place}
    assert found["initContainers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "4096", **place}
    assert "resources" not in found["containers"][1]


def test_pods_of_gpushare_get_no_such_resource_elsewhere() -> None:
    pod = a_pod("p", {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "4"}}})
    for rules in (Rules(), Rules(gpushare_unit=MemoryUnit.MIB), Rules(counted=True)):
        found = patched(pod, answer(asked(pod), AdmissionSettings(), rules))
        assert found["spec"]["containers"] == pod["spec"]["containers"]
