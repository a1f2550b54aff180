"""The status in Prometheus's words. prometheus-client is loaded with the first scrape: most machines never have one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import aliquot

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ON_CARD = ("tenant", "class", "card", "uuid")
# name, what it is, counter or gauge, field of a tenant's card in the status
_OF_TENANTS = (
    ("aliquot_tenant_share_ratio", "Part of the card's time over the last second.", False, "share"),
    ("aliquot_tenant_memory_used_bytes", "Memory in use on the card.", False, "memory_used_bytes"),
    ("aliquot_tenant_memory_limit_bytes", "Memory it may use on the card.", False, "memory_limit_bytes"),
    ("aliquot_tenant_paused_seconds", "Time it was held off the card.", True, "paused_seconds"),
    ("aliquot_tenant_preemptions", "Times online work took the card from it.", True, "preemptions"),
    ("aliquot_tenant_refused_allocations", "Allocations past its limit.", True, "refused_allocations"),
)
_OF_CARDS = (
    ("aliquot_card_memory_bytes", "Memory of the card.", "memory_bytes"),
    ("aliquot_card_memory_used_bytes", "Memory in use on the card, by whomever.", "memory_used_bytes"),
    ("aliquot_card_memory_booked_bytes", "Memory promised to tenants.", "memory_booked_bytes"),
    ("aliquot_card_core_booked_ratio", "Compute promised to tenants.", "core_booked"),
    ("aliquot_card_utilisation_ratio", "Part of its time in which the card did anything.", "utilisation"),
    ("aliquot_card_tenants", "Tenants on the card.", "tenants"),
)


def exposition(status: dict[str, Any]) -> bytes:
    """What a scrape of /metrics answers."""
    from prometheus_client import CollectorRegistry, generate_latest

    class Collector:
        def collect(self) -> Iterator[Metric]:
            return _families(status)

    registry = CollectorRegistry()
    registry.register(Collector())
    return generate_latest(registry)


def _families(status: dict[str, Any]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily("aliquot_build", "This daemon.", {"version": aliquot.__version__})
    for name, help_text, counts, field in _OF_TENANTS:
        family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, help_text, labels=_ON_CARD)
        for tenant in status["tenants"]:
            for card in tenant["cards"]:
                if card[field] is not None:
                    labels = (tenant["name"], tenant["class"], str(card["index"]), card["uuid"])
                    family.add_metric(labels, float(card[field]))
        yield family
    state = GaugeMetricFamily(
        "aliquot_tenant_state", "1 for the state it is in, and the level.", labels=(*_ON_CARD, "state", "level")
    )
    for tenant in status["tenants"]:
        for card in tenant["cards"]:
            who = (tenant["name"], tenant["class"], str(card["index"]), card["uuid"])
            state.add_metric((*who, card["state"], card["level"]), 1.0)
    yield state
    for name, help_text, field in _OF_CARDS:
        gauge = GaugeMetricFamily(name, help_text, labels=("card", "uuid", "model"))
        for card in status["cards"]:
            if card[field] is not None:
                value = card[field] / 100 if field == "core_booked" else card[field]
                gauge.add_metric((str(card["index"]), card["uuid"], card["model"]), float(value))
        yield gauge
    yield GaugeMetricFamily("aliquot_queue_length", "Runs that wait for room.", value=len(status["queue"]))
    yield GaugeMetricFamily(
        "aliquot_findings", "Things that should not be: see `aliquot top`.", value=len(status["findings"])
    )
