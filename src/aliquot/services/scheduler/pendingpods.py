"""Pods that wait: each is told why, and tried again as soon as there is room.

kube-scheduler tries a refused Pod again after any event of the cluster, and often sooner than we have heard of that
event ourselves: it asks, is refused again by a board that is a moment behind, and then nothing more happens for up to
five minutes. So when a node comes to fit a kind of Pod that it did not fit before, the Pods of that kind which
kube-scheduler has given up are touched (an annotation): that is an event of its own, and they are tried at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import numpy as np

from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects.native import RETRIED
from aliquot.dialects.wire.events import ObjectRef
from aliquot.model.claim import Claim
from aliquot.placement.board import Bools
from aliquot.placement.demand import Demand, demand_of
from aliquot.services.daemon.events import Teller
from aliquot.services.scheduler.cluster import Cluster, Pending
from aliquot.wording.refusals import one_sentence

log = logging.getLogger(__name__)

_LOOK = 0.1  # seconds between looks at the board
_AGAIN = 1.0  # a Pod is touched no more often than that
_AT_ONCE = 20  # Pods touched in one look; those behind them come with the next
_TELL = 15.0  # seconds between two sentences about one Pod
_TELL_AT_ONCE = 5  # sentences worked out in one look: each goes over all nodes, some 100 ms where they are 5,000
_TELL_LONGEST = 0.02  # seconds for them in one look; no more is begun after that
_REST = 10.0  # times as long as they took, nothing more is worked out: binds and filters come first
_FRESH = 10.0  # seconds that a sentence is good for other Pods of its kind, whatever happens on some node


class Waiting:
    """Looks after the Pods that kube-scheduler has given up, as long as `run` runs and we lead."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        events: Teller,
        *,
        leading: Callable[[], bool],
        clock: Callable[[], float],
        stamp: Callable[[], str],
    ) -> None:
        self.touched = 0
        self._kube, self._cluster, self._events = kube, cluster, events
        self._leading, self._clock, self._stamp = leading, clock, stamp
        self._fitted: dict[Demand, Bools] = {}  # which rows fitted each kind of waiting Pod when last looked
        self._looked = -1  # the board's clock then
        self._known: set[str] = set()  # who was given up then
        self._touch_next: dict[str, None] = {}  # uids, in order
        self._touched_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}
        self._tell_next = 0.0
        self._sentences: dict[Demand, tuple[float, str]] = {}  # and when they were worked out

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK)
            now = self._clock()
            self._cluster.drop_late_holds(now)
            if not self._leading():
                self._known.clear()
                continue
            given_up = {uid: each for uid, each in self._cluster.pending.items() if each.refused}
            self.look(given_up)
            self._tell(given_up, now)
            await self._touch(given_up, now)

    def known_reason(self, claim: Claim) -> str | None:
        """Why Pods that ask for this wait, where that was worked out lately; nothing is worked out for it."""
        known = self._sentences.get(demand_of(claim))
        return known[1] if known is not None and self._clock() - known[0] < 3 * _FRESH else None

    def look(self, given_up: dict[str, Pending]) -> None:
        """Note the Pods to be tried again: a node has come to fit them, or fitted all along when they were given up."""
        board = self._cluster.board
        new = given_up.keys() - self._known
        self._known = set(given_up)
        if board.clock == self._looked and not new:
            return
        self._looked = board.clock
        kinds: dict[Demand, list[Pending]] = {}
        for each in given_up.values():
            if isinstance(each.claim, Claim):
                kinds.setdefault(demand_of(each.claim), []).append(each)
        before, self._fitted = self._fitted, {}
        for demand, pods in kinds.items():
            claim = pods[0].claim
            assert isinstance(claim, Claim)
            fits = np.isfinite(self._cluster.chooser.scores(claim))
            self._fitted[demand] = fits
            known = before.get(demand)
            if known is not None and _more(known, fits):
                self._touch_next |= dict.fromkeys(pod.uid for pod in pods)
            elif fits.any():  # kube-scheduler asked while we were a moment behind
                self._touch_next |= dict.fromkeys(pod.uid for pod in pods if pod.uid in new)

    def _tell(self, given_up: dict[str, Pending], now: float) -> None:
        """Say why, on the Pods that were not told for a while."""
        self._told_at = {uid: at for uid, at in self._told_at.items() if uid in given_up}
        began = self._clock()
        if began < self._tell_next:
            return
        due = [each for uid, each in given_up.items() if now - self._told_at.get(uid, -_TELL) >= _TELL]
        worked_out = 0
        for each in due:
            if worked_out >= _TELL_AT_ONCE or self._clock() - began > _TELL_LONGEST:
                break
            sentence, fresh = self._sentence(each, now)
            worked_out += fresh
            self._told_at[each.uid] = now
            if sentence is not None:
                namespace, name = each.key.split("/", 1)
                about = ObjectRef("Pod", name, namespace, each.uid)
                self._events.emit(about, "WaitingForGPU", sentence, type="Warning", action="Scheduling")
        ended = self._clock()
        self._tell_next = ended + _REST * (ended - began)

    def _sentence(self, pod: Pending, now: float) -> tuple[str | None, bool]:
        """Why the Pod waits, None where it is not for want of a card; and whether that had to be worked out."""
        if not isinstance(pod.claim, Claim):
            return "; ".join(each.sentence() for each in pod.claim), False
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

    async def _touch(self, given_up: dict[str, Pending], now: float) -> None:
        self._touched_at = {uid: at for uid, at in self._touched_at.items() if now - at < _AGAIN}
        self._touch_next = {uid: None for uid in self._touch_next if uid in given_up}
        ready = [uid for uid in self._touch_next if uid not in self._touched_at][:_AT_ONCE]
        for uid in ready:
            del self._touch_next[uid]
            self._touched_at[uid] = now
        await asyncio.gather(*(self._touch_one(given_up[uid]) for uid in ready))

    async def _touch_one(self, pod: Pending) -> None:
        namespace, name = pod.key.split("/", 1)
        body = {"metadata": {"uid": pod.uid, "annotations": {RETRIED: self._stamp()}}}
        try:
            await self._kube.patch(f"/api/v1/namespaces/{namespace}/pods/{name}", body)
            self.touched += 1
        except (ApiError, Unreachable) as error:
            if not (isinstance(error, ApiError) and error.status in (404, 409)):  # gone meanwhile
                log.warning("cannot have a Pod tried again", extra={"data": {"pod": pod.key, "why": str(error)}})


def _more(before: Bools, now: Bools) -> bool:
    """Whether a row fits that did not."""
    return bool((now[: len(before)] & ~before).any() or now[len(before) :].any())
