"""What tests of allocations compare."""

from __future__ import annotations

import pytest

from aliquot.services.agent.devices.plugins import Refused
from kit.agents.agentnode import AgentNode
from kit.agents.grantedpods import Json

NOTHING: dict[str, set[str]] = {
    place: set() for place in ("database", "memory", "arbiter", "folders", "specs", "drafts", "links")
}


def uid(pod: Json) -> str:
    found: str = pod["metadata"]["uid"]
    return found


def refusal(agent_node: AgentNode, pod: Json, container: str = "main") -> str:
    """What the user reads when the container may not start."""
    with pytest.raises(Refused) as error:
        agent_node.started(pod, container)
    return str(error.value)
