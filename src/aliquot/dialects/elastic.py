"""Our own words for memory that may leave the card: on Pods of every dialect, and on Nodes."""

from __future__ import annotations

import math
import re

from aliquot.dialects.pods import Pod
from aliquot.model.claim import Claim
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import LEAST_FACTOR, MOST_FACTOR
from aliquot.model.node import NodeNote, NoteKind
from aliquot.model.numbers.bounds import LONGEST_PARK
from aliquot.model.refusal import Invalid, show

PARK = "aliquot.dev/park"  # on a Pod: how long it is idle until its memory may leave the card
OVERSUBSCRIBE = "aliquot.dev/oversubscribe"  # a label of a Node; as an annotation: its agent's default
POOL = "aliquot.dev/host-pool"  # on a Node, by its agent: MiB of host memory for what is parked

_FIELD = f'metadata.annotations["{PARK}"]'
_ALLOWED = 'a time from 0s to 24h, for example "30s"'
_WHOLE = "the Pod has whole cards, which it shares with no other Pod"
_SEVERAL = "the Pod has several slices; memory leaves only Pods with one slice of one card"
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_FACTOR = re.compile(r"[0-9](?:\.[0-9]{1,4})?", re.ASCII)
_MOST_DIGITS = 9


def park_after(pod: Pod, claim: Claim) -> float | Invalid | None:
    """Seconds idle until the Pod's memory may be parked; None: its class decides."""
    if PARK not in pod.annotations:
        return None
    text = pod.annotations[PARK]
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    seconds = float(match[1]) * _SECONDS[match[2]] if match else math.inf
    if seconds > LONGEST_PARK:
        return Invalid(_FIELD, text, _ALLOWED)
    if claim.whole_node or any(container.slice.exclusive for container in claim.containers):
        return Invalid(_FIELD, text, _WHOLE)
    if claim.has_several_slices:
        return Invalid(_FIELD, text, _SEVERAL)
    return seconds


def pool_mib(annotations: JsonView) -> int:
    """MiB of the Node's pool, as its agent reports it; 0 where none does."""
    text = annotations.get(POOL)
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0


def factor_of(labels: JsonView, annotations: JsonView, notes: list[NodeNote]) -> float:
    """The Node's factor of oversubscription. What is wrong with it is noted, and the factor is 1."""
    text = labels.get(OVERSUBSCRIBE)
    if text is None:
        text = annotations.get(OVERSUBSCRIBE)
    if text is None:
        return LEAST_FACTOR
    factor = float(text) if isinstance(text, str) and _FACTOR.fullmatch(text) else 0.0
    if not LEAST_FACTOR <= factor <= MOST_FACTOR:
        notes.append(NodeNote(NoteKind.BAD_FACTOR, OVERSUBSCRIBE, other=show(text)))
        return LEAST_FACTOR
    if factor > LEAST_FACTOR and not pool_mib(annotations):
        notes.append(NodeNote(NoteKind.NO_POOL, OVERSUBSCRIBE, other=text))
        return LEAST_FACTOR
    return factor


def render_node(pool: int, factor: float) -> dict[str, str]:
    """The annotations by which an agent reports its pool, in MiB, and its default factor."""
    return {POOL: str(pool), OVERSUBSCRIBE: f"{factor:g}"}
