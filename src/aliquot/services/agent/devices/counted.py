"""Resources that the agent counts in the Node's status: more of them than the kubelet handles as devices.

amounts     what to write there. Nothing while the kubelet has devices of the resource, of this agent or of another
            plugin: it refuses every new Pod with a resource that it knows as devices and has none of
report      Pods that were bound past scheduler and webhook. The kubelet calls no plugin for them, so that they run
            without a card, and only an event can say so
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from aliquot.dialects import PodReader, Rules, gpushare
from aliquot.dialects.native import MOST_DEVICES, PLACE
from aliquot.dialects.wire.advertising import Advert, counted_amount
from aliquot.dialects.wire.objects import PodObject, asks_for
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.refusal import Invalid
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.agent.tenants import PodTenants
from aliquot.services.daemon.events import EventSink, pod_ref

MISSING = "GPUMissing"
_MISSING = (
    f"the Pod has no {PLACE}, which the webhook adds, and runs without a card: it was bound without Aliquot's "
    "scheduler. Remove spec.nodeName and create the Pod again"
)


class Kubelet(Protocol):
    """adapters/kubelet/holders.py."""

    def device_resources(self) -> frozenset[str]: ...


class Pods(Protocol):
    """The Pods of this node (services/agent/podcache.py)."""

    def __iter__(self) -> Iterator[PodObject]: ...
    def by_uid(self, uid: str) -> PodObject | None: ...


class CountedResources:
    """See the head of the file."""

    def __init__(
        self, kubelet: Kubelet, pods: Pods, tenants: PodTenants, reporter: NodeReporter, events: EventSink, rules: Rules
    ) -> None:
        self._kubelet, self._pods, self._tenants = kubelet, pods, tenants
        self._reporter, self._events, self._reader = reporter, events, PodReader(rules)
        self._reported: frozenset[str] = frozenset()  # Pods without a card, by UID
        self.refused: Invalid | None = None  # why nothing can be counted

    def amounts(self, adverts: tuple[Advert, ...], cards: Iterable[Card]) -> dict[str, int]:
        """By resource, the amount for the Node's status. `adverts`: those that are counted."""
        self.refused = None
        if not adverts:
            return {}
        if not self._reporter.counts:  # else the kubelet has had no devices of it since
            devices = self._kubelet.device_resources()
            known = next((advert for advert in adverts if advert.resource in devices), None)
            if known is not None:
                self.refused = _still_devices(known)
                self._reporter.events.report_refused(self.refused)
                return {}
        cards = tuple(cards)
        held = {} if all(card.usable for card in cards) else self._held_mib([advert.resource for advert in adverts])
        return {advert.resource: counted_amount(advert, cards, held) for advert in adverts}

    def _held_mib(self, resources: list[str]) -> Mapping[str, int]:
        """By card, the memory of Pods that request one of these resources."""
        held: Counter[str] = Counter()
        for uid, tenancy in self._tenants.tenancies.items():
            pod = self._pods.by_uid(uid)
            if pod is not None and asks_for(pod, resources):
                held.update({share.uuid: share.memory_mib for share in tenancy.shares})
        return held

    def report(self) -> None:
        """Emit an event, once, on each Pod that runs without a card."""
        if not self._reporter.counts:
            return
        found = {pod.metadata.uid: pod for pod in self._pods if self._lacks_card(pod)}
        for uid in found.keys() - self._reported:
            self._events.emit(pod_ref(found[uid].metadata), MISSING, _MISSING, action="Watch")
        self._reported = frozenset(found)

    def _lacks_card(self, pod: PodObject) -> bool:
        if pod.finished or pod.metadata.uid in self._tenants.tenancies or not asks_for(pod, (gpushare.MEMORY,)):
            return False
        claim = self._reader.read(pod).claim
        return isinstance(claim, Claim) and gpushare.lacks_place(claim)


def _still_devices(advert: Advert) -> Invalid:
    allowed = (
        f"at most {MOST_DEVICES:,} while the kubelet has devices of it, by this agent or another plugin. It forgets "
        "them five minutes after the plugin and all Pods with such devices have ended: delete those Pods"
    )
    return Invalid(f'status.capacity["{advert.resource}"]', sum(advert.amounts.values()), allowed)
