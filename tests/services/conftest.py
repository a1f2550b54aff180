"""What several files of tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.agents.agentnode import AgentNode


@pytest.fixture
def agent_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentNode]:
    """An agent with everything around it, at work."""
    made = AgentNode(tmp_path, monkeypatch)
    made.sync()
    yield made
    made.store.close()
