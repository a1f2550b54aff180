"""The manifests of the documents we stand in for, as they are printed there, mean what the documents say."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from aliquot.dialects import parse_node, parse_pod, tolerations
from aliquot.dialects.kube.manifests import expand
from aliquot.model.claim import AppClass, Claim, Slice
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid


def claims(text: str) -> list[Claim]:
    made = expand(yaml.safe_load(text))
    assert not isinstance(made, Invalid)
    parsed = [parse_pod(pod) for pod in made]
    assert all(isinstance(claim, Claim) for claim in parsed), parsed
    return [claim for claim in parsed if isinstance(claim, Claim)]


def claim(text: str) -> Claim:
    (only,) = claims(text)
    return only


def pieces(parsed: Claim) -> list[tuple[str, Slice, int | None]]:
    return [(container.name, container.slice, container.count) for container in parsed.containers]


def test_000_an_offline_pod_asks_for_greedy_core_and_memory() -> None:
    parsed = claim("""
apiVersion: v1
kind: Pod
metadata:
  annotations:
    tke.cloud.tencent.com/app-class: offline
spec:
  containers:
  - name: offline-container
    resources:
      requests:
        tke.cloud.tencent.com/qgpu-core-greedy: 50
        tke.cloud.tencent.com/qgpu-memory: 4
""")
    assert pieces(parsed) == [("offline-container", Slice(memory_mib=4096, greedy_milli=500), 1)]
    assert (parsed.app_class, parsed.offer, parsed.together) == (AppClass.OFFLINE, Offer.QGPU_MIXED, True)


def test_000_an_online_pod_asks_for_memory_only() -> None:
    parsed = claim("""
apiVersion: v1
kind: Pod
metadata:
  annotations:
    tke.cloud.tencent.com/app-class: online
spec:
  containers:
  - name: online-container
    resources:
      requests:
        tke.cloud.tencent.com/qgpu-memory: 4
""")
    assert pieces(parsed) == [("online-container", Slice(memory_mib=4096), 1)]
    assert (parsed.app_class, parsed.offer) == (AppClass.ONLINE, Offer.QGPU_MIXED)


def test_000_an_ordinary_pod_has_no_class() -> None:
    parsed = claim("""
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: common-container
    resources:
      requests:
        tke.cloud.tencent.com/qgpu-core: 30
        tke.cloud.tencent.com/qgpu-memory: 5
""")
    assert pieces(parsed) == [("common-container", Slice(memory_mib=5120, core_milli=300), 1)]
    assert (parsed.app_class, parsed.offer, parsed.together) == (AppClass.NORMAL, Offer.QGPU, False)


@pytest.mark.parametrize("indent", ["", " "])
def test_000_misplaced_annotations_are_reported(indent: str) -> None:
    text = f"""
apiVersion: v1
kind: Pod
annotations:
 tke.cloud.tencent.com/app-class: offline
{indent}spec:
{indent} containers:
{indent} - name: offline-container
{indent}   resources:
{indent}     requests:
{indent}      tke.cloud.tencent.com/qgpu-core-greedy: 50
{indent}      tke.cloud.tencent.com/qgpu-memory: 4
"""
    parsed = parse_pod(yaml.safe_load(text))
    assert isinstance(parsed, tuple)
    (only,) = parsed
    assert only.field == "annotations"
    assert "metadata.annotations" in only.allowed


def test_001_limits_and_requests_are_the_same() -> None:
    parsed = claim("""
kind: Pod
metadata: {name: p}
spec:
  containers:
  - name: c
    resources:
      limits:
        tke.cloud.tencent.com/qgpu-memory: "5"
        tke.cloud.tencent.com/qgpu-core: "30"
      requests:
        tke.cloud.tencent.com/qgpu-memory: "5"
        tke.cloud.tencent.com/qgpu-core: "30"
""")
    assert pieces(parsed) == [("c", Slice(memory_mib=5120, core_milli=300), 1)]


def t9k(name: str, container: str, resources: str) -> str:
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels:
    scheduler.tensorstack.dev/group-name: gpu-usage
spec:
  schedulerName: t9k-scheduler
  containers:
  - image: example.io/example-image:latest
    name: {container}
    resources: {resources}
"""


def test_003_exclusive_gpu() -> None:
    parsed = claim(t9k("exclusive-gpu", "exclusive", "{limits: {tensorstack.dev/nvidia-gpu: 2}}"))
    assert pieces(parsed) == [("exclusive", Slice(memory_percent=100, exclusive=True), 2)]
    assert tolerations(parsed)


def test_003_shared_gpu() -> None:
    resources = "{limits: {tensorstack.dev/nvidia-gpu-percent: 30}, requests: {cpu: 500m, memory: 200Mi}}"
    parsed = claim(t9k("shared-gpu", "shared", resources))
    assert pieces(parsed) == [("shared", Slice(memory_percent=30), 1)]
    assert (parsed.cpu_milli, parsed.memory_mib, parsed.offer) == (500, 200, Offer.T9K_SHARED)
    assert not tolerations(parsed)


def test_003_exclusive_node() -> None:
    parsed = claim(t9k("exlusive-node", "exlusive", "{limits: {tensorstack.dev/nvidia-gpu-node: 1}}"))
    assert pieces(parsed) == [("exlusive", Slice(memory_percent=100, exclusive=True), None)]
    assert parsed.whole_node


def test_004_the_stateful_set_is_three_pods_of_3_gib() -> None:
    parsed = claims("""
apiVersion: apps/v1beta1
kind: StatefulSet
metadata:
  name: binpack-1
  labels: {app: binpack-1}
spec:
  replicas: 3
  serviceName: "binpack-1"
  podManagementPolicy: "Parallel"
  selector:
    matchLabels: {app: binpack-1}
  template:
    metadata:
      labels: {app: binpack-1}
    spec:
      containers:
      - name: binpack-1
        image: cheyang/gpu-player:v2
        resources:
          limits:
            aliyun.com/gpu-mem: 3
""")
    assert [claim.key for claim in parsed] == ["default/binpack-1-0", "default/binpack-1-1", "default/binpack-1-2"]
    assert {claim.owner for claim in parsed} == {"StatefulSet/default/binpack-1"}
    assert [pieces(claim) for claim in parsed] == [[("binpack-1", Slice(memory_mib=3072), 1)]] * 3


def test_004_the_node_has_8_cards_of_23_gib() -> None:
    node: dict[str, Any] = {
        "metadata": {"name": "dev-server-153", "labels": {"gpushare": "true"}},
        "status": {"capacity": {"aliyun.com/gpu-mem": "184", "aliyun.com/gpu-count": "8"}},
    }
    parsed = parse_node(node)
    assert isinstance(parsed, Node)
    assert [card.memory_mib for card in parsed.cards] == [23 * 1024] * 8
    assert parsed.offers == {Offer.GPUSHARE}


@pytest.mark.parametrize("kind", ["Service", "ClusterRole", "ServiceAccount", "ClusterRoleBinding"])
def test_000_other_manifests_have_no_pods(kind: str) -> None:
    assert claims(f"{{kind: {kind}, metadata: {{name: qgpu-manager}}}}") == []
