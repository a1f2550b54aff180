"""Which device IDs the kubelet says are held, and on which cards. Needed only while a card is unhealthy."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.services.agent.tenants import PodTenants

log = logging.getLogger(__name__)

_INTERVAL = 5.0  # seconds between two calls


class Kubelet(Protocol):
    """adapters/kubelet/holders.py."""

    async def holders(self) -> list[Holder]: ...


class DeviceHolders:
    """The cards of the holder, by resource and device ID. The IDs are only names: the cards come from the grants."""

    def __init__(self, kubelet: Kubelet, tenants: PodTenants, clock: Callable[[], float]) -> None:
        self._kubelet, self._tenants, self._clock = kubelet, tenants, clock
        self._asked = float("-inf")
        self.cards: Mapping[str, Mapping[str, frozenset[str]]] = {}

    async def refresh(self) -> None:
        """Call the kubelet again, unless it was called a moment ago."""
        now = self._clock()
        if now - self._asked < _INTERVAL:
            return
        self._asked = now
        cards = {
            tenancy.key: frozenset(share.uuid for share in tenancy.shares)
            for tenancy in self._tenants.tenancies.values()
        }
        try:
            holders = await self._kubelet.holders()
        except KubeletError as error:  # it restarts: the last answer is still the best guess
            log.warning("device_holders_unknown", extra={"data": {"why": str(error)}})
            return
        held: dict[str, dict[str, frozenset[str]]] = {}  # by resource: different resources use the same device IDs
        for holder in holders:
            for resource, ids in holder.devices.items():
                theirs = cards.get(f"{holder.namespace}/{holder.name}", frozenset())
                held.setdefault(resource, {}).update(dict.fromkeys(ids, theirs))
        self.cards = held
