"""What a cluster may decide otherwise: the vendor's rules of 2026 for qGPU, and gpu-mem counted in MiB."""

from __future__ import annotations

from typing import Any

import pytest

from kit.values.manifests import COUNT, MEM, QGPU_CORE, QGPU_MEMORY
from testbed.gpus import gpushare_pod, qgpu_node
from testbed.judges import holdings
from testbed.objects import node, pod
from testbed.programs.wired import Wired

SCHEDULER_ARGS = ("--rules=2026",)


def _held(cluster: Wired, name: str) -> list[tuple[int, int]]:
    """(percent, GiB) of each card."""
    held = holdings.held(cluster.pod(name)).values()
    return [(use["core_milli"] // 10, use["memory_mib"] // 1024) for use in held]


@pytest.mark.parametrize(
    ("core", "memory", "held"),
    [
        (160, 60, [(80, 30), (80, 30)]),
        (121, 31, [(60, 15), (60, 15)]),
        (200, None, [(100, 32), (100, 32)]),
        (45, 10, [(45, 10)]),
    ],
)
def test_core_above_100_is_several_cards(
    cluster: Wired, core: int, memory: int | None, held: list[tuple[int, int]]
) -> None:
    cluster.create(qgpu_node("n", 32, 32, 32))
    cluster.placed(pod("p", {QGPU_CORE: core, **({QGPU_MEMORY: memory} if memory else {})}))
    assert _held(cluster, "p") == held


def test_core_below_100_goes_in_steps_of_5(cluster: Wired) -> None:
    cluster.create(qgpu_node("n", 32), pod("p", {QGPU_CORE: 42, QGPU_MEMORY: 4}))
    cluster.waits("p", '"42" is not allowed: 5 to 95 in steps of 5')


def test_where_nodes_count_gpu_mem_in_mib_pods_do_too(cluster: Wired) -> None:
    """The device plugin's --memory-unit; nobody told us: 49,152 GiB would be no card."""
    labels: dict[str, Any] = {"gpushare": "true"}
    cluster.create(node("n", {MEM: 49152, COUNT: 2}, labels=labels))
    assert cluster.placed(gpushare_pod("a", 20000), gpushare_pod("b", 5000)) == [("n", [0]), ("n", [1])]
    assert holdings.held(cluster.pod("a"))[0]["memory_mib"] == 20000
    assert cluster.pod("a")["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_DEV"] == "24576"
