"""The words between kube-scheduler and its extender (k8s.io/kube-scheduler/extender/v1).

Keys are Go's field names, capital first; they are read in any case, as Go reads them. An answer that is not 200 loses
its body on the way: what goes wrong is said in `Error`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from aliquot.dialects.wire.objects import PodObject
from aliquot.model.refusal import show

# DNS-1123, as the API server checks the names of Pods, namespaces and nodes.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253


class WireError(ValueError):
    """A body that cannot be read; the message says where and why."""


class Nodes(msgspec.Struct):
    """Whole nodes, from a scheduler whose configuration does not say nodeCacheCapable. Passed on as they came."""

    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct):
    """What filter and prioritize are asked."""

    Pod: PodObject
    Nodes: Nodes | None = None
    NodeNames: list[str] | None = None


class Binding(msgspec.Struct):
    """What bind is asked."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class Victim(msgspec.Struct):
    """A Pod that would have to go."""

    UID: str = ""


class Victims(msgspec.Struct):
    """The Pods that would have to go from a node."""

    Pods: list[Victim] | None = None
    NumPDBViolations: int = 0


class WholeVictims(msgspec.Struct):
    """The same from a scheduler whose configuration does not say nodeCacheCapable."""

    Pods: list[PodObject] | None = None
    NumPDBViolations: int = 0


class Preemption(msgspec.Struct):
    """What preempt is asked: one of the two."""

    Pod: PodObject
    NodeNameToVictims: dict[str, WholeVictims] | None = None
    NodeNameToMetaVictims: dict[str, Victims] | None = None


class _Score(msgspec.Struct):
    Host: str
    Score: int


class _Name(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Name


_Asked = TypeVar("_Asked", Args, Binding, Preemption)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Args, Binding, Preemption)
}


def parse_args(body: bytes) -> Args:
    """The question of filter or prioritize. Raises WireError."""
    args = _parse(body, Args)
    for field in ("name", "namespace", "uid"):
        if len(getattr(args.Pod.metadata, field)) > _LONGEST_NAME:  # it is kept for a while
            raise WireError(f"Pod.metadata.{field} is longer than {_LONGEST_NAME} characters: no Pod's is")
    return args


def parse_binding(body: bytes) -> Binding:
    """The question of bind. Raises WireError."""
    binding = _parse(body, Binding)
    for field in ("PodName", "PodNamespace", "Node"):
        name = getattr(binding, field)
        if not name:
            raise WireError(f"{field} is empty: bind needs it")
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):  # it becomes a part of a path of the API
            raise WireError(f"{field}: {show(name)} is not allowed: a name of Kubernetes (a-z, 0-9, - and .)")
    return binding


def parse_preemption(body: bytes) -> Preemption:
    """The question of preempt. Raises WireError."""
    return _parse(body, Preemption)


def offered_victims(asked: Preemption) -> dict[str, Victims]:
    """By node the Pods that kube-scheduler would have go, however they came."""
    if asked.NodeNameToMetaVictims is not None:
        return asked.NodeNameToMetaVictims
    return {
        name: Victims([Victim(pod.metadata.uid) for pod in whole.Pods or ()], whole.NumPDBViolations)
        for name, whole in (asked.NodeNameToVictims or {}).items()
    }


def _parse(body: bytes, kind: type[_Asked]) -> _Asked:
    try:
        found: _Asked = _DECODERS[kind].decode(body)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        first = error
    try:  # keys in another case than Go writes them
        loose = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        names = {field.lower(): field for field in kind.__struct_fields__}
        renamed: _Asked = _DECODERS[kind].decode(
            msgspec.json.encode({names.get(key.lower(), key): value for key, value in loose.items()})
        )
        return renamed
    except msgspec.ValidationError as error:
        raise WireError(f"cannot be read: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise WireError(f"cannot be read: {first}") from first


def asked_names(args: Args) -> list[str]:
    """The names of the nodes in question, however they came. Raises WireError."""
    if args.NodeNames is not None:
        return args.NodeNames
    if args.Nodes is None:
        raise WireError("neither NodeNames nor Nodes is there: which nodes are meant?")
    try:
        return [msgspec.json.decode(node, type=_Named).metadata.name for node in args.Nodes.items or ()]
    except msgspec.MsgspecError as error:
        raise WireError(f"Nodes.items: {error}") from error


def render_filtered(
    args: Args, names: Sequence[str], fit: Sequence[str], busy: Mapping[str, str], never: Mapping[str, str]
) -> bytes:
    """The answer of filter, in the form the question came in. `names` are those asked about, in their order."""
    nodes = None
    if args.NodeNames is None and args.Nodes is not None:
        chosen = set(fit)
        items = [raw for name, raw in zip(names, args.Nodes.items or (), strict=True) if name in chosen]
        nodes = {"metadata": {}, "items": items}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if nodes is not None else fit,
            "FailedNodes": busy,
            "FailedAndUnresolvableNodes": never,
            "Error": "",
        }
    )


def render_error(error: str) -> bytes:
    """The answer of filter when there is none."""
    return msgspec.json.encode(
        {"Nodes": None, "NodeNames": None, "FailedNodes": None, "FailedAndUnresolvableNodes": None, "Error": error}
    )


def render_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """The answer of prioritize: a bare list. Scores are 0 to 10."""
    return msgspec.json.encode([_Score(name, score) for name, score in zip(names, scores, strict=True)])


def render_bound(error: str = "") -> bytes:
    """The answer of bind."""
    return msgspec.json.encode({"Error": error})


def render_preemption(victims: Mapping[str, Victims]) -> bytes:
    """The answer of preempt."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def render_binding(binding: Binding, uid: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The Binding object: the API server puts its annotations on the Pod in the same write that sets the node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": binding.PodName,
            "namespace": binding.PodNamespace,
            **({"uid": uid} if uid else {}),
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": binding.Node},
    }
