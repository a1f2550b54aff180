"""`aliquot agent`, one per node: advertises the cards, injects them into containers, holds tenants to their shares.

    advertiser  which devices of which resources the kubelet is offered
    plugins     a device plugin for each of these resources, through restarts of the kubelet
    allocator   which Pod holds a container's devices, and which cards it was granted
    tenants     the Pods and claims as tenants of the arbiter, whose threads run beside this loop
    dra         on nodes labelled for it: the same cards by ResourceClaims, instead of device plugins
    health      unhealthy cards: reported to the kubelet, to the scheduler (inventory) and in events
    recovery    at the start: tenants from the database, then from the API server and the kubelet
    upkeep      once a second: releases ended Pods, emits findings, writes what has changed

An agent that is killed at any line leaves running Pods as they are.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import structs

import aliquot
from aliquot.adapters.host.process.processes import own_number
from aliquot.adapters.kubelet.holders import Kubelet
from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.dialects import elastic, native
from aliquot.dialects.wire.cdi import parse_spec, passes_cdi, reads_cdi, render_spec
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.model.cardstate.health import describe_out
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.status import dashboard
from aliquot.model.status.machine import AgentStatus, DaemonStatus, Status
from aliquot.model.tenant import SharingRules
from aliquot.services.agent.allocation import Allocator
from aliquot.services.agent.api.control import AgentControl
from aliquot.services.agent.api.http import AgentPort
from aliquot.services.agent.api.live import AgentLive
from aliquot.services.agent.api.readiness import Progress, waits_for
from aliquot.services.agent.api.status import NodeState, resource_statuses, status
from aliquot.services.agent.devices.advertising import Advertiser
from aliquot.services.agent.devices.counted import CountedResources
from aliquot.services.agent.devices.holders import DeviceHolders
from aliquot.services.agent.devices.plugins import ALLOCATE, PRESTART, Plugins, timed
from aliquot.services.agent.dra.driver import DraDriver
from aliquot.services.agent.dra.preparation import ClaimPreparer
from aliquot.services.agent.dra.site import AgentSite
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.groups import PodGroups
from aliquot.services.agent.handover import hand_over
from aliquot.services.agent.heldcards import ClaimedDevices, HeldCards
from aliquot.services.agent.injection import CdiInjector, MountInjector, RuntimeInjector
from aliquot.services.agent.podcache import PodCache
from aliquot.services.agent.recovery import TenantRecovery
from aliquot.services.agent.report.node import NodeReporter
from aliquot.services.agent.settings import Parts, Settings
from aliquot.services.agent.tenants import PodTenants
from aliquot.services.agent.upkeep import Upkeep
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.events import Events, timestamp
from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.daemon.memory import collect_garbage
from aliquot.services.daemon.qgpumetrics import qgpu_families
from aliquot.services.daemon.tasks import run_forever, termination_signal
from aliquot.services.runtime.usage.billing import Billing
from aliquot.services.runtime.usage.report import usage_families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)


class Agent:
    """The agent of one node."""

    def __init__(self, server: Server, settings: Settings, parts: Parts) -> None:
        self.settings, self.parts = settings, parts
        self._live = AgentLive(parts.arbiter)
        self.kube = kube = Kube(server, agent="aliquot-agent")
        self.events = Events(kube, "aliquot-agent", time.time, instance=settings.node_name)
        self.kubelet = Kubelet(settings.kubelet)
        together = settings.together and parts.groups is not None and parts.groups.can_start
        self.reporter = NodeReporter(
            kube,
            self.events,
            settings.node_name,
            changed=self._node_changed,
            facts=self._facts,
        )
        cdi = CdiInjector(CdiFolder(settings.cdi_folder, render_spec, parse_spec), settings.tenants, parts.libraries)
        self.injector = RuntimeInjector(
            cdi,
            MountInjector(settings.links, settings.tenants, parts.libraries, by_file=settings.environment_by_file),
            has_cdi=self._has_cdi,
        )
        self.tenants = PodTenants(
            parts.store, parts.arbiter, settings.tenants, clock=time.monotonic, remove_injections=self.injector.remove
        )
        self.groups = PodGroups(parts.groups, self.tenants, serves=together, has_cdi=self._has_cdi)
        self.pod_cache = PodCache(
            kube, settings.node_name, on_ended=self.tenants.mark_ended, on_running=self.tenants.mark_running
        )
        on_node = {"fieldSelector": f"spec.nodeName={settings.node_name}"}
        self.pods = Reflector(kube, "/api/v1/pods", PodObject, self.pod_cache, params=on_node)
        self.pod_cache.reflector = self.pods
        this_node = {"fieldSelector": f"metadata.name={settings.node_name}"}
        self.nodes = Reflector(kube, "/api/v1/nodes", NodeObject, self.reporter, params=this_node)
        self.foreign_pods = ForeignPods(
            tenants=self.tenants, events=self.events, node=self.node, annotate=self.reporter.annotate
        )
        self.held_cards = HeldCards(
            self.kubelet,
            self.pod_cache,
            lambda: parts.health.cards,
            minors=parts.minors,
            beside_others=lambda: self.reporter.beside_others,
            claimed=ClaimedDevices(kube, settings.node_name, clock=time.monotonic),
            clock=time.monotonic,
            adopted=lambda: self.foreign_pods.uids,
        )
        self.allocator = self._make_allocator()
        self.claims = self._make_preparer(cdi)
        self.dra = self._make_driver()
        self.delay = LoopDelay()
        self.calls = Calls(lambda: timestamp(time.time()), (ALLOCATE, PRESTART))
        handler = timed(self.allocator, self.calls, time.monotonic)
        self.plugins = Plugins(self.kubelet.plugins, handler, changed=self.wake)
        self.recovery = TenantRecovery(
            kubelet=self.kubelet,
            pods=self.pod_cache,
            tenants=self.tenants,
            claims=self.claims,
            foreign_pods=self.foreign_pods,
            injector=self.injector,
            allocator=self.allocator,
        )
        self.advertiser = Advertiser(
            self.plugins,
            self.reporter,
            DeviceHolders(self.kubelet, self.tenants, time.monotonic),
            adopt_foreign=self.recovery.adopt_foreign,
            clock=time.monotonic,
        )
        self.counted = CountedResources(
            self.kubelet, self.pod_cache, self.tenants, self.reporter, self.events, settings.rules.whole
        )
        self.upkeep = self._make_upkeep()
        self.port = AgentPort(self, address=settings.bind_address, port=settings.port)
        self._since = time.time()
        self.restored = asyncio.Event()
        self._rules = SharingRules(
            release_delay=settings.release_delay, kill_after=settings.kill_after, host_pool=settings.host_pool << 20
        )

    def _make_allocator(self) -> Allocator:
        return Allocator(
            kubelet=self.kubelet,
            pods=self.pod_cache,
            tenants=self.tenants,
            injector=self.injector,
            events=self.events,
            node=self.node,
            why_unhealthy=self._why_unhealthy,
            held_cards=self.held_cards,
            rules=self.settings.rules.whole,  # Pods that run may use a dialect that is no longer served
            clock=time.time,
            foreign_pods=self.foreign_pods,
            mark_assigned=self.reporter.mark_assigned,
            groups=self.groups,
        )

    def _make_preparer(self, injector: CdiInjector) -> ClaimPreparer:
        preparer = ClaimPreparer(
            self.kube,
            self.pod_cache,
            self.tenants,
            injector,
            node=self.node,
            why_unhealthy=self._why_unhealthy,
            admits=lambda: self.dra.admits_claims,
            clock=time.time,
        )
        self.parts.claim_users.find = preparer.claims_of
        return preparer

    def _make_driver(self) -> DraDriver:
        site = AgentSite(
            self.reporter, self.tenants, self.pod_cache, self.node, self.parts.arbiter.standings, self._has_cdi
        )
        return DraDriver(
            self.kube,
            site,
            self.parts.store,
            self.claims,
            node=self.settings.node_name,
            kubelet=self.settings.kubelet,
            driver_version=self.parts.driver_version,
            simulated=self.settings.simulated is not None,
            clock=time.monotonic,
            changed=self.wake,
        )

    def _make_upkeep(self) -> Upkeep:
        return Upkeep(
            self.parts,
            node=self.node,
            cards=lambda: self.cards,
            rules=self.settings.rules,
            reporter=self.reporter,
            pods=self.pod_cache,
            tenants=self.tenants,
            foreign_pods=self.foreign_pods,
            held_cards=self.held_cards,
            advertiser=self.advertiser,
            counted=self.counted,
            claims=self.claims,
            dra=self.dra,
            groups=self.groups,
        )

    # --- start and stop ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT. Running Pods continue, and none stays paused."""
        stop = termination_signal()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.kube)
            stack.push_async_callback(self.kubelet.close)
            await self.port.open(stack)
            self.parts.health.start()
            stack.callback(self.parts.health.stop)
            if self.parts.meter is not None:
                self.parts.meter.start()
                stack.callback(self.parts.meter.stop)
            if self.billing is not None:
                self.billing.start()
                stack.push_async_callback(self.billing.stop)  # after the arbiter
            self.parts.arbiter.configure(self._rules)
            self.parts.arbiter.start()
            stack.callback(self.parts.arbiter.stop)
            data = {
                "node": self.settings.node_name,
                "pods": self.tenants.restore(),
                "cards": len(self.parts.health.cards),
            }
            self.groups.start()
            stack.callback(self.groups.close)
            log.info("agent_started", extra={"data": {"version": aliquot.__version__, **data}})
            tasks = [asyncio.create_task(run_forever(work)) for work in self._works()]
            await stop.wait()
            log.info("agent_stopping")
            await hand_over(self.reporter, self.pod_cache, patience=self.settings.handover)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _works(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        return [
            self.nodes.run,
            self.pods.run,
            self.events.run,
            self.reporter.run,
            self._restore,
            self.plugins.run,
            self._serve_claims,
            self._keep_up,
            partial(collect_garbage, self.restored),
            self.delay.run,
            self.port.run,
            self._bill,
            *([] if self.settings.control is None else [AgentControl(self, str(self.settings.control)).run]),
        ]

    @property
    def billing(self) -> Billing | None:
        """Who used how much of the cards."""
        return self.parts.billing

    async def _bill(self) -> None:
        """Only when the Pods are known: what was measured before then is named as well."""
        await self.restored.wait()
        if self.billing is not None:
            self.billing.container = self.allocator.container_of
            await self.billing.run()

    def wake(self) -> None:
        """Run the upkeep now: something has changed. Call it in the loop's thread only."""
        self.upkeep.wake()

    # --- the node and its status ---------------------------------------------------------------------------------

    def node(self) -> Node:
        """This node with the current state of its cards, and the offers of its labels."""
        return self.reporter.node(self.cards, self.settings.rules)

    @property
    def cards(self) -> tuple[Card, ...]:
        """The cards as they are now, with those withheld that Pods of other plugins hold."""
        cards, held = self.parts.health.cards, self.held_cards.why
        if not held:
            return cards
        return tuple(structs.replace(card, withheld=card.withheld or held.get(card.uuid)) for card in cards)

    def _why_unhealthy(self, uuid: str) -> str | None:
        health = self.parts.health
        why = health.why.get(uuid)
        return next((describe_out(card, why) for card in health.cards if why is not None and card.uuid == uuid), None)

    def _facts(self) -> dict[str, str]:
        """More annotations of the Node."""
        elastic_memory = elastic.render_node(self.settings.host_pool, self.settings.oversubscribe)
        return elastic_memory | native.render_together(self.groups.serves and self._has_cdi())

    def _has_cdi(self) -> bool:
        if self.settings.cdi is not None:
            return self.settings.cdi
        return reads_cdi(self.reporter.runtime) and passes_cdi(self.reporter.kubelet)

    def ready(self) -> str | None:
        """None when the agent is ready, else what it waits for."""
        progress = Progress(
            node_name=self.settings.node_name,
            node_listed=self.nodes.synced.is_set(),
            node_exists=self.reporter.exists,
            pods_listed=self.pods.synced.is_set(),
            restored=self.restored.is_set(),
            missing=self.advertiser.missing,
            not_advertised=self.advertiser.refused,
            not_counted=self.counted.refused,
            uncounted=self.reporter.uncounted,
            dra=self.dra.ready(),
            published=self.reporter.published,
        )
        return waits_for(progress)

    @property
    def about(self) -> DaemonStatus:
        """The agent's identity and paths, for `aliquot doctor`."""
        settings = self.settings
        by_cdi = self._has_cdi() or (settings.cdi is None and not self.reporter.exists)
        return DaemonStatus(
            pid=own_number(),
            uid=os.geteuid(),
            version=aliquot.__version__,
            since=self._since,
            node=settings.node_name,
            simulated=settings.simulated,
            home=str(settings.tenants.parent),
            database=str(self.parts.store.path),
            kubelet=str(settings.kubelet),
            cdi=str(settings.cdi_folder) if by_cdi else None,
            metrics_port=settings.port or None,
            dialects=sorted(settings.rules.served),
        )

    def status(self) -> Status:
        """All there is to see, of the same shape as a machine's status."""
        parts, tenants = self.parts, self.tenants
        node = NodeState(
            rules=self._rules,
            cards=self.cards,
            why=parts.health.why,
            xids=parts.health.xids,
            seen={} if parts.meter is None else parts.meter.readings,
            tenancies=tenants.tenancies.values(),
            ended=tenants.ended,
            standings=parts.arbiter.standings(),
            findings=self.foreign_pods.drop_expected(parts.arbiter.findings()),
            controls=parts.arbiter.controls(),
        )
        agent = AgentStatus(
            waits_for=self.ready(),
            notes=[*self.settings.notes, *self.dra.notes, *([] if self.port.trouble is None else [self.port.trouble])],
            resources=resource_statuses(self.advertiser.offered, self.plugins.registered),
            kubelet_restarts=self.plugins.restarts,
            calls=self.calls.status(),
        )
        return status(node, time.time(), self.about, agent)

    def families(self, status: Status) -> Iterator[Metric]:
        """Metrics beside those of the status."""
        if self.billing is not None and self.restored.is_set():
            yield from usage_families(self.billing.counters(), self.parts.health.cards)
        if self.settings.qgpu_names:
            yield from qgpu_families(status, self.settings.node_name, self.allocator.container_of)

    def live(self) -> dashboard.Node:
        """This node as a dashboard shows it."""
        return self._live.node(self.status(), time.time())

    def _node_changed(self) -> None:
        node = self.node()
        factor = max((card.oversubscribe for card in node.cards), default=1.0)
        rules = replace(self._rules, isolation=node.isolation, oversubscribe=factor)
        if rules != self._rules:
            log.info("policy_changed", extra={"data": {"policy": rules.isolation.value}})
            self._rules = rules
            self.parts.arbiter.configure(rules)
        self.wake()
        self.dra.wake()

    # --- restore and upkeep --------------------------------------------------------------------------------------

    async def _restore(self) -> None:
        await self.pods.synced.wait()
        await self.reporter.node_known.wait()
        await self.recovery.restore()
        self.groups.recovered()
        self.restored.set()

    async def _serve_claims(self) -> None:
        await self.reporter.node_known.wait()
        await self.restored.wait()
        await self.claims.release_gone()
        await self.dra.run()

    async def _keep_up(self) -> None:
        await self.reporter.node_known.wait()
        await self.restored.wait()
        await self.upkeep.run()
