"""Leads each container to the cards its Pod was given. What the kubelet asks of a device plugin, answered.

    allocate    which devices, but not for whom: answered with a name, under which nothing is found yet
    prepare     just before the container is made (PreStartContainer). Whose the devices are, the kubelet tells
                (PodResources, and its checkpoint for the UID and for init containers); what the Pod was given, its
                annotation. The Pod becomes a tenant, and what the container needs is put under the name

Nothing is guessed, by size or by age. Whatever cannot be known is refused, with an event that says why; the kubelet
asks again, and the container starts as soon as the reason is gone. Between reading and writing nothing is awaited.
Containers that another device plugin let in before us are let be (guests.py).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

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
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import Grant
from aliquot.model.node import Node
from aliquot.model.podtenancy import PodTenancy, shares_of
from aliquot.placement.crowding import crowded
from aliquot.services.agent.deviceplugins import Allocation, Refused
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.injection import Injector, Place
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.services.daemon.events import EventSink, pod_ref

log = logging.getLogger(__name__)

REFUSED = "GPURefused"

_MOST_SAID = 1000  # refusals of which it is known that they were logged


class Kubelet(Protocol):
    """Who tells which Pod holds which devices: the kubelet."""

    async def holders(self) -> list[Holder]: ...
    def checkpoint(self) -> tuple[Entry, ...] | None: ...


class Pods(Protocol):
    """The Pods of this node, as they were last told (services/agent/podcache.py)."""

    def named(self, namespace: str, name: str) -> PodObject | None: ...
    def by_uid(self, uid: str) -> PodObject | None: ...
    async def fetch(self, namespace: str, name: str) -> PodObject: ...
    async def refresh(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose the devices are, as far as the kubelet tells. `uid` comes from its private file and may be missing."""

    namespace: str
    name: str
    container: str
    uid: str | None
    guest: CachedResponse | None = None  # what another device plugin answered, where one did


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
        node: Callable[[], Node],  # with the cards as they are now
        sick: Callable[[str], str | None],  # why the card of that UUID is out; None: it is well
        rules: Rules,
        clock: Callable[[], float],  # seconds since 1970
        foreign_pods: ForeignPods,
        assigned: Callable[[PodObject, Claim], None] = lambda pod, claim: None,
    ) -> None:
        self._said: OrderedDict[tuple[str, str], None] = OrderedDict()  # what was logged, by UID and reason
        self._kubelet, self._pods, self._tenants, self._injector = kubelet, pods, tenants, injector
        self._events, self._node, self._sick, self._clock = events, node, sick, clock
        self._rules, self._assigned, self._foreign_pods = rules, assigned, foreign_pods
        # A grant is read by the rules it was given by, whichever the scheduler was told.
        order = sorted(QgpuRules, key=lambda each: each is not rules.qgpu)
        self._readers = tuple(PodReader(replace(rules, qgpu=each)) for each in order)

    # --- what the kubelet asks -----------------------------------------------------------------------------------

    def allocate(self, resource: str, ids: frozenset[str]) -> Allocation:
        """The name under which `prepare` will put what the container needs. What an earlier Pod left there goes."""
        try:
            return self._injector.reserve(resource, ids)
        except (CdiError, OSError) as error:
            raise Refused(str(error)) from error

    async def prepare(self, resource: str, ids: frozenset[str]) -> None:
        """Raises Refused."""
        owner = await self._owner(resource, ids)
        pod = await self._pod_of(owner)
        if owner.guest is not None:
            self._foreign_pods.adopt(pod, owner.guest, self)
            return
        try:
            await self._settle(pod, owner.container, resource, ids)
        except Refused as error:
            self._log_refusal(pod, str(error))
            self._events.emit(pod_ref(pod.metadata), REFUSED, str(error), action="StartContainer")
            raise

    def _log_refusal(self, pod: PodObject, why: str) -> None:
        """Once: the kubelet asks again and again, for as long as the Pod is there."""
        if (pod.metadata.uid, why) in self._said:
            return
        self._said[pod.metadata.uid, why] = None
        if len(self._said) > _MOST_SAID:
            self._said.popitem(last=False)
        log.warning("a container is refused", extra={"data": {"pod": key_of(pod), "why": why}})

    async def _settle(self, pod: PodObject, container: str, resource: str, ids: frozenset[str]) -> None:
        claim, grant = self.granted(pod)
        if self._full(pod, grant):
            await self._pods.refresh()  # somebody may have left whose end we have not heard of
            self._tenants.sweep()
        # No await from here on.
        self._check_here(pod)
        crowd = self._full(pod, grant)
        if crowd is not None:
            raise Refused(f"{crowd}; {self._why_full(grant)}")
        tenancy = self.tenancy(pod, claim, grant)
        place = self._place(tenancy, claim, grant, container)
        try:
            self._tenants.admit(tenancy)
            self._injector.inject(resource, ids, place, pod)
        except (StoreError, CdiError, AdmissionError, DriverFileError, OSError) as error:
            raise Refused(f"the node's agent cannot prepare it: {error}") from error
        told = {"pod": key_of(pod), "container": container, "resource": resource, "cards": list(place.cards)}
        log.info("a container is led to its cards", extra={"data": told})
        self._assigned(pod, claim)
        self._foreign_pods.annotate_grant(pod, claim, grant)

    # --- whose it is ---------------------------------------------------------------------------------------------

    async def _owner(self, resource: str, ids: frozenset[str]) -> _Owner:
        try:
            holders = await self._kubelet.holders()
        except KubeletError as error:
            raise Refused(f"the kubelet does not tell whose devices these are: {error}") from error
        entries = [each for each in self._kubelet.checkpoint() or () if each.resource == resource and each.ids & ids]
        uids = {entry.pod_uid for entry in entries}
        uid = uids.pop() if len(uids) == 1 else None
        guest = self._foreign_pods.foreign_responses(entries).get(uid or "")
        held = [holder for holder in holders if holder.devices.get(resource, frozenset()) & ids]
        same = [each for each in held if each.devices[resource] == ids] or held
        if len({(each.namespace, each.name) for each in same}) > 1:  # they change hands while it tells
            raise Refused(f"the kubelet tells of two Pods that have these devices of {resource}; it will ask again")
        if same:
            return _Owner(same[0].namespace, same[0].name, self._container(same, entries, ids), uid, guest)
        # An init container whose size is no other's is not listed, but is in the kubelet's own file.
        pod = None if uid is None else await self._by_uid(uid)
        if pod is None:
            raise Refused(
                f"the kubelet does not tell whose these {len(ids)} devices of {resource} are; it will ask again"
            )
        return _Owner(pod.metadata.namespace, pod.metadata.name, self._container([], entries, ids), uid, guest)

    async def _by_uid(self, uid: str) -> PodObject | None:
        """The API server finds no Pod by its UID: where the watch has not told it yet, all are listed."""
        if self._pods.by_uid(uid) is None:
            await self._pods.refresh()
        return self._pods.by_uid(uid)

    @staticmethod
    def _container(held: Sequence[Holder], entries: Iterable[Entry], ids: frozenset[str]) -> str:
        """An init container that has the same devices as an application's gets what that one gets: it runs before it,
        and the devices are one Pod's."""
        exact = [entry.container for entry in entries if entry.ids == ids]
        listed = [each.container for each in held]
        return next((each for each in listed if each in exact), (exact or listed or [""])[0])

    async def _pod_of(self, owner: _Owner) -> PodObject:
        """The Pod, as the watch told it where that is certainly this one, else asked for."""
        known = self._pods.named(owner.namespace, owner.name)
        if known is not None and owner.uid == known.metadata.uid:
            return known
        try:
            found = await self._pods.fetch(owner.namespace, owner.name)
        except ApiError as error:
            raise Refused(
                f"Pod {owner.namespace}/{owner.name} is not known to the API server: {error.message}"
            ) from error
        except Unreachable as error:
            raise Refused(f"the API server cannot be asked for Pod {owner.namespace}/{owner.name}: {error}") from error
        if owner.uid is not None and found.metadata.uid != owner.uid:
            raise Refused(f"Pod {owner.namespace}/{owner.name} was made anew: this container is of the former one")
        return found

    def _check_here(self, pod: PodObject) -> None:
        """Nobody would ever tell of the end of one that has ended already: it would hold its cards for good."""
        now = self._pods.by_uid(pod.metadata.uid)
        if now is None or now.finished:
            raise Refused("it has ended, or is gone from the API server")

    # --- what it was given ---------------------------------------------------------------------------------------

    def granted(self, pod: PodObject) -> tuple[Claim, Grant]:
        """What the Pod asked for and got, on cards that are here and well. Raises Refused."""
        claim, grant = self.read(pod)
        numbers = self._uuids()
        # Share by share: one that is gone may have had the number that another has now.
        for share in (share for container in grant.containers for share in container.shares):
            uuid = share.uuid or numbers.get(share.card, "")
            if uuid not in numbers.values():
                raise Refused(f"it was given card {uuid or share.card}, which this node does not have")
            why = self._sick(uuid)
            if why is not None:
                raise Refused(why)
        return claim, grant

    def read(self, pod: PodObject) -> tuple[Claim, Grant]:
        """What the Pod asked for and got, wherever that is. Raises Refused."""
        node = self._node()
        if pod.spec.node_name != node.name:
            raise Refused(f"it is bound to {pod.spec.node_name or 'no node'}, and this is {node.name}")
        bad_claim = bad_grant = ""
        for reader in self._readers:
            claim = reader.read(pod).claim
            if isinstance(claim, Claim):
                found = dialects.parse_grant(pod, claim, node)
                if isinstance(found, Grant):
                    return claim, found
                bad_grant = bad_grant or (_not_granted(pod) if found is None else found[0].sentence())
            elif claim is not None:
                bad_claim = bad_claim or claim[0].sentence()
        raise Refused(bad_grant or bad_claim or "it asks for no card")

    def tenancy_of(self, pod: PodObject) -> PodTenancy:
        """The Pod as a tenant. Raises Refused."""
        return self.tenancy(pod, *self.read(pod))

    def tenancy(self, pod: PodObject, claim: Claim, grant: Grant) -> PodTenancy:
        """The same, of what it asked for and got."""
        return PodTenancy(
            uid=pod.metadata.uid,
            namespace=pod.metadata.namespace,
            name=pod.metadata.name,
            app_class=claim.app_class,
            shares=shares_of(grant, self._uuids()),
            created=self._clock(),
        )

    def _uuids(self) -> dict[int, str]:
        return {card.index: card.uuid for card in self._node().cards}

    def _full(self, pod: PodObject, grant: Grant) -> str | None:
        cards: dict[str, Card] = {card.uuid: card for card in self._node().cards}
        others = [
            share
            for tenancy in self._tenants.tenancies.values()
            if tenancy.uid != pod.metadata.uid
            for share in tenancy.shares
        ]
        return crowded(cards, others, shares_of(grant, self._uuids()))

    def _why_full(self, grant: Grant) -> str:
        """What may be done about it."""
        wanted = {share.uuid for share in shares_of(grant, self._uuids())}
        for each in (self._tenants.tenancies[uid] for uid in self._tenants.ended):
            if any(share.uuid in wanted for share in each.shares):
                return f"Pod {each.key} has ended, but is not gone from the card yet"
        return "were these Pods placed by two schedulers? `aliquot doctor` looks"

    def _place(self, tenancy: PodTenancy, claim: Claim, grant: Grant, container: str) -> Place:
        """A container that has no name, or one that asked for nothing, is an init container of a form we do not know:
        it gets what the first one gets."""
        granted = next((each for each in grant.containers if each.name == container), grant.containers[0])
        numbers = self._uuids()
        cards = tuple(share.uuid or numbers.get(share.card, "") for share in granted.shares)
        return Place(
            tenancy, container, cards, dialects.render_env(claim, grant, self._node(), granted.name, self._rules)
        )


def _not_granted(pod: PodObject) -> str:
    by = pod.spec.scheduler_name or "its scheduler"
    return (
        f"no card was given to it: it came past aliquot, by spec.nodeName or because {by} does not ask aliquot. "
        "Leave spec.nodeName out, have the scheduler ask (`aliquot manifests scheduler-config`, `aliquot doctor`) or "
        "name one that does in spec.schedulerName, and make the Pod anew"
    )
