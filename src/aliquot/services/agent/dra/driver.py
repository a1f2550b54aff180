"""Keeps the DRA driver in line with the node's label: which world the cards belong to, the plugin, the slices.

Off unless the label is set: then nothing is registered, watched or written. A label that is removed again takes effect
once no claim holds a card (worlds.py); until then the driver stays registered, so that claims can be unprepared.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import random
from typing import Protocol

import msgspec

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.draplugin import DraPlugin
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.adapters.storage.podstore import PodStore, StoreError
from aliquot.dialects.dra import CLAIMS, DRIVER, LABEL
from aliquot.dialects.dra.claims import ClaimObject
from aliquot.dialects.dra.slices import render_devices
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.node import Node
from aliquot.model.numbers.backoff import backoff
from aliquot.model.refusal import Invalid
from aliquot.model.tenant import Level, Standing
from aliquot.services.agent.dra.preparation import ClaimPreparer
from aliquot.services.agent.dra.publication import SlicePublisher, wait_changed
from aliquot.services.agent.dra.worlds import World, admits_claims, next_world, offers_resources

log = logging.getLogger(__name__)

_INTERVAL = 1.0  # seconds between two rounds while the label is set or was
_IDLE = 5.0  # the same on other nodes, where a round does nothing
_CHECK = 300.0  # seconds between two checks for claims that are gone, or half as much: not all nodes at once
# Seconds between two lists of claims, of the whole cluster, while the node waits for the last of its own. That may take
# days, and many nodes may wait together.
_ASK, _MOST_ASK = 3.0, 120.0
_WORLD = "world"  # the setting in the database

NO_CDI = Invalid(
    f'metadata.labels["{LABEL}"]', "true", "only on nodes whose container runtime reads CDI (containerd 2, CRI-O)"
)


class _Claims(msgspec.Struct):
    items: list[ClaimObject] = []


class Site(Protocol):
    """What the driver knows of its node; the agent."""

    @property
    def dra_label(self) -> str: ...
    @property
    def node_uid(self) -> str: ...
    @property
    def has_cdi(self) -> bool: ...
    def node(self) -> Node: ...
    def pods_hold_cards(self) -> bool: ...
    def standings(self) -> Iterable[Standing]: ...
    def report_refused(self, problem: Invalid) -> None: ...


class DraDriver:
    """See the head of the file. `changed` runs when the agent has to look again at what it may offer."""

    def __init__(
        self,
        kube: Kube,
        site: Site,
        store: PodStore,
        preparer: ClaimPreparer,
        *,
        node: str,
        kubelet: Path,
        driver_version: str,
        simulated: bool,
        clock: Callable[[], float],  # monotonic
        changed: Callable[[], None],
    ) -> None:
        self._kube, self._site, self._store, self._preparer = kube, site, store, preparer
        self._name, self._kubelet, self._version, self._simulated = node, kubelet, driver_version, simulated
        self._clock, self._changed = clock, changed
        self._wake = asyncio.Event()
        self._plugin: DraPlugin | None = None
        self._publisher: SlicePublisher | None = None
        self._following: asyncio.Task[None] | None = None
        self._levels: dict[str, str] = {}  # by UUID: the level of control as it was last seen
        self._check_at = clock() + self._check_after()
        self._ask_at = float("-inf")
        self._asked = 0  # how often in vain
        self._allocated = True  # whether the API server may have claims on our cards; True until it was asked
        self._problem = ""

    # --- the world -----------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """The world that the cards belong to. Claims that are tenants say it too: the database may have been lost."""
        kept = self._store.setting(_WORLD) == World.CLAIMS or bool(self._preparer.claims)
        return World.CLAIMS if kept else World.PLUGINS

    @property
    def wanted(self) -> bool:
        """Whether the node's owner wants claims."""
        return self._site.dra_label == "true" and self._site.has_cdi

    @property
    def offers_resources(self) -> bool:
        """Whether device plugins may offer the cards."""
        return offers_resources(self.world, wanted=self.wanted)

    @property
    def admits_claims(self) -> bool:
        """Whether new claims may be prepared."""
        return admits_claims(self.world, wanted=self.wanted)

    def ready(self) -> str | None:
        """None when the driver is ready or not wanted, else what it waits for. To wait for Pods or claims to end, which
        may take days, is not to be unready: that would stop an upgrade of all agents."""
        if not self.admits_claims:
            return None
        if self._plugin is None or not self._plugin.registered:
            return f"the kubelet has not accepted the DRA driver {DRIVER} yet{self._why()}"
        if self._publisher is None or not self._publisher.has(self._devices()):
            return f"the ResourceSlices are not published yet{self._why()}"
        return None

    @property
    def notes(self) -> list[str]:
        """What the node waits for while its cards change worlds, in sentences."""
        if self.wanted and not self.admits_claims:
            return [f"the cards go to claims ({LABEL}=true) once no Pod of a device plugin holds one"]
        if not self.wanted and self.world is World.CLAIMS:
            return [f"the cards go back to device plugins (no {LABEL}=true) once no claim holds one{self._why()}"]
        return []

    def _why(self) -> str:
        texts = (self._problem, self._plugin.problem if self._plugin else "")
        found = next((text for text in (*texts, self._publisher.problem if self._publisher else "") if text), "")
        return f": {found}" if found else ""

    def wake(self) -> None:
        """Look again now."""
        self._wake.set()

    # --- rounds --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do what the label and the claims call for, until cancelled."""
        try:
            while True:
                await self.round()
                active = self.wanted or self.world is World.CLAIMS
                await wait_changed(self._wake, _INTERVAL if active else _IDLE)
        finally:
            await self._stop()

    async def round(self) -> None:
        """Do what the label and the claims call for."""
        wanted = self.wanted
        if self._site.dra_label == "true" and not self._site.has_cdi:
            self._site.report_refused(NO_CDI)
        if not wanted and self.world is World.PLUGINS:
            if self._plugin is not None or self._following is not None:
                await self._stop()
            return
        await self._change_world(wanted)
        if not wanted and self.world is World.PLUGINS:
            return
        await self._serve()
        self._follow()
        if self._publisher is not None:
            devices = self._devices() if self.admits_claims else []
            await self._publisher.publish(devices, self._site.node_uid)
        if self._clock() >= self._check_at:
            self._check_at = self._clock() + self._check_after()
            await self._preparer.release_gone()

    async def _change_world(self, wanted: bool) -> None:
        before = self.world
        if not wanted and before is World.CLAIMS and self._retracted():
            await self._ask_claims()
        claims = self._allocated or bool(self._preparer.claims) or not self._retracted()
        now = next_world(before, wanted=wanted, pods=self._site.pods_hold_cards(), claims=claims)
        if now is before:
            return
        try:
            self._store.set(_WORLD, now)  # on the disk before anything is offered
        except StoreError as error:
            self._problem = str(error)
            return
        self._problem, self._allocated, self._asked, self._ask_at = "", True, 0, float("-inf")
        log.info("card_allocator_changed", extra={"data": {"cards_belong_to": now.value}})
        self._changed()

    def _retracted(self) -> bool:
        return self._publisher is not None and self._publisher.has([])

    async def _ask_claims(self) -> None:
        """List the claims: one may be allocated and not prepared yet. A prepared one is known without that."""
        if self._preparer.claims or self._clock() < self._ask_at:
            return
        self._asked += 1
        self._ask_at = self._clock() + backoff(self._asked, first=_ASK, longest=_MOST_ASK, chance=random())
        try:
            found: _Claims = await self._kube.get(CLAIMS, into=_Claims, timeout=30.0)
        except (ApiError, Unreachable) as error:
            self._problem = f"cannot list ResourceClaims: {error}"
            self._allocated = True
            return
        self._allocated = any(claim.holds(self._name) for claim in found.items)

    @staticmethod
    def _check_after() -> float:
        return backoff(1, first=_CHECK, longest=_CHECK, chance=random())

    def _devices(self) -> list[JsonObject]:
        node = self._site.node()
        return render_devices(
            node.cards,
            driver=self._version,
            policy=node.isolation,
            control=self._control(),
            simulated=self._simulated,
        )

    def _control(self) -> Mapping[str, str]:
        """Hardware where any tenant was controlled so; it stays known while the card is idle."""
        for standing in self._site.standings():
            if standing.level is Level.HARDWARE or (
                standing.level is Level.GATE and self._levels.get(standing.uuid) != Level.HARDWARE
            ):
                self._levels[standing.uuid] = standing.level.value
        return self._levels

    # --- the plugin and the slices -------------------------------------------------------------------------------

    async def _serve(self) -> None:
        if self._plugin is not None:
            return
        plugin = DraPlugin(DRIVER, self._kubelet, self._preparer, self._woken)
        try:
            await plugin.start()
        except KubeletError as error:
            if str(error) != self._problem:
                log.warning("dra_driver_not_served", extra={"data": {"why": str(error)}})
            self._problem = str(error)
            return
        self._plugin = plugin

    def _woken(self) -> None:
        self._wake.set()
        self._changed()

    def _follow(self) -> None:
        if self._following is None or self._following.done():
            self._publisher = SlicePublisher(self._kube, self._name, changed=self._woken)
            self._following = asyncio.create_task(self._publisher.run())

    async def _stop(self) -> None:
        """The slices stay: the next agent finds them."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        self._publisher = None
        if self._plugin is not None:
            await self._plugin.stop()
            self._plugin = None
