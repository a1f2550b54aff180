"""Pods that are bound to a node of two cards, as a scheduler leaves them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import msgspec

from aliquot import dialects
from aliquot.dialects import DEFAULT_RULES, Rules
from aliquot.dialects.wire.objects import PodObject
from aliquot.dialects.wire.webhook.admission import env_annotation
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from kit.values.manifests import a_container, a_pod

Json = dict[str, Any]

NODE = "n1"
CARDS = tuple(Card(at, 16 * 1024, f"GPU-{at}") for at in range(2))
_uids = itertools.count(1)


def a_qgpu_pod(
    name: str = "train-0",
    *,
    card: int | Mapping[str, int] = 0,
    core: int = 20,
    gib: int = 4,
    containers: Mapping[str, tuple[int, int]] | None = None,
    init: Mapping[str, tuple[int, int]] | None = None,
    sidecars: Mapping[str, tuple[int, int]] | None = None,
    granted: bool = True,
    node: str = NODE,
    by_annotation: bool = False,
) -> Json:
    """A bound Pod; each container asks for percent and GiB of one card, and was given that card."""
    amounts = containers or {"main": (core, gib)}
    first = [_asks(container, *asked) for container, asked in (init or {}).items()]
    first += [{**_asks(container, *asked), "restartPolicy": "Always"} for container, asked in (sidecars or {}).items()]
    pod = a_pod(name, *(_asks(container, *asked) for container, asked in amounts.items()), init=first, on=node)
    pod["metadata"] |= {"uid": f"uid-{next(_uids)}", "namespace": "ml"}
    if granted:
        pod["metadata"]["annotations"] = grant_of(pod, card, node)
    if by_annotation:
        _read_by_annotation(pod, card)
    return pod


def _read_by_annotation(pod: Json, card: int | Mapping[str, int]) -> None:
    """As the webhook leaves its containers, and the binding its annotations."""
    for container, _ in containers_of(pod):
        name = container["name"]
        key = env_annotation(name, "NVIDIA_VISIBLE_DEVICES")
        pod["metadata"]["annotations"][key] = f"GPU-{card if isinstance(card, int) else card[name]}"
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{key}']"}}
        container["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": source}]


def _asks(name: str, core: int, gib: int) -> Json:
    limits = {"tke.cloud.tencent.com/qgpu-memory": gib, "tke.cloud.tencent.com/qgpu-core": core}
    return a_container(name, {key: amount for key, amount in limits.items() if amount})


def grant_of(
    pod: Json, card: int | Mapping[str, int], node: str = NODE, rules: Rules = DEFAULT_RULES
) -> dict[str, str]:
    """The annotation that a scheduler sets which gives each container that card."""
    claim = dialects.PodReader(rules).read(msgspec.convert(pod, PodObject)).claim
    assert isinstance(claim, Claim), claim
    containers = tuple(
        ContainerGrant(
            container.name,
            container.index,
            container.role,
            (
                Share(
                    number := card if isinstance(card, int) else card[container.name],
                    container.slice.memory_on(CARDS[0].memory_mib),
                    container.slice.core_milli,
                    exclusive=container.slice.exclusive,
                    uuid=f"GPU-{number}",
                ),
            ),
        )
        for container in claim.containers
    )
    grant = Grant(claim.uid, node, containers)
    return dialects.render_grant(claim, grant, Node(NODE, CARDS), 0)


def containers_of(pod: Json) -> list[tuple[Json, str]]:
    """The containers in the order of their start, with `init`, `sidecar` or `main`."""
    first = [
        (initcontainer, "sidecar" if initcontainer.get("restartPolicy") == "Always" else "init")
        for initcontainer in pod["spec"].get("initContainers", ())
    ]
    return first + [(container, "main") for container in pod["spec"]["containers"]]
