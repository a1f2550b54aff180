"""Prepares claims: a claim becomes a tenant, with one CDI spec for each of its requests and one for the whole.

The order of writes is that of Pods (tenants.py): database, folder, CDI specs; the reverse when the claim is unprepared.
The kubelet repeats both calls until they succeed, also after a restart of its own or of the agent: what is done
already is done again with the same result. Nothing is awaited between the last check for room and the writes.

A container that uses the whole claim gets the specs of all requests, and then that of the whole claim, whose
environment names all cards: runtimes let the last one win.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from aliquot.adapters.gpu.driverfile import DriverFileError
from aliquot.adapters.kubelet.deviceplugin import Refused
from aliquot.adapters.kubelet.draplugin import ClaimRef, PreparedDevice
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.storage.cdifolder import CdiError
from aliquot.adapters.storage.database import StoreError
from aliquot.dialects.dra import DRIVER, GROUP, LABEL
from aliquot.dialects.dra.claims import AllocatedClaim, ClaimObject, parse_claim
from aliquot.dialects.dra.pods import claim_names, container_with_several
from aliquot.dialects.wire.cdi import name_of
from aliquot.dialects.wire.objects import PodObject
from aliquot.model.device import Card
from aliquot.model.node import Node
from aliquot.model.tenancy import Tenancy, shares_of
from aliquot.placement.crowding import crowded
from aliquot.services.agent.injection import CdiInjector, Injection
from aliquot.services.agent.tenants import AdmissionError, PodTenants
from aliquot.wording import reasons
from aliquot.wording.withheld import withheld_words

log = logging.getLogger(__name__)

RESOURCE = f"{DRIVER}/claim"  # the class of the CDI specs
WHOLE = "*"  # instead of a request: the whole claim; no request can have this name


class Pods(Protocol):
    """services/agent/podcache.py."""

    def by_uid(self, uid: str) -> PodObject | None: ...
    async def fetch(self, namespace: str, name: str) -> PodObject: ...


class ClaimPreparer:
    """See the head of the file."""

    def __init__(
        self,
        kube: Kube,
        pods: Pods,
        tenants: PodTenants,
        injector: CdiInjector,
        *,
        node: Callable[[], Node],
        why_unhealthy: Callable[[str], str | None],
        admits: Callable[[], bool],  # whether new claims may be prepared now
        clock: Callable[[], float],  # seconds since 1970
    ) -> None:
        self._kube, self._pods, self._tenants, self._injector = kube, pods, tenants, injector
        self._node, self._why_unhealthy, self._admits, self._clock = node, why_unhealthy, admits, clock
        self.left_alone: frozenset[str] = frozenset()  # UIDs of claims that could not be read when the agent started

    @property
    def claims(self) -> list[Tenancy]:
        """The claims that are tenants."""
        return [tenancy for tenancy in list(self._tenants.tenancies.values()) if tenancy.claim]

    def claims_of(self, pod_uid: str) -> list[str]:
        """UIDs of the prepared claims that the Pod uses. Of one that is not known yet: all that it may use, and then
        the Pod's own, so that its process is charged to none of them. Any thread may call it."""
        by_key = {tenancy.key: tenancy.id for tenancy in self.claims}
        pod = self._pods.by_uid(pod_uid) if by_key else None
        if pod is None:
            return [*by_key.values(), pod_uid] if by_key else []
        keys = (f"{pod.metadata.namespace}/{name}" for name in claim_names(pod).values())
        return [by_key[key] for key in keys if key in by_key]

    # --- calls of the kubelet ------------------------------------------------------------------------------------

    async def prepare(self, claim: ClaimRef, together: Sequence[ClaimRef]) -> list[PreparedDevice]:
        """Make the claim a tenant. Raises Refused."""
        try:
            return await self._prepare(claim, together)
        except Refused as error:
            log.warning(
                "claim_refused", extra={"data": {"claim": f"{claim.namespace}/{claim.name}", "why": str(error)}}
            )
            raise

    async def _prepare(self, ref: ClaimRef, together: Sequence[ClaimRef]) -> list[PreparedDevice]:
        found = await self._fetch(ref)
        claim = self._parse(found)
        await self._check_containers(found, ref, together)
        # No await from here on.
        known = ref.uid in self._tenants.tenancies
        if not known:
            self._check_new(claim)
        tenancy = self._tenancy(claim)
        if self._full(tenancy) is not None:
            self._tenants.sweep()
        crowd = self._full(tenancy)
        if crowd is not None:
            raise Refused(f"{crowd}: others on this node hold it; run `aliquot doctor`")
        try:
            self._tenants.admit(tenancy)
            devices = self._inject(claim, tenancy)
        except (StoreError, CdiError, AdmissionError, DriverFileError, OSError) as error:
            raise Refused(f"the aliquot agent of this node cannot prepare the claim: {error}") from error
        cards = [share.uuid for share in tenancy.shares]
        log.info("claim_prepared", extra={"data": {"claim": tenancy.key, "uid": tenancy.id, "cards": cards}})
        return devices

    async def unprepare(self, claim: ClaimRef) -> None:
        """Release the tenant. Raises Refused while its processes are on a card: the claim stays allocated then."""
        known = self._tenants.tenancies.get(claim.uid)
        if known is not None and not known.claim:
            raise Refused(f"{claim.uid} is a Pod, and no ResourceClaim")
        self._tenants.mark_ended(claim.uid)
        self._tenants.sweep()
        if claim.uid in self._tenants.tenancies:
            raise Refused("processes of the claim's Pods are still on its cards, or its files cannot be removed")
        try:
            self._injector.remove(claim.uid)
        except (CdiError, OSError) as error:
            raise Refused(f"the claim's CDI spec cannot be removed: {error}") from error

    # --- after a restart -----------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Make those claims tenants again that have CDI specs but are not in the database: its file was lost.
        Discard what is left of claims that are gone."""
        for spec in self._injector.specs():
            if spec.name.kind != name_of(RESOURCE, ()).kind or spec.pod_uid in self._tenants.tenancies:
                continue
            ref = ClaimRef(spec.namespace, spec.pod, spec.pod_uid)
            try:
                claim = self._parse(await self._fetch(ref))
                self._tenants.admit(self._tenancy(claim))
                log.info("tenant_readmitted", extra={"data": {"claim": f"{ref.namespace}/{ref.name}", "uid": ref.uid}})
            except Gone:
                self._tenants.discard(ref.uid)
            except (Refused, AdmissionError, StoreError) as error:
                data = {"claim": f"{ref.namespace}/{ref.name}", "why": str(error)}
                log.warning("tenant_not_readmitted", extra={"data": data})
                self.left_alone |= {ref.uid}

    async def release_gone(self) -> None:
        """Release tenants whose claim is gone or no longer allocated: the kubelet may have lost its own record."""
        for tenancy in self.claims:
            try:
                found = await self._fetch(ClaimRef(tenancy.namespace, tenancy.name, tenancy.id))
                if found.holds(self._node().name):
                    continue
            except Gone:
                pass
            except Refused:
                continue
            self._tenants.mark_ended(tenancy.id)

    # --- the claim -----------------------------------------------------------------------------------------------

    async def _fetch(self, ref: ClaimRef) -> ClaimObject:
        path = f"{GROUP}/namespaces/{ref.namespace}/resourceclaims/{ref.name}"
        try:
            found: ClaimObject = await self._kube.get(path, into=ClaimObject)
        except ApiError as error:
            kind = Gone if _is_missing(error) else Refused
            raise kind(f"cannot read ResourceClaim {ref.namespace}/{ref.name}: {error.message}") from error
        except Unreachable as error:
            raise Refused(f"cannot read ResourceClaim {ref.namespace}/{ref.name}: {error}") from error
        if found.metadata.uid != ref.uid:
            raise Gone(f"ResourceClaim {ref.namespace}/{ref.name} was replaced by another of the same name")
        return found

    def _parse(self, claim: ClaimObject) -> AllocatedClaim:
        node = self._node()
        found = parse_claim(claim, node.name, node.cards)
        if not isinstance(found, AllocatedClaim):
            raise Refused(f"ResourceClaim {claim.key}: {'; '.join(problem.sentence() for problem in found)}")
        return found

    async def _check_containers(self, claim: ClaimObject, ref: ClaimRef, together: Sequence[ClaimRef]) -> None:
        """Refuse a container with two claims: its processes could not belong to both."""
        ours = {tenancy.name for tenancy in self.claims if tenancy.namespace == ref.namespace}
        ours |= {other.name for other in together if other.namespace == ref.namespace}
        if ours <= {ref.name}:
            return
        for uid, name in claim.pods.items():
            pod = self._pods.by_uid(uid)
            if pod is None:
                try:
                    pod = await self._pods.fetch(ref.namespace, name)
                except (ApiError, Unreachable):
                    continue  # it is gone, or bound elsewhere
            container = container_with_several(pod, ours)
            if container is not None:
                raise Refused(
                    f"container {container} of Pod {ref.namespace}/{name} uses two claims of {DRIVER}: put both "
                    "requests into one ResourceClaim"
                )

    def _check_new(self, claim: AllocatedClaim) -> None:
        """What holds for a new tenant only: containers of those that are there may restart."""
        node = self._node()
        if not self._admits():
            raise Refused(
                f"node {node.name} does not serve claims now: its cards belong to device plugins, or its label "
                f"{LABEL}=true was removed; delete the Pod, so that the claim is allocated again"
            )
        if claim.policy is not None and claim.policy is not node.isolation:
            raise Refused(
                f"ResourceClaim {claim.namespace}/{claim.name} needs policy {claim.policy}, but node {node.name} has "
                f'{node.isolation}: select a device with device.attributes["{DRIVER}"].policy == "{claim.policy}"'
            )
        cards = {card.uuid: card for card in node.cards}
        for device in claim.devices:
            why, card = self._why_unhealthy(device.uuid), cards[device.uuid]
            if why is None and card.withheld:
                why = f"card {card.index} ({card.uuid}) is not offered: {withheld_words(card.withheld)}"
            if why is not None:
                raise Refused(why)

    def _tenancy(self, claim: AllocatedClaim) -> Tenancy:
        numbers = {card.index: card.uuid for card in self._node().cards}
        known = self._tenants.tenancies.get(claim.uid)
        return Tenancy(
            id=claim.uid,
            namespace=claim.namespace,
            name=claim.name,
            app_class=claim.app_class,
            shares=shares_of(claim.grant, numbers),
            created=self._clock() if known is None else known.created,
            claim=True,
            latency=claim.latency,
        )

    def _full(self, tenancy: Tenancy) -> str | None:
        cards: dict[str, Card] = {card.uuid: card for card in self._node().cards}
        held = [share for other in self._tenants.tenancies.values() if other.id != tenancy.id for share in other.shares]
        refusal = crowded(cards, held, tenancy.shares)
        return (
            None
            if refusal is None
            else f"card {refusal.card} {reasons.card(refusal.reason, refusal.wanted, refusal.had)}"
        )

    def _inject(self, claim: AllocatedClaim, tenancy: Tenancy) -> list[PreparedDevice]:
        by_request: dict[str, list[str]] = {}
        for device in claim.devices:
            by_request.setdefault(device.request, []).append(device.uuid)
        answered: set[str] = set()
        devices = []
        for request, cards in by_request.items():
            self._write(tenancy, request, cards)
        for device in claim.devices:  # one CDI name per request, however many devices it has
            cdi = () if device.request in answered else (_cdi_name(tenancy.id, device.request),)
            answered.add(device.request)
            devices.append(PreparedDevice((device.request,), device.pool, device.name, cdi, device.share_id))
        if len(by_request) > 1:
            self._write(tenancy, WHOLE, [device.uuid for device in claim.devices])
            first = claim.devices[0]
            cdi = (_cdi_name(tenancy.id, WHOLE),)
            devices.append(PreparedDevice((WHOLE,), first.pool, first.name, cdi, first.share_id))
        return devices

    def _write(self, tenancy: Tenancy, request: str, cards: Sequence[str]) -> None:
        unique = tuple(dict.fromkeys(cards))
        env = {"NVIDIA_VISIBLE_DEVICES": ",".join(unique)}
        ids = frozenset({tenancy.id, request})
        self._injector.inject(RESOURCE, ids, Injection(tenancy, request, unique, env))


class Gone(Refused):
    """The claim does not exist any more."""


def _is_missing(error: ApiError) -> bool:
    """Whether the API server says that this claim is missing. Without the API group, it answers 404 for all of them."""
    return error.status == 404 and error.reason == "NotFound" and "resourceclaims" in error.message


def _cdi_name(uid: str, request: str) -> str:
    return name_of(RESOURCE, {uid, request}).qualified
