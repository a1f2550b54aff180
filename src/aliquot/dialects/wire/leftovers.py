"""What we wrote on a Node and how to remove it; the annotation for files that are left behind there. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from aliquot.dialects import hami, native, t9k
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import NodeObject
from aliquot.dialects.wire.otherplugins import may_serve_nvidia_gpu
from aliquot.dialects.wire.upkeep import CONDITION, written_labels
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid

KUBELET = "/var/lib/kubelet"
_VERSION = 1
_IMAGE = re.compile(r"[\w][\w.:/@+-]{0,511}\Z", re.ASCII)
_LABEL = {"user", "role", "type", "level"}  # seLinuxOptions
_WORD = re.compile(r"[\w.:,-]{1,255}\Z", re.ASCII)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?)?\Z", re.ASCII)
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?\Z", re.ASCII)
_FOLDER = re.compile(r"(/(?!\.\.?(/|\Z))[\w.+-]+)+\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Files on a node that Pods still need or that could not be removed, and how to remove them later."""

    image: str
    kubelet: str = KUBELET
    selinux: Mapping[str, str] | None = None  # the SELinux label of the agents
    labels: Mapping[str, str] = field(default_factory=dict)  # of the agents' Pods, which a cluster's policies may want


class _LeftBehind(msgspec.Struct, kw_only=True, omit_defaults=True):
    v: int
    image: str
    kubelet: str = KUBELET
    selinux: dict[str, str] | None = None
    labels: dict[str, str] = {}


def render_left_behind(left: LeftBehind) -> str:
    """The annotation's text."""
    selinux = None if left.selinux is None else dict(left.selinux)
    mark = _LeftBehind(v=_VERSION, image=left.image, kubelet=left.kubelet, selinux=selinux, labels=dict(left.labels))
    return msgspec.json.encode(mark).decode()


def parse_left_behind(obj: JsonObject) -> LeftBehind | Invalid | None:
    """Of a Node, or of the agents' account; None: nothing was left behind. A node's kubelet may write this annotation,
    too, so nothing in it is trusted."""
    text = (obj["metadata"].get("annotations") or {}).get(native.LEFT_BEHIND)
    if text is None:
        return None
    wrong = Invalid(f'metadata.annotations["{native.LEFT_BEHIND}"]', text, "what `aliquot uninstall` writes there")
    try:
        left = msgspec.json.decode(text, type=_LeftBehind)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return wrong
    label = left.selinux or {}
    labelled = label.keys() <= _LABEL and all(map(_WORD.match, label.values()))
    labelled = (
        labelled and all(map(_LABEL_KEY.match, left.labels)) and all(map(_LABEL_VALUE.match, left.labels.values()))
    )
    whole = left.v == _VERSION and _IMAGE.match(left.image) and _FOLDER.match(left.kubelet) and labelled
    return LeftBehind(left.image, left.kubelet, left.selinux, left.labels) if whole else wrong


def had_agent(node: JsonObject) -> bool:
    """Whether the Node has annotations of our agent."""
    annotations = node["metadata"].get("annotations") or {}
    return native.INVENTORY in annotations or native.AGENT in annotations


def node_leftovers(node: JsonObject, left: LeftBehind | None = None) -> tuple[JsonObject | None, JsonObject | None]:
    """The patches that remove our marks from a Node: a merge patch of it and a strategic one of its status; None:
    nothing to do.

    A label is removed if we wrote it last, by the managedFields. The resources stay at 0 once their plugin is gone: the
    kubelet never removes them. If the Node has no agent of ours, or files were left behind before, another program may
    be there: allocatable resources and the taint are then its own. `left`: what to note instead.
    """
    metadata, status = node["metadata"], node.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    gone = {key for key in written_labels(metadata) if key in labels}
    change: JsonObject = {"labels": dict.fromkeys(sorted(gone))} if gone else {}
    noted = {} if left is None else {native.LEFT_BEHIND: render_left_behind(left)}
    ours = {key: noted.get(key) for key in (*annotations, *noted) if key.startswith(native.PREFIX)}
    changed = {key: value for key, value in ours.items() if annotations.get(key) != value}
    if changed:
        change["annotations"] = changed
    patch: JsonObject = {"metadata": change} if change else {}
    taints = (node.get("spec") or {}).get("taints") or []
    cleaned = native.LEFT_BEHIND in annotations and not had_agent(node)
    kept = [taint for taint in taints if taint != t9k.TAINT or cleaned]
    if kept != taints:
        patch["spec"] = {"taints": kept}
    if patch:
        patch.setdefault("metadata", {})["resourceVersion"] = metadata.get("resourceVersion")
    read = read_object(node, NodeObject, "node")
    free = hami.LABEL in labels and isinstance(read, NodeObject) and may_serve_nvidia_gpu(read)
    also = set(hami.COUNTED) if free else set()
    of_status = _of_status(status, schedulerconfig.RESOURCES | also, theirs=not had_agent(node))
    return patch or None, {"status": of_status} if of_status else None


def _of_status(status: JsonObject, resources: frozenset[str], *, theirs: bool) -> JsonObject:
    found: JsonObject = {}
    if any(condition.get("type") == CONDITION for condition in status.get("conditions") or ()):
        found["conditions"] = [{"$patch": "delete", "type": CONDITION}]
    allocatable = status.get("allocatable") or {}
    for side in ("capacity", "allocatable"):
        names = [key for key in status.get(side) or {} if key in resources]
        stale = {key: None for key in names if not theirs or allocatable.get(key, "0") == "0"}
        if stale:
            found[side] = stale
    return found
