"""From a decision to a bound Pod: assume, one write, and then whatever the API server says.

The write carries the grant: node and cards reach the Pod together or not at all. Its outcome is known only when the API
server has told it; until then the cards stay held, whoever asks and however long it takes:

    201                     bound; the watch will confirm, or the Pod itself where that takes long (`_UNCONFIRMED`)
    409, 404, other 4xx     it did not happen, unless the same call has happened before: the Pod itself tells
    no answer               the Pod itself tells, but not before the write can no longer happen (`_SETTLED`)

A bind that comes twice is answered twice with the outcome of one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.kubernetes.reflector import pause_before
from aliquot.dialects.wire import extender
from aliquot.dialects.wire.extender import Binding
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim
from aliquot.services.scheduler.verbs import short_reason

if TYPE_CHECKING:
    from aliquot.services.scheduler.cluster import Cluster, Placed

log = logging.getLogger(__name__)

_PATIENCE = 4.0  # seconds for one write; told to the API server too, which then gives it up
_CONNECT = 1.0  # seconds for a connection: a write is sent soon after we were sure to lead, or not at all
_SETTLED = 6.0  # after that long, a write without an answer has happened or never will
_UNCONFIRMED = 10.0  # a watch that broke may never tell of a Pod that was bound and deleted meanwhile


class Refused(Exception):
    """The Pod is not bound, and why; kube-scheduler will try again."""


class Binder:
    """Binds Pods, each at most once at a time."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        *,
        may_write: Callable[[], bool],
        heard: Callable[[PodObject], None],
        now_ns: Callable[[], int],
        more_annotations: Callable[[Placed], Mapping[str, str]] = lambda placed: {},
    ) -> None:
        self._kube, self._cluster = kube, cluster
        self._may_write, self._heard, self._now_ns, self._more = may_write, heard, now_ns, more_annotations
        self._binding: dict[str, asyncio.Task[None]] = {}  # by uid: the call that is under way
        self._asking: set[asyncio.Task[None]] = set()
        self._said_yes: set[str] = set()  # uids that the API server bound, lately

    @property
    def busy(self) -> int:
        """How many writes are under way or without an outcome."""
        return len(self._binding) + len(self._asking)

    async def bind(self, binding: Binding) -> None:
        """Bind it. Raises Refused."""
        uid = binding.PodUID or f"{binding.PodNamespace}/{binding.PodName}"
        under_way = self._binding.get(uid)
        if under_way is None:
            under_way = asyncio.get_running_loop().create_task(self._bind(binding))
            self._binding[uid] = under_way
            under_way.add_done_callback(lambda task: self._over(uid, task))
        # A caller that goes away does not take the write with it.
        await asyncio.shield(under_way)
        placed = self._cluster.assumed.get(uid) or self._cluster.placed.get(uid)
        if placed is not None and placed.grant.node != binding.Node:
            raise Refused(f"{binding.PodNamespace}/{binding.PodName} is bound to {placed.grant.node} already")

    def _over(self, uid: str, task: asyncio.Task[None]) -> None:
        self._binding.pop(uid, None)
        if not task.cancelled():
            task.exception()  # looked at, even where its caller is not there any more

    async def settle(self) -> None:
        """Until nothing is under way, before the process ends."""
        while self._binding or self._asking:
            await asyncio.wait([*self._binding.values(), *self._asking])

    async def _bind(self, binding: Binding) -> None:
        cluster = self._cluster
        pending = cluster.pending.get(binding.PodUID)
        if pending is not None and isinstance(pending.claim, Claim):
            claim: Claim | None = pending.claim
        else:  # the watch has not told of it yet, or it waits no more
            pod = await self._pod(binding)
            if pod.spec.node_name:  # the one that is meant: it was bound before
                return
            claim = self._read(pod)
        if claim is None:  # not ours, and yet we are asked to bind it
            await self._bind_plain(binding)
            return
        known = cluster.assumed.get(claim.uid) or cluster.placed.get(claim.uid)
        if known is not None:
            if claim.uid not in cluster.placed and claim.uid not in self._said_yes:
                raise Refused(f"{claim.key}: an earlier bind to {known.grant.node} has not told its outcome yet")
            return  # whether it is the node that is meant now, `bind` looks
        if not self._may_write():
            raise Refused("this instance does not lead any more: the next try reaches the one that does")
        # From here to the booking nothing waits: no other decision can come between.
        placed = cluster.assume(claim, binding.Node)
        if isinstance(placed, list):
            why = "; ".join(dict.fromkeys(short_reason(each.reason, each.never, claim) for each in placed))
            raise Refused(f"{binding.Node} does not take {claim.key} any more: {why or 'its cards are taken'}")
        try:
            annotations = self._annotations(placed)
        except BaseException:  # nothing was sent
            cluster.unassume(claim.uid)
            raise
        await self._send(binding, claim, annotations)

    def _annotations(self, placed: Placed) -> dict[str, str]:
        node = self._cluster.board.node(placed.grant.node)
        assert node is not None, "a node that took the claim is there"
        told = dialects.render_grant(placed.claim, placed.grant, node, self._now_ns(), self._cluster.rules)
        return {**told, **self._more(placed)}

    async def _bind_plain(self, binding: Binding) -> None:
        """A Pod that holds no cards: there is nothing to keep."""
        try:
            await self._write(binding, binding.PodUID, {})
        except ApiError as error:
            pod = await self._look(binding) if error.status == 409 else None
            if pod is None or pod.spec.node_name != binding.Node or pod.metadata.uid != binding.PodUID:
                raise Refused(f"{binding.PodNamespace}/{binding.PodName}: {error}") from error

    async def _pod(self, binding: Binding) -> PodObject:
        """The Pod as the API server has it, without a node or on the one that is meant. Raises Refused."""
        pod = await self._look(binding)
        if pod is None or (binding.PodUID and pod.metadata.uid != binding.PodUID):
            raise Refused(f"{binding.PodNamespace}/{binding.PodName} is gone")
        if pod.spec.node_name:
            self._heard(pod)
            if pod.spec.node_name != binding.Node:
                raise Refused(f"{binding.PodNamespace}/{binding.PodName} is bound to {pod.spec.node_name} already")
        return pod

    def _read(self, pod: PodObject) -> Claim | None:
        claim = self._cluster.read(pod)
        if claim is not None and not isinstance(claim, Claim):
            raise Refused("; ".join(each.sentence() for each in claim))
        return claim

    async def _send(self, binding: Binding, claim: Claim, annotations: Mapping[str, str]) -> None:
        try:
            await self._write(binding, claim.uid, annotations)
            self._said_yes.add(claim.uid)
            asyncio.get_running_loop().call_later(_UNCONFIRMED, self._confirmed, binding, claim)
        except ApiError as error:
            await self._after_no(binding, claim, error)
        except Unreachable as error:
            self._ask_until_known(binding, claim)
            raise Refused(
                f"{claim.key}: the API server did not answer ({error}); its outcome will be looked up"
            ) from error

    async def _write(self, binding: Binding, uid: str, annotations: Mapping[str, str]) -> None:
        path = f"/api/v1/namespaces/{binding.PodNamespace}/pods/{binding.PodName}/binding"
        body = extender.render_binding(binding, uid, annotations)
        patience = {"timeout": f"{_PATIENCE:.0f}s"}
        await self._kube.create(path, body, params=patience, timeout=_PATIENCE + _CONNECT, connect=_CONNECT)

    def _confirmed(self, binding: Binding, claim: Claim) -> None:
        self._said_yes.discard(claim.uid)
        if claim.uid in self._cluster.assumed:
            self._ask_until_known(binding, claim)

    async def _after_no(self, binding: Binding, claim: Claim, error: ApiError) -> None:
        """It did not happen, or it had happened before: only the Pod knows."""
        if error.status >= 500 or error.status == 429:  # an overloaded server may have done it all the same
            self._ask_until_known(binding, claim)
            raise Refused(f"{claim.key}: {error}; its outcome will be looked up") from error
        if error.status == 409:
            try:
                if await self._settle_by_look(binding, claim):
                    self._cluster.unassume(claim.uid)  # does nothing, but for a Pod that has finished since
                    return
            except Unreachable:
                self._ask_until_known(binding, claim)
                raise Refused(f"{claim.key}: {error}; its outcome will be looked up") from error
        self._cluster.unassume(claim.uid)
        raise Refused(f"{claim.key}: {error}") from error

    async def _look(self, binding: Binding) -> PodObject | None:
        path = f"/api/v1/namespaces/{binding.PodNamespace}/pods/{binding.PodName}"
        try:
            pod: PodObject = await self._kube.get(path, into=PodObject, timeout=_PATIENCE)
            return pod
        except ApiError as error:
            if error.status == 404:
                return None
            raise Unreachable(str(error)) from error

    async def _settle_by_look(self, binding: Binding, claim: Claim) -> bool:
        """Take the Pod as it is. True when it is bound to the node that was meant."""
        pod = await self._look(binding)
        if pod is None or pod.metadata.uid != claim.uid or not pod.spec.node_name:
            return False
        self._heard(pod)
        return pod.spec.node_name == binding.Node

    def _ask_until_known(self, binding: Binding, claim: Claim) -> None:
        task = asyncio.get_running_loop().create_task(self._until_known(binding, claim))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _until_known(self, binding: Binding, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        settled, attempt = loop.time() + _SETTLED, 0
        while claim.uid in self._cluster.assumed:  # the watch may tell before we do
            attempt += 1
            asked = loop.time()
            try:
                bound = await self._settle_by_look(binding, claim)
                if bound or asked >= settled:  # a look from before then may be older than its answer tells
                    break
            except Unreachable as error:
                settled = loop.time() + _SETTLED  # what does not answer may have the write still before it
                log.info("outcome not known yet", extra={"data": {"pod": claim.key, "why": str(error)}})
            await asyncio.sleep(pause_before(attempt, 0.5))
        self._cluster.unassume(claim.uid)  # does nothing where the Pod turned out to be bound
