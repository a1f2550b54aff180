"""The room that is promised to a Pod: kept while its victims leave, and given up when nothing comes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.placement.book import occupant_of
from aliquot.placement.preemption.reservations import Reservation
from aliquot.placement.preemption.victims import Plan, plan_on
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.services.scheduler.preemption import evictionapi
from aliquot.services.scheduler.preemption.evictionapi import Evictee, Unsure
from aliquot.services.scheduler.preemption.evictions import Evictions
from aliquot.services.scheduler.preemption.tenants import outlook_on

log = logging.getLogger(__name__)

_KEEP = 30.0  # seconds for which room that is free is kept
_STUCK = 60.0  # seconds after the end of its grace period; a Pod that is still there is not about to go
_RETRY = 2.0  # seconds between two touches of a Pod whose room is there, and between tries of what failed


@dataclass(slots=True)
class _Promise:
    """Room on a node that will be a Pod's."""

    uid: str
    node: str
    until: float  # given up then, unless Pods are still leaving
    grant: Grant | None = None  # None: promised by another scheduler, or before we started
    victims: frozenset[str] = frozenset()  # uids of those that we evict for it
    refused: list[Evictee] = field(default_factory=list)  # victims that the API server did not let go after all
    retry_at: float = 0.0
    evict_at: float = 0.0


@dataclass(slots=True)
class _Lost:
    """A nomination to withdraw: the answer to a call about it was lost, so the Pod may have it or still get it."""

    node: str
    retry_at: float = 0.0


class Promises:
    """See the head of the file. `failed` is called for a Pod whose promise came to nothing."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        evictions: Evictions,
        *,
        failed: Callable[[str], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        stamp: Callable[[], str],
    ) -> None:
        self._kube, self._cluster, self._evictions, self._failed = kube, cluster, evictions, failed
        self._clock, self._wall, self._stamp = clock, wall, stamp
        self._promises: dict[str, _Promise] = {}  # by the Pods' uids, as all of these
        self._given_up: dict[str, str] = {}  # promises that came to nothing: their nodes
        self._lost: dict[str, _Lost] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._promises

    def is_unsure(self, uid: str) -> bool:
        """Whether a nomination of the Pod may still appear that is to be withdrawn."""
        return uid in self._lost

    def note_nominations(self, now: float) -> None:
        """Promises that others made: kube-scheduler, another replica, or this one before it started again."""
        pending = self._cluster.pending
        self._given_up = {
            uid: node for uid, node in self._given_up.items() if uid in pending and pending[uid].nominated == node
        }
        for uid, pod in pending.items():
            if pod.nominated and not any(uid in known for known in (self._promises, self._given_up, self._lost)):
                self._promises[uid] = _Promise(uid, pod.nominated, now + _KEEP)

    async def nominate(self, pod: Pending, node: str) -> bool:
        """Promise the node to the Pod; False where that is not possible. Where the answer is lost, `follow_all`
        withdraws what was perhaps written: no Pod was evicted, and the Pod would wait for room that never comes. Where
        nothing was sent, there is nothing to withdraw but what another replica wrote."""
        try:
            return await evictionapi.nominate(self._kube, pod.key, pod.uid, node)
        except Unsure:
            self._lost[pod.uid] = _Lost(node)
            self._failed(pod.uid)
            raise

    async def carry_out(self, pod: Pending, plan: Plan) -> None:
        """Evict the victims, and keep their room for the Pod."""
        assert isinstance(pod.claim, Claim)
        now, grant = self._clock(), plan.grant
        remaining = self._evictions.remaining(plan)
        victims = [self._evictions.evictee(victim) for victim in remaining]
        # All count as refused until they are evicted: should one call fail, the next round goes on.
        uids = frozenset(victim.uid for victim in plan.victims)
        promise = _Promise(pod.uid, grant.node, now + _KEEP, grant, uids, [*victims], evict_at=now + _RETRY)
        self._promises[pod.uid] = promise
        if self._cluster.ledger.get(pod.uid) is None:
            self._reserve(promise, pod.claim, pod.priority)
        log.info(
            "pods_preempted",
            extra={"data": {"pod": pod.key, "node": grant.node, "victims": [victim.key for victim in victims]}},
        )
        if victims:
            self._evictions.report_preempting(pod, remaining, grant)
        await self._evict_remaining(promise, pod)

    async def follow_all(self, now: float, forbidden: Callable[[ApiError], None]) -> None:
        """Look once at every promise."""
        for promise in list(self._promises.values()):
            try:
                await self._follow(promise, now)
            except ApiError as error:
                forbidden(error)
        for uid, lost in list(self._lost.items()):
            if now >= lost.retry_at:
                lost.retry_at = now + _RETRY
                await self._withdraw(uid, lost)

    async def _follow(self, promise: _Promise, now: float) -> None:
        cluster, uid = self._cluster, promise.uid
        pod = cluster.pending.get(uid)
        moved = pod is not None and promise.grant is None and pod.nominated != promise.node
        if pod is None or moved or not isinstance(pod.claim, Claim):
            self._drop(promise)
            return
        complete, going = cluster.reserved.complete(uid), self.going()
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
            outlook = outlook_on(cluster, claim.uid, priority, promise.node, going=self.going())
            plan = plan_on(cluster.chooser, claim, promise.node, (), outlook)
            if plan is None:  # what leaves is not enough: nothing to keep
                return
            grant = plan.grant
        cluster.reserved.keep(Reservation(claim.uid, grant.node, occupant_of(claim, grant), priority))

    async def _evict_remaining(self, promise: _Promise, pod: Pending) -> None:
        """Evict the victims that are still there, as long as the Pod waits for their room."""
        cluster = self._cluster
        for victim in list(promise.refused):
            if pod.uid not in cluster.pending:
                return
            if cluster.reserved.complete(pod.uid):
                promise.refused.clear()
                return
            if cluster.ledger.get(victim.uid) is None or await self._evictions.evict(victim, pod, promise.grant):
                promise.refused.remove(victim)
            elif self._evictions.is_denied(victim.uid):
                return  # the others stay: without this one, their room is not enough

    def _drop(self, promise: _Promise) -> None:
        self._promises.pop(promise.uid, None)
        self._cluster.reserved.drop(promise.uid)

    async def _give_up(self, promise: _Promise, pod: Pending) -> None:
        self._drop(promise)
        self._given_up[pod.uid] = promise.node
        if promise.grant is None:
            return
        self._failed(pod.uid)
        log.info("promised_room_given_up", extra={"data": {"pod": pod.key, "node": promise.node}})
        if pod.nominated == promise.node:
            self._lost[pod.uid] = _Lost(promise.node)
            await self._withdraw(pod.uid, self._lost[pod.uid], touch=False)

    async def _withdraw(self, uid: str, lost: _Lost, *, touch: bool = True) -> None:
        """Withdraw the nomination if it was written. The touch makes sure: a nomination that is still under way names
        an older version of the Pod and is refused then; and kube-scheduler tries the Pod again."""
        pod = self._cluster.pending.get(uid)
        if pod is None:
            del self._lost[uid]
            return
        self._given_up[uid] = lost.node
        data = {"pod": pod.key, "node": lost.node}
        try:
            if not await evictionapi.withdraw_nomination(self._kube, pod.key, uid, lost.node):
                return
            if touch and not await self._retry(pod):
                return
        except (ApiError, Unreachable) as error:
            if isinstance(error, Unreachable) or evictionapi.is_temporary(error):
                log.info("preemption_withdrawal_delayed", extra={"data": {**data, "why": str(error)}})
                return
            log.warning("preemption_withdrawal_failed", extra={"data": {**data, "why": str(error)}})
        del self._lost[uid]

    async def _retry(self, pod: Pending) -> bool:
        """Have kube-scheduler try the Pod again. False where that is to be repeated."""
        try:
            await evictionapi.retry(self._kube, pod.key, pod.uid, self._stamp())
        except ApiError as error:
            if error.status not in (404, 409):
                log.warning("pod_retry_failed", extra={"data": {"pod": pod.key, "why": str(error)}})
            return not evictionapi.is_temporary(error)
        return True

    def going(self) -> set[str]:
        """Pods that terminate and are about to be gone."""
        now = self._wall()
        return {uid for uid, until in self._cluster.going.items() if now < _seconds(until) + _STUCK}


def _seconds(stamp: str) -> float:
    """A time of the API server in seconds since 1970; one that cannot be read is long ago."""
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
