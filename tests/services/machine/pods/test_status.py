"""The status of Pods: every user sees all of them, and no user sees another's secrets."""

from __future__ import annotations

from aliquot.model.containers.localpod import ContainerState
from aliquot.services.machine.pods.status import container_status


def test_container_status_shortens_long_commands() -> None:
    reported = container_status(ContainerState("main", "", ("python", "-c", "x" * 1000, "more"), "/log"))
    assert reported.command == ["python", "-c", "x" * 490 + "..."]
    assert container_status(ContainerState("main", "", ("sleep", "600"), "/log")).command == ["sleep", "600"]
