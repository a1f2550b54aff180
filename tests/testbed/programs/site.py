"""All of the product on one real node: scheduler, webhook and agent, on whatever release of Kubernetes is chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed import objects
from testbed.build import RELEASE
from testbed.cards import QCORE
from testbed.client import Refused
from testbed.objects import Object
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port, wait_until
from testbed.programs.agents import AliquotAgent
from testbed.programs.fleet import GPUSHARE, MIXED, SHARED
from testbed.programs.wired import Wired
from testbed.realnodes.nodes import RealNode
from testbed.registries.images import Registry

PASSES_CDI = RELEASE >= (1, 29)  # kubelets before that drop the CDI names of device plugins


@dataclass(frozen=True, slots=True)
class Site:
    """One node that serves qGPU, gpushare and T9k's shares."""

    plane: ControlPlane
    node: RealNode
    wired: Wired
    agent: AliquotAgent

    def refusal(self, pod: Object) -> str | None:
        """Why the API server would not take the Pod; None if it would."""
        return _refusal(self.plane, pod)


@contextmanager
def started(folder: Path, registry: Registry) -> Iterator[Site]:
    """A site with the webhook. The API server asks the webhook when this returns."""
    port = free_port()
    webhook = [f"--webhook-port={port}", f"--webhook-url=https://{HOST}:{port}"]
    webhook += [] if PASSES_CDI else ["--env-by-annotation"]
    labels = {**MIXED, **GPUSHARE, **SHARED}
    with ControlPlane(folder / "plane") as plane, RealNode(plane, "n1", folder / "n1", registry, labels=labels) as node:
        wired = Wired(plane, folder, *webhook)
        try:
            wait_until(lambda: _refusal(plane, objects.pod("p", {QCORE: 30})), 60, "the webhook is asked")
            yield Site(plane, node, wired, AliquotAgent(node))
        finally:
            wired.stop()


def _refusal(plane: ControlPlane, pod: Object) -> str | None:
    try:
        plane.api("POST", "/api/v1/namespaces/default/pods", pod, params={"dryRun": "All"})
    except Refused as refused:
        return str(refused)
    return None
