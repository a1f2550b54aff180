"""Pending Pods: emits an event with the reason, and makes kube-scheduler retry a Pod as soon as a node fits it.

kube-scheduler retries a refused Pod after any event of the cluster, often before we have seen that event: our board is
a moment behind and refuses again, and then nothing happens for up to five minutes. So when a node starts to fit a kind
of Pod that it did not fit before, we annotate the Pods of that kind that kube-scheduler has given up. The annotation is
an event too, and kube-scheduler retries them at once.

Every such write makes kube-scheduler write too (an event, often the Pod's status), so a Pod that is still not placed is
annotated less and less often. On more than 100 nodes kube-scheduler looks at a part of them at a time, and at the next
part with the next attempt: there one node that fits is worth as many attempts as there are parts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.native import RETRIED
from aliquot.dialects.wire.events import ObjectRef
from aliquot.model.claim import Claim
from aliquot.model.numbers.backoff import backoff
from aliquot.placement.board import Bools
from aliquot.placement.demand import Demand, demand_of
from aliquot.services.daemon.events import EventSink
from aliquot.services.scheduler.candidates import sample_size
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.services.scheduler.groups.admission import expire_holds
from aliquot.services.scheduler.groups.waiting import WaitingGroups
from aliquot.wording.groups import no_such_group
from aliquot.wording.refusals import one_sentence

log = logging.getLogger(__name__)

_INTERVAL = 0.1  # seconds between two examinations of the board
_FIRST_RETRY, _LONGEST_RETRY = 1.0, 15.0  # seconds between two retries of one Pod: doubled each time
_QUIET = 60.0  # seconds without a retry after which a Pod starts anew
_RETRY_BATCH = 20  # Pods retried per interval
_REPORT_INTERVAL = 15.0  # seconds between two events about one Pod
_REPORT_BATCH = 5  # reasons computed per interval: each examines all nodes, about 100 ms for 5,000
_REPORT_LIMIT = 0.02  # seconds per interval after which no further reason is started
_REST = 10.0  # pause after computing reasons, as a multiple of the time taken: binds and filters come first
_FRESH = 10.0  # seconds for which a reason is reused for other Pods of its kind, also when nodes change


@dataclass(slots=True)
class _Retries:
    """How often in a row a Pod was retried, and when last."""

    count: int = 0
    last: float = float("-inf")


class PendingPods:
    """Handles the Pods that kube-scheduler has given up, while `run` runs and this instance leads."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        events: EventSink,
        *,
        leading: Callable[[], bool],
        clock: Callable[[], float],
        stamp: Callable[[], str],
        groups_known: Callable[[], bool] = lambda: True,
    ) -> None:
        self.retried = 0
        self._groups = WaitingGroups(cluster, known=groups_known, clock=clock)
        self._kube, self._cluster, self._events = kube, cluster, events
        self._leading, self._clock, self._stamp = leading, clock, stamp
        self._fitted: dict[Demand, Bools] = {}  # rows that fitted each kind of pending Pod at the last examination
        self._examined = -1  # the board's clock then
        self._known: set[str] = set()  # uids that were given up then
        self._to_retry: dict[str, int] = {}  # uids, in order, and how many attempts are due
        self._retries: dict[str, _Retries] = {}
        self._reported_at: dict[str, float] = {}
        self._next_report = 0.0
        self._sentences: dict[Demand, tuple[float, str]] = {}  # computed when, and the text

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            now = self._clock()
            expire_holds(self._cluster, now)
            if not self._leading():
                self._known.clear()
                continue
            given_up = {uid: pod for uid, pod in self._cluster.pending.items() if pod.refused}
            self._groups.look(given_up)
            self.find_retries({uid: pod for uid, pod in given_up.items() if uid not in self._groups})
            self._to_retry |= dict.fromkeys(self._groups.ready(now), 1)
            self._report_strays()
            self._report(given_up, now)
            await self._retry(given_up, now)

    def find_retries(self, given_up: dict[str, Pending]) -> None:
        """Queue the Pods that a node starts to fit, or that a node fitted already when kube-scheduler gave them up."""
        board = self._cluster.board
        new = given_up.keys() - self._known
        self._known = set(given_up)
        if board.clock == self._examined and not new:
            return
        self._examined = board.clock
        kinds: dict[Demand, list[Pending]] = {}
        for pod in given_up.values():
            if isinstance(pod.claim, Claim):
                kinds.setdefault(demand_of(pod.claim), []).append(pod)
        before, self._fitted = self._fitted, {}
        attempts = parts_of(int(board.present[: board.rows].sum()))
        for demand, pods in kinds.items():
            claim = pods[0].claim
            assert isinstance(claim, Claim)
            fits = np.isfinite(self._cluster.chooser.scores(claim))
            self._fitted[demand] = fits
            known = before.get(demand)
            if known is not None and _gained(known, fits):
                self._to_retry |= dict.fromkeys((pod.uid for pod in pods), attempts)
            elif fits.any():  # kube-scheduler asked while our board was a moment behind, or about other nodes
                self._to_retry |= dict.fromkeys((pod.uid for pod in pods if pod.uid in new), attempts)
            else:
                for pod in pods:
                    self._to_retry.pop(pod.uid, None)

    def _report_strays(self) -> None:
        """Emit one event on every Pod that names a PodGroup that is not there."""
        for stray in self._groups.take_strays():
            namespace, name = stray.key.split("/", 1)
            text = no_such_group(stray.membership)
            about = ObjectRef("Pod", name, namespace, stray.uid)
            self._events.emit(about, "NoPodGroup", text, type="Normal", action="Scheduling")

    def _report(self, given_up: dict[str, Pending], now: float) -> None:
        """Emit an event with the reason on Pods without a recent one."""
        self._reported_at = {uid: at for uid, at in self._reported_at.items() if uid in given_up}
        began = self._clock()
        if began < self._next_report:
            return
        due = [
            pod
            for uid, pod in given_up.items()
            if now - self._reported_at.get(uid, -_REPORT_INTERVAL) >= _REPORT_INTERVAL
        ]
        computed = 0
        for pod in due:
            if computed >= _REPORT_BATCH or self._clock() - began > _REPORT_LIMIT:
                break
            sentence, fresh = self._sentence(pod, now)
            computed += fresh
            self._reported_at[pod.uid] = now
            if sentence is not None:
                namespace, name = pod.key.split("/", 1)
                about = ObjectRef("Pod", name, namespace, pod.uid)
                self._events.emit(about, "WaitingForGPU", sentence, type="Warning", action="Scheduling")
        ended = self._clock()
        self._next_report = ended + _REST * (ended - began)

    def _sentence(self, pod: Pending, now: float) -> tuple[str | None, bool]:
        """Why the Pod is pending, None if cards are not the reason; and whether that had to be computed."""
        if not isinstance(pod.claim, Claim):
            return "; ".join(problem.sentence() for problem in pod.claim), False
        if pod.uid in self._groups:
            return self._groups.sentence(pod.uid, now)
        chooser, board = self._cluster.chooser, self._cluster.board
        if len(chooser.first_fitting(pod.claim, np.arange(board.rows), 1)):
            return None, False
        demand = demand_of(pod.claim)
        known = self._sentences.get(demand)
        if known is not None and now - known[0] < _FRESH:
            return known[1], False
        if len(self._sentences) > 256:
            self._sentences.clear()
        nodes = int(board.present[: board.rows].sum())
        sentence = one_sentence(chooser.refusals(pod.claim), pod.claim, nodes)
        self._sentences[demand] = (now, sentence)
        return sentence, True

    async def _retry(self, given_up: dict[str, Pending], now: float) -> None:
        self._to_retry = {uid: left for uid, left in self._to_retry.items() if uid in given_up}
        self._retries = {
            uid: retries
            for uid, retries in self._retries.items()
            if uid in given_up and now - retries.last < _QUIET + _LONGEST_RETRY
        }
        parts = parts_of(int(self._cluster.board.present[: self._cluster.board.rows].sum())) if self._to_retry else 1
        ready = [uid for uid in self._to_retry if now >= self._not_before(uid, parts)][:_RETRY_BATCH]
        for uid in ready:
            left = self._to_retry.pop(uid) - 1
            if left:
                self._to_retry[uid] = left  # after all others
            retries = self._retries.setdefault(uid, _Retries())
            retries.count = 1 if now - retries.last >= _QUIET else retries.count + 1
            retries.last = now
        await asyncio.gather(*(self._retry_pod(given_up[uid]) for uid in ready))

    def _not_before(self, uid: str, parts: int) -> float:
        """When the Pod may be retried: the first round through all parts of the nodes is quick."""
        retries = self._retries.get(uid)
        if retries is None:
            return float("-inf")
        rounds = max(1, retries.count - parts + 1)
        return retries.last + backoff(rounds, first=_FIRST_RETRY, longest=_LONGEST_RETRY)

    async def _retry_pod(self, pod: Pending) -> None:
        namespace, name = pod.key.split("/", 1)
        body = {"metadata": {"uid": pod.uid, "annotations": {RETRIED: self._stamp()}}}
        try:
            await self._kube.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", body)
            self.retried += 1
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):  # deleted meanwhile
                log.warning("pod_retry_failed", extra={"data": {"pod": pod.key, "why": str(error)}})


def parts_of(nodes: int) -> int:
    """How many attempts kube-scheduler needs to look at all nodes, if percentageOfNodesToScore is left to it."""
    return -(-nodes // sample_size(nodes)) if nodes else 1


def _gained(before: Bools, now: Bools) -> bool:
    """Whether a row fits now that did not before."""
    return bool((now[: len(before)] & ~before).any() or now[len(before) :].any())
