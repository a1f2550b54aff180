"""The rendered chart, from the repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent.parent
CHART = ROOT / "deploy" / "chart" / "aliquot"
INSTALL = ROOT / "deploy" / "install.yaml"

Json = dict[str, Any]
MODES = {
    "all": ("qgpu", "t9k", "gpushare"),
    "qgpu": ("qgpu",),
    "t9k": ("t9k",),
    "gpushare": ("gpushare",),
    "hami": ("hami",),
    "kai": ("kai",),
    "all+hami+kai": ("qgpu", "t9k", "gpushare", "hami", "kai"),
}


class Objects:
    """Rendered objects, to be asked for by kind and name."""

    def __init__(self, text: str) -> None:
        self.all: list[Json] = [item for item in yaml.safe_load_all(text) if item]

    def one(self, kind: str, name: str, namespace: str | None = None) -> Json:
        (found,) = (
            item
            for item in self.of(kind)
            if item["metadata"]["name"] == name and namespace in (None, item["metadata"].get("namespace"))
        )
        return found

    def of(self, *kinds: str) -> list[Json]:
        return [item for item in self.all if item["kind"] in kinds]

    def pods(self) -> dict[str, Json]:
        """The spec of each Pod that is made from a template, by the name of what makes it."""
        makers = self.of("Deployment", "DaemonSet", "Job")
        return {maker["metadata"]["name"]: maker["spec"]["template"]["spec"] for maker in makers}

    def args(self, maker: str, container: str) -> list[str]:
        spec = self.pods()[maker]
        (found,) = (candidate for candidate in containers(spec) if candidate["name"] == container)
        return [*found.get("command", ()), *found.get("args", ())]


def installed() -> Objects:
    """deploy/install.yaml."""
    return Objects(INSTALL.read_text())


def containers(spec: Json) -> list[Json]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def runs_on(spec: Json, labels: Mapping[str, str], taints: Sequence[Mapping[str, str]] = ()) -> bool:
    """Whether a Pod of that spec may be on a node with these labels and taints, as Kubernetes would say."""
    selector = spec.get("nodeSelector", {})
    wanted = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    chosen = any(
        all(_holds(match_expression, labels) for match_expression in term["matchExpressions"]) for term in wanted
    )
    return chosen and selector.items() <= labels.items() and all(_tolerated(spec, taint) for taint in taints)


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", [])
    operator = expression["operator"]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    assert operator in ("Exists", "DoesNotExist"), operator
    return (value is not None) is (operator == "Exists")


def _tolerated(spec: Json, taint: Mapping[str, str]) -> bool:
    def matches(toleration: Json) -> bool:
        if toleration.get("operator") != "Exists" and toleration.get("value", "") != taint.get("value", ""):
            return False
        return toleration.get("key") in (None, taint["key"]) and toleration.get("effect") in (None, taint["effect"])

    return taint["effect"] == "PreferNoSchedule" or any(map(matches, spec.get("tolerations", ())))
