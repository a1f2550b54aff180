"""Binds a Pod: assume the decision on the board, write it once, and follow the API server's answer.

The write carries the grant: node and cards reach the Pod together or not at all. Only the API server knows the outcome;
until we know it too, the cards stay booked:

    201                     bound; the watch confirms it, or a read of the Pod if that takes long (`_UNCONFIRMED`)
    409, 404, other 4xx     not bound, unless an earlier identical call succeeded: read the Pod
    not sent                not bound
    no answer               read the Pod, but not before the write can no longer happen (`_SETTLED`)

Two calls for the same Pod share one write and its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from aliquot import dialects
from aliquot.adapters.kubernetes.kube import ApiError, Kube, NotSent, Unreachable
from aliquot.dialects.kube.conditions import closing_taints, untolerated
from aliquot.dialects.wire import extender
from aliquot.dialects.wire.extender import Binding
from aliquot.dialects.wire.objects import NodeObject, PodObject
from aliquot.dialects.wire.schedulerconfig import is_managed
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.node import Closed
from aliquot.model.numbers.backoff import backoff
from aliquot.wording.refusals import coded_reason

if TYPE_CHECKING:
    from aliquot.services.scheduler.cluster import Cluster, Placed
    from aliquot.services.scheduler.groups.gathering import Gathering

log = logging.getLogger(__name__)

_TIMEOUT = 4.0  # seconds for one write; the API server gets the same limit
_CONNECT = 1.0  # seconds to connect: we send a write soon after we checked that we lead, or never
_FIRST_RETRY, _LAST_RETRY = 0.1, 15.0  # seconds between two looks at a write without an answer
_SETTLED = 6.0  # seconds after which an unanswered write has happened or never will
_UNCONFIRMED = 10.0  # seconds; a broken watch may never report a Pod that was bound and then deleted


class Refused(Exception):
    """The Pod is not bound. The text says why; kube-scheduler tries again."""


class Binder:
    """Binds Pods, with one write per Pod at a time."""

    def __init__(
        self,
        kube: Kube,
        cluster: Cluster,
        *,
        may_write: Callable[[], bool],
        on_pod: Callable[[PodObject], None],
        now_ns: Callable[[], int],
        extra_annotations: Callable[[Placed], Mapping[str, str]] = lambda placed: {},
        gathering: Gathering | None = None,
    ) -> None:
        self._kube, self._cluster = kube, cluster
        self._may_write, self._now_ns = may_write, now_ns
        self._on_pod, self._extra_annotations, self._gathering = on_pod, extra_annotations, gathering
        self._binding: dict[str, asyncio.Task[None]] = {}  # by uid: calls in progress
        self._lookups: set[asyncio.Task[None]] = set()
        self._confirmed_by_api: set[str] = set()  # uids that the API server bound recently

    @property
    def busy(self) -> int:
        """How many writes have no outcome yet."""
        return len(self._binding) + len(self._lookups)

    async def bind(self, binding: Binding) -> None:
        """Bind the Pod. Raises Refused."""
        uid = binding.PodUID or f"{binding.PodNamespace}/{binding.PodName}"
        call = self._binding.get(uid)
        if call is None:
            call = asyncio.get_running_loop().create_task(self._bind(binding))
            self._binding[uid] = call
            call.add_done_callback(lambda task: self._finished(uid, task))
        # The write goes on even if its caller disconnects.
        await asyncio.shield(call)
        placed = self._cluster.placement(uid)
        if placed is not None and placed.grant.node != binding.Node:
            raise Refused(f"{binding.PodNamespace}/{binding.PodName} is already bound to {placed.grant.node}")

    def _finished(self, uid: str, task: asyncio.Task[None]) -> None:
        self._binding.pop(uid, None)
        if not task.cancelled():
            task.exception()  # mark as retrieved, even if the caller has disconnected

    async def settle(self) -> None:
        """Wait until every bind has an outcome."""
        while self._binding or self._lookups:
            await asyncio.wait([*self._binding.values(), *self._lookups])

    async def _bind(self, binding: Binding) -> None:
        cluster = self._cluster
        pending = cluster.pending.get(binding.PodUID)
        if pending is not None and isinstance(pending.claim, Claim):
            claim: Claim | None = pending.claim
            tolerations: Sequence[object] = pending.tolerations
        else:  # the watch has not reported it yet, or it is no longer pending
            pod = await self._bindable_pod(binding)
            if pod.spec.node_name:  # already bound, to the node that is meant
                return
            claim, tolerations = self._read(pod), pod.spec.tolerations or ()
        if claim is None:
            await self._bind_plain(binding, pod)
            return
        known = cluster.placement(claim.uid)
        if known is not None:
            if claim.uid not in cluster.placed and claim.uid not in self._confirmed_by_api:
                raise Refused(f"{claim.key}: the outcome of an earlier bind to {known.grant.node} is not known yet")
            return  # `bind` checks that it is the node that is meant now
        if not self._may_write():
            raise Refused("this instance is no longer the leader; the next attempt reaches the new one")
        self._check_taints(binding, cluster.reported.taints.get(binding.Node, ()), tolerations)
        # No await from here to the booking: no other decision can come in between.
        placed = cluster.assume(claim, binding.Node)
        if isinstance(placed, list):
            why = "; ".join(dict.fromkeys(coded_reason(refusal.reason, refusal.never, claim) for refusal in placed))
            raise Refused(f"{claim.key} no longer fits on {binding.Node}: {why or 'its cards are taken'}")
        if self._gathering is not None and claim.uid in cluster.groups.members:
            placed = await self._with_its_group(claim, self._gathering)
        try:
            annotations = self._annotations(placed)
        except BaseException:  # nothing was sent
            cluster.unassume(claim.uid)
            raise
        await self._send(binding, claim, annotations)

    async def _with_its_group(self, claim: Claim, gathering: Gathering) -> Placed:
        """Wait for enough other members of the Pod's group to be here too. Raises Refused; then nothing is booked."""
        try:
            why = await gathering.wait(claim.uid)
        except BaseException:  # nothing was sent
            self._cluster.unassume(claim.uid)
            raise
        placed = self._cluster.assumed.get(claim.uid)  # its cards may have got other numbers meanwhile
        if placed is not None and Closed.AGENT_AWAY in self._cluster.reported.closed.get(placed.grant.node, ()):
            why = why or f"the node agent of {placed.grant.node} went away"
        if why is None and placed is not None and self._may_write():
            return placed
        self._cluster.unassume(claim.uid)
        raise Refused(f"{claim.key}: {why or 'it is gone, or this instance is no longer the leader'}")

    def _annotations(self, placed: Placed) -> dict[str, str]:
        node = self._cluster.board.node(placed.grant.node)
        assert node is not None, "a node that accepted the claim is on the board"
        grant = dialects.render_grant(placed.claim, placed.grant, node, self._now_ns(), self._cluster.rules)
        return {**grant, **self._extra_annotations(placed)}

    async def _bind_plain(self, binding: Binding, pod: PodObject) -> None:
        """Bind a Pod that asks for 0 of our resources: nothing to book. kube-scheduler itself binds all other Pods.

        The port may be open to strangers, and the API server binds a Pod to any name: so we check both.
        """
        if not is_managed(pod, self._cluster.rules.served):
            raise Refused(
                f"{binding.PodNamespace}/{binding.PodName} asks for no resource of aliquot: kube-scheduler binds it."
                " Its extender needs the managedResources that `aliquot manifests scheduler-config` prints"
            )
        node = await self._get_node(binding.Node)
        if node is None:
            raise Refused(f'the cluster has no node "{binding.Node}"')
        self._check_taints(binding, closing_taints(node.spec), pod.spec.tolerations or ())
        try:
            await self._write(binding, binding.PodUID, {})
        except ApiError as error:
            found = await self._get_pod(binding) if error.status == 409 else None
            if found is None or found.spec.node_name != binding.Node or found.metadata.uid != binding.PodUID:
                raise Refused(f"{binding.PodNamespace}/{binding.PodName}: {error}") from error

    async def _bindable_pod(self, binding: Binding) -> PodObject:
        """The Pod from the API server: unbound, or bound to the node that is meant. Raises Refused."""
        pod = await self._get_pod(binding)
        if pod is None or (binding.PodUID and pod.metadata.uid != binding.PodUID):
            raise Refused(f"{binding.PodNamespace}/{binding.PodName} is gone")
        if pod.spec.node_name:
            self._on_pod(pod)
            if pod.spec.node_name != binding.Node:
                raise Refused(f"{binding.PodNamespace}/{binding.PodName} is already bound to {pod.spec.node_name}")
        return pod

    def _read(self, pod: PodObject) -> Claim | None:
        claim = self._cluster.read(pod)
        if claim is not None and not isinstance(claim, Claim):
            raise Refused("; ".join(problem.sentence() for problem in claim))
        return claim

    async def _send(self, binding: Binding, claim: Claim, annotations: Mapping[str, str]) -> None:
        try:
            await self._write(binding, claim.uid, annotations)
            self._confirmed_by_api.add(claim.uid)
            asyncio.get_running_loop().call_later(_UNCONFIRMED, self._check_confirmed, binding, claim)
        except ApiError as error:
            await self._after_error(binding, claim, error)
        except NotSent as error:
            self._cluster.unassume(claim.uid)
            raise Refused(f"{claim.key}: {error}") from error
        except Unreachable as error:
            self._look_up_outcome(binding, claim)
            raise Refused(
                f"{claim.key}: the API server did not answer ({error}); aliquot will look up the outcome"
            ) from error

    async def _write(self, binding: Binding, uid: str, annotations: Mapping[str, str]) -> None:
        path = f"/api/v1/namespaces/{binding.PodNamespace}/pods/{binding.PodName}/binding"
        body = extender.render_binding(binding, uid, annotations)
        limit = {"timeout": f"{_TIMEOUT:.0f}s"}
        await self._kube.create(path, body, params=limit, timeout=_TIMEOUT + _CONNECT, connect=_CONNECT)

    def _check_confirmed(self, binding: Binding, claim: Claim) -> None:
        self._confirmed_by_api.discard(claim.uid)
        if claim.uid in self._cluster.assumed:
            self._look_up_outcome(binding, claim)

    async def _after_error(self, binding: Binding, claim: Claim, error: ApiError) -> None:
        """The write failed, or an earlier one had succeeded: only the Pod knows."""
        if error.status >= 500 or error.status == 429:  # an overloaded server may have bound it anyway
            self._look_up_outcome(binding, claim)
            raise Refused(f"{claim.key}: {error}; aliquot will look up the outcome") from error
        if error.status == 409:
            try:
                if await self._settle_by_reading(binding, claim):
                    self._cluster.unassume(claim.uid)  # only has an effect if the Pod has finished since
                    return
            except Unreachable:
                self._look_up_outcome(binding, claim)
                raise Refused(f"{claim.key}: {error}; aliquot will look up the outcome") from error
        self._cluster.unassume(claim.uid)
        raise Refused(f"{claim.key}: {error}") from error

    async def _get_pod(self, binding: Binding) -> PodObject | None:
        path = f"/api/v1/namespaces/{binding.PodNamespace}/pods/{binding.PodName}"
        try:
            pod: PodObject = await self._kube.get(path, into=PodObject, timeout=_TIMEOUT)
            return pod
        except ApiError as error:
            if error.status == 404:
                return None
            raise Unreachable(str(error)) from error

    async def _get_node(self, name: str) -> NodeObject | None:
        path = f"/api/v1/nodes/{quote(name, safe='')}"
        try:
            node: NodeObject = await self._kube.get(path, into=NodeObject, timeout=_TIMEOUT)
            return node
        except ApiError as error:
            if error.status == 404:
                return None
            raise Unreachable(str(error)) from error

    def _check_taints(self, binding: Binding, taints: Sequence[JsonView], tolerations: Sequence[object]) -> None:
        """kube-scheduler checks this too, but a moment earlier; and our caller may be another program."""
        taint = untolerated(taints, tolerations) if taints else None
        if taint is not None:
            raise Refused(f"{binding.PodNamespace}/{binding.PodName} does not tolerate {taint} of {binding.Node}")

    async def _settle_by_reading(self, binding: Binding, claim: Claim) -> bool:
        """Read the Pod and apply it. Returns whether it is bound to the node that was meant."""
        pod = await self._get_pod(binding)
        if pod is None or pod.metadata.uid != claim.uid or not pod.spec.node_name:
            return False
        self._on_pod(pod)
        return pod.spec.node_name == binding.Node

    def _look_up_outcome(self, binding: Binding, claim: Claim) -> None:
        task = asyncio.get_running_loop().create_task(self._poll_outcome(binding, claim))
        self._lookups.add(task)
        task.add_done_callback(self._lookups.discard)

    async def _poll_outcome(self, binding: Binding, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        settled, attempt = loop.time() + _SETTLED, 0
        while claim.uid in self._cluster.assumed:  # the watch may report it first
            attempt += 1
            read_at = loop.time()
            try:
                bound = await self._settle_by_reading(binding, claim)
                if bound or read_at >= settled:  # an earlier read may be older than its answer suggests
                    break
            except Unreachable as error:
                settled = loop.time() + _SETTLED  # a server that does not answer may still perform the write
                log.info("bind_outcome_unknown", extra={"data": {"pod": claim.key, "why": str(error)}})
            await asyncio.sleep(backoff(attempt, first=_FIRST_RETRY, longest=_LAST_RETRY, chance=0.5))
        self._cluster.unassume(claim.uid)  # has no effect if the Pod turned out to be bound
