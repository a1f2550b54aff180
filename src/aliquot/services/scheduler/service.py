"""`aliquot scheduler`: reflectors into the cluster, the extender over it, and what only the leader does.

    reflectors   nodes, Pods, the ConfigMaps that take cards out  -> cluster (services/scheduler/cluster.py)
    extender     filter, prioritize, bind for kube-scheduler; forwarded to the leader where only it may
    leader       binds, tells waiting Pods why, tries them again, keeps nodes' taints, labels and conditions
    webhook      where it is switched on

One process, one thread: between a decision and its booking nothing runs.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aiohttp import web

from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects import DIALECTS, MemoryUnit, QgpuRules, Rules, gpushare
from aliquot.dialects.wire.admission import render_env_annotations
from aliquot.dialects.wire.objects import ConfigMapObject, NodeObject, PodObject
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.events import Events
from aliquot.services.daemon.http import quiet_runner
from aliquot.services.daemon.tasks import for_ever, told_to_end
from aliquot.services.dashboard.access import NOWHERE, Access, Listen
from aliquot.services.dashboard.server import show, take_place
from aliquot.services.scheduler.agenthandover import Farewells
from aliquot.services.scheduler.binder import Binder
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.dashboard.agentclient import AgentAsking
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.picture import ClusterPicture, Surroundings
from aliquot.services.scheduler.election import Election
from aliquot.services.scheduler.http import Extender
from aliquot.services.scheduler.metrics import exposition
from aliquot.services.scheduler.nodeupkeep import NodeKeeper
from aliquot.services.scheduler.pendingpods import Waiting
from aliquot.services.scheduler.sinks import ConfigSink, NodeSink, PodSink

if TYPE_CHECKING:
    from aliquot.services.scheduler.webhook import WebhookSettings

log = logging.getLogger(__name__)

_LAST_WORDS = 10.0  # seconds for what is under way when we are told to end
_LAST_REVIEWS = 3.0  # seconds in which API servers still send reviews: they hear a moment later that we end


@dataclass(frozen=True, slots=True)
class Settings:
    """What a scheduler is told at its start."""

    port: int = 12345
    bind_address: str = "0.0.0.0"  # noqa: S104  # kube-scheduler is on another machine, as a rule
    priority: str = "binpack"
    shortlist: int = 1
    served: frozenset[str] = frozenset(DIALECTS)
    rules: QgpuRules = QgpuRules.SEED
    memory_unit: MemoryUnit | None = None  # None: by what the nodes advertise
    leader_elect: bool = True
    lease_namespace: str = "kube-system"
    lease_name: str = "aliquot-scheduler"
    advertise: str = ""  # host:port at which other instances reach this one
    identity: str = ""
    keep_nodes: bool = True
    webhook: WebhookSettings | None = None  # None: it is off
    dashboard: Listen = NOWHERE
    agent_port: int = 9479  # where nodes' agents answer, on nodes' own addresses; 0: they are not asked
    reconcile_seconds: float = 300.0


class Scheduler:
    """One instance: its parts, put together."""

    def __init__(self, server: Server, settings: Settings) -> None:
        self.settings = settings
        self.kube = kube = Kube(server, agent="aliquot-scheduler")
        rules = Rules(settings.rules, settings.memory_unit or MemoryUnit.GIB, settings.served)
        self.cluster = cluster = Cluster(settings.priority, rules, settings.shortlist)
        self.calls = Calls(_stamp)
        self.events = Events(kube, "aliquot-scheduler", time.time)
        self.election = self._election()
        self.keeper = (
            NodeKeeper(kube, self.events, is_leader=self._leading, clock=time.time, rules=lambda: cluster.rules)
            if settings.keep_nodes
            else None
        )
        self.farewells = Farewells(kube, cluster, leading=self._leading)
        node_sink = NodeSink(
            cluster,
            self.keeper,
            unit_known=settings.memory_unit is not None,
            reread=self._reread_pods,
            farewells=self.farewells,
        )
        self.nodes = Reflector(kube, "/api/v1/nodes", NodeObject, node_sink)
        self.pods = Reflector(kube, "/api/v1/pods", PodObject, PodSink(cluster), after=self.nodes.synced)
        self.configs = Reflector(
            kube, "/api/v1/namespaces/kube-system/configmaps", ConfigMapObject, ConfigSink(cluster, self.keeper)
        )
        self.binder = Binder(
            kube,
            cluster,
            may_write=self._leading,
            heard=self.pods.hear,
            now_ns=time.time_ns,
            more_annotations=self._env_annotations,
        )
        self.waiting = Waiting(kube, cluster, self.events, leading=self._leading, clock=time.monotonic, stamp=_stamp)
        self.extender = Extender(
            cluster,
            self.binder,
            self.calls,
            synced=self._synced,
            leading=self._leading,
            leader_address=lambda: self.election.leader_address,
            metrics=self._scraped,
            clock=time.monotonic,
        )
        self._rereading: asyncio.Task[None] | None = None
        self._dashboard: tuple[socket.socket, Access] | None = None

    def _election(self) -> Election:
        settings = self.settings
        everywhere = settings.bind_address in ("0.0.0.0", "::", "")  # noqa: S104  # asked, not listened on
        ours = f"{_own_address() if everywhere else settings.bind_address}:{settings.port}"
        return Election(
            self.kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            # By name and address: replicas that are all given one hostname are still not one candidate.
            identity=settings.identity or f"{socket.gethostname()}_{ours}",
            address=settings.advertise or ours,
            calls=self.calls.told,
            refresh=self._refresh,
            clock=time.monotonic,
        )

    async def run(self) -> None:
        """Until SIGTERM or SIGINT; then what is under way is finished, and the Lease given back.

        Raises OSError where a port is taken.
        """
        stop = told_to_end()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.kube)
            await self._listen(stack)
            tasks = {work: asyncio.create_task(for_ever(work)) for work in self._works()}
            await stop.wait()
            await self._end(tasks)

    async def _listen(self, stack: AsyncExitStack) -> None:
        settings = self.settings
        # The port is ours before the identity is: two processes of one name cannot both be here.
        listener = socket.create_server((settings.bind_address, settings.port), backlog=1024)
        stack.callback(listener.close)
        if settings.webhook is not None:  # a look only; it listens once it has keys
            self.extender.awaited = "the webhook does not listen yet"  # a Service is not to send reviews here before
            socket.create_server((settings.webhook.bind_address, settings.webhook.port)).close()
        self._dashboard = take_place(settings.dashboard, "--dashboard")
        if self._dashboard is not None:
            stack.callback(self._dashboard[0].close)
            log.info("dashboard", extra={"data": {"url": self._dashboard[1].url}})
        runner = quiet_runner(self.extender.app())
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, listener).start()
        where = f"{settings.bind_address}:{settings.port}"
        log.info("listening", extra={"data": {"address": where, "identity": self.election.identity}})

    def _works(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs as long as we do."""
        return [
            self.nodes.run,
            self.pods.run,
            self.events.run,
            self.waiting.run,
            self._reconcile,
            self._settle_memory,
            *([self.configs.run] if self._heeds_configs else []),
            *([self.election.run] if self.settings.leader_elect else []),
            self.farewells.run,
            *([self.keeper.run] if self.keeper is not None else []),
            *([self._webhook] if self.settings.webhook is not None else []),
            *([self._show] if self._dashboard is not None else []),
        ]

    async def _end(self, tasks: Mapping[Callable[[], Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        log.info("stopping")
        self.extender.stopping = True
        try:
            await asyncio.wait_for(self.binder.settle(), _LAST_WORDS)
            if self.settings.leader_elect:
                await self.election.resign()
        except TimeoutError:  # nobody else may lead before these have an outcome: the Lease runs out by itself
            log.warning("ending with binds under way", extra={"data": {"binds": self.binder.busy}})
        for work, task in tasks.items():
            if work != self._webhook:
                task.cancel()
        if self.settings.webhook is not None and not isinstance(self.settings.webhook.where, str):
            await asyncio.sleep(_LAST_REVIEWS)  # behind a Service
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _webhook(self) -> None:
        from aliquot.services.scheduler.webhook import serve_webhook  # its cryptography is loaded where it is wanted

        assert self.settings.webhook is not None
        await serve_webhook(
            self.kube,
            self.settings.webhook,
            lambda: self.cluster.rules,
            is_leader=self._leading,
            on_call=lambda verb: self.calls.count(verb, "ok", 0.0),
            clock=time.time,
            on_listening=self._webhook_listens,
        )

    def _webhook_listens(self) -> None:
        self.extender.awaited = ""

    async def _show(self) -> None:
        assert self._dashboard is not None
        ask = AgentAsking(self.cluster.addresses, self.settings.agent_port) if self.settings.agent_port else None
        around = Surroundings(
            name=self.kube.server.url.partition("://")[2],
            leading=self._leading,
            metrics=self._scraped,
            ask_agent=ask,
        )
        picture = ClusterPicture(self.cluster, Details(self.cluster, self.waiting.known_reason), around)
        try:
            await show(picture, *self._dashboard)
        finally:
            if ask is not None:
                await ask.close()

    # --- what the parts ask of each other -------------------------------------------------------------------------

    def _leading(self) -> bool:
        return self.election.leading if self.settings.leader_elect else self._synced()

    def _env_annotations(self, placed: Placed) -> dict[str, str]:
        """What containers are promised as environment, where the webhook has them read it from annotations."""
        webhook, node = self.settings.webhook, self.cluster.board.node(placed.grant.node)
        if webhook is None or not webhook.admission.env_by_field_ref or node is None:
            return {}
        return render_env_annotations(placed.claim, placed.grant, node, self.cluster.rules)

    def _synced(self) -> bool:
        """Whether we may answer. Sick cards are known by then, or we have no right to know them."""
        return self._listed() and (self.configs.answered.is_set() or not self._heeds_configs)

    @property
    def _heeds_configs(self) -> bool:
        """They are gpushare's way of taking cards out; without it we need no right to read them."""
        return gpushare.DIALECT in self.settings.served

    def _listed(self) -> bool:
        return self.nodes.synced.is_set() and self.pods.synced.is_set()

    async def _refresh(self, others_wrote: bool = True) -> None:
        """Everything as the API server has it now, or later. The first list may be of before now: somebody else's
        last binds may not be in it."""
        listed = self._listed()
        await self.nodes.synced.wait()
        await self.pods.synced.wait()
        if listed or others_wrote:
            await asyncio.gather(self.nodes.relist(), self.pods.relist())

    async def _reconcile(self) -> None:
        """From time to time compare what the watches told with what is there."""
        while True:
            await asyncio.sleep(self.settings.reconcile_seconds)
            await self._refresh()

    async def _settle_memory(self) -> None:
        """What is loaded at the start stays: the collector need not look at it, neither meanwhile nor ever after."""
        gc.disable()
        try:
            await self.pods.synced.wait()
        finally:
            gc.enable()
        told = {"nodes": int(self.cluster.board.present.sum()), "pods": len(self.cluster.seen)}
        log.info("the cluster is read", extra={"data": {**told, "server": self.kube.server.url}})
        gc.collect()
        gc.freeze()

    def _reread_pods(self) -> None:
        if self.pods.synced.is_set():
            self.pods.tell_again()
            self._rereading = asyncio.get_running_loop().create_task(self.pods.relist())

    def _scraped(self) -> bytes:
        return exposition(
            self.cluster,
            self.calls,
            {
                "aliquot_leading": ("1 where this instance binds.", float(self._leading())),
                "aliquot_binds_under_way": ("Binds without an outcome yet.", self.binder.busy),
            },
            {
                "aliquot_relists": ("Lists after the first.", self.nodes.relists + self.pods.relists),
                "aliquot_drift": ("What those found that no watch had told.", self.nodes.drift + self.pods.drift),
                "aliquot_pods_retried": ("Waiting Pods touched to be tried again.", self.waiting.touched),
                "aliquot_events_written": ("Events written.", self.events.written),
            },
        )


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _own_address() -> str:
    """The address that others see us at, by the route out; nothing is sent."""
    for family, anybody, form in ((socket.AF_INET, "192.0.2.1", "{}"), (socket.AF_INET6, "2001:db8::1", "[{}]")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((anybody, 9))
                return form.format(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
