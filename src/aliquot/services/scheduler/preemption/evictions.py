"""Trial and real evictions, their events, and how long a refused one is not tried again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.dialects.wire.events import ObjectRef
from aliquot.model.claim import Claim
from aliquot.model.grant import Grant
from aliquot.model.numbers.backoff import backoff
from aliquot.placement.preemption.victims import Plan, Tenant
from aliquot.services.daemon.events import EventSink
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.services.scheduler.preemption import evictionapi
from aliquot.services.scheduler.preemption.evictionapi import Evictee, Refusal
from aliquot.wording import preemption as wording

_FIRST_PAUSE, _LONGEST_PAUSE = 4.0, 600.0  # seconds for which a refused eviction is not tried again; see `_note`


@dataclass(slots=True)
class _Refused:
    why: str
    temporary: bool
    until: float
    denials: int = 0  # so far, without temporary refusals
    real_denied: bool = False  # not only trials were denied: an allowed trial proves nothing then


class Evictions:
    """See the head of the file."""

    def __init__(self, kube: Kube, cluster: Cluster, events: EventSink, clock: Callable[[], float]) -> None:
        self.count = 0  # Pods that were evicted
        self._kube, self._cluster, self._events, self._clock = kube, cluster, events, clock
        self._refused: dict[str, _Refused] = {}  # by the Pods' uids

    def protected(self) -> set[str]:
        """uids of the Pods whose eviction was refused, and is not to be tried now."""
        now, ledger = self._clock(), self._cluster.ledger
        self._refused = {uid: refused for uid, refused in self._refused.items() if ledger.get(uid) is not None}
        return {uid for uid, refused in self._refused.items() if now < refused.until}

    def is_denied(self, uid: str) -> bool:
        """Whether its last eviction was denied, not only for the moment, and is not to be tried now."""
        refused = self._refused.get(uid)
        return refused is not None and not refused.temporary and self._clock() < refused.until

    async def try_all(self, plan: Plan) -> bool:
        """Ask the API server about every victim, without evicting any; those that it protects are remembered."""
        allowed = True
        for victim in [self.evictee(tenant) for tenant in self.remaining(plan)]:
            refusal = await evictionapi.evict(self._kube, victim, dry_run=True)
            known = self._refused.get(victim.uid)
            if refusal is not None:
                self._note(victim.uid, refusal, trial=True)
                allowed = False
            elif known is not None and not known.real_denied:
                del self._refused[victim.uid]
        return allowed

    async def evict(self, victim: Evictee, pod: Pending, grant: Grant | None) -> bool:
        """Evict it for the Pod. False where that is refused, or was denied a short while ago."""
        if self.is_denied(victim.uid):
            return False
        refusal = await evictionapi.evict(self._kube, victim)
        if refusal is not None:
            self._note(victim.uid, refusal, trial=False)
        elif grant is not None:
            self.count += 1
            assert isinstance(pod.claim, Claim)
            preemptor = wording.Victim(pod.key, pod.priority, pod.claim.app_class)
            text = wording.preempted(preemptor, grant, _namespace(victim.key))
            self._events.emit(_ref(victim.uid, victim.key), "Preempted", text, type="Warning", action="Preempting")
        return refusal is None

    def _note(self, uid: str, refusal: Refusal, *, trial: bool) -> None:
        """A budget allows more as soon as other Pods are ready, and a server that fails recovers. A webhook or a policy
        may deny it for good, or allow the trial and deny the eviction: each denial doubles the pause, for all Pods that
        wait."""
        refused = self._refused.setdefault(uid, _Refused("", True, 0.0))
        refused.why, refused.temporary = refusal.why, refusal.temporary
        pause = _FIRST_PAUSE
        if not refusal.temporary:
            refused.denials += 1
            refused.real_denied |= not trial
            pause = backoff(refused.denials, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE)
        refused.until = self._clock() + pause

    def report_preempting(self, pod: Pending, victims: Iterable[Tenant], grant: Grant) -> None:
        text = wording.preempting([self._words(victim) for victim in victims], grant, _namespace(pod.key))
        self._events.emit(_ref(pod.uid, pod.key), "Preempting", text, type="Normal", action="Preempting")

    def report_blocked(self, pod: Pending, plan: Plan) -> None:
        victims = self.remaining(plan)
        why = next((self._refused[victim.uid].why for victim in victims if victim.uid in self._refused), "")
        text = wording.blocked([self._words(victim) for victim in victims], plan.grant, why, _namespace(pod.key))
        if victims:
            self._events.emit(_ref(pod.uid, pod.key), "PreemptionBlocked", text, type="Warning", action="Preempting")

    def remaining(self, plan: Plan) -> list[Tenant]:
        """The victims that have not ended since the plan was made."""
        ledger = self._cluster.ledger
        return [victim for victim in plan.victims if ledger.get(victim.uid) is not None and self._key(victim.uid)]

    def evictee(self, tenant: Tenant) -> Evictee:
        return Evictee(tenant.uid, self._key(tenant.uid))

    def _words(self, tenant: Tenant) -> wording.Victim:
        return wording.Victim(self._key(tenant.uid), tenant.priority, tenant.occupant.app_class)

    def _key(self, uid: str) -> str:
        placed = self._cluster.placed.get(uid)
        if placed is not None:
            return placed.claim.key
        return next((key for key, seen in self._cluster.seen.items() if seen == uid), "")  # it has no card, or is gone


def _namespace(key: str) -> str:
    return key.split("/", 1)[0]


def _ref(uid: str, key: str) -> ObjectRef:
    namespace, name = key.split("/", 1)
    return ObjectRef("Pod", name, namespace, uid)
