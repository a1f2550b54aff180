"""What a Pod asks of one machine: the three dialects, and `nvidia.com/gpu: N` for N whole cards.

On a cluster that name belongs to NVIDIA's device plugin; on one machine no other program gives cards away.
"""

from __future__ import annotations

from dataclasses import replace

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.pods import Container, Pod, read_pod, unnamed
from aliquot.dialects.qgpu import QgpuRules
from aliquot.dialects.registry import parse_pod
from aliquot.dialects.rules import DEFAULT_RULES, Rules
from aliquot.model.claim import Claim, ContainerClaim, Slice
from aliquot.model.node import Offer
from aliquot.model.refusal import Invalid

DIALECT = "nvidia"
CARDS = "nvidia.com/gpu"
_WHOLE = Slice(memory_percent=100, exclusive=True)


def parse_local_pod(pod: object, rules: Rules = DEFAULT_RULES) -> Claim | tuple[Invalid, ...] | None:
    """The Pod's claim, every rule it violates, or None for a Pod without GPUs. Accepts any JSON, never raises."""
    found = parse_pod(pod, rules)
    view = read_pod(pod)
    asking = [] if view is None else view.asking(CARDS)
    if view is None or not asking or isinstance(found, tuple):
        return found
    if isinstance(found, Claim):
        allowed = f"one dialect per Pod: it already uses {found.dialect}"
        return (Invalid(asking[0].field(CARDS), asking[0].value(CARDS), allowed),)
    return _whole_cards(view, asking)


def accepted_claim(pod: object) -> Claim | None:
    """The claim of a Pod that was accepted under any version of qGPU's rules; None: it requests no card.

    Where both versions accept a Pod, its claim is the same under both.
    """
    for version in QgpuRules:
        found = parse_local_pod(pod, replace(DEFAULT_RULES, qgpu=version))
        if not isinstance(found, tuple):
            return found
    return None


def largest_request(pod: object, claim: Claim) -> tuple[str, object]:
    """The field with the largest request of the claim, and its value."""
    largest = max(
        claim.containers, key=lambda part: (part.slice.memory_mib, part.slice.memory_percent, part.count or 0)
    )
    view = read_pod(pod)
    for container in view.containers if view is not None else ():
        for resource in (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, CARDS):
            if container.name == largest.name and container.asks(resource):
                return container.field(resource), container.value(resource)
    return "spec.containers", largest.name


def _whole_cards(view: Pod, asking: list[Container]) -> Claim | tuple[Invalid, ...]:
    problems = [*view.problems, *unnamed(asking)]
    containers = []
    for container in asking:
        count = container.count(CARDS, problems, allowed="a whole number of cards, at least 1")
        if count is not None:
            containers.append(ContainerClaim(container.name, container.index, container.role, _WHOLE, count))
    if problems:
        return tuple(problems)
    offer = Offer.T9K_EXCLUSIVE  # whole cards; a machine's own node offers everything
    return Claim(view.uid, view.namespace, view.name, DIALECT, offer, tuple(containers), owner=view.owner)
