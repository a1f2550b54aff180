"""Scheduler, webhook and agent on another release of Kubernetes: `make e2e-versions`, outside CI."""

from __future__ import annotations

import pytest

from testbed import objects
from testbed.build import VERSION
from testbed.cards import MEM, QCORE, QMEM
from testbed.judges.inside import granted
from testbed.processes import wait_until
from testbed.programs.doctor import Doctor
from testbed.programs.site import PASSES_CDI, Site
from testbed.realnodes.nodes import probe

GIB = 1 << 30
PERCENT = "tensorstack.dev/nvidia-gpu-percent"
CARDS, CARD_GIB = 4, 16


def _has_its_card(site: Site, name: str, memory: int) -> None:
    """It sees only the card of its grant, of the size that it was granted, and gets no more."""
    report = site.node.report(name, seconds=90)
    (uuid,) = granted(objects.get_pod(site.plane, name))["main"]
    assert report["env"]["NVIDIA_VISIBLE_DEVICES"] == uuid
    assert [report[key] for key in ("shim_loaded", "socket_there", "page_writable")] == [True] * 3
    assert [(card["uuid"], card["total"]) for card in report["cuda"]["cards"]] == [(uuid, memory)]
    filled = site.node.line(name, "filled", seconds=90)
    assert filled["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    assert 0 < filled["bytes"] <= memory


def test_the_programs_are_of_the_release(site: Site) -> None:
    assert site.plane.api("GET", "/version")["gitVersion"] == VERSION
    assert objects.get_node(site.plane, "n1")["status"]["nodeInfo"]["kubeletVersion"] == VERSION


@pytest.mark.parametrize(
    ("limits", "memory"),
    [({QCORE: 30, QMEM: 5}, 5 * GIB), ({MEM: 3}, 3 * GIB), ({PERCENT: 25}, CARD_GIB * GIB // 4)],
    ids=["qgpu", "gpushare", "t9k"],
)
def test_a_pod_of_each_dialect_has_its_card_and_its_limit(site: Site, limits: dict[str, int], memory: int) -> None:
    objects.create(site.plane, probe("one", "fill", limits=limits))
    _has_its_card(site, "one", memory)
    Doctor(site.node).quiet(60)


def test_cards_come_by_cdi_where_the_kubelet_passes_it_on(site: Site) -> None:
    objects.create(site.plane, probe("one", limits={MEM: 3}))
    site.node.report("one", seconds=90)
    assert bool(list(site.node.path("/var/run/cdi").iterdir())) is PASSES_CDI


def test_webhook_refuses_a_broken_pod_and_adds_limits_to_requests(site: Site) -> None:
    assert "whole percent of one card, 1 to 99" in str(site.refusal(objects.pod("p", {QCORE: 130, QMEM: 4})))
    pod = probe("asks", "fill")
    pod["spec"]["containers"][0]["resources"] = {"requests": {MEM: "3"}}
    objects.create(site.plane, pod)
    _has_its_card(site, "asks", 3 * GIB)


def test_equal_pods_at_once_fill_the_cards_and_each_is_on_its_own(site: Site) -> None:
    names = [f"equal-{number}" for number in range(2 * CARDS)]
    objects.create_many(site.plane, [probe(name, "fill", limits={MEM: CARD_GIB // 2}) for name in names])
    for name in names:
        _has_its_card(site, name, CARD_GIB // 2 * GIB)
    objects.create(site.plane, probe("late", limits={MEM: 1}))
    site.wired.await_event("late", "FailedScheduling", seconds=60)


def test_a_pod_runs_on_while_agent_and_kubelet_restart_and_the_next_one_starts(site: Site) -> None:
    objects.create(site.plane, probe("before", limits={MEM: 3}))
    site.node.report("before", seconds=90)
    site.agent.restart()
    site.node.restart_kubelet()
    site.agent.wait_ready(60)

    def offered() -> bool:
        allocatable = objects.get_node(site.plane, "n1")["status"]["allocatable"]
        return bool(allocatable.get(MEM) == str(CARDS * CARD_GIB))

    wait_until(offered, 60, "the node offers its cards again")
    objects.create(site.plane, probe("after", "fill", limits={MEM: 4}))
    _has_its_card(site, "after", 4 * GIB)
    (status,) = objects.get_pod(site.plane, "before")["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)
