"""Where the scheduler runs is found by the labels that the chart gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.kubernetes.kubectl import Kubectl
from aliquot.services.doctor.locate import default_location, find_scheduler
from kit.clusters.kubectl import FakeCluster

DEPLOYMENTS = "/apis/apps/v1/deployments"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    paper = FakeCluster(tmp_path)
    monkeypatch.setenv("KUBECTL", str(paper.binary))
    return paper


def test_find_scheduler_by_labels_in_any_namespace(cluster: FakeCluster) -> None:
    cluster.answer(DEPLOYMENTS, [{"metadata": {"namespace": "gpu", "name": "aliquot-scheduler"}}])
    found = find_scheduler(Kubectl())
    assert (found.namespace, found.name) == ("gpu", "aliquot-scheduler")
    (asked,) = cluster.calls
    assert "app.kubernetes.io%2Fname%3Daliquot%2Capp.kubernetes.io%2Fcomponent%3Dscheduler" in asked[-1]


@pytest.mark.parametrize("answer", [[], [{}], "Error from server (Forbidden): deployments.apps is forbidden"], ids=str)
def test_find_scheduler_falls_back_to_the_default_location(cluster: FakeCluster, answer: object) -> None:
    cluster.answer(DEPLOYMENTS, answer)
    assert find_scheduler(Kubectl()) == default_location()


@pytest.mark.parametrize(
    ("args", "served"),
    [
        (["scheduler", "--dialects=qgpu"], ["qgpu"]),
        (["scheduler", "--dialects=qgpu,t9k", "--port=1"], ["qgpu", "t9k"]),
        (["scheduler"], ["qgpu", "t9k", "gpushare"]),
        (["scheduler", "--dialects=another-releases"], ["qgpu", "t9k", "gpushare"]),
    ],
    ids=str,
)
def test_find_scheduler_reads_the_served_dialects(cluster: FakeCluster, args: list[str], served: list[str]) -> None:
    spec = {"template": {"spec": {"containers": [{"name": "scheduler", "args": args}]}}}
    cluster.answer(DEPLOYMENTS, [{"metadata": {"namespace": "gpu", "name": "aliquot-scheduler"}, "spec": spec}])
    assert find_scheduler(Kubectl()).served == set(served)
