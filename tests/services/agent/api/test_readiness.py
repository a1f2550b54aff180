"""What an agent that is not ready waits for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aliquot.model.refusal import Invalid
from aliquot.services.agent.api.readiness import Progress, waits_for

READY = Progress(
    node_name="n1",
    node_listed=True,
    node_exists=True,
    pods_listed=True,
    restored=True,
    missing=(),
    not_advertised=None,
    not_counted=None,
    uncounted=(),
    dra=None,
    published=True,
)
STEPS: list[tuple[dict[str, Any], str]] = [  # what comes first is named first
    ({"node_exists": False}, "Node n1 does not exist"),
    ({"pods_listed": False}, "have not been read"),
    ({"restored": False}, "tenants are not restored"),
    ({"missing": {"b", "a"}}, "has not accepted a, b yet"),
    ({"not_advertised": Invalid("label", "x", "y")}, "no resource can be advertised"),
    ({"not_counted": Invalid("label", "x", "y")}, "gpu-mem cannot be offered"),
    ({"uncounted": ("gpu-mem",)}, "gpu-mem is not in the Node's status"),
    ({"dra": "the kubelet has not accepted the driver"}, "has not accepted the driver"),
    ({"published": False}, "inventory is not on the Node"),
]


def test_agent_that_waits_for_nothing_is_ready() -> None:
    assert waits_for(READY) is None


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_agent_names_the_first_step_that_is_missing(step: int) -> None:
    missing: dict[str, Any] = {}
    for fields, _ in reversed(STEPS[step:]):
        missing |= fields
    assert STEPS[step][1] in str(waits_for(replace(READY, **missing)))


def test_node_is_not_called_missing_before_the_api_server_was_asked() -> None:
    assert "have not been read" in str(waits_for(replace(READY, node_listed=False, node_exists=False)))
