"""Evicts less important Pods where only a card is short.

kube-scheduler adds up what a node has. Where the sum is enough it finds nothing to evict, and an important Pod would
wait for good.

    asked     kube-scheduler asked about nodes for a Pod, and no card of them has room. Those nodes pass all of
              kube-scheduler's own conditions: only there is anybody evicted
    planned   the victims (placement.preemption), each allowed by a dry run of its eviction: none goes unless all may
    promised  the Pod's nominatedNodeName says where its room will be. Written with the version that was read, so of
              several replicas one acts, and kube-scheduler evicts no others for the Pod meanwhile
    leaving   the victims terminate, with their grace periods; what is free of the room is kept for the Pod
    there     all of the room is free: kube-scheduler tries the Pod again. After 30 seconds the room is given up

The first two steps are in this file, the others in promises.py.

The replica that kube-scheduler asked acts. Nothing is remembered elsewhere: after a crash, nominatedNodeName and the
Pods that terminate say what is kept for whom; every replica reads them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.model.claim import Claim
from aliquot.model.numbers.backoff import backoff
from aliquot.placement.preemption.victims import Plan
from aliquot.services.daemon.events import EventSink
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.services.scheduler.preemption import evictionapi
from aliquot.services.scheduler.preemption.evictions import Evictions
from aliquot.services.scheduler.preemption.promises import Promises
from aliquot.services.scheduler.preemption.tenants import is_best, nodes_to_examine, plan_for

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds between two rounds
_SETTLED = 1.0  # seconds after the first refusal by which kube-scheduler has said whether it evicts Pods itself
_OVERDUE = 1.0  # seconds after which a Pod is considered before more important ones
_PER_ROUND = 0.3  # seconds for which more Pods are considered in a round
_AGAIN = 0.5  # seconds until a Pod is considered again whose preemption was interrupted
_UNKNOWN = 30.0  # seconds that our watch may be behind kube-scheduler's
_OFFERED = 30.0  # seconds that kube-scheduler has for its own evictions, before we consider any
_MOST_ASKED = 256  # Pods; the most important
_MOST_PLANS = 8  # in a row, each without the Pods that the API server protects from the one before
_REST = 4.0  # pause after a node was examined, as a multiple of the time taken: binds and filters come first
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0  # seconds before a Pod is considered again that could not be helped
_FORBIDDEN = 600.0  # seconds until we try again what our role does not allow


@dataclass(slots=True)
class _Asked:
    """The nodes that kube-scheduler asked about for a Pod in vain."""

    claim: Claim
    names: Sequence[str]
    not_before: float  # set by the first refusal: kube-scheduler may try the Pod again more often than any pause ends


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
        self.enabled, self._cluster, self._clock = enabled, cluster, clock
        self._evictions = Evictions(kube, cluster, events, clock)
        self._promises = Promises(
            kube, cluster, self._evictions, failed=self._note_failure, clock=clock, wall=wall, stamp=stamp
        )
        self._asked: dict[str, _Asked] = {}  # by the Pods' uids, as all of these; the newest last
        self._offered: dict[str, float] = {}  # Pods for which kube-scheduler evicts others: until when we wait for that
        self._failures: dict[str, int] = {}  # how often in a row a Pod could not be helped
        self._forbidden_until = 0.0

    @property
    def evicted(self) -> int:
        return self._evictions.count

    # --- called by the verbs: nothing is computed here -----------------------------------------------------------

    def note_refused(self, claim: Claim, names: Sequence[str]) -> None:
        """No card of these nodes has room for the Pod. Ignored for a Pod that asks for something else, says the API
        server: anybody who may call the verbs can send any claim."""
        uid, known = claim.uid, self._cluster.pending.get(claim.uid)
        if self.enabled and uid not in self._promises and (known is None or known.claim == claim):
            before = self._asked.get(uid)
            self._asked[uid] = _Asked(claim, names, before.not_before if before else self._first_time(uid))
            if len(self._asked) > _MOST_ASKED:
                del self._asked[min(reversed(self._asked), key=self._priority)]

    def _first_time(self, uid: str) -> float:
        """When a Pod that is refused now is considered first."""
        now, failures = self._clock(), self._failures.get(uid)
        pause = backoff(failures, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE) if failures else _SETTLED
        return max(now + pause, self._offered.get(uid, now))

    def _priority(self, uid: str) -> float:
        """That of a Pod that waits; the lowest for one that we do not know."""
        pod = self._cluster.pending.get(uid)
        return -math.inf if pod is None else pod.priority

    def note_offered(self, uid: str) -> None:
        """kube-scheduler evicts Pods for it by itself."""
        until = self._offered.setdefault(uid, self._clock() + _OFFERED)  # not the next: all of its offers may fail
        if uid in self._asked:
            self._asked[uid].not_before = max(self._asked[uid].not_before, until)

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
        pending = self._cluster.pending
        self._offered = {
            uid: until for uid, until in self._offered.items() if uid in pending and (now < until or uid in self._asked)
        }
        self._failures = {uid: count for uid, count in self._failures.items() if uid in pending}
        self._promises.note_nominations(now)
        await self._promises.follow_all(now, self._forbid)
        if self.enabled and now >= self._forbidden_until:
            for pod in self._due(now):
                asked = self._asked.get(pod.uid)
                if asked is not None and now >= asked.not_before and await self._consider(pod, asked):
                    break  # it took many calls: promises are followed between two
                if self._clock() >= now + _PER_ROUND:
                    break

    def _forbid(self, error: ApiError) -> None:
        if evictionapi.lacks_right(error):
            self._forbidden_until = self._clock() + _FORBIDDEN
            hint = "allow create on pods/eviction and patch on pods/status, or start with --no-preemption"
            log.warning("preemption_forbidden", extra={"data": {"why": error.message, "hint": hint}})
        else:
            log.warning("preemption_failed", extra={"data": {"why": str(error)}})

    def _note_failure(self, uid: str) -> None:
        self._failures[uid] = self._failures.get(uid, 0) + 1

    # --- making room ---------------------------------------------------------------------------------------------

    def _due(self, now: float) -> list[Pending]:
        """The Pods to consider, the most important first; but first of all those that wait for their turn too long."""
        pending, priorities = self._cluster.pending, self._cluster.priorities
        lowest = min(0, min(priorities.values(), default=0))
        found = []
        for uid, asked in list(self._asked.items()):
            pod = pending.get(uid)
            if pod is None:  # our watch may be behind kube-scheduler's
                useless = now >= asked.not_before + _UNKNOWN
            else:
                useless = not pod.preempts or pod.priority <= lowest or pod.claim != asked.claim
            if useless or uid in self._promises:
                del self._asked[uid]
            elif pod is None or not pod.refused or pod.nominated or self._promises.is_unsure(uid):
                continue
            elif now >= asked.not_before:
                found.append(pod)
        late = {pod.uid: now - self._asked[pod.uid].not_before for pod in found}
        return sorted(found, key=lambda pod: (-max(late[pod.uid], _OVERDUE), -pod.priority))

    async def _consider(self, pod: Pending, asked: _Asked) -> bool:
        try:
            return await self._preempt_for(pod, asked)
        except (ApiError, Unreachable):
            if not self._promises.is_unsure(pod.uid):  # else kube-scheduler tries it once that is withdrawn
                self._asked.setdefault(pod.uid, replace(asked, not_before=self._first_time(pod.uid)))
            raise

    async def _preempt_for(self, pod: Pending, asked: _Asked) -> bool:
        """Promise it room and evict others, where that is possible. False where there was nothing to ask the API
        server."""
        assert isinstance(pod.claim, Claim)
        self._asked.pop(pod.uid, None)  # kube-scheduler asks again where it comes to nothing
        plan: Plan | None = None
        for number in range(_MOST_PLANS):
            plan = await self._best_plan(pod, asked.names)
            current = self._cluster.pending.get(pod.uid)
            if plan is None or current is None or current.nominated:
                return number > 0
            if any(victim.protected for victim in plan.victims):
                self._note_blocked(pod, plan, asked)
                return True
            if not await self._evictions.try_all(plan):
                continue
            # What is decided now counts: the board may have changed while we asked.
            again = self._plan_on(pod, plan.grant.node)
            if again is None or not _uids(again) <= _uids(plan):
                continue
            if again.victims or self._is_left_by_lesser(pod, again.grant.node):
                await self._promise(pod, again, asked)
            return True
        assert plan is not None
        if not _uids(plan).isdisjoint(self._evictions.protected()):
            self._note_blocked(pod, plan, asked)
        else:  # the board changes all the time
            self._again(pod.uid, asked)
        return True

    async def _promise(self, pod: Pending, plan: Plan, asked: _Asked) -> None:
        if await self._promises.nominate(pod, plan.grant.node):
            await self._promises.carry_out(pod, plan)
        else:  # other clients write the Pod again and again, or it is being deleted
            self._again(pod.uid, asked)

    def _again(self, uid: str, asked: _Asked) -> None:
        """Consider it again, also where kube-scheduler does not."""
        self._asked.setdefault(uid, replace(asked, not_before=max(self._clock() + _AGAIN, asked.not_before)))

    def _note_blocked(self, pod: Pending, plan: Plan, asked: _Asked) -> None:
        self._evictions.report_blocked(pod, plan)
        self._note_failure(pod.uid)
        self.note_refused(asked.claim, asked.names)

    def _is_left_by_lesser(self, pod: Pending, node: str) -> bool:
        """Whether less important Pods leave the room there, or give up what was kept for them: then it is kept for this
        one. So a preemption goes on after a crash, even where kube-scheduler has withdrawn the Pod's nomination."""
        cluster, going = self._cluster, self._promises.going()
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
        going, protected = self._promises.going(), self._evictions.protected()
        return plan_for(self._cluster, pod.claim, pod.priority, node, going=going, protected=protected)


def _uids(plan: Plan) -> set[str]:
    return {victim.uid for victim in plan.victims}
