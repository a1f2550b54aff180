"""`aliquot scheduler`: builds one instance from its parts and runs it.

    reflectors   watch Nodes, Pods and the ConfigMaps that take cards out of use -> `Cluster`
    extender     answers kube-scheduler's filter, prioritize, bind and preempt; followers forward bind to the leader
    read port    metrics, probes and status, without those verbs
    evictor      makes room for important Pods where only a card is short
    rejected     deletes Pods that a kubelet rejected while no agent answered, so that their controllers make others
    leader       binds, reports why Pods are pending, retries them, maintains taints, labels and conditions of Nodes
    webhook      optional

One process, one thread: nothing else runs between a decision and its booking.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from typing import Any

from aliquot.adapters.kubernetes.credentials import KubeConfigError
from aliquot.adapters.kubernetes.kube import Kube, Server
from aliquot.dialects import MemoryUnit, Rules
from aliquot.dialects.wire.ownpods import account_of_token
from aliquot.dialects.wire.webhook.admission import render_env_annotations
from aliquot.services.daemon.calls import Calls
from aliquot.services.daemon.events import Events
from aliquot.services.daemon.memory import freeze
from aliquot.services.daemon.tasks import run_forever, termination_signal
from aliquot.services.dashboard.access import is_loopback
from aliquot.services.dashboard.server import show
from aliquot.services.scheduler.agenthandover import AgentHandover
from aliquot.services.scheduler.binder import Binder
from aliquot.services.scheduler.cluster import Cluster, Placed
from aliquot.services.scheduler.dashboard.agentclient import AgentClient
from aliquot.services.scheduler.dashboard.details import Details
from aliquot.services.scheduler.dashboard.resourceclaims import ResourceClaims
from aliquot.services.scheduler.dashboard.view import ClusterView, Surroundings
from aliquot.services.scheduler.election import Election
from aliquot.services.scheduler.groups.gathering import Gathering
from aliquot.services.scheduler.listening import WEBHOOK, Ports
from aliquot.services.scheduler.metrics import exposition
from aliquot.services.scheduler.nodeupkeep import NodeUpkeep
from aliquot.services.scheduler.pendingpods import PendingPods
from aliquot.services.scheduler.ports.http import Extender
from aliquot.services.scheduler.ports.verbstls import VerbsKeys
from aliquot.services.scheduler.preemption.evictor import Evictor
from aliquot.services.scheduler.rejectedpods import RejectedPods
from aliquot.services.scheduler.settings import Settings
from aliquot.services.scheduler.watches.firstlists import AGENT, Started
from aliquot.services.scheduler.watches.following import Watches

log = logging.getLogger(__name__)

_BIND_GRACE = 10.0  # seconds that binds in progress have to finish at shutdown
_LIST_GRACE = 1.0  # seconds that a review waits for the first list of Nodes; the API server waits 2 for us
_START_GRACE = 10.0  # seconds that what is less urgent than the first answer waits for the first lists
_FIRST_CALLS = 1.0  # seconds after the first lists that are kube-scheduler's alone
_REVIEW_GRACE = 3.0  # seconds in which API servers still send reviews: they learn late that our endpoint is gone


class Scheduler:
    """One instance and its parts."""

    def __init__(self, server: Server, settings: Settings, started: Started | None = None) -> None:
        self.settings = settings
        self._started = started
        self.kube = kube = Kube(server, agent=AGENT) if started is None else started.kube
        rules = Rules(settings.rules, settings.memory_unit or MemoryUnit.GIB, settings.served, _own_account(server))
        says_mib = settings.memory_unit is MemoryUnit.MIB
        self.cluster = cluster = Cluster(settings.priority, rules, settings.shortlist, says_mib=says_mib)
        self.calls = Calls(_stamp)
        self.verbs_keys = None if settings.tls is None else VerbsKeys(kube, settings.tls, clock=time.time)
        self.events = Events(kube, "aliquot-scheduler", time.time)
        self.upkeep = (
            NodeUpkeep(
                kube,
                self.events,
                is_leader=self._leading,
                clock=time.time,
                rules=lambda: cluster.rules,
                drivers=cluster.reported.drivers.on,
            )
            if settings.keep_nodes
            else None
        )
        self.handover = AgentHandover(kube, cluster, leading=self._leading)
        self.rejected = RejectedPods(
            kube,
            cluster,
            self.events,
            leading=self._leading,
            clock=time.monotonic,
            deletes=settings.preemption,  # --no-preemption does without the right
        )
        lists = None if started is None else started.lists
        self.watches = Watches(kube, cluster, settings, self.upkeep, self.handover, self.rejected, lists)
        self.election = self._election()
        self.claims = ResourceClaims(kube, cluster)
        self.binder = Binder(
            kube,
            cluster,
            may_write=self._leading,
            on_pod=self.watches.pods.observe,
            now_ns=time.time_ns,
            extra_annotations=self._env_annotations,
            gathering=Gathering(cluster),
        )
        self.pending_pods = PendingPods(
            kube,
            cluster,
            self.events,
            leading=self._leading,
            clock=time.monotonic,
            stamp=_stamp,
            groups_known=self.watches.groups.known,
        )
        self.evictor = Evictor(
            kube,
            cluster,
            self.events,
            # Who calls the verbs chooses the nodes: on a port that is open to all, that would be anybody.
            enabled=settings.preemption and is_loopback(settings.bind_address),
            clock=time.monotonic,
            wall=time.time,
            stamp=_stamp,
        )
        self.extender = Extender(
            cluster,
            self.binder,
            self.calls,
            synced=self.watches.synced,
            leading=self._leading,
            leader_address=lambda: self.election.leader_address,
            peers=lambda: self.verbs_keys.peers if self.verbs_keys is not None and self.verbs_keys.keys else None,
            clock=time.monotonic,
            evictor=self.evictor,
            claims=self.claims.known,
        )
        self.ports = Ports(settings, self.extender, self.verbs_keys)

    def _election(self) -> Election:
        settings = self.settings
        bound, port = (settings.tls or settings).bind_address, (settings.tls or settings).port
        wildcard = bound in ("0.0.0.0", "::", "")  # noqa: S104  # a comparison, not a bind
        own = f"{_own_address() if wildcard else bound}:{port}"
        address = settings.advertise or own
        return Election(
            self.kube,
            namespace=settings.lease_namespace,
            name=settings.lease_name,
            # Name and address: replicas that share one hostname are still different candidates.
            identity=settings.identity or f"{socket.gethostname()}_{own}",
            address=f"https://{address}" if settings.tls is not None and "://" not in address else address,
            calls=self.calls.status,
            refresh=self.watches.refresh,
            clock=time.monotonic,
        )

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT; then finish the binds in progress and release the Lease.

        Raises OSError if a port is taken.
        """
        stop = termination_signal()
        async with AsyncExitStack() as stack:
            if self._started is None:
                await stack.enter_async_context(self.kube)
            await self.ports.open(stack, self._metrics, self.election.identity)
            tasks = {work: asyncio.create_task(run_forever(work)) for work in self._programs()}
            await stop.wait()
            await self._shut_down(tasks)

    def _programs(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """What runs for the whole lifetime of the process."""
        return [
            *self.watches.programs(),
            self.events.run,
            self.pending_pods.run,
            self.evictor.run,
            self._freeze_memory,
            *([self.election.run] if self.settings.leader_elect else []),
            self.handover.run,
            self.rejected.run,
            *([self._keep_nodes] if self.upkeep is not None else []),
            *([self._webhook] if self.settings.webhook is not None else []),
            *([self.ports.serve_with_tls] if self.settings.tls is not None else []),
            self.claims.run,
            *([self._show] if self.ports.dashboard is not None else []),
        ]

    async def _shut_down(self, tasks: Mapping[Callable[[], Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        log.info("scheduler_stopping")
        self.extender.stopping = True
        try:
            await asyncio.wait_for(self.binder.settle(), _BIND_GRACE)
            if self.settings.leader_elect:
                await self.election.resign()
        except TimeoutError:  # no other may lead before these binds have an outcome: let the Lease expire
            log.warning("binds_unfinished_at_exit", extra={"data": {"binds": self.binder.busy}})
        for work, task in tasks.items():
            if work != self._webhook:
                task.cancel()
        if self.settings.webhook is not None and not isinstance(self.settings.webhook.where, str):
            await asyncio.sleep(_REVIEW_GRACE)  # behind a Service
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def _keep_nodes(self) -> None:
        assert self.upkeep is not None
        await self.watches.slices.answered.wait()  # a node whose cards a DRA driver hands out gets no label
        await self._pods_listed()
        await self.upkeep.run()

    async def _webhook(self) -> None:
        from aliquot.services.scheduler.ports.webhook import serve_webhook  # loads cryptography only if needed

        assert self.settings.webhook is not None
        await serve_webhook(
            self.kube,
            self.settings.webhook,
            lambda: self.cluster.admission_rules,
            is_leader=self._leading,
            on_call=lambda verb: self.calls.count(verb, "ok", 0.0),
            clock=time.time,
            on_waiting=lambda why: self.ports.set_state(WEBHOOK, why),
            before_review=self._nodes_listed,
        )

    async def _nodes_listed(self) -> None:
        """The rules of reviews depend on the Nodes. API servers that call us by URL do not wait until we are ready."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.watches.nodes.synced.wait(), _LIST_GRACE)

    async def _pods_listed(self) -> None:
        """A look at each of thousands of nodes would delay the first answer to kube-scheduler."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_GRACE):
                await self.watches.pods.synced.wait()

    async def _answering(self) -> None:
        """The same, and what kube-scheduler asks then is answered: it cannot be while all nodes are laid out, a third
        of a second for 15,000."""
        await self._pods_listed()
        await asyncio.sleep(_FIRST_CALLS)

    async def _show(self) -> None:
        assert self.ports.dashboard is not None
        port, addresses = self.settings.agent_port, self.cluster.reported.addresses
        ask = AgentClient(addresses, port) if port else None
        around = Surroundings(
            name=self.kube.server.url.partition("://")[2],
            leading=self._leading,
            metrics=self._metrics,
            ask_agent=ask,
        )
        view = ClusterView(self.cluster, Details(self.cluster, self.claims.known), around)
        try:
            await show(view, *self.ports.dashboard, before=self._answering)
        finally:
            if ask is not None:
                await ask.close()

    # --- callbacks of the parts -----------------------------------------------------------------------------------

    def _leading(self) -> bool:
        return self.election.leading if self.settings.leader_elect else self.watches.synced()

    def _env_annotations(self, placed: Placed) -> dict[str, str]:
        """The environment of the containers, if the webhook makes them read it from annotations."""
        webhook, node = self.settings.webhook, self.cluster.board.node(placed.grant.node)
        if webhook is None or not webhook.admission.env_by_field_ref or node is None:
            return {}
        return render_env_annotations(placed.claim, placed.grant, node, self.cluster.rules)

    async def _freeze_memory(self) -> None:
        await freeze(self.watches.pods.synced, collecting=False)
        size = {"nodes": int(self.cluster.board.present.sum()), "pods": len(self.cluster.seen)}
        log.info("cluster_synced", extra={"data": {**size, "server": self.kube.server.url}})

    def _metrics(self) -> bytes:
        return exposition(
            self.cluster,
            self.calls,
            {
                "aliquot_leading": ("1 if this instance is the leader.", float(self._leading())),
                "aliquot_binds_under_way": ("Binds without an outcome yet.", self.binder.busy),
            },
            {
                "aliquot_relists": (
                    "Lists after the first one.",
                    self.watches.nodes.relists + self.watches.pods.relists,
                ),
                "aliquot_drift": (
                    "Differences those lists found that no watch had reported.",
                    self.watches.nodes.drift + self.watches.pods.drift,
                ),
                "aliquot_pods_retried": (
                    "Pending Pods annotated so that kube-scheduler retries them.",
                    self.pending_pods.retried,
                ),
                "aliquot_pods_preempted": (
                    "Pods that this instance evicted for more important ones.",
                    self.evictor.evicted,
                ),
                "aliquot_events_written": ("Events written.", self.events.written),
            },
        )


def _stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _own_account(server: Server) -> str | None:
    """The service account that we run as, by our own token; None with another credential."""
    if server.credential.by_program:
        return None
    try:
        return account_of_token(server.credential.token(time.monotonic()))
    except KubeConfigError:  # not there yet: what asks the API server says so
        return None


def _own_address() -> str:
    """The source address of our default route. Sends nothing."""
    for family, remote, form in ((socket.AF_INET, "192.0.2.1", "{}"), (socket.AF_INET6, "2001:db8::1", "[{}]")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((remote, 9))
                return form.format(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"
