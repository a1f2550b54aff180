"""Names and labels of our objects in a cluster, which the chart sets, and how an API server finds an object. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aliquot.model.decoding.openjson import JsonObject, JsonView

NAMESPACE = "aliquot-system"  # of the rendered chart
DEPLOYMENT, DAEMON_SET, WEBHOOK = "aliquot-scheduler", "aliquot-agent", "aliquot"
SIMULATED_CARDS = "aliquot-simulated-cards"  # a DaemonSet, with agent.simulate
MANAGER = "aliquot"  # value of the label managed-by in the rendered chart, and on what we create ourselves

NAME_LABEL = "app.kubernetes.io/name"
VERSION_LABEL = "app.kubernetes.io/version"
COMPONENT_LABEL = "app.kubernetes.io/component"
MANAGED_LABEL = "app.kubernetes.io/managed-by"
SELECTOR = f"{NAME_LABEL}=aliquot"


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Which object."""

    api: str
    kind: str
    namespace: str
    name: str

    @property
    def path(self) -> str:
        """Its URL path at the API server."""
        root = f"/api/{self.api}" if "/" not in self.api else f"/apis/{self.api}"
        scope = f"/namespaces/{self.namespace}" if self.namespace else ""
        return f"{root}{scope}/{_plural(self.kind)}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


def _plural(kind: str) -> str:
    """The plural for the path; covers all kinds that we use."""
    low = kind.lower()
    return f"{low[:-1]}ies" if low.endswith("y") else f"{low}es" if low.endswith("s") else f"{low}s"


def identity(obj: JsonObject) -> Identity:
    """The identity of one of our objects."""
    metadata = obj["metadata"]
    return Identity(obj["apiVersion"], obj["kind"], metadata.get("namespace", ""), metadata["name"])


def identities_in(objects: Iterable[JsonObject], namespace: str) -> list[Identity]:
    """Which objects `kubectl apply` makes of the rendered chart, if its namespace was changed to this one."""

    def moved(name: str) -> str:
        return namespace if name == NAMESPACE else name

    found = map(identity, objects)
    return [Identity(which.api, which.kind, moved(which.namespace), moved(which.name)) for which in found]


def cards_without_agents(nodes: Iterable[str], pull_secrets: Iterable[JsonView]) -> JsonObject:
    """The merge patch by which the DaemonSet of simulated cards stays on these nodes when the rest is uninstalled: it
    then depends neither on labels of the nodes nor on the agents' account, which has `pull_secrets`."""
    terms = [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]} for node in sorted(set(nodes))
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec = {
        "serviceAccountName": "default",
        "imagePullSecrets": [dict(secret) for secret in pull_secrets],
        "affinity": {"nodeAffinity": required},
    }
    return {"spec": {"template": {"spec": spec}}}
