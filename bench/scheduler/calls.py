"""What kube-scheduler says to an extender, made beforehand, and what it reads of the answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from bench.scheduler.line import post

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verbs:
    """Where an extender listens for what; no `prioritize`: it has none."""

    filter: str
    prioritize: str | None
    bind: str
    whole_nodes: bool = False  # nodeCacheCapable: false


OURS = Verbs(filter="/aliquot/filter", prioritize="/aliquot/rank", bind="/aliquot/bind")


class _Named(msgspec.Struct, gc=False):
    name: str = ""


class _Node(msgspec.Struct, gc=False):
    metadata: _Named


class _Nodes(msgspec.Struct, gc=False):
    items: list[_Node] | None = None


class Filtered(msgspec.Struct, gc=False, rename="pascal"):
    """What matters of an answer to filter."""

    node_names: list[str] | None = None
    nodes: _Nodes | None = None
    error: str = ""

    @property
    def fit(self) -> list[str]:
        if self.node_names is None and self.nodes is not None:
            return [node.metadata.name for node in self.nodes.items or ()]
        return self.node_names or []


class Score(msgspec.Struct, gc=False, rename="pascal"):
    host: str
    score: int


class Bound(msgspec.Struct, gc=False, rename="pascal"):
    error: str = ""


read_filtered = msgspec.json.Decoder(Filtered).decode
read_scores = msgspec.json.Decoder(list[Score]).decode
read_bound = msgspec.json.Decoder(Bound).decode


def trimmed(thing: Object) -> Object:
    """As kube-scheduler keeps it: without the managers of fields."""
    return {**thing, "metadata": {key: value for key, value in thing["metadata"].items() if key != "managedFields"}}


@dataclass(frozen=True, slots=True)
class Crowd:
    """The nodes of a call, encoded once."""

    names: tuple[str, ...]
    said: bytes  # the rest of the body, from the comma after the Pod

    @classmethod
    def of(cls, nodes: Sequence[Object], verbs: Verbs) -> Crowd:
        names = tuple(node["metadata"]["name"] for node in nodes)
        if verbs.whole_nodes:
            items = {"metadata": {}, "items": [trimmed(node) for node in nodes]}
            return cls(names, b',"Nodes":' + msgspec.json.encode(items) + b',"NodeNames":null}')
        return cls(names, _named(names))

    def fewer(self, fit: Sequence[str], verbs: Verbs) -> Crowd:
        """Those that passed filter, for prioritize."""
        if len(fit) == len(self.names) or verbs.whole_nodes:
            return self
        return Crowd(tuple(fit), _named(fit))


def _named(names: Sequence[str]) -> bytes:
    return b',"Nodes":null,"NodeNames":' + msgspec.json.encode(names) + b"}"


def asked(path: str, pod: bytes, crowd: Crowd) -> bytes:
    """filter or prioritize, for a Pod that is encoded already."""
    return post(path, b'{"Pod":', pod, crowd.said)


def binding(path: str, pod: Object, node: str) -> bytes:
    metadata = pod["metadata"]
    said = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node}
    return post(path, msgspec.json.encode(said))
