"""How long online work keeps a card that it left idle: what its Pod or claim says, and qGPU's own rule."""

from __future__ import annotations

import re

from aliquot.dialects import qgpu
from aliquot.dialects.pods import Pod, annotation_field
from aliquot.model.claim import AppClass, Claim
from aliquot.model.numbers.bounds import LEAST_LATENCY, MOST_LATENCY
from aliquot.model.refusal import Invalid

LATENCY = "aliquot.dev/latency"  # on a Pod: what online work accepts to have added to its requests (p99)

_FIELD = annotation_field(LATENCY)
ALLOWED = 'a time from 0.1ms to 10s, for example "2ms"'
_ONLINE = (
    "the Pod is not online, and only online work takes the card from others "
    f"(qGPU: annotation {qgpu.APP_CLASS}: online; HAMi: nvidia.com/priority: 0)"
)
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(us|ms|s)", re.ASCII)
_PER_SECOND = {"us": 1e6, "ms": 1e3, "s": 1.0}


def accepted_latency(pod: Pod, claim: Claim) -> float | Invalid | None:
    """The latency that the Pod accepts, in seconds; None: the Pod does not say."""
    if LATENCY not in pod.annotations:
        return None
    text = pod.annotations[LATENCY]
    seconds = parse_latency(text)
    if seconds is None:
        return Invalid(_FIELD, text, ALLOWED)
    return seconds if claim.app_class is AppClass.ONLINE else Invalid(_FIELD, text, _ONLINE)


def parse_latency(text: object) -> float | None:
    """The latency in seconds; None: the text is not `ALLOWED`."""
    match = _TIME.fullmatch(text) if isinstance(text, str) else None
    seconds = float(match[1]) / _PER_SECOND[match[2]] if match else 0.0
    return seconds if LEAST_LATENCY <= seconds <= MOST_LATENCY else None


def release_delay(claim: Claim) -> float | None:
    """The delay that its own rules demand, in seconds, where the node has none for everybody; None: it is learned."""
    return qgpu.RELEASE_DELAY if claim.dialect == qgpu.DIALECT else None
