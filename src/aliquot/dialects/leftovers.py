"""What stands on a Node by our doing, and how it is taken away. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import native, t9k, wiring
from .upkeep import CONDITION

Json = dict[str, Any]


def node_leftovers(node: Json, labelled: Mapping[str, str]) -> tuple[Json | None, Json | None]:
    """What takes our marks from a Node: a merge patch of it and a strategic one of its status; None: nothing there.

    A label goes that we put there and that is still as we left it: by the record, or by who the API server says wrote
    it. The resources stand at 0 once their plugin is gone, and the kubelet itself never takes them away.
    """
    metadata, status = node["metadata"], node.get("status") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    gone = {key for key, value in labelled.items() if labels.get(key) == value}
    gone |= {key for key in _marks(metadata, "f:labels") if key in labels}
    change: Json = {}
    if gone:
        change["labels"] = dict.fromkeys(sorted(gone))
    ours = [key for key in annotations if key.startswith(native.PREFIX)]
    if ours:
        change["annotations"] = dict.fromkeys(ours)
    patch: Json = {"metadata": change} if change else {}
    taints = (node.get("spec") or {}).get("taints") or []
    kept = [each for each in taints if each != t9k.TAINT]
    if kept != taints:
        patch["spec"] = {"taints": kept}
    if patch:
        patch.setdefault("metadata", {})["resourceVersion"] = metadata.get("resourceVersion")
    of_status: Json = {}
    if any(each.get("type") == CONDITION for each in status.get("conditions") or ()):
        of_status["conditions"] = [{"$patch": "delete", "type": CONDITION}]
    for side in ("capacity", "allocatable"):
        stale = {key: None for key in status.get(side) or {} if key in wiring.RESOURCES}
        if stale:
            of_status[side] = stale
    return patch or None, {"status": of_status} if of_status else None


def _marks(metadata: Json, part: str) -> set[str]:
    """The keys that programs of ours wrote last, by the API server's own books."""
    found: set[str] = set()
    for each in metadata.get("managedFields") or ():
        if str(each.get("manager", "")).startswith("aliquot"):
            fields = ((each.get("fieldsV1") or {}).get("f:metadata") or {}).get(part) or {}
            found |= {key.removeprefix("f:") for key in fields if key != "."}
    return found
