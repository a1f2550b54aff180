"""Reads a Pod, of any dialect, as runs of one machine: what each container asks of the cards, and its command. Pure.

Containers become ordinary processes of the caller: images, volumes, probes and the like are not used. What cannot be
kept without Kubernetes and would change where or how the Pod runs is refused: ConfigMaps, cards by model or UUID.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from aliquot.dialects import gpushare, hami, native, qgpu, t9k
from aliquot.dialects.kube.commands import ContainerPlan, expand, plan_of
from aliquot.dialects.kube.podfields import unknown_fields, with_slips, wrong_metadata
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.dialects.pods import annotation_field, read_pod
from aliquot.dialects.registry import misplaced, parse_pod, remarks
from aliquot.dialects.rules import DEFAULT_RULES, ON_REQUEST, Rules
from aliquot.model.claim import Claim, ContainerClaim, Role
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.device import CORE_MILLI
from aliquot.model.refusal import Invalid

Broken = tuple[Invalid, ...]  # at least one

_RESOURCES = (*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES, *hami.RESOURCES)
_CHOOSING = (*hami.CHOOSE_CARDS, native.CARD_MODELS)  # annotations that choose cards by model or UUID
_ANY_CARD = "omit it: `aliquot run` chooses among all cards of this machine"
_DEEPEST = 16  # levels at which an object may have its Pod template
# Fields that change nothing here, by where they stand.
_OF_POD = (
    "affinity", "activeDeadlineSeconds", "dnsConfig", "hostAliases", "nodeName", "nodeSelector", "priorityClassName",
    "resourceClaims", "runtimeClassName", "schedulingGates", "securityContext", "terminationGracePeriodSeconds",
    "topologySpreadConstraints", "volumes",
)  # fmt: skip
_OF_CONTAINERS = (
    "lifecycle", "livenessProbe", "ports", "readinessProbe", "securityContext", "startupProbe",
    "volumeMounts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container asks of the cards, as the options of `aliquot run` say it. None: not given."""

    app_class: str
    gpus: int | None = 1  # None: every card of a node
    memory_mib: int | None = None
    memory_percent: float | None = None
    core: int | None = None  # percent
    park_after: float | None = None  # seconds
    latency: float | None = None  # seconds
    group: str = ""


@dataclass(frozen=True, slots=True)
class PodRun:
    """One container. `ask` None: it requests no card."""

    name: str
    container: str
    path: str  # of the container in the Pod
    role: Role
    ask: Ask | None
    command: tuple[str, ...]
    env: dict[str, str]
    folder: str | None


@dataclass(frozen=True, slots=True)
class PodRuns:
    """The runs in start order, and sentences about what is different here."""

    runs: tuple[PodRun, ...]
    notes: tuple[str, ...]


def makes_pods(obj: JsonView) -> bool:
    """Whether the object is no Pod, but others are made from a template in it, as a Deployment or a training job."""
    return _has_template(obj.get("spec"), _DEEPEST)


def _has_template(value: object, depth: int) -> bool:
    if isinstance(value, list):
        return depth > 0 and any(_has_template(item, depth - 1) for item in value)
    if not isinstance(value, dict) or not depth:
        return False
    containers = value.get("containers")
    if isinstance(containers, list) and any("name" in mapping(container) for container in containers):
        return True
    return any(_has_template(item, depth - 1) for item in value.values())


def runs_of(pod: JsonObject, name: str | None, node: str, rules: Rules = DEFAULT_RULES) -> PodRuns | Broken:
    """The runs of a Pod, under the name of the Pod unless another is given; or every field that is not allowed. Never
    raises on any JSON."""
    rules = replace(rules, served=rules.served | frozenset(ON_REQUEST), one_user=True)
    view = read_pod(pod)
    slips = tuple(misplaced(view)) if view is not None and not view.name else ()
    metadata = mapping(pod.get("metadata"))
    name = name or metadata.get("name")
    if not isinstance(name, str) or not name:
        return slips or (Invalid("metadata.name", metadata.get("name"), "a name; or use --name"),)
    plan, claim = plan_of(pod), parse_pod(pod, rules)
    broken = with_slips(wrong_metadata(pod), (*_broken_plan(plan), *_broken_claim(pod, claim)))
    if broken or isinstance(plan, Invalid) or not isinstance(claim, Claim):
        return broken
    asks = {container.name: _ask(claim, container) for container in claim.containers}
    several = sum(container.role is not Role.INIT for container in plan) > 1
    runs = tuple(_run(container, asks, name, metadata, node, several=several) for container in plan)
    return PodRuns(runs, tuple(_notes(pod, plan, claim, rules)))


def _broken_plan(plan: tuple[ContainerPlan, ...] | Invalid) -> Broken:
    return (plan,) if isinstance(plan, Invalid) else ()


def _broken_claim(pod: JsonObject, claim: Claim | Broken | None) -> Broken:
    if isinstance(claim, tuple):
        return claim
    if claim is None:
        return (_no_card(pod),)
    annotations = mapping(mapping(pod.get("metadata")).get("annotations"))
    return tuple(Invalid(annotation_field(key), annotations[key], _ANY_CARD) for key in _CHOOSING if key in annotations)


def _no_card(pod: JsonObject) -> Invalid:
    """A misspelled resource looks like a Pod without cards."""
    unknown = [resource for resource in _extended_resources(pod) if resource not in _RESOURCES]
    of = "a resource of qGPU, T9k, gpushare or HAMi, or an annotation of KAI"
    if unknown:
        return Invalid("spec.containers[0].resources.limits", ", ".join(unknown), of)
    return Invalid("spec.containers[0].resources.limits", None, f"the Pod requests no card: add {of}")


def _extended_resources(pod: JsonObject) -> list[str]:
    spec = mapping(pod.get("spec"))
    sides = (
        mapping(mapping(mapping(container).get("resources")).get(side))
        for field in ("initContainers", "containers")
        for container in sequence(spec.get(field))
        for side in ("limits", "requests")
    )
    return sorted({str(name) for side in sides for name in side if "/" in str(name)})


def _ask(claim: Claim, container: ContainerClaim) -> Ask:
    piece, group = container.slice, claim.group
    ask = Ask(claim.app_class.value, container.count, latency=claim.latency)
    if piece.exclusive:  # alone on the card: it comes with all its memory
        return ask
    milli = piece.greedy_milli or piece.core_milli
    return replace(
        ask,
        memory_mib=piece.memory_mib or None,
        memory_percent=piece.memory_percent or None,
        core=None if milli is None else milli * 100 // CORE_MILLI,
        park_after=claim.park_after,
        group=group,
    )


def _run(
    container: ContainerPlan, asks: dict[str, Ask], pod: str, metadata: JsonView, node: str, *, several: bool
) -> PodRun:
    """`several`: the Pod's name alone does not say which container it is."""
    command, env = expand(container, {**metadata, "name": metadata.get("name") or pod}, node)
    name = f"{pod}-{container.name}" if several or container.role is Role.INIT else pod
    ask = asks.get(container.name)
    return PodRun(name, container.name, container.path, container.role, ask, command, env, container.folder)


def _notes(pod: JsonObject, plan: tuple[ContainerPlan, ...], claim: Claim, rules: Rules) -> Iterator[str]:
    """Sentences, each once."""
    spec = mapping(pod.get("spec"))
    yield from unknown_fields(spec)
    containers = [
        mapping(container) for field in ("initContainers", "containers") for container in sequence(spec.get(field))
    ]
    ignored = [field for field in _OF_CONTAINERS if any(container.get(field) for container in containers)]
    ignored += [field for field in _OF_POD if spec.get(field)]
    if ignored:
        yield f"not used on one machine: {', '.join(ignored)}"
    if spec.get("restartPolicy") in ("Always", "OnFailure"):
        yield "restartPolicy is not used: a run that has ended is not started again"
    if claim.together and len(claim.containers) > 1:
        yield "its containers are separate runs here, and may get different cards"
    if unknown := [name for name in _extended_resources(pod) if name not in _RESOURCES]:
        yield f"{', '.join(unknown)}: not served on one machine, and ignored"
    yield from remarks(pod, rules)
