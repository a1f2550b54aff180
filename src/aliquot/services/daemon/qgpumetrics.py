"""The status under the metric names of qGPU's exporter (elastic-gpu-exporter), so that its dashboards go on working.

Names, labels and units are those of Tencent's document 457/90912: compute in percent of a card, memory in MiB. A metric
of a request is left out where a tenant asked for none: a request of 0 would be another statement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aliquot.model.status.machine import CardStatus, Status, TenantStatus

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_MIB = 1 << 20
_CARD = ("card", "node")
_POD = ("namespace", "node", "pod")
_CONTAINER = ("namespace", "node", "pod", "container")

_OF_CARDS: tuple[tuple[str, str, Callable[[CardStatus], float | None]], ...] = (
    ("gpu_core_usage", "Usage of gpu core per card", lambda card: _percent(card.utilisation)),
    ("gpu_core_utilization_percentage", "Utilization of gpu core per card", lambda card: _percent(card.utilisation)),
    ("gpu_mem_usage", "Usage of gpu memory per card", lambda card: _part(card.memory_used_bytes, _MIB)),
    (
        "gpu_mem_utilization_percentage",
        "Utilization of gpu memory per card",
        lambda card: _percent(_part(card.memory_used_bytes, card.memory_bytes)),
    ),
    ("gpu_mem_each_card", "Memory of the card", lambda card: card.memory_bytes / _MIB),
    ("gpu_core_allocatable", "Compute that can be allocated", lambda card: 100.0),
    ("gpu_core_available", "Compute that is not allocated", lambda card: max(0.0, 100.0 - card.core_booked)),
    ("gpu_mem_allocatable", "Memory that can be allocated, in GiB", lambda card: card.memory_bytes / (1 << 30)),
    ("gpu_mem_available", "Memory that is not allocated, in GiB", lambda card: card.free_mib / 1024),
    (
        "gpu_power_usage",
        "Power of the card",
        lambda card: card.hardware.power_watts if card.hardware else None,
    ),
    (
        "gpu_enc_utilization_percentage",
        "Utilization of the video encoder",
        lambda card: _percent(card.hardware.encoder_utilisation if card.hardware else None),
    ),
    (
        "gpu_dec_utilization_percentage",
        "Utilization of the video decoder",
        lambda card: _percent(card.hardware.decoder_utilisation if card.hardware else None),
    ),
)
# name for Pods, name for containers, what it is, which figure
_OF_TENANTS = (
    ("pod_core_usage", "container_gpu_utilization", "Usage of gpu core", "core"),
    ("pod_mem_usage", "container_gpu_memory_total", "Usage of gpu memory", "memory"),
    ("pod_core_utilization_percentage", "container_core_utilization_percentage", "Usage of the request", "core_part"),
    ("pod_mem_utilization_percentage", "container_mem_utilization_percentage", "Usage of the request", "memory_part"),
    ("pod_core_occupy_node_percentage", None, "Usage of the node's gpu core", "core_of_node"),
    ("pod_mem_occupy_node_percentage", None, "Usage of the node's gpu memory", "memory_of_node"),
    ("pod_core_request", "container_request_gpu_utilization", "Request of gpu core", "core_request"),
    ("pod_mem_request", "container_request_gpu_memory", "Request of gpu memory", "memory_request"),
)


def qgpu_families(status: Status, node: str, container: Callable[[str], str] = lambda tenant: "") -> Iterator[Metric]:
    """For /metrics. A run is shown as a Pod without a namespace."""
    from prometheus_client.core import GaugeMetricFamily

    for name, help_text, of in _OF_CARDS:
        gauge = GaugeMetricFamily(name, help_text, labels=_CARD)
        for card in status.cards:
            if (value := of(card)) is not None:
                gauge.add_metric((str(card.index), card.node or node), value)
        yield gauge
    yield _count(status, node)
    figures = [(_owner(tenant, node), container(tenant.id), _figures(tenant, status)) for tenant in status.tenants]
    for pod_name, container_name, help_text, field in _OF_TENANTS:
        pods = GaugeMetricFamily(pod_name, f"{help_text} per pod", labels=_POD)
        containers = GaugeMetricFamily(container_name or pod_name, f"{help_text} per container", labels=_CONTAINER)
        for owner, inner, found in figures:
            if field in found:
                pods.add_metric(owner, found[field])
                containers.add_metric((*owner, inner), found[field])
        yield pods
        if container_name is not None:
            yield containers


def _count(status: Status, node: str) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    gauge = GaugeMetricFamily("gpu_count", "Cards of the node", labels=("node",))
    nodes = [card.node or node for card in status.cards]
    for name in sorted(set(nodes)):
        gauge.add_metric((name,), nodes.count(name))
    return gauge


def _owner(tenant: TenantStatus, node: str) -> tuple[str, str, str]:
    namespace, _, name = tenant.name.rpartition("/")
    return namespace, tenant.node or node, name


def _figures(tenant: TenantStatus, status: Status) -> dict[str, float]:
    """All of its cards together, as the exporter adds them up."""
    core = sum((share.share or 0.0) * 100 for share in tenant.cards)
    memory = sum(share.memory_used_bytes for share in tenant.cards)
    limit = sum(share.memory_limit_bytes for share in tenant.cards)
    request = sum(100.0 if share.exclusive else share.core or 0.0 for share in tenant.cards)
    cards = [card for card in status.cards if card.node == tenant.node] if tenant.node else status.cards
    whole = sum(card.memory_bytes for card in cards)
    found = {"core": core, "memory": memory / _MIB}
    if request:
        found |= {"core_request": request, "core_part": core / request * 100}
    if limit:
        found |= {"memory_request": limit / _MIB, "memory_part": memory / limit * 100}
    if cards and whole:
        found |= {"core_of_node": core / len(cards), "memory_of_node": memory / whole * 100}
    return found


def _percent(part: float | None) -> float | None:
    return None if part is None else part * 100


def _part(value: int | None, whole: int) -> float | None:
    return None if value is None else value / whole
