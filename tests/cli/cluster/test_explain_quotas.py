"""`aliquot explain -f` reads the ResourceQuotas of the Pods' namespaces, and nothing of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.cli.cluster.explain import explain
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.manifests import MEM, a_container, a_node, a_pod

PATH = "/api/v1/namespaces/team/resourcequotas"


def quota(memory: str) -> dict[str, Any]:
    return {"metadata": {"name": "q", "namespace": "team"}, "spec": {"hard": {f"requests.{MEM}": memory}}}


@pytest.fixture
def pods(tmp_path: Path, cluster: FakeCluster) -> Path:
    cluster.show(a_node("n1", 16, labels={"gpushare": "true"}))
    pod = a_pod("p", a_container("main", {MEM: 4}))
    pod["metadata"]["namespace"] = "team"
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump(pod))
    return file


def test_pod_over_the_quota_is_not_allowed(cluster: FakeCluster, pods: Path) -> None:
    cluster.answer(PATH, [quota("3")])
    result = invoked(explain, "-f", str(pods))
    assert result.exit_code == 1
    assert "at most 3: ResourceQuota q of namespace team allows 3 in all, and 0 are used" in result.stdout
    cluster.answer(PATH, [quota("4")])
    assert invoked(explain, "-f", str(pods)).exit_code == 0
    assert not [call for call in cluster.calls if "/api/v1/resourcequotas" in str(call)], "most users may not list all"


def test_pod_without_cpu_is_let_in_only_by_a_limit_range_where_a_quota_names_cpu(
    cluster: FakeCluster, pods: Path
) -> None:
    named = quota("4")
    named["spec"]["hard"] |= {"requests.cpu": "10", "limits.memory": "10Gi"}
    cluster.answer(PATH, [named])
    result = invoked(explain, "-f", str(pods))
    assert result.exit_code == 0
    assert "  (only if a LimitRange sets limits.memory and requests.cpu: without it ResourceQuota q of" in result.stdout


@pytest.mark.parametrize("kind", ["Pod", "Deployment", "CronJob", "CloneSet"])
@pytest.mark.parametrize("given", ["-n", "kubectl"])
def test_manifest_without_a_namespace_is_where_kubectl_would_create_it(
    cluster: FakeCluster, pods: Path, kind: str, given: str
) -> None:
    pod = yaml.safe_load(pods.read_text())
    del pod["metadata"]["namespace"]
    spec: dict[str, Any] = {"template": {"spec": pod["spec"]}}
    spec = {"jobTemplate": {"spec": spec}} if kind == "CronJob" else spec
    api = "apps.kruise.io/v1alpha1" if kind == "CloneSet" else "v1"
    workload = {"apiVersion": api, "kind": kind, "metadata": {"name": "p"}, "spec": spec}
    pods.write_text(yaml.safe_dump(pod if kind == "Pod" else workload))
    cluster.answer(PATH, [quota("3")])
    cluster.answer("namespace", "other" if given == "-n" else "team")
    result = invoked(explain, "-f", str(pods), *(["-n", "team"] if given == "-n" else []))
    assert "ResourceQuota q of namespace team allows 3 in all" in result.stdout
    assert result.exit_code == 1
    assert result.stdout.startswith("team/p")


def test_own_namespace_of_a_manifest_stays(cluster: FakeCluster, pods: Path) -> None:
    cluster.answer(PATH, [quota("3")])
    assert "of namespace team" in invoked(explain, "-f", str(pods), "-n", "other").stdout


def test_manifest_without_a_namespace_is_in_default_where_kubectl_names_none(cluster: FakeCluster, pods: Path) -> None:
    pods.write_text(pods.read_text().replace("namespace: team", "namespace: ''"))
    assert invoked(explain, "-f", str(pods)).stdout.startswith("default/p")


def test_quotas_that_cannot_be_read_are_a_note(cluster: FakeCluster, pods: Path) -> None:
    cluster.answer(PATH, "Error from server (Forbidden): resourcequotas is forbidden")
    result = invoked(explain, "-f", str(pods))
    assert result.exit_code == 0
    assert "note: ResourceQuotas of namespace team cannot be read" in result.stderr
