"""Pods that another device plugin, such as gpushare's, admitted before we took over its resources.

Such a Pod is a tenant like any other in what it holds: in the database, with a folder, counted on its cards. But the
kubelet keeps the response that its containers got and reuses it for every later start: they never load our library, so
nothing enforces their memory limit until the Pod is created again. Therefore its processes are no findings, we inject
nothing, and we never refuse its containers: they ran before we came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.kubelet.checkpoint import CachedResponse, Entry
from aliquot.adapters.kubernetes.reflector import key_of
from aliquot.adapters.storage.podstore import StoreError
from aliquot.dialects import hami, native
from aliquot.dialects.wire.handover import cards_given, is_ours, on_cards, render_own_grant
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node, Offer
from aliquot.model.tenancy import Tenancy
from aliquot.model.tenant import Finding, FindingKind
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.services.daemon.events import EventSink, pod_ref

log = logging.getLogger(__name__)

NOT_ENFORCED = "GPUNotHeld"

_ADOPTED = (
    "another device plugin gave the Pod its card before aliquot was installed: it keeps running and its memory is "
    "counted, but the limit is not enforced until the Pod is created again (kubectl rollout restart, or kubectl delete "
    "pod)"
)


class Reader(Protocol):
    """What is used of the allocator. Both raise Refused."""

    def read(self, pod: PodObject) -> tuple[Claim, Grant]: ...
    def tenancy(self, pod: PodObject, claim: Claim, grant: Grant) -> Tenancy: ...


class ForeignPods:
    """See the head of the file."""

    def __init__(
        self,
        *,
        tenants: PodTenants,
        events: EventSink,
        node: Callable[[], Node],
        annotate: Callable[[PodObject, dict[str, str]], None],
    ) -> None:
        self._tenants, self._events, self._node, self._annotate = tenants, events, node, annotate
        self._uids: set[str] = set()

    @property
    def uids(self) -> frozenset[str]:
        """The UIDs of the foreign Pods on this node."""
        return frozenset(self._uids & self._tenants.tenancies.keys())

    def drop_expected(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings without unregistered processes of foreign Pods: those cannot register, and an event says so."""
        return [
            finding
            for finding in findings
            if finding.kind is not FindingKind.UNREGISTERED or finding.owner not in self.uids
        ]

    def foreign_responses(self, entries: Iterable[Entry]) -> dict[str, CachedResponse]:
        """By Pod UID, the response of another plugin for a resource of ours: the first that names cards of this node.
        Responses for other resources, such as network cards, do not count."""
        found: dict[str, CachedResponse] = {}
        resources = RESOURCES.union(hami.COUNTED) if Offer.HAMI in self._node().offers else RESOURCES
        for uid, response in _responses(entries, resources, ours=False):
            if uid not in found or cards_given(response.env, self._node()) is not None:
                found[uid] = response
        return found

    @staticmethod
    def admitted_by_us(entries: Iterable[Entry]) -> set[str]:
        """UIDs of the Pods that an agent of aliquot admitted."""
        return {uid for uid, _ in _responses(entries, RESOURCES.union(hami.COUNTED), ours=True)}

    def adopt(self, pod: PodObject, response: CachedResponse, reader: Reader) -> None:
        """Count the Pod on the cards it has. Errors are only logged: the Pod runs anyway."""
        uid, new = pod.metadata.uid, pod.metadata.uid not in self._tenants.tenancies
        try:
            claim, grant = reader.read(pod)
            actual, doubt = self._actual_grant(grant, response)
            self._uids = self._uids & self._tenants.tenancies.keys() | {uid}  # forgets the Pods that are gone
            self._tenants.admit(reader.tenancy(pod, claim, actual))
        except (Refused, AdmissionError, StoreError) as error:
            log.warning("foreign_pod_not_adopted", extra={"data": {"pod": key_of(pod), "why": str(error)}})
            return
        if actual != grant:
            self._annotate(pod, render_own_grant(claim, actual, self._node()))  # the scheduler books it by this
        if new or actual != grant:
            self._events.emit(pod_ref(pod.metadata), NOT_ENFORCED, _ADOPTED + doubt, type="Normal", action="TakeOver")
            data = {"pod": key_of(pod), "cards": sorted(actual.usage()), "doubt": doubt.strip("; ")}
            log.info("foreign_pod_adopted", extra={"data": data})

    def annotate_grant(self, pod: PodObject, claim: Claim, grant: Grant) -> None:
        """Write our annotation on a Pod that a peer's scheduler placed: we injected its card, so it is ours now."""
        if native.GRANT not in (pod.metadata.annotations or {}):
            self._annotate(pod, render_own_grant(claim, grant, self._node()))

    def _actual_grant(self, grant: Grant, response: CachedResponse) -> tuple[Grant, str]:
        """The grant on the cards that the Pod really has, and a remark if that is in doubt."""
        node, named = self._node(), sorted(grant.usage())
        given = cards_given(response.env, node)
        if given is None:
            return grant, f"; only its annotation says that it uses card {_listed(named)}"
        actual = on_cards(grant, given, node)
        if actual == grant and set(given) != set(named):
            return grant, f"; its annotation says card {_listed(named)}, but the plugin gave it {_listed(given)}"
        if actual != grant:
            text = f"; its annotation said card {_listed(named)}, but the plugin gave it card {_listed(given)}"
            return actual, f"{text}: it is counted there"
        return grant, ""


def _responses(
    entries: Iterable[Entry], resources: frozenset[str], *, ours: bool
) -> Iterator[tuple[str, CachedResponse]]:
    """Pod UID and response for each of the resources, from our plugins or from others."""
    for entry in entries:
        response = entry.response() if entry.resource in resources else None
        if response is not None and is_ours(response.cdi, response.env, mark=TENANT_VARIABLE) == ours:
            yield entry.pod_uid, response


def _listed(cards: Sequence[int]) -> str:
    return ", ".join(map(str, cards))
