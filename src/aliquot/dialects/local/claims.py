"""What a Pod asks of one machine, in any dialect: nvidia.com/gpu is ours there, no other program gives out cards."""

from __future__ import annotations

from dataclasses import replace

from aliquot.dialects import gpushare, hami, native, qgpu, t9k
from aliquot.dialects.pods import annotation_field, read_pod
from aliquot.dialects.qgpu import QgpuRules
from aliquot.dialects.registry import parse_pod, remarks
from aliquot.dialects.rules import DEFAULT_RULES, ON_REQUEST, Rules
from aliquot.model.claim import Claim
from aliquot.model.refusal import Invalid

RESOURCES = (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, *hami.RESOURCES)


def parse_local_pod(pod: object, rules: Rules = DEFAULT_RULES) -> Claim | tuple[Invalid, ...] | None:
    """The Pod's claim, every rule it violates, or None for a Pod without GPUs. Accepts any JSON, never raises."""
    return parse_pod(pod, _of_one_machine(rules))


def local_remarks(pod: object, rules: Rules = DEFAULT_RULES) -> list[str]:
    """What is accepted of the Pod and changes nothing here, a sentence each. Accepts any JSON, never raises."""
    return remarks(pod, _of_one_machine(rules))


def _of_one_machine(rules: Rules) -> Rules:
    return replace(rules, served=rules.served | frozenset(ON_REQUEST), one_user=True)


def accepted_claim(pod: object) -> Claim | None:
    """The claim of a Pod that was accepted under any version of qGPU's rules; None: it requests no card.

    Where both versions accept a Pod, its claim is the same under both.
    """
    for version in QgpuRules:
        found = parse_local_pod(pod, replace(DEFAULT_RULES, qgpu=version))
        if not isinstance(found, tuple):
            return found
    return None


def chosen_cards(pod: object) -> tuple[str, object] | None:
    """The first annotation that chooses cards by model or UUID, and its value; None: the Pod takes any card."""
    view = read_pod(pod)
    found = {} if view is None else view.annotations
    keys = (key for key in (*hami.CHOOSE_CARDS, native.CARD_MODELS) if key in found)
    return next(((annotation_field(key), found[key]) for key in keys), None)


def largest_request(pod: object, claim: Claim) -> tuple[str, object]:
    """The field with the largest request of the claim, and its value."""
    largest = max(claim.containers, key=lambda part: (part.slice.memory_mib, part.slice.memory_percent, part.cards))
    view = read_pod(pod)
    for container in view.containers if view is not None else ():
        for resource in RESOURCES:
            if container.name == largest.name and container.asks(resource):
                return container.field(resource), container.value(resource)
    return "spec.containers", largest.name
