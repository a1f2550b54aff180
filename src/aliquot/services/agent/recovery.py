"""Who holds the cards when the agent starts: what the database says, reconciled with the API server and the kubelet."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aliquot.adapters.kubelet.checkpoint import CachedResponse
from aliquot.adapters.kubelet.holders import Kubelet
from aliquot.adapters.kubernetes.reflector import key_of
from aliquot.adapters.storage.podstore import StoreError
from aliquot.dialects.wire.objects import PodObject
from aliquot.services.agent.allocation import Allocator
from aliquot.services.agent.devices.plugins import Refused
from aliquot.services.agent.dra.preparation import ClaimPreparer
from aliquot.services.agent.foreignpods import ForeignPods
from aliquot.services.agent.injection import RuntimeInjector
from aliquot.services.agent.podcache import PodCache
from aliquot.services.agent.tenants import AdmissionError, PodTenants

log = logging.getLogger(__name__)


class TenantRecovery:
    """Reconciles the tenants with the Pods of the node."""

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        pods: PodCache,
        tenants: PodTenants,
        claims: ClaimPreparer,
        foreign_pods: ForeignPods,
        injector: RuntimeInjector,
        allocator: Allocator,
    ) -> None:
        self._kubelet, self._pod_cache, self._tenants, self._claims = kubelet, pods, tenants, claims
        self._foreign_pods, self._injector, self._allocator = foreign_pods, injector, allocator

    async def restore(self) -> None:
        """Reconcile the tenants with the API server and the kubelet: release Pods that ended while no agent ran, adopt
        folders without a tenant and running Pods that an agent or another plugin admitted."""
        pods = {pod.metadata.uid: pod for pod in self._pod_cache if not pod.finished}
        for tenancy in list(self._tenants.tenancies.values()):
            if tenancy.id not in pods and not tenancy.claim:
                self._tenants.mark_ended(tenancy.id)
        await self._claims.recover()
        entries = self._kubelet.checkpoint() or ()
        foreign = self._foreign_pods.foreign_responses(entries)
        running = {uid for uid, pod in pods.items() if pod.runs}  # Pods that we refused hold devices, too
        ours = self._foreign_pods.admitted_by_us(entries) & running - foreign.keys()
        unknown = self._tenants.unknown_folders() | set(self._injector.owners().values()) | ours
        for uid in unknown - self._tenants.tenancies.keys() - self._claims.left_alone:
            self._readmit(uid, pods.get(uid))
        self._adopt(foreign)

    def adopt_foreign(self) -> None:
        """Count the Pods that another plugin admitted for a resource that has just become ours."""
        self._adopt(self._foreign_pods.foreign_responses(self._kubelet.checkpoint() or ()))

    def _adopt(self, foreign: Mapping[str, CachedResponse]) -> None:
        """Count the Pods that another plugin admitted, and that have not ended."""
        for uid, response in foreign.items():
            pod = self._pod_cache.by_uid(uid)
            if pod is not None and not pod.finished:
                self._foreign_pods.adopt(pod, response, self._allocator)

    def _readmit(self, uid: str, pod: PodObject | None) -> None:
        if pod is None:
            self._tenants.discard(uid)
            return
        key = key_of(pod)
        try:
            self._tenants.admit(self._allocator.tenancy_of(pod))
            log.info("tenant_readmitted", extra={"data": {"pod": key, "uid": uid}})
        except (Refused, AdmissionError, StoreError) as error:
            log.warning("tenant_not_readmitted", extra={"data": {"pod": key, "why": str(error)}})
