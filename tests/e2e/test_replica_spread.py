"""Kubernetes' own scheduler puts our replicas on different nodes, in a cluster whose nodes name no zone too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import wait_until

INSTALL = Path(__file__).parents[2] / "deploy" / "install.yaml"
ZONE = "topology.kubernetes.io/zone"


def replica(name: str) -> dict[str, Any]:
    """As the Deployment makes it; without its account and its volume, which are not there."""
    manifests = yaml.safe_load_all(INSTALL.read_text())
    deployment = next(item for item in manifests if item and item["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    labels = {**template["metadata"]["labels"], "pod-template-hash": "1"}
    placing = ("affinity", "topologySpreadConstraints")
    spec = {key: template["spec"][key] for key in placing}
    requests = {"cpu": "300m", "memory": "384Mi"}
    container = {"name": "scheduler", "image": "registry.example/aliquot", "resources": {"requests": requests}}
    return objects.pod(name, labels=labels, containers=[container], **spec)


@pytest.mark.parametrize("zones", [{}, {"large": "z1", "small": "z2", "other": "z1"}], ids=["no zones", "two zones"])
def test_replicas_go_to_two_nodes_even_if_one_is_much_emptier(
    clean: ControlPlane, kube_scheduler: Callable[..., KubeScheduler], zones: dict[str, str]
) -> None:
    kube_scheduler()
    for name, cpus in {"large": 64, "other": 64, **({"small": 4} if zones else {})}.items():
        labels = {"kubernetes.io/arch": "amd64", **({ZONE: zones[name]} if zones else {})}
        images = [{"names": ["registry.example/aliquot:latest"], "sizeBytes": 900_000_000}] if name == "large" else []
        node = objects.node(name, labels=labels, cpu=cpus, memory=f"{cpus}Gi")
        node["status"]["images"] = images
        objects.create(clean, node)
    names = ["first", "second"]
    for name in names:
        objects.create(clean, replica(name))
        wait_until(lambda name=name: objects.bound_to(clean, name), 60, f"{name} is bound")  # type: ignore[misc]
    places = [objects.bound_to(clean, name) for name in names]
    assert len(set(places)) == 2
    if zones:
        assert {zones[str(place)] for place in places} == {"z1", "z2"}
