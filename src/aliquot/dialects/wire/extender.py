"""The protocol between kube-scheduler and its extender (k8s.io/kube-scheduler/extender/v1).

Keys are Go's field names, capitalised; we read them in any case, as Go does. kube-scheduler drops the body of an answer
that is not 200: errors go into `Error`. It uses our sentences as formats of Printf, so none may have a percent sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from aliquot.dialects.wire.objects import PodObject
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.decoding.shallowjson import shallow
from aliquot.model.refusal import show

# DNS-1123, as the API server checks the names of Pods, namespaces and nodes.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LONGEST_NAME = 253
_PERCENTAGE = re.compile(r"(?<=\d) ?%")
_MOST_CUT = 4 << 20  # bytes of a request whose depths are cut off; the event loop waits for it, 0.2 s at most


class WireError(ValueError):
    """A body that cannot be read; the message says where and why."""


class Nodes(msgspec.Struct):
    """Whole nodes, from a scheduler without nodeCacheCapable. Returned unchanged."""

    items: list[msgspec.Raw] | None = None


class Args(msgspec.Struct):
    """The request of filter and prioritize."""

    Pod: PodObject
    Nodes: Nodes | None = None
    NodeNames: list[str] | None = None


class Binding(msgspec.Struct):
    """The request of bind."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class Victim(msgspec.Struct):
    """A Pod to evict."""

    UID: str = ""


class Victims(msgspec.Struct):
    """The Pods to evict from a node."""

    Pods: list[Victim] | None = None
    NumPDBViolations: int = 0


class WholeVictims(msgspec.Struct):
    """The victims as a scheduler without nodeCacheCapable sends them."""

    Pods: list[PodObject] | None = None
    NumPDBViolations: int = 0


class Preemption(msgspec.Struct):
    """The request of preempt, with one of the two fields."""

    Pod: PodObject
    NodeNameToVictims: dict[str, WholeVictims] | None = None
    NodeNameToMetaVictims: dict[str, Victims] | None = None


class _Score(msgspec.Struct, gc=False):
    Host: str
    Score: int


class _Name(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Name


_Request = TypeVar("_Request", Args, Binding, Preemption)
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Args, Binding, Preemption)
}


def parse_args(body: bytes) -> Args:
    """Parse the request of filter or prioritize. Raises WireError."""
    args = _parse(body, Args)
    for field in ("name", "namespace", "uid"):
        if len(getattr(args.Pod.metadata, field)) > _LONGEST_NAME:  # we keep it for a while
            raise WireError(f"Pod.metadata.{field} is longer than {_LONGEST_NAME} characters")
    return args


def parse_binding(body: bytes) -> Binding:
    """Parse the request of bind. Raises WireError."""
    binding = _parse(body, Binding)
    for field in ("PodName", "PodNamespace", "Node"):
        name = getattr(binding, field)
        if not name:
            raise WireError(f"{field} is empty: bind requires it")
        if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):  # it becomes part of an API path
            raise WireError(f"{field}: {show(name)} is not allowed: a Kubernetes name (a-z, 0-9, - and .)")
    return binding


def parse_preemption(body: bytes) -> Preemption:
    """Parse the request of preempt. Raises WireError."""
    return _parse(body, Preemption)


def offered_victims(preemption: Preemption) -> dict[str, Victims]:
    """By node, the Pods that kube-scheduler would evict, from either form of the request."""
    if preemption.NodeNameToMetaVictims is not None:
        return preemption.NodeNameToMetaVictims
    return {
        name: Victims([Victim(pod.metadata.uid) for pod in whole.Pods or ()], whole.NumPDBViolations)
        for name, whole in (preemption.NodeNameToVictims or {}).items()
    }


def _parse(body: bytes, kind: type[_Request]) -> _Request:
    try:
        try:
            return _decoded(body, kind)
        except RecursionError:
            if len(body) > _MOST_CUT:
                raise
            return _decoded(shallow(body), kind)
    except RecursionError as error:
        raise WireError("cannot be read: nested too deeply") from error


def _decoded(body: bytes, kind: type[_Request]) -> _Request:
    try:
        found: _Request = _DECODERS[kind].decode(body)
        return found
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        first = error
    try:  # keys in another case
        loose = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        names = {field.lower(): field for field in kind.__struct_fields__}
        renamed: _Request = _DECODERS[kind].decode(
            msgspec.json.encode({names.get(key.lower(), key): value for key, value in loose.items()})
        )
        return renamed
    except msgspec.ValidationError as error:
        raise WireError(f"cannot be read: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise WireError(f"cannot be read: {first}") from first


def requested_names(args: Args) -> list[str]:
    """The names of the nodes, from either form of the request. Raises WireError."""
    if args.NodeNames is not None:
        return args.NodeNames
    if args.Nodes is None:
        raise WireError("the request has neither NodeNames nor Nodes")
    try:
        return [msgspec.json.decode(node, type=_Named).metadata.name for node in args.Nodes.items or ()]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"Nodes.items: {error}") from error


def without_percent_sign(sentence: str) -> str:
    """The sentence in words: "80% free" becomes "80 percent free". A sign without a number was quoted from a user."""
    return _PERCENTAGE.sub(" percent", sentence).replace("%", "(percent sign)") if "%" in sentence else sentence


def _without_percent_signs(reasons: Mapping[str, str]) -> Mapping[str, str]:
    """The reasons by node, with no percent signs. Thousands of nodes share a few sentences."""
    changed = {why: without_percent_sign(why) for why in set(reasons.values()) if "%" in why}
    return {node: changed.get(why, why) for node, why in reasons.items()} if changed else reasons


def render_filtered(
    args: Args, names: Sequence[str], fit: Sequence[str], busy: Mapping[str, str], never: Mapping[str, str]
) -> bytes:
    """The answer of filter, in the form of the request. `names` are the requested nodes, in their order."""
    nodes = None
    if args.NodeNames is None and args.Nodes is not None:
        chosen = set(fit)
        items = [raw for name, raw in zip(names, args.Nodes.items or (), strict=True) if name in chosen]
        nodes = {"metadata": {}, "items": items}
    return msgspec.json.encode(
        {
            "Nodes": nodes,
            "NodeNames": None if nodes is not None else fit,
            "FailedNodes": _without_percent_signs(busy),
            "FailedAndUnresolvableNodes": _without_percent_signs(never),
            "Error": "",
        }
    )


def render_error(error: str) -> bytes:
    """The answer of filter on an error."""
    return msgspec.json.encode(
        {
            "Nodes": None,
            "NodeNames": None,
            "FailedNodes": None,
            "FailedAndUnresolvableNodes": None,
            "Error": without_percent_sign(error),
        }
    )


def render_scores(names: Sequence[str], scores: Sequence[int]) -> bytes:
    """The answer of prioritize: a bare list. Scores are 0 to 10 by contract; kube-scheduler takes larger ones too."""
    return msgspec.json.encode(list(map(_Score, names, scores)))


def render_bound(error: str = "") -> bytes:
    """The answer of bind."""
    return msgspec.json.encode({"Error": without_percent_sign(error)})


def render_preemption(victims: Mapping[str, Victims]) -> bytes:
    """The answer of preempt."""
    return msgspec.json.encode({"NodeNameToMetaVictims": victims})


def render_binding(binding: Binding, uid: str, annotations: Mapping[str, str]) -> JsonObject:
    """The Binding object: the API server sets its annotations and the node on the Pod in one write."""
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
