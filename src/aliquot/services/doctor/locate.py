"""Where in a cluster the scheduler runs, and for whom: as the chart's, in any namespace, or as by hand."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError
from aliquot.dialects.rules import DIALECTS, parse_dialects
from aliquot.model.refusal import Invalid

_DEPLOYMENTS = "/apis/apps/v1/deployments"


class Place(NamedTuple):
    """A Deployment: its namespace, its name, the dialects that it serves."""

    namespace: str
    name: str
    served: frozenset[str]


def usual() -> Place:
    """Where it is if nothing else is known."""
    return Place("kube-system", "aliquot-scheduler", frozenset(DIALECTS))


def find_scheduler(kubectl: Kubectl) -> Place:
    """The Deployment with our labels; the usual place where there is none, or where we may not look."""
    from aliquot.dialects.wire.deployment import COMPONENT_LABEL, NAME_LABEL

    try:
        found = kubectl.items(
            _DEPLOYMENTS, "Deployment", labelSelector=f"{NAME_LABEL}=aliquot,{COMPONENT_LABEL}=scheduler"
        )
        if not found:
            return usual()
        return Place(found[0]["metadata"]["namespace"], found[0]["metadata"]["name"], served_by(found[0]))
    except (KubectlError, KeyError, TypeError):  # it is asked to save a flag, which is still there
        return usual()


def served_by(deployment: dict[str, Any] | None) -> frozenset[str]:
    """The dialects that its scheduler is told to serve; all of them where it is told nothing, or in words unknown."""
    option = re.search(r"'--dialects=([^']*)'", str((deployment or {}).get("spec")))
    served = parse_dialects(option[1] if option else None)
    return frozenset(DIALECTS) if isinstance(served, Invalid) else served
