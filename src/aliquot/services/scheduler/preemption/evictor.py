"""Evicts less important Pods where only a card is short.

kube-scheduler adds up what a node has. Where the sum is enough it finds nothing to evict, and an important Pod would
wait for good.

    asked     kube-scheduler asked about nodes for a Pod, and no card of them has room. Those nodes pass all of
              kube-scheduler's own conditions: only there is anybody evicted
    planned   the victims (placement.victims), each allowed by a dry run of its eviction: nobody goes unless all may
    promised  the Pod's nominatedNodeName says where its room will be. Written with the version that was read, so of
              several replicas one acts, and kube-scheduler evicts nobody else for the Pod meanwhile
    leaving   the victims terminate, with their grace periods; what is free of the room is kept for the Pod
    there     all of the room is free: kube-scheduler tries the Pod again. After `_KEEP` seconds the room is given up

The replica that kube-scheduler asked acts. Nothing is remembered elsewhere: after a crash, nominatedNodeName and the
Pods that terminate say what is kept for whom; every replica reads them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.wire.events import ObjectRef
from aliquot.model.backoff import backoff
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.placement.book import occupant_of
from aliquot.placement.reservations import Reservation
from aliquot.placement.victims import Plan, Tenant, plan_on
from aliquot.services.daemon.events import EventSink
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.services.scheduler.preemption import evictionapi
from aliquot.services.scheduler.preemption.evictionapi import Evictee
from aliquot.services.scheduler.preemption.tenants import is_best, nodes_to_examine, outlook_on, plan_for
from aliquot.wording import preemption as wording

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds between two rounds
_SETTLED = 1.0  # seconds after a refusal by which kube-scheduler has said whether it evicts Pods itself
_OFFERED = 30.0  # seconds that kube-scheduler has for its own evictions, before we consider any
_KEEP = 30.0  # seconds for which room that is free is kept
_STUCK = 60.0  # seconds after the end of its grace period; a Pod that is still there is not about to go
_MOST_ASKED = 256  # Pods; the newest
_MOST_PLANS = 8  # in a row, each without the Pods that the API server protects from the one before
_REST = 4.0  # pause after a node was examined, as a multiple of the time taken: binds and filters come first
_PROTECTED = 4.0  # seconds for which a refused eviction is not tried again
_RETRY = 2.0  # seconds between two touches of a Pod whose room is there, and between tries of a refused eviction
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds before a Pod is considered again that could not be helped
_FORBIDDEN = 600.0  # seconds until we try again what our role does not allow


@dataclass(slots=True)
class _Asked:
    """The nodes that kube-scheduler asked about for a Pod in vain."""

    claim: Claim
    names: Sequence[str]
    not_before: float


@dataclass(slots=True)
class _Promise:
    """Room on a node that will be a Pod's."""

    uid: str
    node: str
    until: float  # given up then, unless Pods are still leaving
    grant: Grant | None = None  # None: promised by somebody else, or before we started
    victims: frozenset[str] = frozenset()  # uids of those that we evict for it
    refused: list[Evictee] = field(default_factory=list)  # victims that the API server did not let go after all
    retry_at: float = 0.0
    evict_at: float = 0.0


class Evictor:
    """See the head of the file. `enabled`: whether we evict; room that was promised is kept in any case."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        events: EventSink,
        *,
        enabled: bool,
        clock: Callable[[], float],
        wall: Callable[[], float],
        stamp: Callable[[], str],
    ) -> None:
        self.evicted = 0
        self._kube, self._cluster, self._events = kube, cluster, events
        self.enabled, self._clock, self._wall, self._stamp = enabled, clock, wall, stamp
        self._asked: dict[str, _Asked] = {}  # by the Pods' uids, as all of these; the newest last
        self._promises: dict[str, _Promise] = {}
        self._given_up: dict[str, str] = {}  # promises that came to nothing: their nodes
        self._offered: dict[str, float] = {}  # Pods for which kube-scheduler evicts others: until when we wait for that
        self._failures: dict[str, int] = {}  # how often in a row a Pod could not be helped
        self._protected: dict[str, tuple[float, str]] = {}  # refused evictions: until when they count, and why
        self._forbidden_until = 0.0

    # --- called by the verbs: nothing is computed here -----------------------------------------------------------

    def note_refused(self, claim: Claim, names: Sequence[str]) -> None:
        """No card of these nodes has room for the Pod. Ignored for a Pod that asks for something else, says the API
        server: anybody who may call the verbs can send any claim."""
        uid, known = claim.uid, self._cluster.pending.get(claim.uid)
        if self.enabled and uid not in self._promises and (known is None or known.claim == claim):
            self._asked.pop(uid, None)
            failures = self._failures.get(uid)
            pause = backoff(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE) if failures else _SETTLED
            now = self._clock()
            self._asked[uid] = _Asked(claim, names, max(now + pause, self._offered.get(uid, now)))
            if len(self._asked) > _MOST_ASKED:
                del self._asked[next(iter(self._asked))]

    def note_offered(self, uid: str) -> None:
        """kube-scheduler evicts Pods for it by itself."""
        self._asked.pop(uid, None)
        self._offered[uid] = self._clock() + _OFFERED

    # --- rounds --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self.round()
            except Unreachable as error:
                log.info("preemption_delayed", extra={"data": {"why": str(error)}})
            except ApiError as error:
                self._forbid(error)

    async def round(self) -> None:
        """Look once at all that is under way, and at the Pods that may need room."""
        now = self._clock()
        self._note_nominations(now)
        for promise in list(self._promises.values()):
            try:
                await self._follow(promise, now)
            except ApiError as error:
                self._forbid(error)
        if self.enabled and now >= self._forbidden_until:
            for pod in self._due(now)[:1]:  # each takes many calls: promises are followed between two
                await self._preempt_for(pod, self._asked[pod.uid])

    def _forbid(self, error: ApiError) -> None:
        if evictionapi.lacks_right(error):
            self._forbidden_until = self._clock() + _FORBIDDEN
            hint = "allow create on pods/eviction and patch on pods/status, or start with --no-preemption"
            log.warning("preemption_forbidden", extra={"data": {"why": error.message, "hint": hint}})
        else:
            log.warning("preemption_failed", extra={"data": {"why": str(error)}})

    # --- room that is promised -----------------------------------------------------------------------------------

    def _note_nominations(self, now: float) -> None:
        """Promises that others made: kube-scheduler, another replica, or this one before it started again."""
        pending = self._cluster.pending
        self._given_up = {
            uid: node for uid, node in self._given_up.items() if uid in pending and pending[uid].nominated == node
        }
        self._offered = {uid: until for uid, until in self._offered.items() if uid in pending and now < until}
        self._failures = {uid: count for uid, count in self._failures.items() if uid in pending}
        for uid, pod in pending.items():
            if pod.nominated and uid not in self._promises and uid not in self._given_up:
                self._promises[uid] = _Promise(uid, pod.nominated, now + _KEEP)

    async def _follow(self, promise: _Promise, now: float) -> None:
        cluster, uid = self._cluster, promise.uid
        pod = cluster.pending.get(uid)
        moved = pod is not None and promise.grant is None and pod.nominated != promise.node
        if pod is None or moved or not isinstance(pod.claim, Claim):
            self._drop(promise)
            return
        complete, going = cluster.reserved.complete(uid), self._going()
        victims = promise.victims or {booking.uid for booking in cluster.ledger.on(promise.node)}
        if not complete and not going.isdisjoint(victims):
            promise.until = now + _KEEP
        elif now >= promise.until:
            await self._give_up(promise, pod)
            return
        if cluster.ledger.get(uid) is None:
            self._reserve(promise, pod.claim, pod.priority)
        if promise.refused and now >= promise.evict_at:
            promise.evict_at = now + _RETRY
            await self._evict_remaining(promise, pod)
        if complete and now >= promise.retry_at:
            promise.retry_at = now + _RETRY
            await self._retry(pod)

    def _reserve(self, promise: _Promise, claim: Claim, priority: int) -> None:
        cluster, grant = self._cluster, promise.grant
        if grant is None:
            outlook = outlook_on(cluster, claim.uid, priority, promise.node, going=self._going())
            plan = plan_on(cluster.chooser, claim, promise.node, (), outlook)
            if plan is None:  # what leaves is not enough: nothing to keep
                return
            grant = plan.grant
        cluster.reserved.keep(Reservation(claim.uid, grant.node, occupant_of(claim, grant), priority))

    def _drop(self, promise: _Promise) -> None:
        self._promises.pop(promise.uid, None)
        self._cluster.reserved.drop(promise.uid)

    async def _give_up(self, promise: _Promise, pod: Pending) -> None:
        self._drop(promise)
        self._given_up[pod.uid] = promise.node
        if promise.grant is None:
            return
        self._failures[pod.uid] = self._failures.get(pod.uid, 0) + 1
        log.info("promised_room_given_up", extra={"data": {"pod": pod.key, "node": promise.node}})
        try:
            if pod.nominated == promise.node:
                await evictionapi.withdraw_nomination(self._kube, pod.key, pod.uid)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def _retry(self, pod: Pending) -> None:
        try:
            await evictionapi.retry(self._kube, pod.key, pod.uid, self._stamp())
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("pod_retry_failed", extra={"data": {"pod": pod.key, "why": str(error)}})

    def _going(self) -> set[str]:
        """Pods that terminate and are about to be gone."""
        now = self._wall()
        return {uid for uid, until in self._cluster.going.items() if now < _seconds(until) + _STUCK}

    # --- making room ---------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Pending]:
        """The Pods to consider, the most important first."""
        pending, priorities = self._cluster.pending, self._cluster.priorities
        lowest = min(0, min(priorities.values(), default=0))
        found = []
        for uid, asked in list(self._asked.items()):
            pod = pending.get(uid)
            if pod is None:  # our watch may be behind kube-scheduler's
                useless = now >= asked.not_before
            else:
                useless = not pod.preempts or pod.priority <= lowest or pod.claim != asked.claim
            if useless or uid in self._promises:
                del self._asked[uid]
            elif pod is not None and pod.refused and not pod.nominated and now >= asked.not_before:
                found.append(pod)
        return sorted(found, key=lambda pod: -pod.priority)

    async def _preempt_for(self, pod: Pending, asked: _Asked) -> None:
        assert isinstance(pod.claim, Claim)
        self._asked.pop(pod.uid, None)  # kube-scheduler asks again where it comes to nothing
        for _ in range(_MOST_PLANS):
            plan = await self._best_plan(pod, asked.names)
            current = self._cluster.pending.get(pod.uid)
            if plan is None or current is None or current.nominated:
                return
            if any(victim.protected for victim in plan.victims):
                self._report_blocked(pod, plan)
                self._failures[pod.uid] = self._failures.get(pod.uid, 0) + 1
                self.note_refused(asked.claim, asked.names)
                return
            if await self._all_may_go(plan):
                break
        else:
            return
        # What is decided now counts: the board may have changed while we asked.
        again = self._plan_on(pod, plan.grant.node)
        if again is None or _uids(again) != _uids(plan):
            self.note_refused(asked.claim, asked.names)
            return
        if not plan.victims and not self._is_left_by_lesser(pod, plan.grant.node):
            return
        if await evictionapi.nominate(self._kube, pod.key, pod.uid, plan.grant.node):
            await self._carry_out(pod, plan)

    def _is_left_by_lesser(self, pod: Pending, node: str) -> bool:
        """Whether less important Pods leave the room there, or give up what was kept for them: then it is kept for this
        one. So a preemption goes on after a crash, even where kube-scheduler has withdrawn the Pod's nomination."""
        cluster, going = self._cluster, self._going()
        return any(kept.priority < pod.priority for kept in cluster.reserved.on(node)) or any(
            booking.uid in going and booking.occupant.usage and cluster.priorities.get(booking.uid, 0) < pod.priority
            for booking in cluster.ledger.on(node)
        )

    async def _best_plan(self, pod: Pending, names: Sequence[str]) -> Plan | None:
        """The cheapest victims on these nodes; None where nothing helps."""
        assert isinstance(pod.claim, Claim)
        best: Plan | None = None
        for name, least in nodes_to_examine(self._cluster, pod.claim, pod.priority, names).items():
            if is_best(best, least):
                break
            began = self._clock()
            plan = self._plan_on(pod, name)
            if plan is not None and (best is None or plan.cost < best.cost):
                best = plan
            await asyncio.sleep(_REST * (self._clock() - began))
        return best

    def _plan_on(self, pod: Pending, node: str) -> Plan | None:
        assert isinstance(pod.claim, Claim)
        now = self._clock()
        self._protected = {uid: kept for uid, kept in self._protected.items() if kept[0] > now}
        protected = self._protected.keys()
        return plan_for(self._cluster, pod.claim, pod.priority, node, going=self._going(), protected=protected)

    async def _all_may_go(self, plan: Plan) -> bool:
        """Ask the API server about every victim, without evicting any; those that it protects are remembered."""
        allowed = True
        for victim in [self._evictee(tenant) for tenant in self._remaining(plan)]:
            why = await evictionapi.evict(self._kube, victim, dry_run=True)
            if why:
                self._protected[victim.uid] = (self._clock() + _PROTECTED, why)
                allowed = False
        return allowed

    async def _carry_out(self, pod: Pending, plan: Plan) -> None:
        assert isinstance(pod.claim, Claim)
        now, grant = self._clock(), plan.grant
        remaining = self._remaining(plan)
        victims = [self._evictee(victim) for victim in remaining]
        # All count as refused until they are evicted: should one call fail, the next round goes on.
        promise = self._promises[pod.uid] = _Promise(
            pod.uid, grant.node, now + _KEEP, grant, frozenset(_uids(plan)), [*victims], evict_at=now + _RETRY
        )
        if self._cluster.ledger.get(pod.uid) is None:
            self._reserve(promise, pod.claim, pod.priority)
        log.info(
            "preempting",
            extra={"data": {"pod": pod.key, "node": grant.node, "victims": [victim.key for victim in victims]}},
        )
        if victims:
            namespace = pod.key.split("/", 1)[0]
            text = wording.preempting([self._words(victim) for victim in remaining], grant, namespace)
            self._events.emit(_ref(pod.uid, pod.key), "Preempting", text, type="Normal", action="Preempting")
        await self._evict_remaining(promise, pod)

    async def _evict_remaining(self, promise: _Promise, pod: Pending) -> None:
        """Evict the victims that are still there, as long as the Pod waits for their room."""
        cluster = self._cluster
        for victim in list(promise.refused):
            if pod.uid not in cluster.pending:
                return
            if cluster.reserved.complete(pod.uid):
                promise.refused.clear()
            elif cluster.ledger.get(victim.uid) is None or not await self._evict(victim, pod, promise.grant):
                promise.refused.remove(victim)

    async def _evict(self, victim: Evictee, pod: Pending, grant: Grant | None) -> str:
        """Evict it; returns why it is still there."""
        why = await evictionapi.evict(self._kube, victim)
        if not why and grant is not None:
            self.evicted += 1
            assert isinstance(pod.claim, Claim)
            preemptor = wording.Victim(pod.key, pod.priority, pod.claim.app_class)
            text = wording.preempted(preemptor, grant, victim.key.split("/", 1)[0])
            self._events.emit(_ref(victim.uid, victim.key), "Preempted", text, type="Warning", action="Preempting")
        return why

    def _report_blocked(self, pod: Pending, plan: Plan) -> None:
        victims = self._remaining(plan)
        why = next((self._protected[victim.uid][1] for victim in victims if victim.uid in self._protected), "")
        namespace = pod.key.split("/", 1)[0]
        text = wording.blocked([self._words(victim) for victim in victims], plan.grant, why, namespace)
        if victims:
            self._events.emit(_ref(pod.uid, pod.key), "PreemptionBlocked", text, type="Warning", action="Preempting")

    def _remaining(self, plan: Plan) -> list[Tenant]:
        """The victims that have not ended since the plan was made."""
        ledger = self._cluster.ledger
        return [victim for victim in plan.victims if ledger.get(victim.uid) is not None and self._key(victim.uid)]

    def _evictee(self, tenant: Tenant) -> Evictee:
        return Evictee(tenant.uid, self._key(tenant.uid))

    def _words(self, tenant: Tenant) -> wording.Victim:
        return wording.Victim(self._key(tenant.uid), tenant.priority, tenant.occupant.app_class)

    def _key(self, uid: str) -> str:
        placed = self._cluster.placed.get(uid)
        if placed is not None:
            return placed.claim.key
        return next((key for key, seen in self._cluster.seen.items() if seen == uid), "")  # it has no card, or is gone


def _uids(plan: Plan) -> set[str]:
    return {victim.uid for victim in plan.victims}


def _ref(uid: str, key: str) -> ObjectRef:
    namespace, name = key.split("/", 1)
    return ObjectRef("Pod", name, namespace, uid)


def _seconds(stamp: str) -> float:
    """A time of the API server in seconds since 1970; one that cannot be read is long ago."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
