"""Follows the ResourceClaims, for dashboard and status, from when a node is labelled to hand out cards by them.

Before that nothing is asked, and no right is needed. Nothing is decided by claims: kube-scheduler allocates them.
"""

from __future__ import annotations

import asyncio
import logging

from aliquot.adapters.kubernetes.kube import Kube
from aliquot.adapters.kubernetes.reflector import Reflector
from aliquot.dialects.dra import CLAIMS, LABEL
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.services.scheduler.cluster import Cluster
from aliquot.services.scheduler.dashboard.claims import Claims

log = logging.getLogger(__name__)

_LOOK = 2.0  # seconds between two looks for a labelled node
_SELDOM = 600.0  # seconds, while the API server does not let us read claims
_NOT_FOUND = 404  # an API that this Kubernetes has not
_MOST_NAMED = 5  # nodes in a log line


class ClaimSink:
    """Applies ResourceClaims."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims

    def listing(self) -> None: ...

    def changed(self, item: ClaimObject) -> None:
        self._claims.put(item)

    def gone(self, key: str) -> None:
        self._claims.drop(key)

    def listed(self, drift: int) -> None: ...


class ResourceClaims:
    """See the head of the file."""

    def __init__(self, kube: Kube, cluster: Cluster) -> None:
        self.known = Claims(cluster)
        self.answered = asyncio.Event()  # the claims are known, or the API server has none for us
        self._cluster = cluster
        self._reflector = Reflector(kube, CLAIMS, ClaimObject, ClaimSink(self.known))

    async def run(self) -> None:
        """Follow the claims until cancelled."""
        while not self._cluster.reported.by_claims:
            await asyncio.sleep(_LOOK)
        while True:
            await self._reflector.run_if_readable(self.answered.set)
            self.answered.set()
            self._warn()
            await asyncio.sleep(_SELDOM)

    def _warn(self) -> None:
        if self._reflector.refusal == _NOT_FOUND:
            fix = f"Kubernetes 1.34 and newer serve it: upgrade, or remove the label {LABEL} from the nodes"
            data = {"path": CLAIMS, "nodes": sorted(self._cluster.reported.by_claims)[:_MOST_NAMED], "fix": fix}
            log.warning("resource_claims_not_served", extra={"data": data})
            return
        fix = "list and watch on resourceclaims (resource.k8s.io): helm upgrade with dra.enabled=true"
        data = {"path": CLAIMS, "fix": f"the account needs {fix}"}
        log.warning("resource_claims_not_readable", extra={"data": data})
