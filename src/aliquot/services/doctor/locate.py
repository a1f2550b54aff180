"""Find the scheduler's Deployment, in any namespace, and the dialects that it serves."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError
from aliquot.dialects.rules import DIALECTS, parse_dialects
from aliquot.model.refusal import Invalid

_DEPLOYMENTS = "/apis/apps/v1/deployments"


class SchedulerLocation(NamedTuple):
    """A Deployment: its namespace, its name, the dialects that it serves."""

    namespace: str
    name: str
    served: frozenset[str]


def default_location() -> SchedulerLocation:
    """Where `aliquot install` and the chart put it."""
    return SchedulerLocation("kube-system", "aliquot-scheduler", frozenset(DIALECTS))


def find_scheduler(kubectl: Kubectl) -> SchedulerLocation:
    """The Deployment with our labels; the default location where there is none, or where we may not look."""
    from aliquot.dialects.wire.deployment import COMPONENT_LABEL, NAME_LABEL

    try:
        found = kubectl.items(
            _DEPLOYMENTS, "Deployment", labelSelector=f"{NAME_LABEL}=aliquot,{COMPONENT_LABEL}=scheduler"
        )
        if not found:
            return default_location()
        return SchedulerLocation(found[0]["metadata"]["namespace"], found[0]["metadata"]["name"], served_by(found[0]))
    except (KubectlError, KeyError, TypeError):  # the namespace's option still works
        return default_location()


def served_by(deployment: dict[str, Any] | None) -> frozenset[str]:
    """The dialects of its --dialects option; all of them without one, or where it cannot be read."""
    option = re.search(r"'--dialects=([^']*)'", str((deployment or {}).get("spec")))
    served = parse_dialects(option[1] if option else None)
    return frozenset(DIALECTS) if isinstance(served, Invalid) else served
