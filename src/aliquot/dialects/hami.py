"""HAMi: a number of different cards, and of each of them memory in MiB or percent, and compute in percent.

    resource of a container         allowed       meaning
    nvidia.com/gpu                  1 or more     cards; without a part of their memory or compute: whole cards.
                                                  1 where only gpumem, gpumem-percentage or gpucores is given
    nvidia.com/gpu.shared           1             a quarter of one card, or as much of it as the next three say
    nvidia.com/gpumem               1 or more     MiB of each
    nvidia.com/gpumem-percentage    1..100        of each card's memory
    nvidia.com/gpucores             1..100        of each card's compute; 100: no other Pod on the card
    nvidia.com/priority             0 or 1        0: online, 1: offline; the same in all containers with cards

nvidia.com/gpu.shared is how NVIDIA's plugin names a time-sliced card, in T9k's manifests of today too. That plugin
limits no memory, but the owner of a node says how many share a card; in NVIDIA's own examples four do.

The kubelet counts nvidia.com/gpu and gpu.shared, of each of which a card has `TOKENS`; no node advertises the others.
On most clusters these names belong to NVIDIA's device plugin: so this dialect is served only where it is asked for, on
nodes with our label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aliquot.dialects.nodes import NodeView
from aliquot.dialects.podrendering import Words
from aliquot.dialects.pods import NVIDIA_GPU, Container, Pod, annotation_field, listed_models, listed_words, unnamed
from aliquot.model.claim import AppClass, CardFilter, Claim, ContainerClaim, Preference, Slice
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.device import CORE_MILLI, Card
from aliquot.model.grant import ContainerGrant, Share
from aliquot.model.node import Node, Offer, Order
from aliquot.model.numbers.quantity import QuantityError, parse_count
from aliquot.model.refusal import Invalid

DIALECT = "hami"
SCHEDULER_NAME = "hami-scheduler"  # which HAMi's webhook writes, and so Pods copied from its clusters have
CARDS = NVIDIA_GPU
MEMORY = "nvidia.com/gpumem"
PERCENTAGE = "nvidia.com/gpumem-percentage"
CORES = "nvidia.com/gpucores"
PRIORITY = "nvidia.com/priority"
PARTS = (MEMORY, PERCENTAGE, CORES, PRIORITY)  # which no node advertises
SHARED = "nvidia.com/gpu.shared"
_OF_ONE_CARD = (MEMORY, PERCENTAGE, CORES)  # each of them alone asks for one card
COUNTED = (CARDS, SHARED)  # which nodes advertise
RESOURCES = (*COUNTED, *PARTS)

USE_TYPES = "nvidia.com/use-gputype"
AVOID_TYPES = "nvidia.com/nouse-gputype"
USE_UUIDS = "nvidia.com/use-gpuuuid"
AVOID_UUIDS = "nvidia.com/nouse-gpuuuid"
CHOOSE_CARDS = (USE_TYPES, AVOID_TYPES, USE_UUIDS, AVOID_UUIDS)
NODE_POLICY = "hami.io/node-scheduler-policy"
CARD_POLICY = "hami.io/gpu-scheduler-policy"
_MODE = "nvidia.com/vgpu-mode"
_NUMA = "nvidia.com/numa-bind"
_WEIGHTS = "hami.io/device-scoring-weights"
ALLOCATED = "hami.io/vgpu-devices-allocated"  # by HAMi's scheduler, until Aliquot takes over
GRANT_ANNOTATIONS = (ALLOCATED, "hami.io/vgpu-devices-to-allocate", "hami.io/vgpu-node", "hami.io/vgpu-time")
ANNOTATIONS = (*CHOOSE_CARDS, NODE_POLICY, CARD_POLICY, _MODE, _NUMA, _WEIGHTS)
MARKS = ANNOTATIONS  # part of what a Pod requests

LABEL = "aliquot.dev/serve-nvidia-gpu"  # of a Node, by its owner; "true": what is COUNTED is ours there
LABELS = (LABEL,)
TOKENS = 100  # of each name in COUNTED for each card: more than any number of Pods that share one

_PERCENT = CORE_MILLI // 100
_WHOLE = Slice(memory_percent=100, exclusive=True)
_SHARED_PERCENT = 25  # of a card's memory, for nvidia.com/gpu.shared alone
_CLASSES = {0: AppClass.ONLINE, 1: AppClass.OFFLINE}
_PRIORITIES = {app_class: priority for priority, app_class in _CLASSES.items()}
_MUTEX = "mutex"  # of CARD_POLICY: no other Pod on its cards
_NUMA_ORDER = "numa"  # of CARD_POLICY: cards of one NUMA node first; after an order it only decides between equals
# Of HAMi's chart, where a Pod names only the other of the two.
_DEFAULT_ORDER = {NODE_POLICY: Order.BINPACK, CARD_POLICY: Order.SPREAD}


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    return pod.first_mention(RESOURCES)


def parse_pod(pod: Pod) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    asking = pod.asking(*RESOURCES)
    problems = unnamed(asking)
    containers = []
    for container in asking:
        before = len(problems)
        count, piece = _cards(container, problems), _slice(container, problems)
        if len(problems) == before:
            containers.append(container.claim(piece, count))
    app_class = _app_class(asking, problems)
    cards, preference = _card_filter(pod, problems), _preference(pod, problems)
    alone = _alone(pod, problems)
    _refuse_unsupported(pod, problems)
    if problems:
        return problems
    if alone:
        containers = [replace(part, slice=replace(part.slice, exclusive=True)) for part in containers]
    offer = Offer.HAMI_SHARED if pod.asking(SHARED) else Offer.HAMI
    return pod.claim(DIALECT, offer, containers, app_class=app_class, cards=cards, preference=preference)


def without_cards(pod: Pod) -> list[Container]:
    """The containers that ask for a part of a card and not how many: HAMi's webhook adds 1, and ours does.

    The kubelet gives a container its cards only if it asks for some.
    """
    return [container for container in pod.asking(*_OF_ONE_CARD) if not _names_a_count(container)]


def _names_a_count(container: Container) -> bool:
    """Whether the container has a count, also one of 0: what a user wrote is not changed."""
    return any(name in amounts for name in COUNTED for amounts in (container.limits, container.requests))


def uncalled(pod: Pod) -> list[Invalid]:
    """Those of a Pod that exists, to which no webhook adds anything any more."""
    allowed = "the number of cards: the webhook adds 1 to new Pods, so create the Pod again; without it write 1"
    return [Invalid(container.field(CARDS), None, allowed) for container in without_cards(pod)]


def _cards(container: Container, problems: list[Invalid]) -> int | None:
    if container.asks(SHARED):
        if container.asks(CARDS):
            allowed = f"either {CARDS} or {SHARED}; remove one of them"
            problems.append(Invalid(container.field(SHARED), container.value(SHARED), allowed))
        allowed = f"1, a part of one card: for more of it add {PERCENTAGE}, for several cards request {CARDS}"
        return container.count(SHARED, problems, allowed=allowed, most=1)
    if not container.asks(CARDS):
        if container.asks(*_OF_ONE_CARD) and not _names_a_count(container):
            return 1
        allowed = "the number of cards, at least 1: required with the other resources; for no card remove those as well"
        problems.append(Invalid(container.field(CARDS), container.value(CARDS), allowed))
        return None
    return container.count(CARDS, problems, allowed="a whole number of cards, at least 1")


def _slice(container: Container, problems: list[Invalid]) -> Slice:
    """The part of each card. All of its memory, or all of its compute, means the card for this container alone."""
    memory = container.count(MEMORY, problems, allowed="whole MiB of each card, at least 1, without a unit")
    percent = container.count(
        PERCENTAGE, problems, allowed="1 to 100 percent of each card's memory, without a unit", most=100
    )
    core = container.count(CORES, problems, allowed="1 to 100 percent of each card's compute, without a unit", most=100)
    if container.asks(MEMORY) and container.asks(PERCENTAGE):
        allowed = f"either {MEMORY} or {PERCENTAGE}; remove one of them"
        problems.append(Invalid(container.field(PERCENTAGE), container.value(PERCENTAGE), allowed))
    shared = container.asks(SHARED)
    if memory is None and percent in (None, 100) and core in (None, 100) and not shared:
        return _WHOLE
    return Slice(
        memory_mib=memory or 0,
        memory_percent=0 if memory else percent or (_SHARED_PERCENT if shared else 100),
        core_milli=None if core is None else core * _PERCENT,
        exclusive=core == 100 and not shared,
    )


def _app_class(asking: list[Container], problems: list[Invalid]) -> AppClass:
    """0 is a priority, although an amount of 0 of other resources asks for nothing."""
    given: list[tuple[Container, int]] = []
    for container in asking:
        written = [amounts[PRIORITY] for amounts in (container.limits, container.requests) if PRIORITY in amounts]
        for value in written:
            try:
                priority = parse_count(value)
            except QuantityError:
                priority = -1
            if priority not in _CLASSES:
                problems.append(Invalid(container.field(PRIORITY), value, "0 (high: online) or 1 (low: offline)"))
                return AppClass.NORMAL
            given.append((container, priority))
    if not given:
        return AppClass.NORMAL
    _, first = given[0]
    lacking = next((container for container in asking if container not in [named for named, _ in given]), None)
    other = next((container for container, priority in given if priority != first), lacking)
    if other is not None:
        value = other.value(PRIORITY)
        allowed = f"the same priority in all containers with cards: {first}"
        problems.append(Invalid(other.field(PRIORITY), value, allowed))
    return _CLASSES[first]


def _card_filter(pod: Pod, problems: list[Invalid]) -> CardFilter | None:
    types, not_types = (listed_models(pod, key, problems) for key in (USE_TYPES, AVOID_TYPES))
    uuids, not_uuids = (tuple(sorted(listed_words(pod, key, problems))) for key in (USE_UUIDS, AVOID_UUIDS))
    return CardFilter(types, not_types, uuids, not_uuids) if types or not_types or uuids or not_uuids else None


def _policies(pod: Pod, key: str, problems: list[Invalid]) -> list[str]:
    """Its words, separated by commas, without blanks, each once."""
    words = (word.strip() for word in pod.text(key, problems).split(","))
    return list(dict.fromkeys(word for word in words if word))


def _preference(pod: Pod, problems: list[Invalid]) -> Preference | None:
    """HAMi sorts cards by the words in the order written: two cards that the first order finds equal are so rare that
    a later order changes nothing. Only `numa` before any order would, and is refused."""
    found: dict[str, Order] = {}
    nodes = _policies(pod, NODE_POLICY, problems)
    cards = [word for word in _policies(pod, CARD_POLICY, problems) if word != _MUTEX]
    if len(nodes) == 1 and nodes[0] in tuple(Order):
        found[NODE_POLICY] = Order(nodes[0])
    elif nodes:
        problems.append(_not_a_policy(pod, NODE_POLICY, "binpack or spread, or omit the annotation"))
    if cards and cards[0] in tuple(Order) and {*cards} <= {*Order, _NUMA_ORDER}:
        found[CARD_POLICY] = Order(cards[0])
    elif cards:
        allowed = f"binpack, spread or {_MUTEX}, or omit the annotation"
        numa = ": aliquot does not place by NUMA node" if _NUMA_ORDER in cards else ""
        problems.append(_not_a_policy(pod, CARD_POLICY, allowed + numa))
    if not found:
        return None
    orders_of = {**_DEFAULT_ORDER, **found}
    return Preference(orders_of[NODE_POLICY], orders_of[CARD_POLICY])


def _not_a_policy(pod: Pod, key: str, allowed: str) -> Invalid:
    return Invalid(annotation_field(key), pod.text(key, []), allowed)


def remarks(pod: Pod) -> list[str]:
    """What is accepted of the Pod and changes nothing here."""
    if not pod.asking(*RESOURCES) or _NUMA_ORDER not in _policies(pod, CARD_POLICY, []):
        return []
    return [f"{annotation_field(CARD_POLICY)}: {_NUMA_ORDER} is ignored: aliquot does not place by NUMA node"]


def _alone(pod: Pod, problems: list[Invalid]) -> bool:
    """Whether no other Pod may use its cards."""
    if _MUTEX not in _policies(pod, CARD_POLICY, []):
        return False
    if pod.asking(SHARED):
        allowed = f"binpack or spread: {SHARED} is a part of a card that others use too"
        problems.append(Invalid(annotation_field(CARD_POLICY), pod.text(CARD_POLICY, []), allowed))
    return True


def _refuse_unsupported(pod: Pod, problems: list[Invalid]) -> None:
    """Annotations that mean something in HAMi, and nothing here."""
    mode = pod.text(_MODE, problems)
    if mode not in ("", "hami-core"):
        allowed = "hami-core, or omit it: aliquot shares cards by itself, without MIG and MPS"
        problems.append(Invalid(annotation_field(_MODE), mode, allowed))
    numa = pod.text(_NUMA, problems)
    if numa.lower() not in ("", "false", "f", "0"):
        allowed = "false, or omit it: aliquot does not place by NUMA node"
        problems.append(Invalid(annotation_field(_NUMA), numa, allowed))
    weights = pod.text(_WEIGHTS, problems)
    if weights:
        allowed = f"omit it: aliquot has no such weights; {CARD_POLICY} may be binpack, spread or {_MUTEX}"
        problems.append(Invalid(annotation_field(_WEIGHTS), weights, allowed))


def words(claim: Claim) -> Words:
    """The claim in the words of this dialect."""
    priority = _PRIORITIES.get(claim.app_class)
    limits: dict[str, Mapping[str, int]] = {
        container.name: {**_spell(container, claim.offer), **({} if priority is None else {PRIORITY: priority})}
        for container in claim.containers
    }
    annotations: dict[str, str] = {}
    if claim.cards is not None:
        lists = (claim.cards.models, claim.cards.not_models, claim.cards.uuids, claim.cards.not_uuids)
        annotations = {key: ",".join(names) for key, names in zip(CHOOSE_CARDS, lists, strict=True) if names}
    if claim.preference is not None:
        annotations |= {NODE_POLICY: claim.preference.nodes.value, CARD_POLICY: claim.preference.cards.value}
    if any(_only_by_policy(container.slice) for container in claim.containers):
        annotations[CARD_POLICY] = ",".join(filter(None, (annotations.get(CARD_POLICY), _MUTEX)))
    return Words(limits, annotations)


def _only_by_policy(piece: Slice) -> bool:
    """Whether only the policy says that the card is for this container alone."""
    return piece.exclusive and piece != _WHOLE and piece.core_milli != CORE_MILLI


def _spell(container: ContainerClaim, offer: Offer) -> dict[str, int]:
    piece = container.slice
    shared = offer is Offer.HAMI_SHARED and container.count == 1 and not piece.exclusive
    spelled = {SHARED if shared else CARDS: container.cards}
    if piece == _WHOLE:
        return spelled
    if piece.memory_mib:
        spelled[MEMORY] = piece.memory_mib
    else:
        spelled[PERCENTAGE] = int(piece.memory_percent)
    if piece.core_milli is not None:
        spelled[CORES] = piece.core_milli // _PERCENT
    return spelled


def parse_grant(annotations: JsonView, claim: Claim, node: Node | None) -> tuple[ContainerGrant, ...] | Invalid | None:
    """The grant that HAMi's own scheduler wrote; None if there is none, or if the node's cards are not known.

    Per container with cards, init containers first: UUID,vendor,MiB,percent: for each card, and a semicolon.
    """
    value = annotations.get(ALLOCATED)
    if value is None or node is None:
        return None
    entries = [entry for entry in str(value).split(";") if entry.strip()] if isinstance(value, str) else []
    numbers = {card.uuid: card.index for card in node.cards if card.uuid}
    granted = []
    for container, entry in zip(claim.containers, entries, strict=False):
        shares = _shares(container, entry, numbers)
        if shares is None:
            break
        granted.append(ContainerGrant(container.name, container.index, container.role, shares))
    if len(granted) != len(claim.containers) or len(entries) != len(granted):
        allowed = "the cards of each container, as HAMi writes them: UUID,NVIDIA,MiB,percent:;"
        return Invalid(annotation_field(ALLOCATED), value, allowed)
    return tuple(granted)


def _shares(container: ContainerClaim, entry: str, numbers: Mapping[str, int]) -> tuple[Share, ...] | None:
    """The cards of one container, with the MiB that HAMi counted; None if they are not what it asks for."""
    found: dict[int, Share] = {}
    for device in filter(None, entry.split(":")):
        uuid, *rest = (word.strip() for word in device.split(","))
        mib = rest[1] if len(rest) >= 3 else ""
        if uuid not in numbers or not (mib.isascii() and mib.isdigit() and len(mib) <= 9):
            return None
        piece = container.slice
        share = Share(numbers[uuid], int(mib), piece.core_milli, piece.greedy_milli, piece.exclusive, uuid)
        if share.memory_mib < max(piece.memory_mib, 1):
            return None
        found[share.card] = share
    return tuple(found[card] for card in sorted(found)) if len(found) == container.count else None


def labelled(labels: JsonView) -> bool:
    """Whether nvidia.com/gpu is to be ours. HAMi's own label, gpu=on, is not enough: its plugin's nodes have it."""
    return bool(labels.get(LABEL) == "true")


def offers(node: NodeView) -> frozenset[Offer]:
    """What the node offers. kube-scheduler does not count these resources (an extender's resources that it ignores
    confuse its retries), so we look whether the kubelet has some. The agent reads the node without a status."""
    has_status = bool(node.capacity or node.allocatable)
    if not labelled(node.labels):
        return frozenset()
    return frozenset(offer for offer, name in _OFFERED.items() if not has_status or node.amount(name, 1, []))


_OFFERED = {Offer.HAMI: CARDS, Offer.HAMI_SHARED: SHARED}
OFFERS = frozenset(_OFFERED)
ENABLED_BY = {
    offer: f"label {LABEL}=true, an agent of Aliquot, and no other device plugin that serves {name}"
    for offer, name in _OFFERED.items()
}


def amounts(card: Card, offers: frozenset[Offer]) -> dict[str, int]:
    """What the card adds to the node's resources."""
    return {name: TOKENS for offer, name in _OFFERED.items() if offer in offers}
