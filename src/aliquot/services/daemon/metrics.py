"""The status as Prometheus metrics. prometheus-client is loaded with the first scrape: most machines never have one.

One table for runs and for Pods: they differ in the labels that name the owner of a series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from msgspec import UNSET

import aliquot
from aliquot.model.status.machine import Status, TenantStatus
from aliquot.services.daemon.calls import BUCKETS, Calls

if TYPE_CHECKING:
    from prometheus_client.core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# label: the field of a tenant in the status
RUNS = {"tenant": "name"}
PODS = {"namespace": "namespace", "pod": "pod"}

_ON_CARD = ("class", "card", "uuid")
# name, what it is, counter or gauge, field of a tenant's card in the status
_OF_TENANTS = (
    ("aliquot_tenant_share_ratio", "Part of the card's time over the last second.", False, "share"),
    ("aliquot_tenant_memory_used_bytes", "Memory in use on the card.", False, "memory_used_bytes"),
    ("aliquot_tenant_memory_limit_bytes", "Memory it may use on the card.", False, "memory_limit_bytes"),
    (
        "aliquot_tenant_memory_over_bytes",
        "Memory over its limit by the driver's figure; 0 within the margin.",
        False,
        "memory_over_bytes",
    ),
    ("aliquot_tenant_paused_seconds", "Time that online work took from it.", True, "paused_seconds"),
    ("aliquot_tenant_preemptions", "Times online work took the card from it.", True, "preemptions"),
    ("aliquot_tenant_requests", "Requests of online work, as far as its gaps tell them apart.", True, "requests"),
    ("aliquot_tenant_takings", "Times it took the card from offline work.", True, "takings"),
    ("aliquot_tenant_refused_allocations", "Allocations past its limit.", True, "refused_allocations"),
)
# the same of memory that may leave the card, by field of its residency in the status
_OF_RESIDENCY = (
    (
        "aliquot_tenant_memory_resident_bytes",
        "Its memory that may leave the card and is on it.",
        False,
        "resident_bytes",
    ),
    ("aliquot_tenant_memory_parked_bytes", "Its memory in the host's memory.", False, "parked_bytes"),
    ("aliquot_tenant_moves", "Moves of its memory to the host's pool and back.", True, "moves"),
    ("aliquot_tenant_moved_bytes", "Memory moved to the host's pool and back.", True, "moved_bytes"),
    ("aliquot_tenant_move_out_seconds", "What its last way to the host's pool took.", False, "last_out_seconds"),
    ("aliquot_tenant_move_in_seconds", "What its last way back took.", False, "last_in_seconds"),
)
_OF_CARDS = (
    ("aliquot_card_memory_bytes", "Memory of the card.", "memory_bytes"),
    ("aliquot_card_memory_used_bytes", "Memory in use on the card, by whomever.", "memory_used_bytes"),
    ("aliquot_card_memory_booked_bytes", "Memory promised to tenants.", "memory_booked_bytes"),
    ("aliquot_card_oversubscribe_ratio", "Times its memory that may be booked.", "oversubscribe"),
    (
        "aliquot_card_memory_unregistered_bytes",
        "Memory of processes that nothing limits.",
        "memory_unregistered_bytes",
    ),
    ("aliquot_card_core_booked_ratio", "Compute promised to tenants.", "core_booked"),
    ("aliquot_card_utilisation_ratio", "Part of its time in which the card did anything.", "utilisation"),
    ("aliquot_card_tenants", "Tenants on the card.", "tenants"),
    ("aliquot_card_healthy", "1 where the card is well, 0 where it is out.", "healthy"),
)
_CONTROL = "What holds tenants to their shares: the card's time slices and pauses (proven, unproven) or the gate."
_OF_HARDWARE = (
    ("aliquot_card_temperature_celsius", "Temperature of the GPU.", "temperature_celsius"),
    ("aliquot_card_power_watts", "Power that the card draws.", "power_watts"),
    ("aliquot_card_sm_clock_hertz", "Clock of the multiprocessors.", "sm_clock_hertz"),
    ("aliquot_card_memory_clock_hertz", "Clock of the memory.", "memory_clock_hertz"),
    (
        "aliquot_card_encoder_utilisation_ratio",
        "Part of its time in which the video encoder worked.",
        "encoder_utilisation",
    ),
    (
        "aliquot_card_decoder_utilisation_ratio",
        "Part of its time in which the video decoder worked.",
        "decoder_utilisation",
    ),
)


class _Families:
    """A collector, as prometheus-client calls a source of metrics."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def exposition(status: Status, who: Mapping[str, str] = RUNS, more: Iterable[Metric] = ()) -> bytes:
    """What a scrape of /metrics answers: the status, with these labels for its tenants, and `more`."""
    return expose([*_families(status, who), *more])


def expose(families: Iterable[Metric]) -> bytes:
    """These in the text format."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Families(list(families)))
    return generate_latest(registry)


def of_calls(calls: Calls, prefix: str) -> Iterator[Metric]:
    """How often each verb was called, and how long it took."""
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

    total = CounterMetricFamily(f"{prefix}_calls", "Calls by verb and outcome.", labels=("verb", "outcome"))
    for (verb, outcome), times in sorted(calls.outcomes.items()):
        total.add_metric((verb, outcome), times)
    yield total
    took = HistogramMetricFamily(f"{prefix}_call_seconds", "How long calls took.", labels=("verb",))
    bounds = [*map(str, BUCKETS), "+Inf"]
    for verb in calls.verbs:
        counts = [float(count) for count in accumulate(calls.buckets[verb])]
        took.add_metric((verb,), list(zip(bounds, counts, strict=True)), sum_value=calls.seconds[verb])
    yield took


def _families(status: Status, who: Mapping[str, str]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily

    yield InfoMetricFamily("aliquot_build", "This daemon.", {"version": aliquot.__version__})
    yield from _of_tenants(status.tenants, who)
    control = GaugeMetricFamily("aliquot_card_control", _CONTROL, labels=("card", "uuid", "model", "level", "reason"))
    for card in status.cards:
        if card.control:
            labels = (str(card.index), card.uuid, card.model, card.control.level, card.control.reason or "")
            control.add_metric(labels, 1.0)
    yield control
    for name, help_text, field in _OF_CARDS:
        gauge = GaugeMetricFamily(name, help_text, labels=("card", "uuid", "model"))
        for card in status.cards:
            value = getattr(card, field)
            if value is not None and value is not UNSET:
                ratio = value / 100 if field == "core_booked" else value
                gauge.add_metric((str(card.index), card.uuid, card.model), float(ratio))
        yield gauge
    if status.pool:
        pool = GaugeMetricFamily("aliquot_host_pool_bytes", "Host memory for what is parked.", labels=("state",))
        for state, amount in (
            ("total", status.pool.bytes), ("booked", status.pool.booked_bytes), ("used", status.pool.used_bytes)
        ):  # fmt: skip
            pool.add_metric((state,), float(amount))
        yield pool
    for name, help_text, field in _OF_HARDWARE:
        gauge = GaugeMetricFamily(name, help_text, labels=("card", "uuid", "model"))
        for card in status.cards:
            value = getattr(card.hardware, field) if card.hardware else None
            if value is not None:
                gauge.add_metric((str(card.index), card.uuid, card.model), value)
        yield gauge
    if who is RUNS:  # Pods wait in the cluster, not here
        yield GaugeMetricFamily("aliquot_queue_length", "Runs that wait for room.", value=len(status.queue))
    yield GaugeMetricFamily(
        "aliquot_findings", "Things that should not be: see `aliquot top`.", value=len(status.findings)
    )


def _of_tenants(tenants: list[TenantStatus], who: Mapping[str, str]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = (*who, *_ON_CARD)
    shares = [
        (
            share,
            (*(str(getattr(tenant, field)) for field in who.values()), tenant.app_class, str(share.index), share.uuid),
        )
        for tenant in tenants
        for share in tenant.cards
    ]
    for name, help_text, counts, field in _OF_TENANTS:
        family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, help_text, labels=labels)
        for share, owner in shares:
            value = getattr(share, field)
            if value is not None:
                family.add_metric(owner, float(value))
        yield family
    yield from _of_latency(tenants, who)
    for name, help_text, counts, field in _OF_RESIDENCY:
        family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, help_text, labels=labels)
        for share, owner in shares:
            value = None if share.residency is None else getattr(share.residency, field)
            if value is not None:
                family.add_metric(owner, float(value))
        yield family
    where = GaugeMetricFamily(
        "aliquot_tenant_residency",
        "1 for where its memory is, and why it is parked or cannot be.",
        labels=(*labels, "where", "why"),
    )
    for share, owner in shares:
        if share.residency is not None:
            found = share.residency
            where.add_metric((*owner, found.where, found.why or ""), 1.0)
    yield where
    state = GaugeMetricFamily(
        "aliquot_tenant_state", "1 for the state it is in, and the level.", labels=(*labels, "state", "level")
    )
    for share, owner in shares:
        state.add_metric((*owner, share.state, share.level), 1.0)
    yield state


def _of_latency(tenants: list[TenantStatus], who: Mapping[str, str]) -> Iterator[Metric]:
    """The metrics of tenants that said which latency they accept."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    labels = (*who, *_ON_CARD)
    accepted = GaugeMetricFamily(
        "aliquot_tenant_latency_accepted_seconds", "What may be added to its requests (p99).", labels=labels
    )
    missed = CounterMetricFamily(
        "aliquot_tenant_latency_missed_seconds", "Seconds in which more was added than it accepts.", labels=labels
    )
    for tenant in tenants:
        for share in tenant.cards if tenant.latency_seconds is not None else ():
            owner = (*(str(getattr(tenant, field)) for field in who.values()), tenant.app_class, str(share.index))
            accepted.add_metric((*owner, share.uuid), tenant.latency_seconds or 0.0)
            missed.add_metric((*owner, share.uuid), float(share.latency_missed_seconds))
    yield accepted
    yield missed
