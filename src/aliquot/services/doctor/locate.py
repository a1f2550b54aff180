"""Find the scheduler's Deployment, in any namespace, and the options that it runs with."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError
from aliquot.dialects import MemoryUnit, QgpuRules, Rules, guess_gpushare_unit, hami, kai
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.rules import DIALECTS, parse_dialects
from aliquot.model.refusal import Invalid

_DEPLOYMENTS = "/apis/apps/v1/deployments"


class UnknownOptionError(Exception):
    """A scheduler of another version runs with an option that we do not know; the message says what to do."""


class SchedulerLocation(NamedTuple):
    """A Deployment: its namespace, its name, the dialects that it serves, and all its options."""

    namespace: str
    name: str
    served: frozenset[str]
    options: Mapping[str, str] = {}
    account: str | None = None  # namespace/name of its service account

    def option(self, name: str, allowed: Iterable[str], default: str) -> str:
        """What the scheduler was started with. Raises UnknownOptionError."""
        value, known = self.options.get(name, default), sorted(allowed)
        if value not in known:
            raise UnknownOptionError(
                f"the scheduler {self.namespace}/{self.name} runs with --{name}={value}, which this version does not"
                f" know: name one with --{name} ({', '.join(known)})"
            )
        return value

    def rules(self, qgpu: str | None, memory_unit: str, nodes: Sequence[object]) -> Rules:
        """What the scheduler itself goes by, unless the user names something else. Raises UnknownOptionError.

        Where its options are not known, a dialect on request is served if a node is labelled for it.
        """
        qgpu = qgpu or self.option("rules", QgpuRules, QgpuRules.SEED)
        if memory_unit == "auto":
            memory_unit = self.option("memory-unit", ["auto", *MemoryUnit], "auto")
        unit = guess_gpushare_unit(nodes) if memory_unit == "auto" else MemoryUnit(memory_unit)
        served = self.served
        for dialect in () if self.options else (hami, kai):
            if any(dialect.labelled(mapping(mapping(mapping(node).get("metadata")).get("labels"))) for node in nodes):
                served |= {dialect.DIALECT}
        return Rules(QgpuRules(qgpu), unit, served, self.account)


def default_location() -> SchedulerLocation:
    """Where the chart puts it."""
    return SchedulerLocation("kube-system", "aliquot-scheduler", frozenset(DIALECTS))


def find_scheduler(kubectl: Kubectl) -> SchedulerLocation:
    """The Deployment with our labels; the default location where there is none, or where we may not look."""
    from aliquot.dialects.wire.ownobjects import COMPONENT_LABEL, NAME_LABEL
    from aliquot.dialects.wire.ownpods import account_of_deployment

    try:
        found = kubectl.items(
            _DEPLOYMENTS, "Deployment", labelSelector=f"{NAME_LABEL}=aliquot,{COMPONENT_LABEL}=scheduler"
        )
        if not found:
            return default_location()
        options, names = options_of(found[0]), found[0]["metadata"]
        account = account_of_deployment(found[0])
        return SchedulerLocation(names["namespace"], names["name"], _served(options), options, account)
    except (KubectlError, KeyError, TypeError):  # the namespace's option still works
        return default_location()


def options_of(deployment: object) -> dict[str, str]:
    """The options in the arguments of its containers, as in --rules=seed."""
    return dict(re.findall(r"'--([a-z-]+)=([^']*)'", str(mapping(deployment).get("spec"))))


def _served(options: Mapping[str, str]) -> frozenset[str]:
    """The dialects of its --dialects option; all of them without one, or where it cannot be read."""
    served = parse_dialects(options.get("dialects"))
    return frozenset(DIALECTS) if isinstance(served, Invalid) else served
