"""The product on a cluster as its chart puts it there, and what tests do with it then."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from testbed import objects
from testbed.client import Refused
from testbed.cluster import Cluster
from testbed.processes import wait_until

CHART = Path(__file__).parent.parent.parent.parent / "deploy" / "chart" / "aliquot"
NAMESPACE = "aliquot-system"


def install(cluster: Cluster, *words: str, verb: str = "install") -> None:
    """As docs/install.md says; everything is ready when this returns."""
    where = ["--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s"]
    values = f"kubeScheduler.image={cluster.kube_scheduler_image},agent.simulate={cluster.cards}"
    cluster.helm(verb, "aliquot", str(CHART), *where, "--set", values, *words)


def uninstall(cluster: Cluster) -> None:
    try:
        cluster.helm("uninstall", "aliquot", "--namespace", NAMESPACE, "--wait", "--timeout", "120s")
    except RuntimeError as error:  # helm does not tell what the hook said
        said = cluster.kubectl("logs", "-n", NAMESPACE, "job/aliquot-uninstall", check=False)
        raise RuntimeError(f"{error}\n{said}") from error
    cluster.kubectl("delete", "namespace", NAMESPACE)  # --create-namespace made it; helm leaves it


def label(cluster: Cluster, *labels: str) -> None:
    """Label all nodes; "KEY-" removes a label."""
    cluster.kubectl("label", "nodes", "--overwrite", *(node.name for node in cluster.nodes), *labels)


def report(cluster: Cluster, pod: str, *, namespace: str = "default", seconds: float = 60.0) -> dict[str, Any]:
    """What a probe sees that is run in the Pod by kubectl, once it runs."""

    def running() -> bool:
        with contextlib.suppress(Refused):  # a controller has not made it yet
            return bool(objects.get_pod(cluster.plane, pod, namespace)["status"]["phase"] == "Running")
        return False

    wait_until(running, seconds, f"{pod} runs", saw=lambda: cluster.kubectl("describe", "pod", pod, "-n", namespace))
    printed = cluster.kubectl("exec", "-n", namespace, pod, "--", "/probe", "exit", "0")
    found: dict[str, Any] = json.loads(printed.splitlines()[0])
    return found
