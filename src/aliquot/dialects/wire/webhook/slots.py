"""Which replica each Service of the webhook selects. Pure.

A Service of all replicas leads to any of them, also to one that was killed a second ago. So there are two more, and
each selects one replica, by a label with the number of its slot. The API server tries one after the other: whichever
replica was killed, the other answers. A replica takes a vacant slot before it is ready, and keeps it until it is
deleted.
"""

from __future__ import annotations

from aliquot.dialects.pods import list_at, mapping_at
from aliquot.model.decoding.openjson import JsonObject, JsonView

SLOTS = ("0", "1")
SLOT_LABEL = "aliquot.dev/webhook-slot"
REPLICAS = "app.kubernetes.io/name=aliquot,app.kubernetes.io/component=scheduler"  # label selector


def slot_to_take(pods: object, name: str) -> str | None:
    """The slot that the replica of that name has to take now; None: it keeps what it has. `pods` is a PodList.

    Every replica decides for itself, by the same order: the oldest first. Accepts any JSON, never raises.
    """
    live = sorted((pod for pod in map(_mapping, list_at(_mapping(pods).get("items"), "", [])) if _stays(pod)), key=_age)
    kept: dict[str, str] = {}  # by slot; the oldest keeps one that two have taken at the same time
    for pod in live:
        if _slot(pod) in SLOTS:
            kept.setdefault(_slot(pod), _name(pod))
    free = [slot for slot in SLOTS if slot not in kept]
    without = [_name(pod) for pod in live if _name(pod) not in kept.values()]
    return dict(zip(without, free, strict=False)).get(name)


def render_slot(slot: str) -> JsonObject:
    """The patch of a Pod."""
    return {"metadata": {"labels": {SLOT_LABEL: slot}}}


def _stays(pod: JsonView) -> bool:
    ended = _mapping(pod.get("status")).get("phase") in ("Failed", "Succeeded")
    return not ended and not _metadata(pod).get("deletionTimestamp")


def _slot(pod: JsonView) -> str:
    return str(_mapping(_metadata(pod).get("labels")).get(SLOT_LABEL))


def _name(pod: JsonView) -> str:
    return str(_metadata(pod).get("name"))


def _age(pod: JsonView) -> tuple[str, str]:
    return str(_metadata(pod).get("creationTimestamp")), _name(pod)


def _metadata(pod: JsonView) -> JsonView:
    return _mapping(pod.get("metadata"))


def _mapping(value: object) -> JsonView:
    return mapping_at(value, "", [])
