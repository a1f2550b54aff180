"""Nodes whose cards another device plugin or DRA driver hands out, looked for before an installation."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.adapters.kubernetes.kube import ApiError
from aliquot.dialects import hami
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import (
    GROUP,
    SHARE,
    TAKEN,
    Drivers,
    may_serve_nvidia_gpu,
    read_slices,
    served_version,
    serving_others,
    share_command,
    switch_off_command,
)
from aliquot.services.install.clusterobjects import ClusterObjects

_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A node, and what hands out its cards."""

    name: str
    others: tuple[str, ...]
    contested: bool = False  # labelled for HAMi's dialect


async def nodes_of_others(objects: ClusterObjects) -> tuple[OtherNode, ...]:
    """Those nodes, by name, without those whose owner has decided by our label. nvidia.com/gpu cannot be shared: with
    both labels a node is among them while another plugin serves that name."""
    drivers = await _drivers(objects)
    found = []
    for obj in await objects.items("/api/v1/nodes"):
        node = read_object(obj, NodeObject, "node")
        if not isinstance(node, NodeObject):
            continue
        labels = node.metadata.labels or {}
        contested = hami.labelled(labels) and not may_serve_nvidia_gpu(node)
        others = serving_others(node, drivers.on(node.metadata.name, labels))
        if contested:
            others = tuple(name for name in others if name.split()[0] in hami.COUNTED) or hami.COUNTED
        if contested or (others and SHARE not in labels):
            found.append(OtherNode(node.metadata.name, others, contested))
    return tuple(sorted(found, key=lambda node: node.name))


async def _drivers(objects: ClusterObjects) -> Drivers:
    """None are known where the cluster has no ResourceSlices, or where we may not read them."""
    try:
        version = served_version(await objects.kube.get(GROUP))
        return read_slices([] if version is None else await objects.items(f"{GROUP}/{version}/resourceslices"))
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return Drivers()


def taken_by_other(node: str) -> str:
    """Why nvidia.com/gpu cannot be ours on the node, and the commands to use."""
    return (
        f"node {node}: {TAKEN.sentence()} (GPU Operator: `{switch_off_command(node)}`), or leave "
        f"{' and '.join(hami.COUNTED)} to it: `kubectl label node {node} --overwrite {hami.LABEL}=false`"
    )


def refusal(nodes: tuple[OtherNode, ...]) -> str:
    """Why we do not install beside the other plugins, and the commands to use."""
    named = ", ".join(f"{node.name} ({', '.join(node.others)})" for node in nodes[:_MOST_NAMED])
    more = f" and {len(nodes) - _MOST_NAMED:,} more" if len(nodes) > _MOST_NAMED else ""
    first = nodes[0].name
    for node in nodes:
        if node.contested:
            return (
                f"{taken_by_other(node.name)}. Or install now with --beside-others: "
                f"{' and '.join(hami.COUNTED)} stay with that plugin"
            )
    return (
        f"another device plugin or DRA driver hands out the cards of {named}{more}: both would give one card away. "
        "Decide for each of these nodes:\n"
        f"  use it with aliquot, GPU Operator:   {switch_off_command(first)}\n"
        f"  leave it to the other plugin:        kubectl label node {first} {SHARE}=false\n"
        f"  share its cards between both:        {share_command(first)}\n"
        "or install now with --beside-others: these nodes offer nothing until they are labelled. See docs/migration.md"
    )
