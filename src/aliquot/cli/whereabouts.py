"""Where in a cluster the scheduler runs: as the chart's, in any namespace, or as the vendor's manifests have it."""

from __future__ import annotations

from typing import NamedTuple

from aliquot.cli.kubectl import Kubectl, KubectlError

_DEPLOYMENTS = "/apis/apps/v1/deployments"


class Place(NamedTuple):
    """A Deployment."""

    namespace: str
    name: str


USUAL = Place("kube-system", "aliquot-scheduler")


def find_scheduler(kubectl: Kubectl) -> Place:
    """The Deployment with our labels; the usual place where there is none, or where we may not look."""
    from aliquot.dialects.deployment import COMPONENT_LABEL, NAME_LABEL

    try:
        found = kubectl.items(
            _DEPLOYMENTS, "Deployment", labelSelector=f"{NAME_LABEL}=aliquot,{COMPONENT_LABEL}=scheduler"
        )
        return Place(found[0]["metadata"]["namespace"], found[0]["metadata"]["name"]) if found else USUAL
    except (KubectlError, KeyError, TypeError):  # it is asked to save a flag, which is still there
        return USUAL
