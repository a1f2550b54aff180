"""`aliquot agent`, one per node: advertises the cards, injects them into containers, holds tenants to their shares.

    plugins     a device plugin for each resource that the node's labels enable, through restarts of the kubelet
    allocator   which Pod holds a container's devices, and which cards it was granted
    tenants     the Pods and claims as tenants of the arbiter, whose threads run beside this loop
    dra         on nodes labelled for it: the same cards by ResourceClaims, instead of device plugins
    health      unhealthy cards: reported to the kubelet, to the scheduler (inventory) and in events
    upkeep      once a second: releases ended Pods, emits findings, writes what has changed

State is rebuilt at every start: tenants from the database, then from the API server and the kubelet. An agent that is
killed at any line leaves running Pods as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

import aliquot
from aliquot import dialects
from aliquot.adapters.host.processes import own_number
from aliquot.adapters.kubelet.checkpoint import CachedResponse
from aliquot.adapters.kubelet.holders import Kubelet
from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.adapters.kubernetes.reflector import Reflector, key_of
from aliquot.adapters.storage.cdifolder import CdiFolder
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects import Rules, elastic, hami
from aliquot.dialects.wire.advertising import Token, adverts, tokens
from aliquot.dialects.wire.cdi import parse_spec, passes_cdi, reads_cdi, render_spec
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.otherplugins import TAKEN
from aliquot.model.control import CardControl
from aliquot.model.device import Card
from aliquot.model.health import describe_out
from aliquot.model.node import Node, Offer
from aliquot.model.refusal import Invalid
from aliquot.model.residency import Arrival
from aliquot.model.status import dashboard
from aliquot.model.status.machine import AgentStatus, CallStatus, DaemonStatus, Status
from aliquot.model.tenant import Finding, SharingRules, Standing
from aliquot.services.agent import nodereport
from aliquot.services.agent.allocation import Allocator
from aliquot.services.agent.control import AgentControl
from aliquot.services.agent.deviceholders import DeviceHolders
from aliquot.services.agent.deviceplugins import ALLOCATE, PRESTART, Plugins, Refused, timed
from aliquot.services.agent.dra.driver import DraDriver
from aliquot.services.agent.dra.preparation import ClaimPreparer
from aliquot.services.agent.dra.site import AgentSite
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.handover import hand_over
from aliquot.services.agent.heldcards import ClaimedDevices, HeldCards
from aliquot.services.agent.http import AgentPort
from aliquot.services.agent.injection import CdiInjector, Libraries, MountInjector, RuntimeInjector
from aliquot.services.agent.live import AgentLive, Traced
from aliquot.services.agent.nodereport import NodeReporter
from aliquot.services.agent.podcache import PodCache
from aliquot.services.agent.status import NodeState, resource_statuses, status
from aliquot.services.agent.tenants import AdmissionError, PodTenants, Tenants
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.control import about
from aliquot.services.daemon.events import Events, timestamp
from aliquot.services.daemon.loopdelay import LoopDelay
from aliquot.services.daemon.memory import collect_garbage
from aliquot.services.daemon.qgpumetrics import qgpu_families
from aliquot.services.daemon.tasks import run_forever, termination_signal
from aliquot.services.runtime.billing import Billing
from aliquot.services.runtime.meter import CardMeter
from aliquot.services.runtime.usagereport import usage_families

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

_UPKEEP_INTERVAL = 1.0  # seconds
_PLUGIN_RETURNS = 60.0  # seconds in which a device plugin is back after its own restart or the kubelet's


class Arbiter(Tenants, Traced, Protocol):
    """services/runtime/arbiterd.py."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def configure(self, rules: SharingRules) -> None: ...
    def standings(self) -> list[Standing]: ...
    def findings(self) -> list[Finding]: ...
    def controls(self) -> Mapping[str, CardControl]: ...
    def take_arrivals(self) -> list[Arrival]: ...
    def spare(self, tenants: frozenset[str]) -> None: ...


class Health(nodereport.Health, Protocol):
    """services/runtime/health.py."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Settings:
    """The agent's configuration, from its command line."""

    node_name: str
    tenants: Path  # holds one folder per Pod on the cards
    links: Path  # holds links to those, named after device IDs, for runtimes without CDI
    cdi: bool | None = None  # None: depends on the runtime's version
    cdi_folder: Path = Path("/var/run/cdi")
    environment_by_file: bool = False  # without CDI and without the webhook: the shim sets the environment
    kubelet: Path = Path("/var/lib/kubelet")
    rules: Rules = dialects.DEFAULT_RULES
    release_delay: float | None = 0.1  # None: learned
    kill_after: float | None = None  # seconds over its memory limit after which a Pod's processes are ended
    host_pool: int = 0  # MiB of host memory for what is parked
    oversubscribe: float = 1.0  # of nodes without the label
    handover: float = 3.0  # seconds for the scheduler to acknowledge that the agent stops
    port: int = 9479
    bind_address: str = "0.0.0.0"  # noqa: S104  # Prometheus runs on another node
    control: Path | None = None  # socket for `aliquot top`, `ps` and `doctor` on the node; None: no socket
    simulated: str | None = None  # the simulated cards, in the form of the command line
    qgpu_names: bool = False  # whether /metrics has those of qGPU's exporter too
    notes: tuple[str, ...] = ()  # remarks for the status


@dataclass(frozen=True, slots=True)
class Parts:
    """The agent's adapters, which tests replace."""

    store: PodStore
    arbiter: Arbiter
    health: Health
    libraries: Libraries
    meter: CardMeter | None = None  # samples the cards' usage; None: usage is not known
    billing: Billing | None = None  # who used how much; None: it is not kept
    minors: Mapping[str, int] = field(default_factory=dict)  # numbers of the cards' device files, by UUID
    driver_version: str = ""
    claim_users: ClaimUsers = field(default_factory=lambda: ClaimUsers())


@dataclass(slots=True)
class ClaimUsers:
    """Tells the arbiter, which exists before the agent, which claims a Pod uses: their UIDs, by the Pod's."""

    find: Callable[[str], Sequence[str]] = lambda pod: ()

    def __call__(self, pod: str) -> Sequence[str]:
        return self.find(pod)


class Agent:
    """The agent of one node."""

    def __init__(self, server: Server, settings: Settings, parts: Parts) -> None:
        self.settings, self.parts = settings, parts
        self._live = AgentLive(parts.arbiter)
        self.kube = kube = Kube(server, agent="aliquot-agent")
        self.events = Events(kube, "aliquot-agent", time.time, instance=settings.node_name)
        self.kubelet = Kubelet(settings.kubelet)
        self.reporter = NodeReporter(
            kube,
            self.events,
            settings.node_name,
            changed=self._node_changed,
            facts=elastic.render_node(settings.host_pool, settings.oversubscribe),
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
        self.port = AgentPort(self, address=settings.bind_address, port=settings.port)
        self._since = time.time()
        self.restored = asyncio.Event()
        self._awake = asyncio.Event()
        self._rules = SharingRules(
            release_delay=settings.release_delay, kill_after=settings.kill_after, host_pool=settings.host_pool << 20
        )
        self._offered: Mapping[str, tuple[Token, ...]] = {}
        self._nvidia_gpu_free_at = float("-inf")
        self._device_holders = DeviceHolders(self.kubelet, self.tenants, time.monotonic)
        self._offered_by: tuple[Node, Mapping[str, Mapping[str, frozenset[str]]], bool] | None = None
        self._refused: Invalid | None = None  # why no resource can be advertised
        self._store_problem = ""

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
            self._upkeep,
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
            self.billing.container = self.container_of
            await self.billing.run()

    def container_of(self, uid: str) -> str:
        """The container of a Pod that asked for a card; empty if several did, or it is not known."""
        pod = self.pod_cache.by_uid(uid)
        if pod is None:
            return ""
        with contextlib.suppress(Refused):
            names = {container.name for container in self.allocator.read(pod)[1].containers if container.shares}
            return names.pop() if len(names) == 1 else ""
        return ""

    def wake(self) -> None:
        """Run the upkeep now: something has changed. Call it in the loop's thread only."""
        self._awake.set()

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
        return tuple(replace(card, withheld=card.withheld or held.get(card.uuid, "")) for card in cards)

    def _why_unhealthy(self, uuid: str) -> str | None:
        health = self.parts.health
        why = health.why.get(uuid)
        return next((describe_out(card, why) for card in health.cards if why is not None and card.uuid == uuid), None)

    def _has_cdi(self) -> bool:
        if self.settings.cdi is not None:
            return self.settings.cdi
        return reads_cdi(self.reporter.runtime) and passes_cdi(self.reporter.kubelet)

    def ready(self) -> str | None:
        """None when the agent is ready, else what it waits for."""
        if self.nodes.synced.is_set() and not self.reporter.exists:
            return f"Node {self.settings.node_name} does not exist: set --nodename to its name"
        if not self.pods.synced.is_set() or not self.reporter.exists:
            return "the Node and its Pods have not been read from the API server yet"
        if not self.restored.is_set():
            return "the tenants are not restored yet"
        missing = self._offered.keys() - self.plugins.registered
        if missing:
            return f"the kubelet has not accepted {', '.join(sorted(missing))} yet"
        if self._refused is not None:
            return f"no resource can be advertised: {self._refused.sentence()}"
        waits_for = self.dra.ready()
        if waits_for is not None:
            return waits_for
        return None if self.reporter.published else "the inventory is not on the Node yet"

    @property
    def about(self) -> dict[str, Any]:
        """The agent's identity and paths, for `aliquot doctor`."""
        settings = self.settings
        by_cdi = self._has_cdi() or (settings.cdi is None and not self.reporter.exists)
        return about(
            own_number(),
            self._since,
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
            resources=resource_statuses(self._offered, self.plugins.registered),
            kubelet_restarts=self.plugins.restarts,
            calls=msgspec.convert(self.calls.as_json(), dict[str, CallStatus]),
        )
        return status(node, time.time(), msgspec.convert(self.about, DaemonStatus), agent)

    def families(self, status: Status) -> Iterator[Metric]:
        """Metrics beside those of the status."""
        if self.billing is not None and self.restored.is_set():
            yield from usage_families(self.billing.counters(), self.parts.health.cards)
        if self.settings.qgpu_names:
            yield from qgpu_families(status, self.settings.node_name, self.container_of)

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

    # --- restore -------------------------------------------------------------------------------------------------

    async def _restore(self) -> None:
        """Reconcile the tenants with the API server and the kubelet: release Pods that ended while no agent ran, adopt
        folders without a tenant and running Pods that an agent or another plugin admitted."""
        await self.pods.synced.wait()
        await self.reporter.node_known.wait()
        pods = {pod.metadata.uid: pod for pod in self.pod_cache if not pod.finished}
        for tenancy in list(self.tenants.tenancies.values()):
            if tenancy.id not in pods and not tenancy.claim:
                self.tenants.mark_ended(tenancy.id)
        await self.claims.recover()
        entries = self.kubelet.checkpoint() or ()
        foreign = self.foreign_pods.foreign_responses(entries)
        running = {uid for uid, pod in pods.items() if pod.runs}  # Pods that we refused hold devices, too
        ours = self.foreign_pods.admitted_by_us(entries) & running - foreign.keys()
        unknown = self.tenants.unknown_folders() | set(self.injector.owners().values()) | ours
        for uid in unknown - self.tenants.tenancies.keys() - self.claims.left_alone:
            self._readmit(uid, pods.get(uid))
        self._adopt(foreign)
        self.restored.set()

    def _adopt(self, foreign: Mapping[str, CachedResponse]) -> None:
        """Count the Pods that another plugin admitted, and that have not ended."""
        for uid, response in foreign.items():
            pod = self.pod_cache.by_uid(uid)
            if pod is not None and not pod.finished:
                self.foreign_pods.adopt(pod, response, self.allocator)

    def _readmit(self, uid: str, pod: PodObject | None) -> None:
        if pod is None:
            self.tenants.discard(uid)
            return
        key = key_of(pod)
        try:
            self.tenants.admit(self.allocator.tenancy_of(pod))
            log.info("tenant_readmitted", extra={"data": {"pod": key, "uid": uid}})
        except (Refused, AdmissionError, StoreError) as error:
            log.warning("tenant_not_readmitted", extra={"data": {"pod": key, "why": str(error)}})

    async def _serve_claims(self) -> None:
        await self.reporter.node_known.wait()
        await self.restored.wait()
        await self.claims.release_gone()
        await self.dra.run()

    # --- upkeep --------------------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        await self.reporter.node_known.wait()
        await self.restored.wait()
        while True:
            self._awake.clear()  # later changes start another round
            self._persist_cards()
            await self.held_cards.refresh()
            await self._advertise()
            here = self._offered.keys() <= self.plugins.registered
            self.reporter.publish(self.cards, here=here)
            self.parts.arbiter.spare(self.foreign_pods.uids)  # they ran before we came
            self.reporter.report_health(self.parts.health, self.tenants.tenancies.values())
            self.reporter.report_findings(
                self.foreign_pods.drop_expected(self.parts.arbiter.findings()), self.pod_cache
            )
            tenancies, standings = self.tenants.tenancies, self.parts.arbiter.standings()
            self.reporter.report_limits(standings, tenancies, self.parts.health.cards)
            self.reporter.report_moves(
                self.parts.arbiter.take_arrivals(), tenancies, self._users, self.parts.health.cards, time.monotonic()
            )
            self.reporter.report_lingering(self.tenants.sweep())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_UPKEEP_INTERVAL):  # not wait_for: that may forget being cancelled
                    await self._awake.wait()

    def _users(self, claim: str) -> list[PodObject]:
        """The Pods that use the claim."""
        return [pod for pod in self.pod_cache if not pod.finished and claim in self.claims.claims_of(pod.metadata.uid)]

    def _persist_cards(self) -> None:
        """An error, such as a full disk, must not stop the upkeep."""
        try:
            self.parts.store.set_cards(self.parts.health.cards)
            while self.parts.store.notes:
                log.warning("database_note", extra={"data": {"note": self.parts.store.notes.pop(0)}})
        except StoreError as error:
            if str(error) != self._store_problem:
                log.warning("cards_not_persisted", extra={"data": {"why": str(error)}})
            self._store_problem = str(error)

    def _nvidia_gpu_is_taken(self, own: int, now: float) -> bool:
        """Whether another plugin serves nvidia.com/gpu, or did just now.

        It registers again after the kubelet restarted, and whoever registers last has the name.
        """
        if self.reporter.nvidia_gpu_is_taken(own):
            self._nvidia_gpu_free_at = now + _PLUGIN_RETURNS
            return True
        return hami.CARDS not in self._offered and now < self._nvidia_gpu_free_at

    async def _advertise(self) -> None:
        """Offer the devices to the kubelet, with those that unhealthy cards take out."""
        node = self.node()
        if not self.dra.offers_resources:
            node = replace(node, offers=frozenset())
        if any(not card.usable for card in node.cards):
            await self._device_holders.refresh()
        held = self._device_holders.cards
        taken = Offer.HAMI in node.offers and self._nvidia_gpu_is_taken(hami.TOKENS * len(node.cards), time.monotonic())
        if (node, held, taken) == self._offered_by:  # building up to 50,000 devices each second would cost too much
            return
        self._offered_by = (node, held, taken)
        wanted = adverts(replace(node, offers=node.offers - hami.OFFERS) if taken else node, self.settings.rules)
        self._refused = wanted if isinstance(wanted, Invalid) else None
        if taken:
            self.reporter.report_refused(TAKEN)
        if isinstance(wanted, Invalid):
            self.reporter.report_refused(wanted)
            wanted = ()
        offered = {advert.resource: tokens(advert, node.cards, held.get(advert.resource, {})) for advert in wanted}
        if hami.CARDS in offered and hami.CARDS not in self._offered:  # the label has come: HAMi's Pods are ours now
            self._adopt(self.foreign_pods.foreign_responses(self.kubelet.checkpoint() or ()))
        if offered != self._offered:
            self._offered = offered
            self.plugins.offer(offered)
