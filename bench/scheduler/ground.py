"""The cluster every extender is measured on: nodes of real weight, each with two Pods, on one API server.

    most nodes     8 cards x 80 GiB, two Pods of 20 GiB on the first two
    1 in 50        two cards x 96 GiB, both taken whole by two Pods: no place for 96 GiB there
    one            two cards x 96 GiB, empty: the only place for 96 GiB, and only who has read all Pods knows

The grants are written as gpushare writes them, so that every extender which speaks that dialect counts the same.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.scheduler.shapes import Shape, gpushare_shapes, weights

from aliquot.dialects import gpushare, native
from testbed import objects
from testbed.client import Client
from testbed.plane import HOST, ControlPlane
from testbed.processes import wait_until

Object = dict[str, Any]

CARD_GIB, WITNESS_GIB, FILLER_GIB = 80, 96, 20
_WITNESS_EVERY = 50
_LABEL = "aliquot-bench"
EMPTY = "bench-empty"
_NODE, _FILLER, _TRIED = "node", "filler", "tried"
_THREADS = 8


class Ground:
    """Nodes and Pods on an API server, and what it says of them afterwards."""

    def __init__(
        self,
        api: Client,
        kubeconfig: Path,
        plane: ControlPlane | None,
        *,
        cards: int,
        resource: str,
        count_resource: str,
        tell: Callable[[str], None],
    ) -> None:
        self.api, self.kubeconfig, self.plane = api, kubeconfig, plane
        self._cards, self._resource, self._count, self.say = cards, resource, count_resource, tell
        self.nodes: dict[str, Object] = {}  # as the API server has them
        self._made = 0
        self._shapes = gpushare_shapes()
        self._chance = random.Random(7)

    # What is there before an extender comes

    def grow(self, count: int) -> None:
        """To that many nodes, the empty one included, each with its two Pods."""
        if count <= len(self.nodes):
            return
        began = time.monotonic()
        fresh = [] if self.nodes else [self._node(EMPTY, 2, WITNESS_GIB)]
        pods: list[Object] = []
        for at in range(len(self.nodes) + len(fresh), count):
            name = f"bench-{at:05d}"
            witness = at % _WITNESS_EVERY == 0
            cards, card_gib = (2, WITNESS_GIB) if witness else (self._cards, CARD_GIB)
            fresh.append(self._node(name, cards, card_gib))
            amount = card_gib if witness else FILLER_GIB
            pods += [self._filler(f"{name}-{card}", name, card, card_gib, amount) for card in range(2)]
        self.say(f"{len(fresh):,} nodes of {objects.FAT_BYTES / 1000:.1f} kB and {len(pods):,} Pods on them")
        made = objects.bulk(fresh, lambda thing: self.api("POST", "/api/v1/nodes", thing), threads=_THREADS)
        self.nodes |= {node["metadata"]["name"]: node for node in made}
        path = "/api/v1/namespaces/default/pods"
        objects.bulk(pods, lambda thing: self.api("POST", path, thing) and None, threads=_THREADS)
        self.say(f"made in {time.monotonic() - began:.0f} s")

    def _node(self, name: str, cards: int, card_gib: int) -> Object:
        amounts = {self._resource: cards * card_gib, self._count: cards}
        return objects.fat(objects.node(name, amounts, labels={gpushare.NODE_LABEL: "true", _LABEL: _NODE}))

    def _filler(self, name: str, node: str, card: int, card_gib: int, amount: int) -> Object:
        marks = {
            gpushare.INDEX: str(card),
            gpushare.CARD_SIZE: str(card_gib),
            gpushare.POD_TOTAL: str(amount),
            gpushare.ASSIGNED: "true",
            gpushare.ASSUME_TIME: "1760000000000000000",
        }
        return objects.pod(name, {self._resource: amount}, labels={_LABEL: _FILLER}, annotations=marks, node=node)

    # Pods that an extender places

    def pods(self, count: int, shapes: Sequence[Shape] | None = None, **more: Any) -> list[Object]:
        """That many, created; as the API server answers them."""
        return objects.bulk(
            self.drafts(count, shapes, **more),
            lambda thing: self.api("POST", "/api/v1/namespaces/default/pods", thing),
            threads=_THREADS,
        )

    def drafts(self, count: int, shapes: Sequence[Shape] | None = None, **more: Any) -> list[Object]:
        """That many, not created yet; of those shapes, or of the usual mix of 411."""
        self._made += count
        first = self._made - count
        names = [f"tried-{number:06d}" for number in range(first, first + count)]
        chosen = shapes or self._chance.choices(self._shapes, weights(self._shapes), k=count)
        return [
            objects.pod(name, labels={_LABEL: _TRIED}, containers=self._renamed(shape), **more)
            for name, shape in zip(names, chosen, strict=True)
        ]

    def each_draft(self) -> list[Object]:
        """One Pod of each of the 411 shapes, not created."""
        return self.drafts(len(self._shapes), self._shapes)

    def _renamed(self, shape: Shape) -> list[Object]:
        """The containers, with the resource that this trial is about."""
        containers = shape.written()
        for container in containers:
            limits = container["resources"]["limits"]
            container["resources"]["limits"] = {
                self._resource if resource == gpushare.MEMORY else resource: amount
                for resource, amount in limits.items()
            }
        return containers

    def big_pod(self) -> Object:
        """The Pod that only the empty node can take; it is asked about and never created."""
        whole = objects.pod("bench-big", {self._resource: WITNESS_GIB})
        whole["metadata"]["uid"] = "00000000-0000-4000-8000-000000000001"
        return whole

    def clear(self) -> None:
        """What was placed is gone; the fillers stay."""
        selector = {"labelSelector": f"{_LABEL}={_TRIED}"}
        path = "/api/v1/namespaces/default/pods"
        self.api("DELETE", path, {"gracePeriodSeconds": 0}, params=selector)
        wait_until(lambda: not self.tried(), 60, "the Pods of the last trial are gone")

    def remove(self) -> None:
        """Everything that was made here, from an API server of somebody else's."""
        for path in ("/api/v1/namespaces/default/pods", "/api/v1/nodes"):
            self.api("DELETE", path, {"gracePeriodSeconds": 0}, params={"labelSelector": _LABEL})

    def tried(self) -> list[Object]:
        """The Pods of this trial, as the API server has them."""
        found: list[Object] = self.api(
            "GET", "/api/v1/namespaces/default/pods", params={"labelSelector": f"{_LABEL}={_TRIED}"}
        )["items"]
        return found

    def some_nodes(self, count: int, chance: random.Random) -> list[Object]:
        """A window over the nodes as kube-scheduler makes one: it goes round and round."""
        everyone = list(self.nodes.values())
        start = chance.randrange(len(everyone))
        return (everyone + everyone)[start : start + min(count, len(everyone))]

    # What the API server says afterwards

    def wrongs(self, said_bound: Iterable[str]) -> list[str]:
        """Cards given out twice and Pods lost, from the API server alone; nothing when all is well."""
        pods = self.api("GET", "/api/v1/namespaces/default/pods")["items"]
        return audit(pods, self.nodes, said_bound, self._resource, self._count)


def audit(
    pods: Iterable[Object], nodes: dict[str, Object], said_bound: Iterable[str], resource: str, count_resource: str
) -> list[str]:
    """What is wrong with the Pods that are on nodes: a card overfull, no card told, or an answer that was not true."""
    used: Counter[tuple[str, int]] = Counter()
    wrongs, bound = [], set()
    for pod in pods:
        node, name = pod["spec"].get("nodeName"), pod["metadata"]["name"]
        if not node:
            continue
        bound.add(name)
        shares = shares_of(pod)
        if not shares:
            wrongs.append(f"{name} is on {node} and no card is told")
        for card, gib in shares:
            used[node, card] += gib
    for (node, card), gib in used.items():
        capacity = nodes[node]["status"]["capacity"]
        size = int(capacity[resource]) // int(capacity[count_resource])
        if gib > size:
            wrongs.append(f"{node}: card {card} gives {gib} of {size} GiB")
    wrongs += [f"{name} was told to be bound and is not" for name in said_bound if name not in bound]
    return wrongs


def shares_of(pod: Object) -> list[tuple[int, int]]:
    """(card, GiB) by the annotations, ours or gpushare's."""
    marks = pod["metadata"].get("annotations", {})
    if native.GRANT in marks:
        grant = json.loads(marks[native.GRANT])
        return [
            (card["index"], card["memory_mib"] // 1024)
            for container in grant["containers"]
            for card in container["cards"]
        ]
    if gpushare.INDEX in marks:
        return [(int(marks[gpushare.INDEX]), int(marks[gpushare.POD_TOTAL]))]
    return []


def client_of(kubeconfig: Path, folder: Path) -> Client:
    """A client for the API server of a kubeconfig with a token, as the testbed writes one."""
    import base64
    from urllib.parse import urlsplit

    import yaml

    said = yaml.safe_load(kubeconfig.read_text())
    cluster, user = said["clusters"][0]["cluster"], said["users"][0]["user"]
    if "token" not in user:
        raise SystemExit(f"{kubeconfig}: a user with a token is wanted, as `python tests/testbed/plane.py` makes one")
    authority = cluster.get("certificate-authority")
    if authority is None:
        authority = folder / "ca.crt"
        authority.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    where = urlsplit(cluster["server"])
    return Client(where.hostname or HOST, where.port or 443, Path(authority), user["token"])
