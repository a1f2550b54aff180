"""Implements Allocate and PreStartContainer: injects the cards granted to the Pod.

    allocate    Allocate names devices, but no Pod. The response reserves a name under which nothing is injected yet
    prepare     PreStartContainer comes just before the container is created. The kubelet says whose the devices are
                (PodResources, and its checkpoint for the UID and for init containers), the Pod's annotation which
                cards it was granted. The Pod becomes a tenant, and the container's edits are put under the name

Nothing is guessed from sizes or ages. What cannot be known is refused with an event that says why. The kubelet calls
again, and the container starts as soon as the reason is gone. Nothing is awaited between reading and writing.
Containers that another device plugin admitted before us are left alone (foreignpods.py).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from msgspec import structs

from aliquot import dialects
from aliquot.adapters.gpu.driverfile import DriverFileError
from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import CachedResponse, Entry
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.adapters.kubernetes.kube import ApiError, Unreachable
from aliquot.adapters.kubernetes.reflector import key_of
from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.database import StoreError
from aliquot.dialects import PodReader, QgpuRules, Rules
from aliquot.dialects.registry import claim_for
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.views import pod_names
from aliquot.model.claim import Claim
from aliquot.model.containers.visible import visible_cards
from aliquot.model.device import MOST_FACTOR, Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.tenancy import Tenancy, shares_of
from aliquot.placement.crowding import crowded
from aliquot.services.agent.devices.plugins import Allocation, Refused
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.groups import PodGroups
from aliquot.services.agent.heldcards import HeldCards
from aliquot.services.agent.injection import Injection, Injector
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.services.daemon.events import EventSink, pod_ref
from aliquot.wording import reasons
from aliquot.wording.withheld import withheld_words

log = logging.getLogger(__name__)

REFUSED = "GPURefused"

_MOST_LOGGED = 1000  # refusals that we remember as logged


class Kubelet(Protocol):
    """Says which Pod holds which devices (adapters/kubelet/holders.py)."""

    async def holders(self) -> list[Holder]: ...
    def checkpoint(self) -> tuple[Entry, ...] | None: ...


class Pods(Protocol):
    """The Pods of this node (services/agent/podcache.py)."""

    def named(self, namespace: str, name: str) -> PodObject | None: ...
    def by_uid(self, uid: str) -> PodObject | None: ...
    async def fetch(self, namespace: str, name: str) -> PodObject: ...
    async def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Owner:
    """The container that holds the devices. `uid` comes from the kubelet's private file and may be missing."""

    namespace: str
    name: str
    container: str
    uid: str | None
    foreign: CachedResponse | None = None  # the response of another device plugin, if it admitted the Pod


class Allocator:
    """See the head of the file."""

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        pods: Pods,
        tenants: PodTenants,
        injector: Injector,
        events: EventSink,
        node: Callable[[], Node],  # with the current state of its cards
        why_unhealthy: Callable[[str], str | None],  # by UUID; None: the card is healthy
        held_cards: HeldCards,
        rules: Rules,
        clock: Callable[[], float],  # seconds since 1970
        foreign_pods: ForeignPods,
        mark_assigned: Callable[[PodObject, Claim], None] = lambda pod, claim: None,
        groups: PodGroups | None = None,
    ) -> None:
        self._groups = groups or PodGroups(None, tenants, serves=False)
        self._logged: OrderedDict[tuple[str, str], None] = OrderedDict()  # by UID and reason
        self._kubelet, self._pods, self._tenants, self._injector = kubelet, pods, tenants, injector
        self._events, self._node, self._why_unhealthy, self._clock = events, node, why_unhealthy, clock
        self._rules, self._mark_assigned, self._foreign_pods = rules, mark_assigned, foreign_pods
        self._held_cards = held_cards
        # The scheduler that wrote a grant may have other qGPU rules than we: try ours first, then the others.
        order = sorted(QgpuRules, key=lambda qgpu: qgpu is not rules.qgpu)
        self._readers = tuple(PodReader(replace(rules, qgpu=qgpu)) for qgpu in order)

    # --- calls of the kubelet ------------------------------------------------------------------------------------

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        """Reserve the name under which `prepare` will put the edits. Removes what an earlier Pod left there."""
        try:
            return self._injector.reserve(resource, ids)
        except (CdiError, OSError) as error:
            raise Refused(str(error)) from error

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        """Make the Pod a tenant and inject its cards into the container. Raises Refused."""
        owner = await self._owner(resource, ids)
        pod = await self._pod_of(owner)
        if owner.foreign is not None:
            self._foreign_pods.adopt(pod, owner.foreign, self)
            return
        try:
            await self._inject(pod, owner.container, resource, ids)
        except Refused as error:
            self._log_refusal(pod, str(error))
            self._events.emit(pod_ref(pod.metadata), REFUSED, str(error), action="StartContainer")
            raise

    def _log_refusal(self, pod: PodObject, why: str) -> None:
        """Log it once: the kubelet calls again and again for as long as the Pod exists."""
        if (pod.metadata.uid, why) in self._logged:
            return
        self._logged[pod.metadata.uid, why] = None
        if len(self._logged) > _MOST_LOGGED:
            self._logged.popitem(last=False)
        log.warning("container_refused", extra={"data": {"pod": key_of(pod), "why": why}})

    async def _inject(self, pod: PodObject, container: str, resource: str, ids: frozenset[str]) -> None:
        claim, grant = self.granted(pod)
        if self._full(pod, claim, grant):
            await self._pods.refresh()  # a Pod may have ended without the watch having reported it yet
            self._tenants.sweep()
        tenancy = self.tenancy(pod, claim, grant)
        async with self._groups.joining(tenancy):
            self._admit(pod, claim, grant, tenancy, container, resource, ids)

    def _admit(
        self, pod: PodObject, claim: Claim, grant: Grant, tenancy: Tenancy, container: str, resource: str,
        ids: frozenset[str],
    ) -> None:  # fmt: skip
        """Nothing is awaited in here."""
        self._check_running(pod)
        crowd = self._full(pod, claim, grant)
        if crowd is not None:
            raise Refused(f"{crowd}; {self._why_full(grant)}")
        injection = self._injection(tenancy, claim, grant, container)
        try:
            self._tenants.admit(tenancy)
            self._injector.inject(resource, ids, injection, pod)
        except (StoreError, CdiError, AdmissionError, DriverFileError, OSError) as error:
            raise Refused(f"the aliquot agent of this node cannot prepare the container: {error}") from error
        data = {"pod": key_of(pod), "container": container, "resource": resource, "cards": list(injection.cards)}
        log.info("cards_injected", extra={"data": data})
        self._mark_assigned(pod, claim)
        self._foreign_pods.annotate_grant(pod, claim, grant)

    # --- the Pod -------------------------------------------------------------------------------------------------

    async def _owner(self, resource: str, ids: frozenset[str]) -> _Owner:
        try:
            holders = await self._kubelet.holders()
            self._held_cards.update(holders)
            there = self._kubelet.checkpoint() or ()
        except KubeletError as error:
            raise Refused(f"the kubelet does not say which Pod holds these devices: {error}") from error
        entries = [entry for entry in there if entry.resource == resource and entry.ids & ids]
        uids = {entry.pod_uid for entry in entries}
        uid = uids.pop() if len(uids) == 1 else None
        foreign = self._foreign_pods.foreign_responses(entries).get(uid or "")
        held = [holder for holder in holders if holder.devices.get(resource, frozenset()) & ids]
        same = [holder for holder in held if holder.devices[resource] == ids] or held
        if len({(holder.namespace, holder.name) for holder in same}) > 1:  # the devices change hands at this moment
            raise Refused(f"the kubelet lists two Pods that hold these devices of {resource}; it will try again")
        if same:
            return _Owner(same[0].namespace, same[0].name, self._container(same, entries, ids), uid, foreign)
        # PodResources does not list an init container of a size of its own, but the kubelet's checkpoint does.
        pod = None if uid is None else await self._by_uid(uid)
        if pod is None:
            raise Refused(
                f"the kubelet does not say which Pod holds these {len(ids)} devices of {resource}; it will try again"
            )
        return _Owner(pod.metadata.namespace, pod.metadata.name, self._container([], entries, ids), uid, foreign)

    async def _by_uid(self, uid: str) -> PodObject | None:
        """The API server cannot look up a Pod by UID: if the watch has not reported it yet, list all Pods."""
        if self._pods.by_uid(uid) is None:
            await self._pods.refresh()
        return self._pods.by_uid(uid)

    @staticmethod
    def _container(held: Sequence[Holder], entries: Iterable[Entry], ids: frozenset[str]) -> str:
        """The container to inject. An init container that holds the same devices as an app container gets the cards of
        the app container: both are of one Pod, and it runs before."""
        exact = [entry.container for entry in entries if entry.ids == ids]
        listed = [holder.container for holder in held]
        return next((name for name in listed if name in exact), (exact or listed or [""])[0])

    async def _pod_of(self, owner: _Owner) -> PodObject:
        """The cached Pod if its UID is certainly the same, else the one that the API server has."""
        known = self._pods.named(owner.namespace, owner.name)
        if known is not None and owner.uid == known.metadata.uid:
            return known
        try:
            found = await self._pods.fetch(owner.namespace, owner.name)
        except ApiError as error:
            raise Refused(
                f"the API server does not know Pod {owner.namespace}/{owner.name}: {error.message}"
            ) from error
        except Unreachable as error:
            raise Refused(f"cannot read Pod {owner.namespace}/{owner.name} from the API server: {error}") from error
        if owner.uid is not None and found.metadata.uid != owner.uid:
            raise Refused(f"Pod {owner.namespace}/{owner.name} was replaced: this container belongs to the former Pod")
        return found

    def _check_running(self, pod: PodObject) -> None:
        """Refuse a Pod that has ended: no watch event would ever release its cards."""
        now = self._pods.by_uid(pod.metadata.uid)
        if now is None or now.finished:
            raise Refused("the Pod has ended or was deleted")

    # --- its grant -----------------------------------------------------------------------------------------------

    def granted(self, pod: PodObject) -> tuple[Claim, Grant]:
        """The Pod's claim and its grant, of healthy cards of this node. Raises Refused."""
        claim, grant = self.read(pod)
        numbers = self._uuids()
        # Share by share: a card that is gone may have had the number of another card of today.
        for share in (share for container in grant.containers for share in container.shares):
            uuid = share.uuid or numbers.get(share.card, "")
            if uuid not in numbers.values():
                raise Refused(f"the Pod was granted card {uuid or share.card}, which this node does not have")
            why = self._why_unhealthy(uuid)
            if why is not None:
                raise Refused(why)
            self._check_withheld(pod, uuid)
        return claim, grant

    def _check_withheld(self, pod: PodObject, uuid: str) -> None:
        """Refuse a card that is not offered, except to a Pod that has it already: its containers may restart."""
        card = next((card for card in self._node().cards if card.uuid == uuid), None)
        if card is not None and card.withheld and pod.metadata.uid not in self._tenants.tenancies:
            words = withheld_words(card.withheld)
            raise Refused(f"card {card.index} ({uuid}) is not offered: {words}; create the Pod again")

    def container_of(self, uid: str) -> str:
        """The container of a Pod that asked for a card; empty if several did, or it is not known."""
        pod = self._pods.by_uid(uid)
        if pod is None:
            return ""
        with suppress(Refused):
            names = {container.name for container in self.read(pod)[1].containers if container.shares}
            return names.pop() if len(names) == 1 else ""
        return ""

    def read(self, pod: PodObject) -> tuple[Claim, Grant]:
        """The Pod's claim and its grant, of any cards. Raises Refused."""
        node = self._node()
        if pod.spec.node_name != node.name:
            raise Refused(f"the Pod is bound to {pod.spec.node_name or 'no node'}, but this is node {node.name}")
        bad_claim = bad_grant = ""
        for reader in self._readers:
            claim = reader.read_bound(pod).claim
            if isinstance(claim, Claim):
                claim = claim_for(pod_names(pod), claim)
                found = dialects.parse_grant(pod, claim, node)
                if isinstance(found, Grant):
                    return claim, found
                bad_grant = bad_grant or (_not_granted(pod) if found is None else found[0].sentence())
            elif claim is not None:
                bad_claim = bad_claim or claim[0].sentence()
        raise Refused(bad_grant or bad_claim or "the Pod requests no GPU")

    def tenancy_of(self, pod: PodObject) -> Tenancy:
        """The Pod as a tenant, by its annotation. Raises Refused."""
        return self.tenancy(pod, *self.read(pod))

    def tenancy(self, pod: PodObject, claim: Claim, grant: Grant) -> Tenancy:
        """The Pod as a tenant with this claim and grant."""
        return Tenancy(
            id=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            app_class=claim.app_class,
            shares=shares_of(grant, self._uuids()),
            created=self._clock(),
            park_after=claim.park_after,
            latency=claim.latency,
            user=claim.user,
            group=f"{claim.namespace}/{claim.group}/{claim.app_class.value}" if claim.group else "",
        )

    def _uuids(self) -> dict[int, str]:
        return {card.index: card.uuid for card in self._node().cards}

    def _full(self, pod: PodObject, claim: Claim, grant: Grant) -> str | None:
        # A tenant that was admitted stays, also if its node's factor of oversubscription was lowered since.
        known = pod.metadata.uid in self._tenants.tenancies
        cards: dict[str, Card] = {
            card.uuid: structs.replace(card, oversubscribe=MOST_FACTOR) if known else card
            for card in self._node().cards
        }
        others = [tenancy for tenancy in self._tenants.tenancies.values() if tenancy.id != pod.metadata.uid]
        refusal = crowded(
            cards,
            [share for tenancy in others if not tenancy.parkable for share in tenancy.shares],
            shares_of(grant, self._uuids()),
            parkable=claim.parkable,
            parked=[share for tenancy in others if tenancy.parkable for share in tenancy.shares],
        )
        if refusal is None:
            return None
        return f"card {refusal.card} {reasons.card(refusal.reason, refusal.wanted, refusal.had)}"

    def _why_full(self, grant: Grant) -> str:
        """What the user can do about it."""
        wanted = {share.uuid for share in shares_of(grant, self._uuids())}
        for tenancy in (self._tenants.tenancies[uid] for uid in self._tenants.ended):
            if any(share.uuid in wanted for share in tenancy.shares):
                return f"Pod {tenancy.key} has ended, but its processes are still on the card"
        return "did two schedulers place these Pods? Run `aliquot doctor`"

    def _injection(self, tenancy: Tenancy, claim: Claim, grant: Grant, container: str) -> Injection:
        """A container without a name or without a share is an init container that we cannot identify: it gets the cards
        of the first container."""
        granted = next(
            (candidate for candidate in grant.containers if candidate.name == container), grant.containers[0]
        )
        numbers = self._uuids()
        cards = tuple(share.uuid or numbers.get(share.card, "") for share in granted.shares)
        env = dialects.render_env(claim, grant, self._node(), granted.name, self._rules)
        env |= self._groups.environment(tenancy)
        visible = visible_cards(cards, self._node().cards)
        return Injection(tenancy, container, cards, env, self._groups.mounts(tenancy), visible)


def _not_granted(pod: PodObject) -> str:
    scheduler = pod.spec.scheduler_name or "its scheduler"
    return (
        f"aliquot granted no card to this Pod: it was bound by spec.nodeName, or {scheduler} does not call aliquot. "
        "Remove spec.nodeName, configure the scheduler (`aliquot manifests scheduler-config`, `aliquot doctor`) or set "
        "spec.schedulerName to one that is configured, and create the Pod again"
    )
