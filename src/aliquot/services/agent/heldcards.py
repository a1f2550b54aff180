"""Cards that Pods of other device plugins and DRA drivers hold, by the kubelet's own records: they are not offered.

The kubelet is asked every two seconds where another plugin serves the node, seldom elsewhere, and before each container
starts. PodResources does not list ordinary init containers, and lists Pods that have ended: therefore we also read the
checkpoint and the API server's Pods. Claims of DRA drivers hold devices by names (ClaimedDevices). A device that
cannot be matched to a card withholds all cards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from aliquot.adapters.kubelet.channel import KubeletError
from aliquot.adapters.kubelet.checkpoint import Entry
from aliquot.adapters.kubelet.podresources import Holder
from aliquot.adapters.kubernetes.kube import ApiError, Kube, Unreachable
from aliquot.dialects import dra, hami
from aliquot.dialects.wire.advertising import is_token
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.otherplugins import DRIVER, GROUP, CardIds, device_uuids, served_version
from aliquot.dialects.wire.schedulerconfig import RESOURCES
from aliquot.model.device import Card
from aliquot.model.withheld import UNKNOWN_HOLDERS, CardHolder, Withheld, WithheldCode
from aliquot.wording.withheld import withheld_words

log = logging.getLogger(__name__)

_INTERVAL = 2.0  # seconds between two calls where another plugin serves the node ...
_SELDOM = 10.0  # ... and where none is known
_READ = 10.0  # seconds between two readings of ResourceSlices for a new name ...
_SELDOM_READ = 600.0  # ... and for names that they did not explain
_OWN_DRIVER = f"{DRIVER}{dra.DRIVER}"


class Kubelet(Protocol):
    """adapters/kubelet/holders.py."""

    async def holders(self) -> list[Holder]: ...
    def checkpoint(self) -> tuple[Entry, ...] | None: ...


class Pods(Protocol):
    """services/agent/podcache.py."""

    def named(self, namespace: str, name: str) -> PodObject | None: ...
    def by_uid(self, uid: str) -> PodObject | None: ...


class ClaimedDevices:
    """The cards behind the names by which DRA claims hold devices: the node's ResourceSlices have their UUIDs.

    They are read when a name is held that is not known: seldom, and never on a node without DRA claims. `uuids` is by
    driver and name; "" for a device without UUID, and for one that no slice of the node has.
    """

    def __init__(self, kube: Kube, node: str, *, clock: Callable[[], float]) -> None:
        self.uuids: Mapping[tuple[str, str], str] = {}
        self._kube, self._node, self._clock = kube, node, clock
        self._asked, self._problem = float("-inf"), ""

    async def learn(self, devices: Collection[tuple[str, str]]) -> None:
        """Read the ResourceSlices if one of these is not known. If that fails, it stays unknown."""
        now, unknown = self._clock(), [device for device in devices if not self.uuids.get(device)]
        interval = _SELDOM_READ if self.uuids.keys() >= set(unknown) else _READ
        if not unknown or now - self._asked < interval:
            return
        self._asked = now
        try:
            version = served_version(await self._kube.get(GROUP))
            if version is None:
                return
            params = {"fieldSelector": f"spec.nodeName={self._node}"}
            found = await self._kube.get(f"{GROUP}/{version}/resourceslices", params=params)
        except (ApiError, Unreachable) as error:
            fix = "the account needs list on resourceslices (resource.k8s.io); until then all cards count as held"
            if str(error) != self._problem:
                log.warning("claimed_devices_unknown", extra={"data": {"why": str(error), "fix": fix}})
            self._problem = str(error)
            return
        self.uuids = {**dict.fromkeys(devices, ""), **device_uuids(found.get("items") or ())}


class HeldCards:
    """See the head of the file. `why` has the reason of each card that is held, by UUID."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: Pods,
        cards: Callable[[], Iterable[Card]],
        *,
        minors: Mapping[str, int],  # numbers of the cards' device files, by UUID
        beside_others: Callable[[], bool],  # whether another plugin serves, or served, the node
        claimed: ClaimedDevices,
        clock: Callable[[], float],
        adopted: Callable[[], Collection[str]] = frozenset,  # UIDs of other plugins' Pods that count as our tenants
    ) -> None:
        self.why: Mapping[str, Withheld] = {}
        self._adopted = adopted
        self._kubelet, self._pods, self._cards, self._minors = kubelet, pods, cards, minors
        self._beside_others, self._claimed, self._clock = beside_others, claimed, clock
        self._asked = float("-inf")
        self._answered = False

    async def refresh(self) -> None:
        """Call the kubelet again, unless it was called a moment ago."""
        now = self._clock()
        often = self._beside_others() or bool(self.why)
        if now - self._asked < (_INTERVAL if often else _SELDOM):
            return
        self._asked = now
        try:
            holders = await self._kubelet.holders()
            await self._claimed.learn(_of_drivers(holders))
            self.update(holders)
        except KubeletError as error:  # it restarts: the last answer is still the best guess
            log.warning("held_cards_unknown", extra={"data": {"why": str(error)}})
            if not self._answered and often:
                self._set({card.uuid: UNKNOWN_HOLDERS for card in self._cards()})

    def update(self, holders: Iterable[Holder]) -> None:
        """These are the holders now. Raises KubeletError, and changes nothing, if the checkpoint cannot be read."""
        cards = tuple(self._cards())
        mig = frozenset(card.uuid for card in cards if card.withheld)
        ids = CardIds({card.uuid: card.index for card in cards}, self._minors, mig, self._claimed.uuids)
        found: dict[str, set[tuple[str, str]]] = {}
        for pod, resource, devices in self._devices(holders):
            for uuid in {uuid for device in devices for uuid in ids.cards(resource, device)}:
                found.setdefault(uuid, set()).add((pod, resource))
        self._answered = True
        self._set({uuid: _held(holders) for uuid, holders in sorted(found.items())})

    def _set(self, why: Mapping[str, Withheld]) -> None:
        if why != self.why:
            words = {uuid: withheld_words(held) for uuid, held in why.items()}
            log.info("cards_held_by_others", extra={"data": {"cards": words}})
        self.why = why

    def _devices(self, holders: Iterable[Holder]) -> Iterator[tuple[str, str, frozenset[str]]]:
        """Pod, resource and devices of everything that others gave to Pods that have not ended."""
        for holder in holders:
            pod = self._pods.named(holder.namespace, holder.name)
            if pod is not None and (pod.finished or pod.metadata.uid in self._adopted()):
                continue
            for resource, devices in holder.devices.items():
                theirs = _of_others(resource, devices)
                if theirs:
                    yield f"{holder.namespace}/{holder.name}", resource, theirs
        for entry in self._kubelet.checkpoint() or ():
            # The kubelet forgets entries of deleted Pods late; a Pod that we do not know yet is in PodResources.
            theirs = _of_others(entry.resource, entry.ids)
            pod = self._pods.by_uid(entry.pod_uid) if theirs else None
            if pod is not None and not pod.finished and entry.pod_uid not in self._adopted():
                yield f"{pod.metadata.namespace}/{pod.metadata.name}", entry.resource, theirs


def _of_others(resource: str, devices: frozenset[str]) -> frozenset[str]:
    """The devices that are not ours. nvidia.com/gpu may be ours or another plugin's: the form of the ID says whose."""
    if resource in hami.COUNTED:
        return frozenset(device for device in devices if not is_token(device))
    return frozenset() if resource in RESOURCES or resource == _OWN_DRIVER else devices


def _of_drivers(holders: Iterable[Holder]) -> set[tuple[str, str]]:
    """Driver and name of the devices that claims hold."""
    held = (item for holder in holders for item in holder.devices.items())
    return {
        (resource.removeprefix(DRIVER), device)
        for resource, devices in held
        if resource.startswith(DRIVER) and resource != _OWN_DRIVER
        for device in devices
    }


def _held(holders: set[tuple[str, str]]) -> Withheld:
    (pod, resource), *others = sorted(holders)
    return Withheld(WithheldCode.HELD, CardHolder(pod, resource, len(others)))
