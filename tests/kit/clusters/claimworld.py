"""A cluster whose cards go to ResourceClaims, and its dashboard."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

import msgspec

from aliquot.dialects.dra import LABEL
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.model.device import Card
from aliquot.services.scheduler.dashboard.claims import Claims
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from kit.agents.draclaims import a_claim, a_config, a_result, parameters
from kit.clusters.watchobjects import a_cluster, as_pod, live_node, pod_json
from kit.machines.fakeview import JsonView

Json = dict[str, Any]


BY_CLAIMS = {LABEL: "true"}


REFUSAL = "0/1 nodes are available: 1 cannot allocate all claims."


class World:
    """A cluster with node n1 of two cards, which go to claims, and its dashboard."""

    def __init__(self, **around: Any) -> None:
        self.cluster = a_cluster(live_node("n1", 16, 16, labels=BY_CLAIMS), live_node("n2", 16))
        self.claims = Claims(self.cluster)
        surroundings = Surroundings(**{"name": "lab", "leading": lambda: True, "metrics": lambda: b"", **around})
        self.view = JsonView(ClusterView(self.cluster, Details(self.cluster, self.claims), surroundings))

    def card(self, index: int, node: str = "n1") -> Card:
        found = self.cluster.board.node(node)
        assert found is not None
        return found.cards[index]

    def hold(self, name: str, card: int, gib: float | None, core: int = 0, of: str = "", users: str = "") -> None:
        """A claim with that much of a card of n1, of that class, for these Pods."""
        result = a_result(self.card(card), None if gib is None else int(gib * 1024), core)
        config = [a_config(parameters(class_=of))] if of else []
        pods = {f"uid-{user}": user for user in users.split()}
        self.put(a_claim(result, config=config, name=name, uid=f"uid-{name}", namespace="ns", pods=pods))

    def put(self, claim: Json) -> None:
        self.claims.put(msgspec.convert(claim, ClaimObject))

    def add_pod(self, name: str, claim: str | None, *, on: str = "", refused: str = "") -> None:
        """A Pod that uses a claim; None: one from a template that is not made yet."""
        source = {"resourceClaimTemplateName": "t"} if claim is None else {"resourceClaimName": claim}
        pod = pod_json(name, {}, on=on)
        pod["spec"]["resourceClaims"] = [{"name": "gpu", **source}]
        if refused:
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": refused}
            pod["status"] = {"conditions": [condition]}
        self.cluster.set_pod(as_pod(pod))

    def node(self, name: str = "n1") -> Json:
        found = self.view.node(name, 1000.0)
        assert found is not None
        return found

    def pod(self, name: str) -> Json:
        found = self.view.pod(f"ns/{name}", 1000.0)
        assert found is not None
        return found


def column(answer: Json, name: str) -> list[int]:
    return [*b64decode(answer["cards"][name])]
