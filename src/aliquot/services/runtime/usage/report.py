"""The bill for people and for Prometheus."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from aliquot.arbiter.bill import HOUR, Key
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid
from aliquot.model.status.requests import UsageRequest
from aliquot.model.status.usage import UsageEntry, UsageReport
from aliquot.model.usage import Spent, UsageRow, as_others, place_of
from aliquot.services.daemon.control import RefusedError, invalid
from aliquot.services.runtime.usage.billing import Answered, Billing

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MOST_ENTRIES = 5000
MOST_PLACES = 500  # namespaces of users, kept where names are left out
_SHARED = 2.0  # seconds for which an answer is shared by those who asked before it was ready
_TENANT = ("namespace", "pod", "container", "class", "user", "run", "card", "uuid")
_OF_TENANTS = (
    ("aliquot_tenant_gpu_seconds", "Time of the card that it had.", "gpu"),
    ("aliquot_tenant_preempted_seconds", "Time of the card that online work took from it.", "preempted"),
    ("aliquot_tenant_waiting_seconds", "Time in which it had work and other tenants had the card.", "waiting"),
)
_OF_CARDS = (
    ("aliquot_card_idle_seconds", "Time in which no tenant had the card.", "idle"),
    ("aliquot_card_unknown_seconds", "Time that a daemon measured and did not write down: it was killed.", "unknown"),
    ("aliquot_card_unmeasured_seconds", "Time in which no daemon ran.", "unmeasured"),
)


async def answer_usage(billing: Billing | None, request: UsageRequest) -> UsageReport:
    """The answer to `usage`. Raises RefusedError, StoreError."""
    since, now = request.since, time.time()
    if not 0 <= since <= now:
        raise invalid(Invalid("since", since, "seconds since 1970, not in the future"))
    if billing is None:
        raise RefusedError("failed", text="no usage is kept: usage.db cannot be opened, see the log of the daemon")
    # There may be hundreds of thousands of rows, and anybody may ask: in a thread, and for one after the other.
    asked, hour = time.monotonic(), since // HOUR
    async with billing.asking:
        last = billing.answered
        if last is not None and last.hour == hour and max(asked, time.monotonic() - _SHARED) <= last.ended:
            return last.answer
        rows = await billing.rows(since)
        answer = await asyncio.to_thread(usage_report, rows, since, now)
        billing.answered = Answered(hour, time.monotonic(), answer)
        return answer


def usage_report(rows: Iterable[UsageRow], since: float, until: float) -> UsageReport:
    """The rows by payer and card, those with most time first. Of very many, those with least time have one row for each
    class of a user in a namespace; the namespaces with least time have none: no time is lost."""
    found: dict[Key, Spent] = {}
    for row in rows:
        found.setdefault((row.uuid, row.payer), Spent()).add(row.spent)
    if len(found) > MOST_ENTRIES:
        least = sorted(found.items(), key=lambda entry: entry[1].gpu)[: len(found) - MOST_ENTRIES]
        kept = _largest_places(found)
        for (uuid, payer), spent in least:
            if not payer.kind:
                del found[uuid, payer]
                others = as_others(payer, keep_namespace=place_of(payer) in kept)
                found.setdefault((uuid, others), Spent()).add(spent)
    entries = [
        UsageEntry(
            uuid,
            payer.kind,
            payer.namespace,
            payer.name,
            payer.container,
            payer.app_class,
            payer.user,
            spent.gpu,
            spent.preempted,
            spent.waiting,
            spent.booked,
            spent.used,
        )
        for (uuid, payer), spent in found.items()
    ]
    return UsageReport(
        since // HOUR * HOUR, until, sorted(entries, key=lambda entry: (bool(entry.kind), -entry.gpu_seconds))
    )


def _largest_places(found: Mapping[Key, Spent]) -> set[tuple[int | str, str]]:
    """The users' namespaces with most time."""
    places: dict[tuple[int | str, str], float] = {}
    for (_, payer), spent in found.items():
        if payer.user is not None and payer.namespace:
            places[place_of(payer)] = places.get(place_of(payer), 0.0) + spent.gpu
    return set(heapq.nlargest(MOST_PLACES, places, key=places.__getitem__))


def usage_families(counters: Mapping[Key, Spent], cards: Iterable[Card]) -> Iterator[Metric]:
    """For /metrics. A run has no namespace, a Pod no run: Prometheus treats an empty label as a missing one."""
    from prometheus_client.core import CounterMetricFamily

    cards = list(cards)
    numbers = {card.uuid: str(card.index) for card in cards}
    models = {card.uuid: card.model for card in cards}
    tenants = [(_labels(key, numbers), spent) for key, spent in counters.items() if not key[1].kind]
    for name, help_text, field in _OF_TENANTS:
        family = CounterMetricFamily(name, help_text, labels=_TENANT)
        for labels, spent in tenants:
            family.add_metric(labels, getattr(spent, field))
        yield family
    memory = CounterMetricFamily(
        "aliquot_tenant_memory_byte_seconds",
        "Memory times time: booked for it, and used by it.",
        labels=(*_TENANT, "kind"),
    )
    for labels, spent in tenants:
        memory.add_metric((*labels, "booked"), spent.booked)
        memory.add_metric((*labels, "used"), spent.used)
    yield memory
    for name, help_text, kind in _OF_CARDS:
        family = CounterMetricFamily(name, help_text, labels=("card", "uuid", "model"))
        for (uuid, payer), spent in counters.items():
            if payer.kind == kind and uuid in numbers:
                family.add_metric((numbers[uuid], uuid, models[uuid]), spent.gpu)
        yield family


def _labels(key: Key, numbers: Mapping[str, str]) -> tuple[str, ...]:
    uuid, payer = key
    pod, run = (payer.name, "") if payer.namespace else ("", payer.name)
    user = "" if payer.user is None else str(payer.user)
    return (payer.namespace, pod, payer.container, payer.app_class, user, run, numbers.get(uuid, ""), uuid)
