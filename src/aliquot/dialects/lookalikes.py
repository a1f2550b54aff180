"""Names that nearly belong to a dialect: `aliyun.com/gpumem`, `tke.cloud.tencent.com/qgpu-mem`. Pure.

A Pod with such a name would run without a card, or wait for a resource that no node has. So an unknown name under a
prefix of a dialect is refused, with the name that was probably meant. Real names of other programs under the same
prefixes pass.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from aliquot.dialects import gpushare, hami, kai, native, qgpu, t9k
from aliquot.dialects.elastic import PARK
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.kube.templates import is_custom
from aliquot.dialects.latency import LATENCY
from aliquot.dialects.podgroups import GROUP_LABELS
from aliquot.dialects.pods import Pod
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid

_OF_KAI = f"annotation {kai.FRACTION} or {kai.MEMORY}"
_CLOSE = 0.8  # difflib's ratio of names under the same domain that are taken for each other
_CLOSER = 0.9  # of KAI's annotations, which have no domain: a Pod without cards may have similar ones
_MOST_COMPARED = 1000  # names of a Pod; each comparison takes some 20 us
_LONGEST = 253  # characters of a name that is compared; Kubernetes takes no longer one


@dataclass(frozen=True, slots=True)
class _Owned:
    """Resource names under `prefix` belong to the dialect; `others` are real names of other programs there."""

    dialect: str | None  # None: ours in every cluster
    prefix: str
    known: tuple[str, ...]
    others: frozenset[str] = frozenset()

    @property
    def domain(self) -> str:
        return self.prefix.partition("/")[0] + "/"


_OWNED = (
    _Owned(qgpu.DIALECT, "tke.cloud.tencent.com/qgpu", qgpu.RESOURCES),
    _Owned(t9k.DIALECT, "tensorstack.dev/nvidia", t9k.RESOURCES),
    _Owned(
        gpushare.DIALECT,
        "aliyun.com/gpu",
        gpushare.RESOURCES,
        frozenset({"aliyun.com/gpu"}),  # whole cards chosen by topology, of Alibaba's ACK
    ),
    _Owned(
        hami.DIALECT,
        "nvidia.com/gpu",
        hami.RESOURCES,
        frozenset({"nvidia.com/vgpu", "nvidia.com/pgpu"}),  # of virtual machines
    ),
    _Owned(None, native.PREFIX, (), frozenset({native.PLACE})),  # which the webhook adds; people write none
)


def prefixes(served: frozenset[str]) -> tuple[str, ...]:
    """What the resource names of these dialects, and names that may be misspelled ones, begin with."""
    return tuple(owned.prefix for owned in _serving(served))


def others(served: frozenset[str]) -> tuple[str, ...]:
    """Names under `prefixes` that need no look: they belong to other programs, or ask for nothing here."""
    ours = {native.PLACE} if kai.DIALECT in served else set()
    return tuple(sorted({name for owned in _serving(served) for name in owned.others} - ours))


def _serving(served: frozenset[str]) -> Iterator[_Owned]:
    return (owned for owned in _OWNED if owned.dialect is None or owned.dialect in served)


def misspelled_resources(pod: Pod, served: frozenset[str]) -> list[Invalid]:
    """The resources of the Pod's containers whose names are unknown under a prefix of these dialects."""
    owners = list(_serving(served))
    found: list[Invalid] = []
    judged: dict[object, str | None] = {}  # by name, what to write instead
    by_hand = kai.DIALECT in served and kai.first_mention(pod) is None
    for container in pod.containers:
        for name in dict.fromkeys((*container.limits, *container.requests)):
            if name not in judged and len(judged) < _MOST_COMPARED:
                judged[name] = _name_to_use(name, owners)
            allowed = judged.get(name)
            if allowed is not None and len(found) < _MOST_COMPARED and container.asks(name):
                found.append(Invalid(container.field(name), container.value(name), allowed))
        if by_hand and container.asks(native.PLACE) and not container.asks(gpushare.MEMORY):
            field, written = container.field(native.PLACE), container.value(native.PLACE)
            found.append(Invalid(field, written, f"only the webhook writes it, for Pods with {_OF_KAI}; remove it"))
    return found + list(_of_the_pod_itself(pod, owners))


def _of_the_pod_itself(pod: Pod, owners: list[_Owned]) -> Iterator[Invalid]:
    """Our resources in spec.resources, where Kubernetes takes CPU, memory and huge pages only."""
    own = mapping(pod.spec.get("resources"))
    for side in ("limits", "requests") if own else ():
        for name, value in islice(mapping(own.get(side)).items(), _MOST_COMPARED):
            ours = any(name in owned.known for owned in owners) or _name_to_use(name, owners) is not None
            if ours:
                allowed = f"a container asks for cards: move it to spec.containers[0].resources.{side}"
                yield Invalid(f'spec.resources.{side}["{name}"]', value, allowed)


def _name_to_use(name: object, owners: Iterable[_Owned]) -> str | None:
    """What to write instead of the name; None: it is right, or not ours to judge."""
    if not isinstance(name, str):
        return None
    lowered = name.lower()
    if "/" not in name and _bare(lowered) not in _BARE_NAMES:  # as cpu and memory of every container
        return None
    for owned in owners:
        without_domain = "/" not in name and any(_bare(known) == _bare(lowered) for known in owned.known)
        mine = lowered.startswith(owned.domain) or without_domain
        if not mine or name in owned.known or name in owned.others:
            continue
        meant = _closest(lowered, owned.known) if len(name) <= _LONGEST else None
        if meant is not None or lowered.startswith(owned.prefix):
            return _allowed(meant, owned)
    return None


def _allowed(meant: str | None, owned: _Owned) -> str:
    if not owned.known:
        return f"no resource begins with {owned.prefix}; remove it"
    if meant is not None:
        return f"no such resource; did you mean {meant}?"
    return f"no such resource; known are {', '.join(sorted(owned.known))}"


def _closest(name: str, known: Iterable[str], close_at: float = _CLOSE) -> str | None:
    """The known name that is nearly this one. The domain is equal, so only the rest is compared, without separators."""
    bare = {_bare(candidate): candidate for candidate in known}
    close = difflib.get_close_matches(_bare(name), bare, cutoff=close_at)
    return bare[close[0]] if close else None


def _bare(name: str) -> str:
    return "".join(letter for letter in name.rpartition("/")[2] if letter.isalnum())


_BARE_NAMES = frozenset(_bare(known) for owned in _OWNED for known in owned.known)


def misspelled_requests(pod: Pod, served: frozenset[str]) -> list[Invalid]:
    """Annotations that are nearly KAI's, on a Pod that asks for nothing else: it would run without a card."""
    if kai.DIALECT not in served:
        return []
    bare = {name: value for name, value in pod.annotations.items() if isinstance(name, str) and "/" not in name}
    return list(_misspelled("annotations", bare, list(kai.ANNOTATIONS), _CLOSER))


def misspelled_marks(pod: Pod, served: frozenset[str]) -> list[Invalid]:
    """Labels and annotations of a GPU Pod that are nearly the ones that its dialect reads.

    Only near misses: cloud vendors set other annotations under the same domains.
    """
    known = marks(served)
    bare = [mark for mark in known if "/" not in mark]  # KAI's: only where the Pod has one of them
    found = [
        problem
        for kind, present in (("labels", pod.labels), ("annotations", pod.annotations))
        for problem in _misspelled(kind, present, [mark for mark in known if "/" in mark])
    ]
    if pod.annotations.keys().isdisjoint(bare):
        return found
    return [*found, *_misspelled("annotations", pod.annotations, bare, _CLOSER)]


def as_labels(pod: Pod, served: frozenset[str]) -> list[str]:
    """Annotations that the Pod has as labels, which nothing reads."""
    return [
        f'metadata.labels["{key}"] has no effect: it is an annotation: move it to metadata.annotations'
        for key in pod.labels
        if key in marks(served) and key not in (*gpushare.MARKS, *pod.annotations, *pod.misplaced)
    ]


def as_annotations(pod: Pod) -> list[str]:
    """Labels that name the Pod's group and that it has as annotations, which nothing reads."""
    return [
        f'metadata.annotations["{key}"] has no effect: it is a label: move it to metadata.labels'
        for key in GROUP_LABELS
        if key in pod.annotations and key not in pod.labels
    ]


def outside_template(workload: object, served: frozenset[str]) -> list[Invalid]:
    """Annotations that ask for cards on a Deployment or Job itself: its Pods get only those of its template."""
    path, inner = "spec.template", mapping(mapping(workload).get("spec"))
    if "jobTemplate" in inner:
        path, inner = "spec.jobTemplate.spec.template", mapping(mapping(inner["jobTemplate"]).get("spec"))
    if "template" not in inner:
        return []
    there, own = (
        mapping(mapping(mapping(obj).get("metadata")).get("annotations")) for obj in (inner["template"], workload)
    )
    known = marks(served)
    effect = "Pods may not get it" if is_custom(mapping(workload)) else "Pods do not get it"  # some operators copy it
    return [
        Invalid(f'metadata.annotations["{key}"]', value, f"{effect}: move it to {path}.metadata.annotations")
        for key, value in own.items()
        if isinstance(key, str) and key not in there and (key in known or _of_container(key, served))
    ]


def _of_container(key: str, served: frozenset[str]) -> bool:
    return kai.DIALECT in served and key.startswith(kai.PREFIX)


def marks(served: frozenset[str]) -> list[str]:
    """The labels and annotations that these dialects read."""
    of_dialects = (
        (qgpu.DIALECT, qgpu.MARKS),
        (gpushare.DIALECT, gpushare.MARKS),
        (hami.DIALECT, hami.MARKS),
        (kai.DIALECT, kai.ANNOTATIONS),
    )
    return [
        *native.MARKS,
        PARK,
        LATENCY,
        *(mark for dialect, names in of_dialects if dialect in served for mark in names),
    ]


def _misspelled(kind: str, present: JsonView, known: list[str], close_at: float = _CLOSE) -> Iterator[Invalid]:
    by_domain: dict[str, list[str]] = {}
    for mark in known:
        by_domain.setdefault(mark.rpartition("/")[0], []).append(mark)
    left = _MOST_COMPARED
    for name, value in present.items():
        if not isinstance(name, str) or name in known or name in kai.NOT_READ or len(name) > _LONGEST:
            continue
        marks_there = by_domain.get(name.lower().rpartition("/")[0])
        if marks_there is None or left == 0:
            continue
        left -= 1
        meant = _closest(name.lower(), marks_there, close_at)
        if meant is not None:
            yield Invalid(f'metadata.{kind}["{name}"]', value, f"unknown; did you mean {meant}?")
