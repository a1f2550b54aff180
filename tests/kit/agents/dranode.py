"""A node whose cards belong to claims, around a real agent (agentnode.py)."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from aliquot.adapters.kubelet.draplugin import ClaimRef, PreparedDevice
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.dialects.dra import LABEL
from aliquot.services.agent.dra.worlds import World
from kit.agents.agentfakes import Api
from kit.agents.agentnode import AgentNode, play

Json = dict[str, Any]


class DraApi(Api):
    """An API server with ResourceClaims."""

    def __init__(self) -> None:
        super().__init__()
        self.claims: dict[str, Json] = {}  # by namespace/name

    async def get(self, path: str, **given: Any) -> Any:
        if "resourceclaims" not in path:
            return await super().get(path, **given)
        if self.away:
            raise Unreachable("connection refused")
        if path.endswith("/resourceclaims"):
            return msgspec.convert({"items": list(self.claims.values())}, given["into"])
        namespace, _, name = path.split("/")[-3:]
        claim = self.claims.get(f"{namespace}/{name}")
        if claim is None:
            raise ApiError(404, "NotFound", f'resourceclaims "{name}" not found')
        return msgspec.convert(json.loads(json.dumps(claim)), given["into"])


class DraNode(AgentNode):
    """Labelled for claims."""

    api: DraApi

    def start(self) -> None:
        if not isinstance(self.api, DraApi):
            self.api, self.labels = DraApi(), {LABEL: "true"}
        super().start()
        if self.store.setting("world") is None:
            self.store.set("world", World.CLAIMS)

    def allocated(self, claim: Json) -> ClaimRef:
        """kube-scheduler has allocated it."""
        metadata = claim["metadata"]
        self.api.claims[f"{metadata['namespace']}/{metadata['name']}"] = claim
        return ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])

    def prepare(self, ref: ClaimRef, *others: ClaimRef) -> list[PreparedDevice]:
        return play(self.agent.claims.prepare(ref, (ref, *others)))

    def unprepare(self, ref: ClaimRef) -> None:
        play(self.agent.claims.unprepare(ref))

    def environment(self, *names: str) -> dict[str, str]:
        """What a container gets with these CDI devices."""
        specs = {spec.name.qualified: spec for spec in self.specs()}
        return {key: value for name in names for key, value in specs[name].edits.env.items()}
