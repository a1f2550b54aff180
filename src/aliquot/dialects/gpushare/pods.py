"""A Pod of gpushare: its containers' requests as a claim, and the claim in gpushare's words.

All containers of a Pod share its card. `aliyun.com/gpu-count: "4"` on the Pod spreads each container's gpu-mem evenly
over four cards; a container that asks for gpu-count alone has so many whole cards. Beside gpu-mem,
`aliyun.com/gpu-core.percentage` is compute, on nodes that ACK calls core_mem.
"""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.dialects import native
from aliquot.dialects.gpushare.names import CORE, COUNT, DIALECT, MEMORY, RESOURCES, MemoryUnit
from aliquot.dialects.podrendering import Words
from aliquot.dialects.pods import Container, Pod, count_at, unnamed
from aliquot.model.claim import Claim, Slice
from aliquot.model.device import CORE_MILLI
from aliquot.model.node import Offer
from aliquot.model.refusal import Invalid

_PERCENT = CORE_MILLI // 100
_STEP = 5  # percent: ACK takes no others
_WHOLE = Slice(memory_percent=100, exclusive=True)
# What a Pod needs instead where gpu-mem alone must bring the kubelet to call an agent.
BY_DEVICES = {Offer.GPUSHARE: Offer.GPUSHARE_DEVICES, Offer.GPUSHARE_CORE: Offer.GPUSHARE_CORE_DEVICES}
BY_PLACES = {by_devices: offer for offer, by_devices in BY_DEVICES.items()}


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    return pod.first_mention(RESOURCES)


def remarks(pod: Pod) -> list[str]:
    """What is accepted of the Pod and changes nothing: a number of cards where none is asked for."""
    if pod.first_mention(RESOURCES) is not None:
        return []
    named = ((of, texts) for of, texts in (("labels", pod.labels), ("annotations", pod.annotations)) if COUNT in texts)
    why = f"is ignored: no container asks for {MEMORY}, so this Pod gets no card"
    return [f'metadata.{of}["{COUNT}"]: {why}' for of, _ in named]


def parse_pod(pod: Pod, unit: MemoryUnit) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    asking = pod.asking(MEMORY, CORE)
    if not asking and (whole := pod.asking(COUNT)) and COUNT not in pod.labels and pod.annotation(COUNT) is None:
        return _whole_cards(pod, whole)
    problems = unnamed(asking)
    cards = _cards(pod, problems)
    if not asking:
        field = f'spec.containers[*].resources.limits["{MEMORY}"]'
        problems.append(
            Invalid(
                field,
                None,
                f"required with {COUNT}: the memory on all cards together, in whole {unit}; for whole cards, write"
                f" {COUNT} as a limit of the container instead",
            )
        )
    containers = []
    for container in asking:
        if not container.asks(MEMORY):
            allowed = f"required with {CORE}: whole {unit}, at least 1"
            problems.append(Invalid(container.field(MEMORY), None, allowed))
        memory = container.count(MEMORY, problems, allowed=f"whole {unit}, at least 1, without a unit")
        most = 100 * (cards or 1)
        steps = f"{_STEP} to {most} percent of compute, in steps of {_STEP}"
        core = container.count(CORE, problems, allowed=steps, most=most)
        if core is not None and core % _STEP:
            problems.append(Invalid(container.field(CORE), container.value(CORE), steps))
            continue
        if memory is None or cards is None:
            continue
        for resource, amount in ((MEMORY, memory), (CORE, core or 0)):
            if amount % cards:
                allowed = f"a multiple of {cards}: {COUNT} spreads it evenly over {cards} cards"
                problems.append(Invalid(container.field(resource), container.value(resource), allowed))
        core_milli = None if core is None else core // cards * _PERCENT
        containers.append(container.claim(Slice(memory // cards * unit.mib, core_milli=core_milli), cards))
    if problems:
        return problems
    offer = Offer.GPUSHARE_CORE if any(part.slice.core_milli is not None for part in containers) else Offer.GPUSHARE
    if unit is MemoryUnit.MIB and not all(container.asks(native.PLACE, COUNT, CORE) for container in asking):
        offer = BY_DEVICES[offer]
    return pod.claim(DIALECT, offer, containers, together=True)


def as_admitted(claim: Claim) -> Claim:
    """The claim of a Pod that is yet to be created: the webhook will add a place where the cluster needs it."""
    return replace(claim, offer=BY_PLACES.get(claim.offer, claim.offer))


def lacks_place(claim: Claim) -> bool:
    """Whether the kubelet calls an agent for all its containers only where gpu-mem is a device."""
    return claim.offer in BY_PLACES


def places(claim: Claim) -> dict[str, int]:
    """By container, how many of `native.PLACE` it needs where gpu-mem is no device."""
    shared = claim.offer in BY_DEVICES or claim.offer in BY_PLACES
    return {container.name: 1 for container in claim.containers} if shared else {}


def _whole_cards(pod: Pod, asking: list[Container]) -> Claim | list[Invalid]:
    """gpu-count alone: each container has its own."""
    problems = unnamed(asking)
    allowed = "a whole number of cards, at least 1"
    counts = [container.count(COUNT, problems, allowed=allowed) for container in asking]
    if problems:
        return problems
    claims = (container.claim(_WHOLE, count) for container, count in zip(asking, counts, strict=True))
    return pod.claim(DIALECT, Offer.GPUSHARE_WHOLE, claims)


def _cards(pod: Pod, problems: list[Invalid]) -> int | None:
    """The number of cards of the Pod: 1 unless a label, annotation or container gives it; they must agree."""
    allowed = "a whole number of cards, at least 1"
    counts: list[tuple[str, int | None]] = []
    for field, value in (
        (f'metadata.labels["{COUNT}"]', pod.labels.get(COUNT)),
        (f'metadata.annotations["{COUNT}"]', pod.annotation(COUNT)),
    ):
        if value is not None:
            counts.append((field, count_at(value, field, problems, allowed=allowed)))
    counts += [
        (container.field(COUNT), container.count(COUNT, problems, allowed=allowed)) for container in pod.asking(COUNT)
    ]
    if any(count is None for _, count in counts):
        return None
    if not counts:
        return 1
    first, cards = counts[0]
    for field, other in counts[1:]:
        if other != cards:
            problems.append(Invalid(field, other, f"the same number of cards as {first} ({cards})"))
            return None
    return cards


def words(claim: Claim, unit: MemoryUnit) -> Words:
    """The claim in the words of this dialect."""
    if claim.containers[0].slice.exclusive:
        return Words({container.name: {COUNT: container.cards} for container in claim.containers}, {})
    cards = claim.containers[0].cards
    place = {native.PLACE: 1} if unit is MemoryUnit.MIB and claim.offer in BY_DEVICES else {}
    return Words(
        limits={container.name: _spell(container.slice, cards, unit) | place for container in claim.containers},
        annotations={COUNT: str(cards)} if cards > 1 else {},
    )


def _spell(piece: Slice, cards: int, unit: MemoryUnit) -> dict[str, int]:
    core = {} if piece.core_milli is None else {CORE: piece.core_milli * cards // _PERCENT}
    return {MEMORY: piece.memory_mib * cards // unit.mib, **core}
