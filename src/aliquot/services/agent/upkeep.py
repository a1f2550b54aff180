"""Once a second, and when something has changed: advertises the cards, writes what is known of them, emits events,
releases Pods that ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from aliquot.adapters.storage.podstore import StoreError
from aliquot.dialects import Rules
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.services.agent.devices.advertising import Advertiser
from aliquot.services.agent.devices.counted import CountedResources
from aliquot.services.agent.dra.driver import DraDriver
from aliquot.services.agent.dra.preparation import ClaimPreparer
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.groups import PodGroups
from aliquot.services.agent.heldcards import HeldCards
from aliquot.services.agent.podcache import PodCache
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.agent.settings import Parts
from aliquot.services.agent.tenants import PodTenants

log = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds


class Upkeep:
    """`node` and `cards`: as they are now. The rest are parts of the agent (service.py)."""

    def __init__(
        self,
        parts: Parts,
        *,
        node: Callable[[], Node],
        cards: Callable[[], tuple[Card, ...]],
        rules: Rules,
        reporter: NodeReporter,
        pods: PodCache,
        tenants: PodTenants,
        foreign_pods: ForeignPods,
        held_cards: HeldCards,
        advertiser: Advertiser,
        counted: CountedResources,
        claims: ClaimPreparer,
        dra: DraDriver,
        groups: PodGroups,
    ) -> None:
        self._parts, self._node, self._cards, self._rules = parts, node, cards, rules
        self._reporter, self._pods, self._tenants, self._foreign_pods = reporter, pods, tenants, foreign_pods
        self._held_cards, self._advertiser, self._counted = held_cards, advertiser, counted
        self._claims, self._dra, self._groups = claims, dra, groups
        self._awake = asyncio.Event()
        self._store_problem = ""

    def wake(self) -> None:
        """Begin a round now: something has changed. Call it in the loop's thread only."""
        self._awake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._awake.clear()  # later changes start another round
            await self._round()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_INTERVAL):  # not wait_for: that may forget being cancelled
                    await self._awake.wait()

    async def _round(self) -> None:
        if self._advertiser.missing:  # a kubelet that does not answer must not hold this up
            self._publish()
        self.persist_cards()
        await self._held_cards.refresh()
        await self.advertise()
        self._publish()
        self._counted.report()
        self._parts.arbiter.spare(self._foreign_pods.uids)  # they ran before we came
        self._emit_events()
        self._groups.settle()

    def _publish(self) -> None:
        amounts = self._counted.amounts(self._advertiser.counted, self._cards())
        self._reporter.publish(self._cards(), here=not self._advertiser.missing, counted=amounts)

    async def advertise(self) -> None:
        """Offer the kubelet what the Node's labels enable; nothing, where its cards are offered by claims."""
        node = self._node() if self._dra.offers_resources else replace(self._node(), offers=frozenset())
        await self._advertiser.refresh(node, self._rules)

    def _emit_events(self) -> None:
        health, arbiter, events = self._parts.health, self._parts.arbiter, self._reporter.events
        tenancies = self._tenants.tenancies
        events.report_health(health, tenancies.values())
        events.report_findings(self._foreign_pods.drop_expected(arbiter.findings()), self._pods)
        events.report_limits(arbiter.standings(), tenancies, health.cards)
        events.report_moves(arbiter.take_arrivals(), tenancies, self._users, health.cards, time.monotonic())
        events.report_lingering(self._tenants.sweep())

    def _users(self, claim: str) -> list[PodObject]:
        """The Pods that use the claim."""
        return [pod for pod in self._pods if not pod.finished and claim in self._claims.claims_of(pod.metadata.uid)]

    def persist_cards(self) -> None:
        """For the next agent. An error, such as a full disk, must not stop the upkeep."""
        store = self._parts.store
        try:
            store.set_cards(self._parts.health.cards)
            while store.notes:
                log.warning("database_repaired", extra={"data": {"note": store.notes.pop(0)}})
        except StoreError as error:
            if str(error) != self._store_problem:
                log.warning("cards_not_persisted", extra={"data": {"why": str(error)}})
            self._store_problem = str(error)
