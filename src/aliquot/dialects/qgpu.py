"""qGPU (Tencent): a card's memory in GiB and its compute in percent, per container; online and offline Pods mixed.

The rules, by the Pod's app-class annotation:

    class     qgpu-memory    qgpu-core          qgpu-core-greedy      cards
    absent    1 GiB or more  1..99, or nothing  not allowed           each container its own
    online    1 GiB or more  not allowed        not allowed           each container its own
    offline   1 GiB or more  not allowed        1..100 for the Pod    one for the whole Pod

The vendor's rules of 2026 change the qgpu-core of ordinary Pods: steps of 5 below 100; N x 100 is N whole cards, and
then memory may be left out; anything else above 100 is spread evenly over enough cards, rounded down on each.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from aliquot.dialects.nodes import Capacity, NodeView, advertised, advertised_percent
from aliquot.dialects.podrendering import Words
from aliquot.dialects.pods import Container, Pod, unnamed
from aliquot.model.claim import AppClass, Claim, ContainerClaim, Slice, Usage, peak
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import CORE_MILLI, Card, nominal_gib
from aliquot.model.node import Isolation, NodeNote, Offer
from aliquot.model.refusal import Invalid

DIALECT = "qgpu"
CORE = "tke.cloud.tencent.com/qgpu-core"
MEMORY = "tke.cloud.tencent.com/qgpu-memory"
GREEDY = "tke.cloud.tencent.com/qgpu-core-greedy"
RESOURCES = (MEMORY, CORE, GREEDY)

APP_CLASS = "tke.cloud.tencent.com/app-class"
ANNOTATIONS = (APP_CLASS,)
MARKS = ANNOTATIONS  # part of what a Pod requests

ENABLE_LABEL = "qgpu-device-enable"
MIXED_LABEL = "mixed-qgpu-enable"
POLICY_LABEL = "tke.cloud.tencent.com/qgpu-schedule-policy"
LABELS = (ENABLE_LABEL, MIXED_LABEL, POLICY_LABEL)

_POLICIES = {
    "best-effort": Isolation.BEST_EFFORT,
    "be": Isolation.BEST_EFFORT,
    "fixed-share": Isolation.FIXED_SHARE,
    "fs": Isolation.FIXED_SHARE,
    "burst-share": Isolation.BURST_SHARE,
    "bs": Isolation.BURST_SHARE,
}

GIB = 1024  # in MiB
PERCENT = CORE_MILLI // 100
RELEASE_DELAY = 0.1  # seconds for which online work keeps a card that it left idle


class QgpuRules(StrEnum):
    """Which rules apply to core and to the slices of a card: those of the seeds, or the vendor's later ones."""

    SEED = "seed"
    Y2026 = "2026"


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    return pod.first_mention(RESOURCES)


def parse_pod(pod: Pod, rules: QgpuRules) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    problems: list[Invalid] = []
    app_class = _app_class(pod, problems)
    asking = pod.asking(*RESOURCES)
    problems += unnamed(asking)
    containers = []
    for container in asking:
        before = len(problems)
        piece, count = _PIECES[app_class](container, rules, problems) if app_class else _any_class(container, problems)
        if len(problems) == before:
            containers.append(container.claim(piece, count))
    if app_class is AppClass.OFFLINE and not problems:
        problems += _greedy_beyond_one_card(asking, containers)
    if problems or app_class is None:
        return problems
    offer = Offer.QGPU if app_class is AppClass.NORMAL else Offer.QGPU_MIXED
    return pod.claim(DIALECT, offer, containers, app_class=app_class, together=app_class is AppClass.OFFLINE)


def _app_class(pod: Pod, problems: list[Invalid]) -> AppClass | None:
    value = pod.annotation(APP_CLASS)
    if value is None:
        return AppClass.NORMAL
    if value == "online":
        return AppClass.ONLINE
    if value == "offline":
        return AppClass.OFFLINE
    problems.append(
        Invalid(f'metadata.annotations["{APP_CLASS}"]', value, '"online" or "offline", or omit the annotation')
    )
    return None


Piece = tuple[Slice, int]
_NOTHING: Piece = (Slice(), 1)  # placeholder after a problem


def _memory(container: Container, problems: list[Invalid]) -> int | None:
    allowed = "whole GiB, at least 1, without a unit"
    if not container.asks(MEMORY):
        problems.append(Invalid(container.field(MEMORY), None, f"required with any other qGPU resource: {allowed}"))
        return None
    return container.count(MEMORY, problems, allowed=allowed)


def _forbid(container: Container, resource: str, why: str, problems: list[Invalid]) -> None:
    if container.asks(resource):
        problems.append(Invalid(container.field(resource), container.value(resource), why))


def _any_class(container: Container, problems: list[Invalid]) -> Piece:
    """The rule that applies to every class."""
    _memory(container, problems)
    return _NOTHING


def _online(container: Container, rules: QgpuRules, problems: list[Invalid]) -> Piece:
    memory = _memory(container, problems)
    for resource in (CORE, GREEDY):
        _forbid(container, resource, "an online Pod requests qgpu-memory only; remove this", problems)
    return (Slice(memory_mib=memory * GIB), 1) if memory else _NOTHING


def _offline(container: Container, rules: QgpuRules, problems: list[Invalid]) -> Piece:
    allowed = "1 to 100 percent: an offline Pod uses one card"
    memory = _memory(container, problems)
    _forbid(container, CORE, f"an offline Pod requests {GREEDY} instead", problems)
    greedy = container.count(GREEDY, problems, allowed=allowed, most=100)
    if not container.asks(GREEDY):
        problems.append(Invalid(container.field(GREEDY), None, f"required for an offline Pod: {allowed}"))
    return (Slice(memory_mib=memory * GIB, greedy_milli=greedy * PERCENT), 1) if memory and greedy else _NOTHING


def _normal(container: Container, rules: QgpuRules, problems: list[Invalid]) -> Piece:
    _forbid(container, GREEDY, f"only for offline Pods; add annotation {APP_CLASS}: offline", problems)
    core = _CORES[rules](container, problems)
    if core is None or core < 100:
        memory = _memory(container, problems)
        core_milli = None if core is None else core * PERCENT
        return (Slice(memory_mib=memory * GIB, core_milli=core_milli), 1) if memory else _NOTHING
    cards, rest = divmod(core, 100)
    if not rest:
        container.count(
            MEMORY, problems, allowed="whole GiB, at least 1, or nothing: a whole card comes with all its memory"
        )
        return Slice(memory_percent=100, core_milli=CORE_MILLI, exclusive=True), cards
    cards += 1
    memory = _memory(container, problems)
    if memory is None:
        return _NOTHING
    if memory < cards:
        allowed = f"at least {cards}: qgpu-core {core} is spread over {cards} cards, with 1 GiB or more on each"
        problems.append(Invalid(container.field(MEMORY), container.value(MEMORY), allowed))
    return Slice(memory_mib=memory // cards * GIB, core_milli=core // cards * PERCENT), cards


def _core_of_seed(container: Container, problems: list[Invalid]) -> int | None:
    return container.count(
        CORE,
        problems,
        most=99,
        allowed="whole percent of one card, 1 to 99 (whole cards need the rules of 2026: --rules 2026)",
    )


def _core_of_2026(container: Container, problems: list[Invalid]) -> int | None:
    allowed = "5 to 95 in steps of 5, or 100 and more for several cards"
    core = container.count(CORE, problems, allowed=allowed)
    if core is not None and core < 100 and core % 5:
        problems.append(Invalid(container.field(CORE), container.value(CORE), allowed))
        return None
    return core


_PIECES: dict[AppClass, Callable[[Container, QgpuRules, list[Invalid]], Piece]] = {
    AppClass.NORMAL: _normal,
    AppClass.ONLINE: _online,
    AppClass.OFFLINE: _offline,
}
_CORES = {QgpuRules.SEED: _core_of_seed, QgpuRules.Y2026: _core_of_2026}


def _greedy_beyond_one_card(asking: list[Container], claims: list[ContainerClaim]) -> list[Invalid]:
    total = peak((claim.role, Usage(greedy_milli=claim.slice.greedy_milli or 0)) for claim in claims).greedy_milli
    if total <= CORE_MILLI:
        return []
    allowed = "the containers of an offline Pod share one card: at most 100 in total"
    return [Invalid(asking[-1].field(GREEDY), total // PERCENT, allowed)]


def words(claim: Claim) -> Words:
    """The claim in the words of this dialect."""
    normal = claim.app_class is AppClass.NORMAL
    return Words(
        limits={container.name: _spell(container) for container in claim.containers},
        annotations={} if normal else {APP_CLASS: str(claim.app_class)},
    )


def _spell(container: ContainerClaim) -> dict[str, int]:
    piece, cards = container.slice, container.cards
    if piece.exclusive:
        return {CORE: cards * 100}
    spelled = {MEMORY: piece.memory_mib * cards // GIB}
    if piece.greedy_milli is not None:
        spelled[GREEDY] = piece.greedy_milli // PERCENT
    if piece.core_milli is not None:
        core = piece.core_milli // PERCENT * cards
        # Undo the rounding: 101 over two cards is 50 each, but 2 x 50 would be one whole card.
        spelled[CORE] = core if core > (cards - 1) * 100 or cards == 1 else core + cards - 1
    return spelled


def offers(labels: JsonView) -> frozenset[Offer]:
    """What the node's labels enable. Capacity without a label is no offer.

    The controller sets the first label if it finds cards, people set the second: a node that a person chose for mixing
    counts as enabled unless the first label says otherwise.
    """
    mixed = labels.get(MIXED_LABEL) == "enable"
    if labels.get(ENABLE_LABEL, "enable" if mixed else None) != "enable":
        return frozenset()
    return frozenset({Offer.QGPU, Offer.QGPU_MIXED}) if mixed else frozenset({Offer.QGPU})


ENABLED_BY = {
    Offer.QGPU: f"label {ENABLE_LABEL}=enable",
    Offer.QGPU_MIXED: f"label {MIXED_LABEL}=enable",
}


def isolation(labels: JsonView, problems: list[Invalid], *, default: Isolation = Isolation.BEST_EFFORT) -> Isolation:
    """The node's policy label, full name or short; `default` without one."""
    value = labels.get(POLICY_LABEL)
    if value is None:
        return default
    if isinstance(value, str) and value in _POLICIES:
        return _POLICIES[value]
    allowed = "best-effort or be, fixed-share or fs, burst-share or bs"
    problems.append(Invalid(f'metadata.labels["{POLICY_LABEL}"]', value, allowed))
    return Isolation.BEST_EFFORT


def max_slices(memory_mib: int, rules: QgpuRules) -> int:
    """How many Pods may share a card: by the seed a quarter of the GiB that it is sold with."""
    return 16 if rules is QgpuRules.Y2026 else nominal_gib(memory_mib) // 4


def capacity(node: NodeView, notes: list[NodeNote], problems: list[Invalid]) -> Capacity:
    """The node's cards according to qgpu-memory and qgpu-core."""
    return Capacity(
        cards=advertised_percent(CORE, node.count(CORE, problems), notes),
        memory=advertised(MEMORY, node.count(MEMORY, problems)),
        unit_mib=GIB,
    )


def amounts(card: Card, offers: frozenset[Offer]) -> dict[str, int]:
    """What the card adds to the node's resources. Memory in whole GiB, rounded down to what the card has."""
    if Offer.QGPU not in offers:
        return {}
    greedy = {GREEDY: 100} if Offer.QGPU_MIXED in offers else {}
    return {CORE: 100, MEMORY: card.bookable_mib // GIB, **greedy}
