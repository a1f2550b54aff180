"""Pods that another device plugin let in, and that run on when we take its place: gpushare's, say.

A guest is a tenant like any other in what it holds: in the database, with a folder, counted on its cards. But the
kubelet keeps the answer that its containers got, and gives it to every later start of them: they never load our
library, and are not held to their memory until the Pod is made anew. So its processes are no findings, it is led
nowhere, and its containers are never refused: they ran before we came.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from aliquot.adapters.host.home import TENANT_VARIABLE
from aliquot.adapters.kubelet.checkpoint import CachedResponse, Entry
from aliquot.adapters.kubernetes.reflector import key_of
from aliquot.adapters.storage.podstore import StoreError
from aliquot.dialects import native
from aliquot.dialects.wire.handover import cards_given, is_ours, on_cards, render_own_grant
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.podtenancy import PodTenancy
from aliquot.model.tenant import Finding, FindingKind
from aliquot.services.agent.deviceplugins import Refused
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.services.daemon.events import EventSink, pod_ref

log = logging.getLogger(__name__)

NOT_HELD = "GPUNotHeld"

_TOLD = (
    "its card was given to it by another device plugin, before aliquot: it runs on as it is and its memory is counted, "
    "but it is not held to it until the Pod is made anew (kubectl rollout restart, or kubectl delete pod)"
)


class Reader(Protocol):
    """What is used of the allocator. Both raise Refused."""

    def read(self, pod: PodObject) -> tuple[Claim, Grant]: ...
    def tenancy(self, pod: PodObject, claim: Claim, grant: Grant) -> PodTenancy: ...


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
        """Those that are here."""
        return frozenset(self._uids & self._tenants.tenancies.keys())

    def drop_expected(self, findings: Iterable[Finding]) -> list[Finding]:
        """The findings, less that a guest's processes have not registered: it was said, and they cannot."""
        return [
            finding
            for finding in findings
            if finding.kind is not FindingKind.UNREGISTERED or finding.owner not in self.uids
        ]

    def foreign_responses(self, entries: Iterable[Entry]) -> dict[str, CachedResponse]:
        """Of the kubelet's notes, the answers for resources of ours that are not ours; by Pod, the first that names
        cards of this node. What a container got of other things, a network card say, makes nobody a guest."""
        found: dict[str, CachedResponse] = {}
        for uid, kept in _answers(entries, ours=False):
            if uid not in found or cards_given(kept.env, self._node()) is not None:
                found[uid] = kept
        return found

    @staticmethod
    def admitted_by_us(entries: Iterable[Entry]) -> set[str]:
        """UIDs of those who are no guests: it was us who let them in."""
        return {uid for uid, _ in _answers(entries, ours=True)}

    def adopt(self, pod: PodObject, kept: CachedResponse, reader: Reader) -> None:
        """Count the Pod on the cards it has. Whatever goes wrong, it runs on."""
        uid, new = pod.metadata.uid, pod.metadata.uid not in self._tenants.tenancies
        try:
            claim, grant = reader.read(pod)
            there, doubt = self._where(grant, kept)
            self._uids = self._uids & self._tenants.tenancies.keys() | {uid}  # those who have left are forgotten
            self._tenants.admit(reader.tenancy(pod, claim, there))
        except (Refused, AdmissionError, StoreError) as error:
            told = {"pod": key_of(pod), "why": str(error)}
            log.warning("a Pod of another device plugin is not counted here", extra={"data": told})
            return
        if there != grant:
            self._annotate(
                pod, render_own_grant(claim, there, self._node())
            )  # so that the scheduler books it where it is
        if new or there != grant:
            self._events.emit(pod_ref(pod.metadata), NOT_HELD, _TOLD + doubt, type="Normal", action="TakeOver")
            where = {"pod": key_of(pod), "cards": sorted(there.usage()), "doubt": doubt.strip("; ")}
            log.info("a Pod of another device plugin is counted here", extra={"data": where})

    def annotate_grant(self, pod: PodObject, claim: Claim, grant: Grant) -> None:
        """A Pod that a peer's scheduler placed and that we have led to its card is ours: it carries our annotation."""
        if native.GRANT not in (pod.metadata.annotations or {}):
            self._annotate(pod, render_own_grant(claim, grant, self._node()))

    def _where(self, grant: Grant, kept: CachedResponse) -> tuple[Grant, str]:
        """Its cards, and what is to be said of them."""
        node, named = self._node(), sorted(grant.usage())
        given = cards_given(kept.env, node)
        if given is None:
            return grant, f"; nothing but its annotation tells that it is on card {_listed(named)}"
        there = on_cards(grant, given, node)
        if there == grant and set(given) != set(named):
            return grant, f"; its annotation says card {_listed(named)}, but it was given {_listed(given)}"
        if there != grant:
            said = f"; its annotation said card {_listed(named)}, but it was given card {_listed(given)}"
            return there, f"{said}: it is counted there"
        return grant, ""


def _answers(entries: Iterable[Entry], *, ours: bool) -> Iterator[tuple[str, CachedResponse]]:
    """For resources of ours, by Pod."""
    for entry in entries:
        kept = entry.response() if entry.resource in RESOURCES else None
        if kept is not None and is_ours(kept.cdi, kept.env, mark=TENANT_VARIABLE) == ours:
            yield entry.pod_uid, kept


def _listed(cards: Sequence[int]) -> str:
    return ", ".join(map(str, cards))
