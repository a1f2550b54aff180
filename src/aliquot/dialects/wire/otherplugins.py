"""Other device plugins and DRA drivers that hand out a node's NVIDIA cards, by what they publish. Pure.

    device plugin   a resource in the Node's status: nvidia.com/gpu, nvidia.com/mig-1g.10gb, volcano.sh/vgpu-number
    DRA driver      a ResourceSlice with NVIDIA cards: gpu.nvidia.com

Such a node offers nothing until its owner opts in by the label `SHARE`: two programs that do not know each other would
give one card away twice. An amount of 0 counts too: the kubelet writes it after a plugin was removed, and keeps it, but
also while it restarts, before the plugin registers again. It does not count where the GPU Operator's label says that
NVIDIA's plugin is switched off.

Of these names our own agent registers only `hami.COUNTED`, and only where the owner has set `hami.LABEL`: what the node
has of them then is ours if it is as much as we would advertise for the cards in our inventory. A 0 may be another's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from aliquot.dialects import dra, hami, native
from aliquot.dialects.kube.conditions import selects_node
from aliquot.dialects.wire.objects import Amounts, Metadata, NodeObject
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Invalid

SHARE = "aliquot.dev/share-cards-with-other-plugins"  # label of a Node; "true": its owner lets us share the cards
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"  # label of a Node; "false": the GPU Operator runs no plugin there

# A card for virtual machines, or a part of one, has the name of its chip or model: GA102GL_A10, NVIDIA_A10-12Q,
# GRID_T4-2Q. Not all capitals: NVIDIA's network cards are called as their owner likes, such as nvidia.com/CX7_VF.
_MODEL = re.compile(r"nvidia\.com/(NVIDIA_|GRID_|TU\d|G[A-Z]\d{2,3}|AD\d{3})")
# NVIDIA's plugin, also renamed and shared (gpu.shared); HAMi (gpumem, gpucores); Volcano; Koordinator; Tencent's
# gpu-manager; 4paradigm; AWS. pgpu: whole cards for virtual machines.
_PREFIXES = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "nvidia.com/vgpu",
    "nvidia.com/pgpu",
    "volcano.sh/vgpu-",
    "volcano.sh/gpu-",
    "koordinator.sh/gpu",
    "tencent.com/vcuda-",
    "4pd.io/vgpu",
    "k8s.amazonaws.com/vgpu",
)
_OF_ACK = "aliyun.com/gpu"  # whole cards; what gpushare counts begins alike
_OF_NVIDIA = "nvidia.com/"
_NONE_NOW = " (0 now)"
_DRIVERS = frozenset({"gpu.nvidia.com", "hami-core-gpu.project-hami.io"})
_UUIDS = ("GPU-", "MIG-")  # how NVIDIA names cards and their parts

DRIVER = "DRA driver "  # before its name, in place of a resource; as in adapters/kubelet/podresources.py
GROUP = "/apis/resource.k8s.io"
VERSIONS = ("v1", "v1beta2", "v1beta1")  # of ResourceSlices, the newest first


# The event of an agent that must not serve nvidia.com/gpu.
TAKEN = Invalid(
    f'metadata.labels["{hami.LABEL}"]',
    "true",
    f"only where no other device plugin serves {' or '.join(hami.COUNTED)}: remove that plugin from this node first",
)


def is_other_resource(name: str) -> bool:
    """Whether another product's plugin hands out NVIDIA cards by this resource."""
    return (
        name.startswith(_PREFIXES)
        or name == _OF_ACK
        or _MODEL.match(name) is not None
        or name.removeprefix(DRIVER) in _DRIVERS
    )


def opted_in(labels: Mapping[str, str] | None) -> bool:
    """Whether the node's owner lets us share its cards with other plugins."""
    return (labels or {}).get(SHARE) == "true"


def other_resources(node: NodeObject) -> tuple[str, ...]:
    """The resources of other plugins on the node, sorted, with a remark on those of which it has 0 now."""
    if not mentions_others(node):  # nearly all
        return ()
    found: dict[str, bool] = {}
    for amounts in _sides(node):
        for name in _others_among(tuple(amounts)):
            found[name] = found.get(name, False) or _some(amounts[name])
    if hami.LABEL in (node.metadata.labels or {}):
        for name in [name for name in hami.COUNTED if name in found and _has_own_amount(node, name)]:
            del found[name]
    if _left_by_us(node):
        for name in hami.COUNTED:
            found.pop(name, None)
    if not found:
        return ()
    switched_off = (node.metadata.labels or {}).get(DEPLOY) == "false"
    return tuple(
        name if some else f"{name}{_NONE_NOW}"
        for name, some in sorted(found.items())
        if some or not (switched_off and name.startswith(_OF_NVIDIA))
    )


def _has_own_amount(node: NodeObject, name: str) -> bool:
    """Whether the node has as much of the resource as our agent advertises for the cards in its inventory."""
    cards = native.parse_inventory(node.metadata.annotations or {}, []) or ()
    capacity, _ = _sides(node)
    return bool(cards) and _is_own(capacity.get(name), hami.TOKENS * len(cards))


def _left_by_us(node: NodeObject) -> bool:
    """Whether what the node has of nvidia.com/gpu and gpu.shared is what we leave there when its label goes.

    The kubelet keeps the capacity for five minutes, then 0 until it restarts. We always serve both names, and another
    plugin one of them."""
    capacity, allocatable = _sides(node)
    return all(
        name in capacity
        and not _some(allocatable.get(name))
        and (not _some(capacity[name]) or _has_own_amount(node, name))
        for name in hami.COUNTED
    )


def _is_own(capacity: object, own: int) -> bool:
    try:
        return parse_quantity(capacity) == own  # the API server writes 1000, of ten cards, as "1k"
    except QuantityError:
        return False


def served_by_other(node: NodeObject, own: int) -> bool:
    """Whether another plugin serves nvidia.com/gpu or gpu.shared now; `own` is as much as we would advertise of each.

    The capacity stays for minutes when a plugin is gone; nothing is allocatable then.
    """
    capacity, allocatable = _sides(node)
    return any(
        _some(allocatable.get(name, capacity.get(name))) and not _is_own(capacity.get(name), own)
        for name in hami.COUNTED
    )


def may_serve_nvidia_gpu(node: NodeObject) -> bool:
    """Whether nvidia.com/gpu and gpu.shared can be ours on the node: no other plugin has one of them now, whatever else
    its owner allows."""
    return frozenset(hami.COUNTED).isdisjoint(other_resources(node))


def mentions_others(node: NodeObject) -> bool:
    """Whether the node has, or had, a resource of another plugin."""
    capacity, allocatable = node.status.capacity or {}, node.status.allocatable or {}
    if _others_among(tuple(capacity)):
        return True
    return allocatable.keys() != capacity.keys() and bool(_others_among(tuple(allocatable)))


def others_of(resources: tuple[str, ...] | None, drivers: tuple[str, ...]) -> tuple[str, ...]:
    """The resources and drivers that keep us from using a node's cards, by its resources of others; None: its owner has
    opted in."""
    if resources is None or not (resources or drivers):  # nearly all
        return ()
    return (*resources, *(f"{DRIVER}{driver}" for driver in drivers))


def may_label(node: NodeObject, drivers: Iterable[str] = ()) -> bool:
    """Whether a label that shares the cards may be set without asking the owner."""
    return opted_in(node.metadata.labels) or not (mentions_others(node) or tuple(drivers))


@lru_cache(maxsize=1024)
def _others_among(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of other plugins; the nodes of a cluster have the same few sets of names."""
    return tuple(filter(is_other_resource, names))


def _sides(node: NodeObject) -> tuple[Amounts, Amounts]:
    return node.status.capacity or {}, node.status.allocatable or {}


def _some(amount: object) -> bool:
    """Whether it is more than 0. An amount that cannot be read is taken for some."""
    if amount is None:
        return False
    try:
        return parse_quantity(amount) > 0
    except QuantityError:
        return True


def hand_out(others: Iterable[str]) -> str:
    """Who hands out a node's cards beside us, in words."""
    names = tuple(others)
    if all(name.endswith(_NONE_NOW) for name in names):
        return f"another device plugin registered {', '.join(names)} and may hand out its cards again"
    return f"{', '.join(names)} of another device plugin or driver hands out its cards"


def share_command(node: str) -> str:
    """The command by which the node's owner opts in."""
    return f"kubectl label node {node} {SHARE}=true"


def switch_off_command(node: str) -> str:
    """The command that ends NVIDIA's device plugin of the GPU Operator on the node."""
    return f"kubectl label node {node} --overwrite {DEPLOY}=false"


# --- DRA drivers -----------------------------------------------------------------------------------------------------


class _Attribute(msgspec.Struct, gc=False):
    string: str | None = None


class _Basic(msgspec.Struct, gc=False):
    attributes: dict[str, _Attribute] | None = None


class _Device(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    basic: _Basic | None = None  # v1beta1 has the attributes in here
    node_name: str | None = None
    node_selector: Any = None
    all_nodes: bool | None = None


class _SliceSpec(msgspec.Struct, rename="camel", gc=False):
    driver: str = ""
    node_name: str | None = None
    node_selector: Any = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: list[_Device] | None = None


class SliceObject(msgspec.Struct, gc=False):
    """A ResourceSlice, of any version since v1beta1."""

    metadata: Metadata
    spec: _SliceSpec = msgspec.field(default_factory=_SliceSpec)

    @property
    def has_cards(self) -> bool:
        """Whether it publishes NVIDIA cards or parts of them, and not network cards or other vendors' cards."""
        devices = self.spec.devices or ()
        if self.spec.driver == dra.DRIVER:  # our own: the node's label says it already
            return False
        return bool(devices) and (self.spec.driver in _DRIVERS or any(map(_is_card, devices)))

    @property
    def nodes(self) -> frozenset[str] | None:
        """The nodes that it names; None if it selects them by their labels, or all."""
        places = self._places
        if any(place.node_name is None for place in places):
            return None
        return frozenset(place.node_name for place in places if place.node_name is not None)

    def covers(self, node: str, labels: Mapping[str, str]) -> bool:
        """Whether its devices can be used on that node."""
        return any(
            place.node_name == node
            or bool(place.all_nodes)
            or (place.node_selector is not None and selects_node(place.node_selector, node, labels))
            for place in self._places
        )

    @property
    def _places(self) -> tuple[_SliceSpec | _Device, ...]:
        return tuple(self.spec.devices or ()) if self.spec.per_device_node_selection else (self.spec,)


def _is_card(device: _Device) -> bool:
    return any(True for _ in _uuids_of(device))


def _uuids_of(device: _Device) -> Iterator[str]:
    """Those of a card; of a part of a card, perhaps the card's too."""
    attributes = device.attributes or (device.basic.attributes if device.basic else None) or {}
    strings = (attribute.string or "" for attribute in attributes.values())
    return (string for string in strings if string.startswith(_UUIDS))


class Drivers:
    """The DRA drivers that publish NVIDIA cards, by node."""

    def __init__(self) -> None:
        self._named: dict[str, dict[str, str]] = {}  # by node and slice: the driver
        self._selecting: dict[str, SliceObject] = {}
        self._nodes: dict[str, frozenset[str]] = {}  # by slice: the nodes it names

    def put(self, item: SliceObject) -> frozenset[str] | None:
        """A slice is there, or has changed. Returns the nodes for which that matters; None: any."""
        name, before = item.metadata.name, self.drop(item.metadata.name)
        nodes = item.nodes if item.has_cards else frozenset()
        if nodes is None:
            self._selecting[name] = item
            return None
        if nodes:
            self._nodes[name] = nodes
        for node in nodes:
            self._named.setdefault(node, {})[name] = item.spec.driver
        return None if before is None or (self._selecting and nodes) else before | nodes

    def drop(self, name: str) -> frozenset[str] | None:
        """A slice is gone. Returns the same."""
        if self._selecting.pop(name, None) is not None:
            return None
        nodes = self._nodes.pop(name, frozenset())
        for node in nodes:
            self._named[node].pop(name)
            if not self._named[node]:
                del self._named[node]
        return None if self._selecting and nodes else nodes  # which others a node has depends on its labels then

    def on(self, node: str, labels: Mapping[str, str] | None) -> tuple[str, ...]:
        """The drivers that publish cards on this node, sorted."""
        if not self._named and not self._selecting:
            return ()
        found = set(self._named.get(node, {}).values())
        found |= {item.spec.driver for item in self._selecting.values() if item.covers(node, labels or {})}
        return tuple(sorted(found))


def read_slices(objects: Iterable[object]) -> Drivers:
    """The drivers of these ResourceSlices, as JSON."""
    drivers = Drivers()
    for item in _slices(objects):
        drivers.put(item)
    return drivers


def device_uuids(objects: Iterable[object]) -> dict[tuple[str, str], str]:
    """By driver and name, the UUIDs of the devices in these ResourceSlices, as JSON: for CardIds. Two devices of one
    name, in different pools, count as one."""
    found: dict[tuple[str, str], set[str]] = {}
    for item in _slices(objects):
        for device in item.spec.devices or ():
            found.setdefault((item.spec.driver, device.name), set()).update(_uuids_of(device))
    return {device: " ".join(sorted(uuids)) for device, uuids in found.items()}


def served_version(group: Any) -> str | None:
    """The newest version of ResourceSlices that the API server serves, by its answer about `GROUP`."""
    served = {version.get("version") for version in group.get("versions") or ()}
    return next((version for version in VERSIONS if version in served), None)


def _slices(objects: Iterable[object]) -> Iterator[SliceObject]:
    """What cannot be read is left out: it is no slice."""
    for obj in objects:
        try:
            yield msgspec.convert(obj, SliceObject)
        except (msgspec.ValidationError, RecursionError, UnicodeError):
            continue


# --- the IDs of devices ----------------------------------------------------------------------------------------------


class CardIds:
    """Finds the cards that another plugin's device IDs stand for.

    GPU-<uuid> (NVIDIA), GPU-<uuid>::0 (its time-slicing and MPS), GPU-<uuid>-0 (HAMi, Volcano), MIG-GPU-<uuid>/1/0 (MIG
    before driver 470) contain a card's UUID. MIG-<uuid> is a part of a card in MIG mode, which is not offered anyway.
    "0" (NVIDIA's on Tegra, and others) is the card's number. nvidia0 (GKE) is the number of its device file.
    A device of a DRA driver has a name that says nothing: `uuids` has its UUIDs.
    """

    def __init__(
        self,
        numbers: Mapping[str, int],
        minors: Mapping[str, int],
        mig: frozenset[str],
        uuids: Mapping[tuple[str, str], str] = MappingProxyType({}),
    ) -> None:
        """By UUID: the cards' numbers and those of their device files, where known; and the cards in MIG mode."""
        self._uuids = tuple(numbers)
        self._by_number = {str(number): uuid for uuid, number in numbers.items()}
        self._by_file = {f"nvidia{minor}": uuid for uuid, minor in minors.items()}
        self._mig = mig
        self._of_drivers = uuids

    def cards(self, resource: str, device: str) -> frozenset[str]:
        """The UUIDs of the cards that this device may be on: all where that cannot be known."""
        if resource.startswith(DRIVER):
            device = self._of_drivers.get((resource.removeprefix(DRIVER), device), "")
        named = frozenset(uuid for uuid in self._uuids if uuid in device)
        if named or not is_other_resource(resource):
            return named
        if device.startswith("MIG-") and self._mig:
            return self._mig
        bare = device.partition("::")[0].partition("/")[0]  # nvidia0/vgpu1 of GKE's time-sharing
        uuid = self._by_number.get(bare) or self._by_file.get(bare)
        return frozenset(self._uuids) if uuid is None else frozenset({uuid})
