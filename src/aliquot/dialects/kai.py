"""KAI and NvFractions: a part of the memory of one card or several, in annotations of the Pod, for one container.

    annotation of a Pod                                    meaning
    gpu-fraction                                           of each card's memory, 0.01 or more and less than 1
    gpu-memory                                             whole MiB of each card
    gpu-fraction-num-devices                               how many different cards, 1 unless given
    gpu-fraction-container-name                            whose cards, the first container's unless given
    nvidia.com/container.NAME.gpu-memory.request, .limit   of each card, for container NAME; a Kubernetes quantity
    nvidia.com/container.NAME.gpu-compute.mode             time-slicing; sm-sharing: side by side with the
                                                           namespace's other such Pods (docs/together.md)

Such a Pod names no resource, and the kubelet asks a device plugin only about resources: the webhook adds
`native.PLACE` to the container. The names have no prefix that is KAI's own: so this dialect is served only where it is
asked for, on nodes with our label.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from fractions import Fraction

from aliquot.dialects import native
from aliquot.dialects.podrendering import Words
from aliquot.dialects.pods import MIB, NVIDIA_GPU, Container, Pod, annotation_field, count_at, unnamed
from aliquot.model.claim import Claim, ContainerClaim, Slice
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.node import Offer
from aliquot.model.numbers.quantity import QuantityError, parse_quantity
from aliquot.model.refusal import Invalid

DIALECT = "kai"
RESOURCES = (native.PLACE,)
SCHEDULER_NAME = "kai-scheduler"  # in KAI's manifests

FRACTION = "gpu-fraction"
MEMORY = "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
CONTAINER = "gpu-fraction-container-name"
_MODE_OF_POD = "kai.scheduler/gpu-compute-sharing-mode"  # as KAI 0.17 spelled it
_MPS = "mps"
_IN_TIME, _IN_SPACE = "time-slicing", "sm-sharing"
_SPACE_GROUP = "sm-sharing"  # the group of Pods that name none by aliquot.dev/together
PREFIX = "nvidia.com/container."  # of annotations with a container's name
_REQUEST, _LIMIT, _MODE = ".gpu-memory.request", ".gpu-memory.limit", ".gpu-compute.mode"
_SUFFIXES = (_REQUEST, _LIMIT, _MODE)
_WRITTEN_BY_KAI = (".gpus.devices", ".gpu-compute.portion")  # when it has placed the Pod; not read here
_GROUP = "pod-group-name"  # of KAI's own PodGroups: not read here
NOT_READ = ("gpu-fraction-limit", "gpu-memory-limit")  # of Run:ai: how far a Pod may go beyond its part
_MIN_MEMBER = "kai.scheduler/batch-min-member"  # of a Job: how many of its Pods start together; not read here
ANNOTATIONS = (FRACTION, MEMORY, DEVICES, CONTAINER)
MARKS = (*ANNOTATIONS, _MODE_OF_POD, _MPS)  # part of what a Pod requests, as all that begins with PREFIX
_REQUESTS = (FRACTION, MEMORY, DEVICES)  # any of them, and the Pod is of this dialect

LABEL = "aliquot.dev/serve-kai"  # of a Node, by its owner; "true": takes such Pods
LABELS = (LABEL,)

_DECIMAL = re.compile(r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?\Z", re.ASCII)
_MOST_MIB = 10**9
_LONGEST = 32  # characters of a number
_LEAST = Fraction(1, native.PLACES)


def first_mention(pod: Pod) -> str | None:
    """The first field in which the Pod uses this dialect."""
    keys = (*pod.annotations, *pod.misplaced)
    found = (key for key in keys if key in _REQUESTS or (isinstance(key, str) and key.startswith(PREFIX)))
    return next(map(annotation_field, found), None)


def remarks(pod: Pod) -> list[str]:
    """What is accepted of a Pod with cards and changes nothing here."""
    fields = [annotation_field(_GROUP)] * (_GROUP in pod.annotations)
    fields += [f'metadata.labels["{_GROUP}"]'] * (_GROUP in pod.labels)
    text = "KAI's PodGroups are not read: the Pod starts by itself; docs/groups.md has the groups that are"
    no_more = "is not read: the Pod gets the part that it requests, and no more"
    limits = [f"{annotation_field(key)}: it {no_more}" for key in NOT_READ if key in pod.annotations]
    return [*(f"{field}: {text}" for field in fields), *limits, *owner_remarks(pod.annotations)]


def owner_remarks(annotations: Mapping[str, object]) -> list[str]:
    """The same of a Job, whose Pods do not get its annotations."""
    text = "is not read: each Pod starts by itself; docs/groups.md has the groups that start together"
    return [f"{annotation_field(_MIN_MEMBER)}: it {text}"] * (_MIN_MEMBER in annotations)


def container_annotations(annotations: Mapping[str, str] | None) -> object:
    """Those with a container's name, of which no list can be made beforehand."""
    if not annotations:
        return None
    return tuple(item for item in annotations.items() if item[0].startswith(PREFIX)) or None


def parse_pod(pod: Pod) -> Claim | list[Invalid]:
    """The claim of a Pod of this dialect, or every rule it violates."""
    problems: list[Invalid] = []
    named = _named(pod, problems)
    container = _container(pod, named, problems)
    piece = _slice(pod, named, problems)
    count = _devices(pod, problems)
    _refuse_whole_cards(pod, problems)
    group = _SPACE_GROUP if _shares_in_space(pod, problems) else ""
    if container is not None:
        problems += unnamed([container])
    if problems or container is None or piece is None or count is None:
        return problems
    return pod.claim(DIALECT, Offer.KAI, [container.claim(piece, count)], group=group)


def uncalled(pod: Pod, claim: Claim) -> list[Invalid]:
    """Those of a Pod that exists, to which no webhook adds anything any more: without a place kube-scheduler does not
    ask us about the Pod, nor the kubelet about the container."""
    allowed = "the webhook adds it to new Pods, and without it the Pod gets no card: create the Pod again"
    named = {container.name for container in claim.containers}
    lacking = (item for item in pod.containers if item.name in named and not item.asks(native.PLACE))
    return [Invalid(container.field(native.PLACE), None, allowed) for container in lacking]


def _named(pod: Pod, problems: list[Invalid]) -> dict[str, dict[str, object]]:
    """The annotations of NvFractions: by container and suffix."""
    found: dict[str, dict[str, object]] = {}
    for key, value in {**pod.misplaced, **pod.annotations}.items():
        if not isinstance(key, str) or not key.startswith(PREFIX) or key.endswith(_WRITTEN_BY_KAI):
            continue
        suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), "")
        name = key.removeprefix(PREFIX).removesuffix(suffix)
        if suffix and name:
            found.setdefault(name, {})[suffix] = value
            continue
        problems.append(Invalid(annotation_field(key), value, _known(key.removeprefix(PREFIX))))
    return found


def _known(rest: str) -> str:
    """What to write instead of an annotation that begins with PREFIX."""
    name, dot, suffix = rest.partition(".")
    close = difflib.get_close_matches(dot + suffix, _SUFFIXES, cutoff=0.8) if len(rest) <= 253 else []
    if close and name:
        return f"unknown; did you mean {PREFIX}{name}{close[0]}?"
    return f"unknown; known are {', '.join(f'{PREFIX}NAME{suffix}' for suffix in _SUFFIXES)}"


def _container(pod: Pod, named: JsonView, problems: list[Invalid]) -> Container | None:
    """The one container that gets cards: the one that is named, or the Pod's first."""
    chosen = pod.text(CONTAINER, problems)
    names = {name: next(iter(named[name])) for name in named}
    if chosen:
        for name, suffix in names.items():
            if name != chosen:
                allowed = f"the same container as in {PREFIX}{name}{suffix}, or omit it"
                problems.append(Invalid(annotation_field(CONTAINER), chosen, allowed))
                return None
    first, *others = names or [chosen]
    if others:
        key = f"{PREFIX}{others[0]}{names[others[0]]}"
        allowed = f"one container of a Pod has cards: remove it, or those of container {first}"
        problems.append(Invalid(annotation_field(key), named[others[0]][names[others[0]]], allowed))
        return None
    mains = [container for container in pod.containers if container.path.startswith("spec.containers")]
    found = next((item for item in pod.containers if item.name == first), None) if first else next(iter(mains), None)
    if found is None:
        key = f"{PREFIX}{first}{names[first]}" if names else CONTAINER
        known = ", ".join(container.name for container in pod.containers) or "none"
        problems.append(Invalid(annotation_field(key), first, f"the name of a container of this Pod: {known}"))
    return found


def _slice(pod: Pod, named: Mapping[str, Mapping[str, object]], problems: list[Invalid]) -> Slice | None:
    """The part of each card. The limit is booked where there is one: a Pod can rely on all that it may use."""
    before = len(problems)
    fraction, memory = _fraction(pod, problems), _memory(pod, problems)
    texts = next(iter(named.values()), {})
    request, limit = (
        _quantity(f"{PREFIX}{next(iter(named))}{suffix}", texts[suffix], problems) if suffix in texts else None
        for suffix in (_REQUEST, _LIMIT)
    )
    given = [
        (key, value)
        for key, value in ((FRACTION, fraction), (MEMORY, memory), (PREFIX, limit or request))
        if value is not None
    ]
    if len(problems) > before:
        return None
    if request is not None and limit is not None and request > limit:
        key = f"{PREFIX}{next(iter(named))}{_REQUEST}"
        problems.append(Invalid(annotation_field(key), texts[_REQUEST], f"at most the limit, {texts[_LIMIT]}"))
    elif len(given) > 1:
        key, other = given[0][0], given[1][0]
        allowed = f"either this or {other if other != PREFIX else PREFIX + 'NAME.gpu-memory'}; remove one of them"
        problems.append(Invalid(annotation_field(key), pod.annotation(key), allowed))
    elif not given:
        allowed = f"required: a part of one card's memory, such as 0.5; or {MEMORY}, in MiB"
        problems.append(Invalid(annotation_field(FRACTION), None, allowed))
    if len(problems) > before:
        return None
    if fraction is not None:
        return Slice(memory_percent=_percent(fraction))
    return Slice(memory_mib=limit or request or memory or 0)


def _percent(fraction: Fraction) -> float:
    """A whole number where it is one."""
    percent = fraction * 100
    return int(percent) if percent.denominator == 1 else float(percent)


def _fraction(pod: Pod, problems: list[Invalid]) -> Fraction | None:
    value = pod.annotation(FRACTION)
    if value is None:
        return None
    text = value if isinstance(value, str) and len(value) <= _LONGEST else ""
    fraction = Fraction(text) if _DECIMAL.match(text) else Fraction(0)
    if _LEAST <= fraction < 1:
        return fraction
    problems.append(Invalid(annotation_field(FRACTION), value, "a number of at least 0.01 and less than 1, in quotes"))
    return None


def _memory(pod: Pod, problems: list[Invalid]) -> int | None:
    value = pod.annotation(MEMORY)
    if value is None:
        return None
    allowed = "whole MiB of each card, at least 1, digits without a unit, in quotes"
    return _digits(value, annotation_field(MEMORY), problems, allowed)


def _digits(value: object, field: str, problems: list[Invalid], allowed: str) -> int | None:
    """KAI reads no quantities here: "2k" and "2.0" are errors."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return count_at(value, field, problems, allowed=allowed)
    problems.append(Invalid(field, value, allowed))
    return None


def _quantity(key: str, value: object, problems: list[Invalid]) -> int | None:
    """The quantity in MiB, rounded up."""
    with suppress(QuantityError):
        if isinstance(value, str) and MIB <= (amount := parse_quantity(value)) <= _MOST_MIB * MIB:
            return -int(-amount // MIB)
    allowed = "a Kubernetes quantity of at least 1Mi, such as 4096Mi or 8Gi"
    problems.append(Invalid(annotation_field(key), value, allowed))
    return None


def _devices(pod: Pod, problems: list[Invalid]) -> int | None:
    value = pod.annotation(DEVICES)
    if value is None:
        return 1
    allowed = "a whole number of cards, at least 1, in quotes"
    return _digits(value, annotation_field(DEVICES), problems, allowed)


def _refuse_whole_cards(pod: Pod, problems: list[Invalid]) -> None:
    for container in pod.asking(NVIDIA_GPU):
        allowed = "a Pod asks for a part of cards or for whole ones: remove it, or the annotations"
        problems.append(Invalid(container.field(NVIDIA_GPU), container.value(NVIDIA_GPU), allowed))


def _shares_in_space(pod: Pod, problems: list[Invalid]) -> bool:
    """Whether its kernels are to run beside those of others. Without a mode, Pods of a card take turns."""
    keys = [key for key in {**pod.misplaced, **pod.annotations} if isinstance(key, str)]
    modes = set()
    for key in (*(key for key in keys if key.startswith(PREFIX) and key.endswith(_MODE)), _MODE_OF_POD):
        mode = pod.text(key, problems)
        if mode in (_IN_TIME, _IN_SPACE):
            modes.add(mode)
        elif mode or key in pod.annotations:
            allowed = f"{_IN_TIME}, {_IN_SPACE} (docs/together.md), or omit it"
            problems.append(Invalid(annotation_field(key), mode, allowed))
    return _IN_SPACE in modes or pod.text(_MPS, problems) == "true"


def words(claim: Claim) -> Words:
    """The claim in the words of this dialect."""
    (container,) = claim.containers
    annotations = {**_spell(container), CONTAINER: container.name}
    if container.count != 1:
        annotations[DEVICES] = str(container.count)
    return Words({container.name: {native.PLACE: container.cards}}, annotations)


def _spell(container: ContainerClaim) -> dict[str, str]:
    piece = container.slice
    return {FRACTION: _decimal(piece.memory_percent)} if piece.memory_percent else {MEMORY: str(piece.memory_mib)}


def _decimal(percent: float) -> str:
    """The fraction that `_percent` turns into this percentage."""
    return f"{percent}e-2"


def labelled(labels: JsonView) -> bool:
    """Whether the node is to take such Pods."""
    return bool(labels.get(LABEL) == "true")


def offers(labels: JsonView) -> frozenset[Offer]:
    """What the node's label offers."""
    return frozenset({Offer.KAI}) if labelled(labels) else frozenset()


ENABLED_BY = {Offer.KAI: f"label {LABEL}=true, and an agent of Aliquot that reports its cards"}
