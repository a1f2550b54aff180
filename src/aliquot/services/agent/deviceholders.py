"""Who holds which of the kubelet's devices, and on which cards: asked while a card is out, and at no other time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.services.agent.tenants import PodTenants

log = logging.getLogger(__name__)

_LOOK = 5.0  # seconds between two questions


class Kubelet(Protocol):
    """adapters/kubelet/holders.py."""

    async def holders(self) -> list[Holder]: ...


class DeviceHolders:
    """By resource and ID: the cards of who holds it. The kubelet's devices are names; the grants tell the cards."""

    def __init__(self, kubelet: Kubelet, tenants: PodTenants, clock: Callable[[], float]) -> None:
        self._kubelet, self._tenants, self._clock = kubelet, tenants, clock
        self._asked = float("-inf")
        self.cards: Mapping[str, Mapping[str, frozenset[str]]] = {}

    async def look(self) -> None:
        """Ask again, unless that was done a moment ago."""
        now = self._clock()
        if now - self._asked < _LOOK:
            return
        self._asked = now
        cards = {
            tenancy.key: frozenset(share.uuid for share in tenancy.shares)
            for tenancy in self._tenants.tenancies.values()
        }
        try:
            holders = await self._kubelet.holders()
        except KubeletError as error:  # it restarts: what it told before is still the best guess
            log.warning("the kubelet does not tell who holds which devices", extra={"data": {"why": str(error)}})
            return
        held: dict[str, dict[str, frozenset[str]]] = {}  # each resource has devices of the same names
        for holder in holders:
            for resource, ids in holder.devices.items():
                theirs = cards.get(f"{holder.namespace}/{holder.name}", frozenset())
                held.setdefault(resource, {}).update(dict.fromkeys(ids, theirs))
        self.cards = held
