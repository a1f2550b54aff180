"""The metrics of a node's agent: Pods and cards by the table of daemon/metrics.py, and its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from aliquot.model.status.machine import AgentStatus, Status
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.metrics import PODS, exposition, of_calls

if TYPE_CHECKING:
    from prometheus_client.core import Metric

# name, what it is, field of a resource in the status
_OF_RESOURCES = (
    ("aliquot_agent_devices", "Devices that the kubelet is offered.", "devices"),
    ("aliquot_agent_devices_unhealthy", "Of those, reported unhealthy: their card is out.", "unhealthy"),
    ("aliquot_agent_registered", "1 where the running kubelet has accepted the resource.", "registered"),
)


def agent_exposition(status: Status, calls: Calls, more: Iterable[Metric]) -> bytes:
    """What a scrape of /metrics answers: the status and `more`."""
    own = _of_agent(status.agent, calls) if status.agent else ()
    return exposition(status, PODS, [*own, *more])


def _of_agent(agent: AgentStatus, calls: Calls) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    yield from of_calls(calls, "aliquot_agent_kubelet")
    for name, help_text, field in _OF_RESOURCES:
        gauge = GaugeMetricFamily(name, help_text, labels=("resource",))
        for resource, offered in agent.resources.items():
            gauge.add_metric((resource,), float(getattr(offered, field)))
        yield gauge
    yield GaugeMetricFamily(
        "aliquot_agent_ready", "1 when all is in order, as /readyz.", value=float(agent.waits_for is None)
    )
    yield CounterMetricFamily(
        "aliquot_agent_kubelet_restarts", "Times the kubelet was restarted.", value=agent.kubelet_restarts
    )
