"""Nodes and Pods as an API server writes them, in both of its forms, from one value.

What Go has is a dict of all fields of a type; a pointer that is nil, or a slice or map without anything, is None. The
numbers are those of k8s.io/api/core/v1/generated.proto, the names and what is left out of JSON those of types.go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from aliquot.adapters.kubernetes.paging import ListMeta
from aliquot.dialects.wire.objects import NodeObject, PodObject

Go = dict[str, Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Nodes(msgspec.Struct):
    """A page of Nodes, as it is read."""

    metadata: ListMeta
    items: list[NodeObject]


class Pods(msgspec.Struct):
    """A page of Pods."""

    metadata: ListMeta
    items: list[PodObject]


def forget_unwritten(item: NodeObject | PodObject) -> None:
    """Take from it what our library leaves out of first lists: nothing there reads it."""
    if isinstance(item, NodeObject):
        item.status.node_info = None
        for about in item.status.conditions or ():
            about.reason = about.message = None
        return
    if item.spec.node_name:
        item.spec.tolerations = None
    if (status := item.status) is None:
        return
    if "PodResizePending" not in [about.type for about in status.conditions or ()]:
        status.container_statuses = status.init_container_statuses = None
    if status.conditions is not None:
        status.conditions = [about for about in status.conditions if about.reason]


@dataclass(frozen=True, slots=True)
class Field:
    """One field: "text", "bool", "int", "time", "texts", "amounts", or the name of a type."""

    number: int
    kind: str
    pointer: bool = False  # nil, or there
    many: bool = False
    kept: bool = False  # in JSON also where it is empty


def _field(text: str) -> tuple[str, Field]:
    """`name:number:kind`, and of the kind: * a pointer, [] a slice, ! without omitempty."""
    name, number, kind = text.split(":")
    plain = kind.rstrip("*[]!")
    return name, Field(int(number), plain, "*" in kind, "[" in kind, "!" in kind)


def _type(text: str) -> dict[str, Field]:
    return dict(map(_field, text.split()))


TYPES = {
    "StatusDetails": _type("name:1:text kind:3:text retryAfterSeconds:5:int"),
    "Status": _type(
        "metadata:1:ListMeta status:2:text message:3:text reason:4:text details:5:StatusDetails* code:6:int"
    ),
    "ListMeta": _type("selfLink:1:text resourceVersion:2:text continue:3:text remainingItemCount:4:int*"),
    "ObjectMeta": _type(
        "name:1:text generateName:2:text namespace:3:text selfLink:4:text uid:5:text resourceVersion:6:text"
        " generation:7:int creationTimestamp:8:time deletionTimestamp:9:time* deletionGracePeriodSeconds:10:int*"
        " labels:11:texts annotations:12:texts ownerReferences:13:OwnerReference[] managedFields:17:ManagedFields[]"
    ),
    "ManagedFields": _type("manager:1:text operation:2:text apiVersion:3:text time:4:time* fieldsType:6:text"),
    "OwnerReference": _type("kind:1:text! name:3:text! uid:4:text! apiVersion:5:text! controller:6:bool*"),
    "Condition": _type("type:1:text! status:2:text! lastTransitionTime:4:time reason:5:text message:6:text"),
    "Taint": _type("key:1:text! value:2:text effect:3:text! timeAdded:4:time*"),
    "Image": _type("sizeBytes:2:int"),
    "NodeSpec": _type("podCIDR:1:text providerID:3:text unschedulable:4:bool taints:5:Taint[]"),
    "NodeInfo": _type("machineID:1:text! containerRuntimeVersion:6:text! kubeletVersion:7:text!"),
    "Address": _type("type:1:text! address:2:text!"),
    "NodeStatus": _type(
        "capacity:1:amounts allocatable:2:amounts phase:3:text conditions:4:Condition[] addresses:5:Address[]"
        " nodeInfo:7:NodeInfo images:8:Image[]"
    ),
    "Node": _type("metadata:1:ObjectMeta spec:2:NodeSpec status:3:NodeStatus"),
    "Claim": _type("name:1:text! request:2:text"),
    "Resources": _type("limits:1:amounts requests:2:amounts claims:3:Claim[]"),
    "FieldRef": _type("apiVersion:1:text fieldPath:2:text!"),
    "EnvSource": _type("fieldRef:1:FieldRef*"),
    "Env": _type("name:1:text! value:2:text valueFrom:3:EnvSource*"),
    "Security": _type("privileged:2:bool* runAsUser:4:int* runAsNonRoot:5:bool*"),
    "PodSecurity": _type("runAsUser:2:int* fsGroup:5:int*"),
    "Container": _type(
        "name:1:text! image:2:text env:7:Env[] resources:8:Resources imagePullPolicy:14:text"
        " securityContext:15:Security* stdin:16:bool restartPolicy:24:text*"
    ),
    "Toleration": _type("key:1:text operator:2:text value:3:text effect:4:text tolerationSeconds:5:int*"),
    "Gate": _type("name:1:text!"),
    "PodClaim": _type("name:1:text! resourceClaimName:3:text* resourceClaimTemplateName:4:text*"),
    "Group": _type("podGroupName:1:text*"),
    "PodSpec": _type(
        "containers:2:Container[] restartPolicy:3:text nodeSelector:7:texts serviceAccountName:8:text nodeName:10:text"
        " hostNetwork:11:bool securityContext:14:PodSecurity* schedulerName:19:text initContainers:20:Container[]"
        " tolerations:22:Toleration[] priority:25:int* preemptionPolicy:31:text* overhead:32:amounts hostUsers:37:bool*"
        " schedulingGates:38:Gate[] resourceClaims:39:PodClaim[] resources:40:Resources* schedulingGroup:43:Group*"
    ),
    "ClaimStatus": _type("name:1:text! resourceClaimName:2:text*"),
    "ExtendedStatus": _type("resourceClaimName:2:text!"),
    "ContainerStatus": _type(
        "name:1:text! ready:4:bool! image:6:text! allocatedResources:10:amounts resources:11:Resources*"
    ),
    "PodStatus": _type(
        "phase:1:text conditions:2:Condition[] message:3:text reason:4:text hostIP:5:text startTime:7:time*"
        " containerStatuses:8:ContainerStatus[] initContainerStatuses:10:ContainerStatus[] nominatedNodeName:11:text"
        " resourceClaimStatuses:15:ClaimStatus[]"
        " extendedResourceClaimStatus:18:ExtendedStatus*"
    ),
    "Pod": _type("metadata:1:ObjectMeta spec:2:PodSpec status:3:PodStatus"),
    "NodeList": _type("metadata:1:ListMeta items:2:Node[]!"),
    "PodList": _type("metadata:1:ListMeta items:2:Pod[]!"),
}

# --- values

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["a", "b", '"\\\n\0', "x" * 200, "PodResizePending"]
)
_NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
_TIMES = st.integers(-62135596800, 253402300799) | st.integers(1_600_000_000, 1_900_000_000)
_MAPS = st.dictionaries(_TEXTS, _TEXTS, min_size=1, max_size=3)


@cache
def values(name: str) -> st.SearchStrategy[Go]:
    """Any value of that type."""
    return st.fixed_dictionaries({key: _of(field) for key, field in TYPES[name].items()})


def _of(field: Field) -> st.SearchStrategy[Any]:
    plain: dict[str, st.SearchStrategy[Any]] = {
        "text": _TEXTS,
        "bool": st.booleans(),
        "int": _NUMBERS,
        "time": _TIMES | st.none(),
        "texts": _MAPS,
        "amounts": _MAPS,
    }
    one = plain[field.kind] if field.kind in plain else values(field.kind)
    if field.many:
        return st.none() | st.lists(one, min_size=1, max_size=2)
    return st.none() | one if field.pointer or field.kind in ("texts", "amounts") else one


def blank(name: str, /, **said: Any) -> Go:
    """The zero value in Go, but for what is said."""
    zeros: dict[str, Any] = {"text": "", "bool": False, "int": 0, "time": None, "texts": None, "amounts": None}

    def zero(field: Field) -> Any:
        if field.many or field.pointer:
            return None
        return zeros[field.kind] if field.kind in zeros else blank(field.kind)

    return {key: zero(field) for key, field in TYPES[name].items()} | said


# --- JSON


def as_json(name: str, value: Go) -> dict[str, Any]:
    """The value as Go's encoding/json writes it."""
    return dict(_json_fields(name, value))


def _json_fields(name: str, value: Go) -> Iterator[tuple[str, Any]]:
    for key, field in TYPES[name].items():
        said = value[key]
        if field.kind == "time":
            if said is not None or not field.pointer:
                yield key, None if said is None else f"{(_EPOCH + timedelta(seconds=said)).isoformat()[:19]}Z"
        elif field.many:
            if said or field.kept:
                yield key, [as_json(field.kind, one) for one in said or ()]
        elif said is not None and field.kind in TYPES:
            yield key, as_json(field.kind, said)
        elif said is not None and (said or field.pointer or field.kept):
            yield key, said


# --- protobuf


def page(kind: str, value: Go, *, more: bytes = b"") -> bytes:
    """A list in the envelope that every object has; `more` is added to the list as it is."""
    about = _bytes(1, b"v1") + _bytes(2, kind.encode())
    return b"k8s\0" + _bytes(1, about) + _bytes(2, protobuf(kind, value) + more) + _bytes(3, b"") + _bytes(4, b"")


def protobuf(name: str, value: Go) -> bytes:
    """As the code that gogo-protobuf made writes it: by number, and what is no pointer always."""
    fields = sorted(TYPES[name].items(), key=lambda item: item[1].number)
    return b"".join(_written(field, value[key]) for key, field in fields)


def _written(field: Field, said: Any) -> bytes:
    if field.kind == "time":
        if said is None:
            return b"" if field.pointer else _bytes(field.number, b"")
        return _bytes(field.number, _number(1, said) + _number(2, 0))
    if said is None:
        return b""
    if field.many:
        return b"".join(_bytes(field.number, protobuf(field.kind, one)) for one in said)
    if field.kind in ("texts", "amounts"):
        inner = (lambda text: _bytes(1, text.encode())) if field.kind == "amounts" else str.encode
        entries = (_bytes(1, key.encode()) + _bytes(2, inner(text)) for key, text in sorted(said.items()))
        return b"".join(_bytes(field.number, entry) for entry in entries)
    if field.kind == "text":
        return _bytes(field.number, said.encode())
    if field.kind in ("bool", "int"):
        return _number(field.number, int(said))
    return _bytes(field.number, protobuf(field.kind, said))


def _bytes(number: int, raw: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """Negative numbers as 64 bits."""
    rest, made = value & (2**64 - 1), bytearray()
    while rest > 127:
        made.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*made, rest])
