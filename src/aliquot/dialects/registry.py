"""All dialects: finds the one that a Pod uses, and calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec
from msgspec import structs

from aliquot.dialects import elastic, gpushare, hami, kai, latency, native, podrendering, pods, qgpu, t9k
from aliquot.dialects.kube.shapes import mapping
from aliquot.dialects.lookalikes import (
    as_annotations,
    as_labels,
    misspelled_marks,
    misspelled_requests,
    misspelled_resources,
)
from aliquot.dialects.pods import Pod, read_pod, with_requests
from aliquot.dialects.rules import DEFAULT_RULES, Rules
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.objects import ContainerObject, PodObject, Resources
from aliquot.dialects.wire.views import Names, as_given, pod_names, pod_view
from aliquot.model.claim import CardFilter, Claim
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.grant import Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid

# What a node needs for each offer, in words.
ENABLED_BY = {**qgpu.ENABLED_BY, **t9k.ENABLED_BY, **gpushare.ENABLED_BY, **hami.ENABLED_BY, **kai.ENABLED_BY}


@dataclass(frozen=True, slots=True)
class _Dialect:
    """The part of a dialect that reads and writes Pods."""

    name: str
    first_mention: Callable[[Pod], str | None]
    parse: Callable[[Pod, Rules], Claim | list[Invalid]]
    words: Callable[[Claim, Rules], podrendering.Words]


_DIALECTS = (
    _Dialect(
        qgpu.DIALECT,
        qgpu.first_mention,
        lambda pod, rules: qgpu.parse_pod(pod, rules.qgpu),
        lambda claim, rules: qgpu.words(claim),
    ),
    _Dialect(
        t9k.DIALECT,
        t9k.first_mention,
        lambda pod, rules: t9k.parse_pod(pod),
        lambda claim, rules: t9k.words(claim),
    ),
    _Dialect(
        gpushare.DIALECT,
        gpushare.first_mention,
        lambda pod, rules: gpushare.parse_pod(pod, rules.gpushare_unit),
        lambda claim, rules: gpushare.words(claim, rules.gpushare_unit),
    ),
    _Dialect(
        hami.DIALECT,
        hami.first_mention,
        lambda pod, rules: hami.parse_pod(pod),
        lambda claim, rules: hami.words(claim),
    ),
    _Dialect(
        kai.DIALECT,
        kai.first_mention,
        lambda pod, rules: kai.parse_pod(pod),
        lambda claim, rules: kai.words(claim),
    ),
)

MODEL_WISHES = frozenset((native.CARD_MODELS, hami.USE_TYPES, hami.AVOID_TYPES))  # annotations

MOST_CONTAINERS = 256  # of a Pod with GPUs: what each of them needs is compared with every node

_OUR_ANNOTATIONS = frozenset(
    (
        *qgpu.ANNOTATIONS,
        *t9k.ANNOTATIONS,
        *gpushare.ANNOTATIONS,
        *hami.ANNOTATIONS,
        *kai.ANNOTATIONS,
        *native.ANNOTATIONS,
        elastic.PARK,
        latency.LATENCY,
    )
)


def parse_pod(
    pod: object | PodObject, rules: Rules = DEFAULT_RULES, *, created: bool = False
) -> Claim | tuple[Invalid, ...] | None:
    """The Pod's claim, every rule it violates, or None for a Pod without GPUs. Accepts any JSON, never raises.

    `created`: the Pod exists, and no webhook adds anything to it any more.
    """
    view = pod_view(pod) if isinstance(pod, PodObject) else read_pod(pod)
    if view is None:
        return None
    claim = _parse(view, rules, created=created)[0]
    if claim is None:
        return tuple(misspelled_requests(view, rules.served)) or None
    # Only here: what `PodReader` keeps does not depend on these labels, and a Pod that exists cannot change them.
    marks = misspelled_marks(view, rules.served)
    if not marks:
        return claim
    return (*(claim if isinstance(claim, tuple) else ()), *marks)


def remarks(pod: object, rules: Rules = DEFAULT_RULES) -> list[str]:
    """What is accepted of a Pod and changes nothing here, a sentence each. Accepts any JSON, never raises."""
    view = read_pod(pod)
    if view is None:
        return []
    found = hami.remarks(view) if hami.DIALECT in rules.served else []
    found += gpushare.remarks(view) if gpushare.DIALECT in rules.served else []
    slips = as_labels(view, rules.served)
    others = [*(kai.remarks(view) if kai.DIALECT in rules.served else ()), *slips, *as_annotations(view)]
    meant = bool(slips) and (kai.FRACTION in view.labels or kai.MEMORY in view.labels)  # and so it asks for nothing
    if others and (meant or _parse(view, rules, created=False)[0] is not None):
        found += others
    return found


def owner_remarks(workload: object, pod: object, rules: Rules = DEFAULT_RULES) -> list[str]:
    """The same of a Job or the like itself, whose Pods, such as this one, ask for cards."""
    if kai.DIALECT not in rules.served:
        return []
    job = mapping(mapping(mapping(workload).get("spec")).get("jobTemplate"))  # of a CronJob
    found = kai.owner_remarks(_annotations(workload))
    found += [f"spec.jobTemplate.{sentence}" for sentence in kai.owner_remarks(_annotations(job))]
    return found if found and parse_pod(pod, rules) is not None else []


def _annotations(of: object) -> Mapping[str, object]:
    return mapping(mapping(mapping(of).get("metadata")).get("annotations"))


def _parse(view: Pod, rules: Rules, *, created: bool) -> tuple[Claim | tuple[Invalid, ...] | None, Pod]:
    """The result of `parse_pod`; and the Pod, with its requests if they were read."""
    served = [dialect for dialect in _DIALECTS if dialect.name in rules.served]
    spoken = [(dialect, field) for dialect in served if (field := dialect.first_mention(view)) is not None]
    if spoken and len(view.containers) > MOST_CONTAINERS:
        return (_too_many(view),), view
    slips = misplaced(view) if spoken or any(key in _OUR_ANNOTATIONS for key in view.misplaced) else []
    slips += misspelled_resources(view, rules.served)
    if not spoken:
        return tuple(slips) or None, view
    view = with_requests(view)
    problems = [*view.problems, *slips]
    (dialect, first), *others = spoken
    if others:
        already = f"one dialect per Pod: {first} already uses {dialect.name}"
        problems += [
            Invalid(field, view.value_at(field), f"{already}, and this is {other.name}'s; remove one of them")
            for other, field in others
        ]
        return tuple(problems), view
    claim = dialect.parse(view, rules)
    problems += hami.uncalled(view) if created and dialect.name == hami.DIALECT else []
    if isinstance(claim, list):
        problems += claim
    else:
        if view.annotation(native.CARD_MODELS) is not None:
            claim = _with_models(claim, view, problems)
        claim = native.with_group(claim, view, problems, one_user=rules.one_user)
        park_after = elastic.park_after(view, claim)
        if isinstance(park_after, Invalid):
            problems.append(park_after)
        elif park_after is not None:
            claim = structs.replace(claim, park_after=park_after)
        accepted = latency.accepted_latency(view, claim)
        if isinstance(accepted, Invalid):
            problems.append(accepted)
        elif accepted is not None:
            claim = structs.replace(claim, latency=accepted)
    return tuple(problems) if problems or isinstance(claim, list) else claim, view


def _too_many(view: Pod) -> Invalid:
    allowed = f"at most {MOST_CONTAINERS} containers, with init containers, in a Pod that asks for GPUs"
    return Invalid("spec.containers", len(view.containers), allowed)


def _with_models(claim: Claim, view: Pod, problems: list[Invalid]) -> Claim:
    """The claim, for cards of the models that the Pod names in any dialect."""
    models, cards = native.card_models(view, problems), claim.cards or CardFilter()
    if cards.models:
        allowed = f"either this or {hami.USE_TYPES}; remove one of them"
        problems.append(
            Invalid(pods.annotation_field(native.CARD_MODELS), view.annotation(native.CARD_MODELS), allowed)
        )
    return structs.replace(claim, cards=structs.replace(cards, models=models)) if models else claim


class PodRequest(msgspec.Struct, frozen=True, gc=False):
    """What a Pod requests: cards, and CPU and memory of its node."""

    claim: Claim | tuple[Invalid, ...] | None
    cpu_milli: int
    memory_mib: int


class PodReader:
    """Reads the Pods of one cluster. They are copies of a few hundred templates, each of which is parsed once.

    Pods with very long texts are not cached: they could fill our memory.
    """

    _MOST = 4096
    _LONGEST = 8192  # characters

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._of_kai = kai.DIALECT in rules.served
        self._known: dict[object, PodRequest] = {}

    def read(self, pod: PodObject, names: Names | None = None) -> PodRequest:
        """What the Pod requests. `names`: its `pod_names`, if they are known already."""
        known = self.read_template(pod)
        if not isinstance(known.claim, Claim):
            return known
        return PodRequest(claim_for(names or pod_names(pod), known.claim), known.cpu_milli, known.memory_mib)

    def read_template(self, pod: PodObject) -> PodRequest:
        """The same; a claim in it may have the names of another Pod of the same template.

        With the CPU and memory that it has, if the Pod asked its node in vain for other ones: that counts for
        kube-scheduler too, and what it asked for would keep others off the node."""
        known = self._read_spec(pod)
        if not pod.resize_refused:
            return known
        given, claim = with_requests(pod_view(as_given(pod))), known.claim
        cpu, memory = given.cpu_milli, given.memory_mib
        claim = structs.replace(claim, cpu_milli=cpu, memory_mib=memory) if isinstance(claim, Claim) else claim
        return PodRequest(claim, cpu, memory)

    def _read_spec(self, pod: PodObject) -> PodRequest:
        if len(pod.spec.containers or ()) + len(pod.spec.init_containers or ()) > MOST_CONTAINERS:
            return self._parse(pod)  # no Pod of ours; what it is like would take as long to write down
        key = self._shape(pod)
        known = self._known.get(key)
        if known is None:
            known = self._parse(pod)
            self._keep(key, known)
        return known

    def read_bound(self, pod: PodObject) -> PodRequest:
        """The same as `read_template`, of a Pod on a node: what it says about models of cards decided where it went,
        and cannot undo that."""
        asked = self.read_template(pod)
        annotations = pod.metadata.annotations or {}
        if not isinstance(asked.claim, tuple) or MODEL_WISHES.isdisjoint(annotations):
            return asked
        kept = {key: text for key, text in annotations.items() if key not in MODEL_WISHES}
        return self.read_template(structs.replace(pod, metadata=structs.replace(pod.metadata, annotations=kept)))

    def _parse(self, pod: PodObject) -> PodRequest:
        claim, view = _parse(pod_view(pod), self.rules, created=True)
        view = view if isinstance(claim, Claim) else with_requests(view)
        return PodRequest(claim, view.cpu_milli, view.memory_mib)

    def _keep(self, key: object, request: PodRequest) -> None:
        try:
            if len(str(key)) > self._LONGEST:
                return
        except ValueError:  # an integer with more digits than Python prints
            return
        if len(self._known) >= self._MOST:
            self._known.clear()
        self._known[key] = request

    def _shape(self, pod: PodObject) -> object:
        """Everything that the result depends on, except the Pod's names."""
        metadata, spec = pod.metadata, pod.spec
        return (
            _marks(metadata.labels),
            _marks(metadata.annotations),
            tuple(map(_container_shape, spec.containers or ())),
            tuple(map(_container_shape, spec.init_containers or ())),
            _resources_shape(spec.resources),
            tuple(spec.overhead.items()) if spec.overhead else None,
            kai.container_annotations(metadata.annotations) if self._of_kai else None,
            _users_shape(pod) if self._of_kai or native.TOGETHER in (metadata.annotations or ()) else None,
        )


MARKS = (*qgpu.MARKS, *gpushare.MARKS, *hami.MARKS, *kai.MARKS, *native.MARKS, elastic.PARK, latency.LATENCY)
_MARK_SET = frozenset(MARKS)


def _marks(texts: dict[str, str] | None) -> object:
    """None also for texts without any: a Pod that is bound gets annotations, and is the same template still."""
    return tuple(map(texts.get, MARKS)) if texts and not _MARK_SET.isdisjoint(texts) else None


def _container_shape(container: ContainerObject) -> object:
    return container.name, container.restart_policy, _resources_shape(container.resources)


def _users_shape(pod: PodObject) -> object:
    """Who the Pod's processes are: only members of a group are asked for that."""
    spec = pod.spec
    containers = (*(spec.init_containers or ()), *(spec.containers or ()))
    return spec.host_users, spec.run_as_user, tuple(container.run_as_user for container in containers)


def _resources_shape(resources: Resources | None) -> object:
    if resources is None:
        return None
    limits, requests = resources.limits, resources.requests
    return tuple(limits.items()) if limits else None, tuple(requests.items()) if requests else None


def claim_for(names: Names, template: Claim) -> Claim:
    """The claim with a Pod's names."""
    uid, namespace, name, owner = names
    return structs.replace(template, uid=uid, namespace=namespace, name=name, owner=owner)


def misplaced(pod: Pod) -> list[Invalid]:
    """The mistake of the vendor's own example: annotations outside of metadata, where Kubernetes drops them."""
    if not pod.misplaced:
        return []
    allowed = "annotations belong in metadata: move them to metadata.annotations"
    if "spec" in pod.misplaced:
        allowed += ", and spec to the top level"
    return [Invalid("annotations", pod.misplaced, allowed)]


def render_pod(claim: Claim, rules: Rules = DEFAULT_RULES) -> JsonObject:
    """A Pod manifest with the claim in its own dialect."""
    for dialect in _DIALECTS:
        if dialect.name == claim.dialect:
            return podrendering.render_pod(claim, _with_model_words(claim, dialect.words(claim, rules)))
    raise ValueError(f"unknown dialect {claim.dialect}")


def _with_model_words(claim: Claim, words: podrendering.Words) -> podrendering.Words:
    if claim.cards is None or claim.dialect == hami.DIALECT:  # which has words of its own
        return words
    return replace(words, annotations={**words.annotations, native.CARD_MODELS: ",".join(claim.cards.models)})


def places(claim: Claim, rules: Rules = DEFAULT_RULES) -> dict[str, int]:
    """By container, how many of `native.PLACE` it needs so that the kubelet calls us."""
    if claim.dialect == gpushare.DIALECT and rules.counted and rules.gpushare_unit is gpushare.MemoryUnit.MIB:
        return gpushare.places(claim)
    if claim.dialect != kai.DIALECT:
        return {}
    return {container.name: container.cards for container in claim.containers}


def parse_grant(pod: object, claim: Claim, node: Node | None) -> Grant | tuple[Invalid, ...] | None:
    """The grant of a bound Pod from its annotations: ours first, then the peers'. None if there is none.

    A share may name a card that the node no longer has: the Pod still holds it, and the caller decides what that means.
    """
    read = pod if isinstance(pod, PodObject) else read_object(pod, PodObject, "pod")
    if isinstance(read, Invalid):
        return (read,) if isinstance(pod, dict) else None
    return _parse_grant(read.metadata.annotations or {}, read.spec.node_name, claim, node)


def _parse_grant(
    annotations: JsonView, name: str | None, claim: Claim, node: Node | None
) -> Grant | tuple[Invalid, ...] | None:
    if not name:
        return None
    granted = native.parse_grant(annotations, claim, name, node)
    if isinstance(granted, Invalid):
        # From another release: gpushare's own annotations, which every release writes, contain the same.
        theirs = gpushare.parse_grant(annotations, claim) if native.is_of_another_version(annotations) else None
        if claim.dialect != gpushare.DIALECT or theirs is None or isinstance(theirs, Invalid):
            return (granted,)
        return Grant(uid=claim.uid, node=name, containers=theirs)
    if granted is not None:
        return granted
    if claim.whole_node:
        return None if node is None else structs.replace(t9k.whole_node_grant(claim, node), node=name)
    if claim.dialect == hami.DIALECT:
        containers = hami.parse_grant(annotations, claim, node)
    elif claim.dialect == gpushare.DIALECT:
        containers = gpushare.parse_grant(annotations, claim)
    else:
        return None
    if isinstance(containers, Invalid):
        return (containers,)
    return None if containers is None else Grant(uid=claim.uid, node=name, containers=containers)


def render_grant(claim: Claim, grant: Grant, node: Node, now_ns: int, rules: Rules = DEFAULT_RULES) -> dict[str, str]:
    """All annotations of a grant: ours, and those that the dialect's own tools read."""
    annotations = native.render_grant(grant)
    if claim.dialect == gpushare.DIALECT:
        annotations |= gpushare.render_grant(grant, node, now_ns, rules.gpushare_unit)
    return annotations


def render_assigned(claim: Claim) -> dict[str, str]:
    """The annotations that the dialect's own tools expect once the Pod runs on its cards."""
    return gpushare.render_assigned() if claim.dialect == gpushare.DIALECT else {}


def render_env(claim: Claim, grant: Grant, node: Node, container: str, rules: Rules = DEFAULT_RULES) -> dict[str, str]:
    """The environment of one container; empty if it has no card."""
    return render_envs(claim, grant, node, rules, only=container).get(container, {})


def render_envs(
    claim: Claim, grant: Grant, node: Node, rules: Rules = DEFAULT_RULES, *, only: str | None = None
) -> dict[str, dict[str, str]]:
    """By its name, the environment of every container that has a card, or of `only` that one. What they have in common
    is computed once: a Pod may have thousands of containers."""
    wanted = [granted for granted in grant.containers if only in (None, granted.name)]
    if claim.dialect == gpushare.DIALECT and wanted:
        totals, unit = gpushare.render_totals(grant, node, rules.gpushare_unit), rules.gpushare_unit
        return {
            granted.name: gpushare.render_env(totals, granted, _visible(granted.shares, node), unit)
            for granted in wanted
        }
    if claim.dialect == t9k.DIALECT:
        asked = {container.name: container for container in claim.containers}
        return {
            granted.name: t9k.render_env(claim, asked.get(granted.name), granted, _visible(granted.shares, node))
            for granted in wanted
        }
    return {granted.name: {"NVIDIA_VISIBLE_DEVICES": _visible(granted.shares, node)} for granted in wanted}


def _visible(shares: Iterable[Share], node: Node) -> str:
    """Cards by UUID if known: their indexes may change at a reboot."""
    known = {card.index: card.uuid for card in node.cards}
    return ",".join(share.uuid or known.get(share.card) or str(share.card) for share in shares)
