"""AdmissionReview v1: the API server's review of a new Pod or of a workload's template, and our answer. Pure.

An invalid GPU Pod is refused with every rule it violates, so that `kubectl apply` prints them. A valid one gets a JSON
patch:

    tolerations      for the nodes it requests (T9k)
    schedulerName    if one is configured; a name that the user chose stays
    annotations      of a grant are removed: only the scheduler grants cards
    env              for runtimes without CDI: each promised variable from an annotation that the binding will set
    limits           of our resources, where there are only requests; also in the template of a workload (podlimits.py);
                     and of `native.PLACE`, for Pods whose annotations alone ask for cards (KAI), and for those of
                     gpushare where a node counts more MiB than the kubelet handles as devices; and of nvidia.com/gpu,
                     1, where a container asks only for a part of a card (HAMi)
    reviewed         an annotation, so that the API server need not ask again (configuration.py)

Reviewing the patched Pod again changes nothing. One webhook both mutates and refuses: `reinvocationPolicy: IfNeeded`
calls it again if a later webhook has changed the Pod. A second, validating webhook would cost one call per Pod; and the
scheduler, which applies the same rules, refuses what gets past the webhook.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from aliquot.dialects import gpushare, hami, native
from aliquot.dialects.lookalikes import outside_template
from aliquot.dialects.pods import list_at, mapping_at, read_pod
from aliquot.dialects.registry import owner_remarks, parse_pod, places, remarks, render_envs
from aliquot.dialects.rules import Rules
from aliquot.dialects.t9k import missing_tolerations
from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.objects import ContainerObject, FieldRef, PodObject
from aliquot.dialects.wire.webhook.podlimits import TEMPLATES, Operation, complete_limits, escaped
from aliquot.model.claim import Claim, ContainerClaim, Role
from aliquot.model.decoding.openjson import JsonObject, JsonView
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid, show
from aliquot.model.text import printable, printable_start

_API = "admission.k8s.io/v1"
_DEFAULT_SCHEDULER = "default-scheduler"  # the API server's default
_MOST_LISTED = 10  # violations; a Pod with 1,000 containers may violate a rule 1,000 times
_LONGEST_WARNING = 120  # characters, as Kubernetes recommends
_LONGEST_SENTENCE = 256  # of one with a field's path; the API server may truncate longer ones
_MOST_WARNED = 3  # rules of a template

GRANT_ANNOTATIONS = (
    native.GRANT,
    *(key for key in gpushare.ANNOTATIONS if key != gpushare.COUNT),
    *hami.GRANT_ANNOTATIONS,
)
ENV_PREFIX = "env.aliquot.dev/"
_LONGEST_KEY = 63  # of an annotation key, after its prefix
_YES = "true"


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What the webhook sets."""

    scheduler_name: str | None = None  # for all GPU Pods; None: unchanged
    scheduler_names: Mapping[str, str] = field(default_factory=dict)  # by dialect; overrides scheduler_name
    env_by_field_ref: bool = False  # for runtimes without CDI


def review(body: object, rules: Rules, settings: AdmissionSettings) -> JsonObject | Invalid:
    """Answer a review; Invalid if the body is not a review. Accepts any JSON, never raises."""
    request = _request(body)
    if isinstance(request, Invalid):
        return request
    uid, pod = request["uid"], request.get("object")
    template = _template(request)
    if template is not None:
        warnings = [_warning(f"{slip.field}: {slip.allowed}") for slip in outside_template(pod, rules.served)]
        warnings += _warnings_on_template(pod, template[:-1], rules)
        return _answer(uid, complete_limits(pod, template, _resources(rules), request.get("oldObject")), warnings)
    if not _is_new_pod(request):
        return _answer(uid)
    claim = parse_pod(pod, rules)
    if claim is None:  # perhaps a request of 0, which Kubernetes wants a limit for too
        return _answer(uid, complete_limits(pod, ("spec",), _resources(rules)))
    if isinstance(claim, tuple):
        return _answer(uid, refused=_status(claim, mapping_at(pod, "", [])))
    patch, warnings = _mutations(mapping_at(pod, "", []), claim, rules, settings)
    return _answer(uid, patch, warnings)


def _warnings_on_template(workload: object, path: tuple[str, ...], rules: Rules) -> list[str]:
    """The rules that Pods of the template break: the user who applies a Deployment gets no answer about its Pods."""
    template: object = workload
    for key in path:
        template = mapping_at(template, "", []).get(key)
    broken = parse_pod(template, rules)
    if not isinstance(broken, tuple):
        ignored = [f"{'.'.join(path)}.{sentence}" for sentence in remarks(template, rules)]
        ignored += owner_remarks(workload, template, rules)
        return [_warning(sentence, _LONGEST_SENTENCE) for sentence in ignored]
    sentences = (f"Pods are refused: {'.'.join(path)}.{problem.sentence()}" for problem in broken[:_MOST_WARNED])
    return [_warning(sentence, _LONGEST_SENTENCE) for sentence in sentences]


def _request(body: object) -> JsonView | Invalid:
    if not isinstance(body, dict):
        return Invalid("body", body, f"an AdmissionReview of {_API}")
    for key, wanted in (("apiVersion", _API), ("kind", "AdmissionReview")):
        if body.get(key) != wanted:
            return Invalid(key, body.get(key), wanted)
    request = body.get("request")
    if not isinstance(request, dict):
        return Invalid("request", request, "a mapping with uid, operation and object")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid or not uid.isprintable():
        return Invalid("request.uid", uid, "the ID of the review, printable text")
    return request


def _is_new_pod(request: JsonView) -> bool:
    """Only creations are reviewed. An existing Pod was reviewed, and can change little that matters here."""
    return _kind(request) == ("", "Pod") and request.get("operation") == "CREATE" and not request.get("subResource")


def _template(request: JsonView) -> tuple[str, ...] | None:
    """The path of the Pod spec in a workload that is created or updated; None for everything else."""
    changes = request.get("operation") in ("CREATE", "UPDATE") and not request.get("subResource")
    return TEMPLATES.get(_kind(request)) if changes else None


def _kind(request: JsonView) -> tuple[str, str]:
    kind = mapping_at(request.get("kind"), "", [])
    group, name = kind.get("group") or "", kind.get("kind")
    return (group, name) if isinstance(group, str) and isinstance(name, str) else ("", "")


def _resources(rules: Rules) -> frozenset[str]:
    return frozenset(name for dialect in rules.served for name in schedulerconfig.DIALECTS[dialect])


def _annotations(pod: JsonView) -> JsonView:
    return mapping_at(mapping_at(pod.get("metadata"), "", []).get("annotations"), "", [])


def _answer(
    uid: str,
    patch: list[Operation] | None = None,
    warnings: list[str] | None = None,
    refused: JsonObject | None = None,
) -> JsonObject:
    response: JsonObject = {"uid": uid, "allowed": refused is None}
    if refused is not None:
        response["status"] = refused
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def _status(problems: tuple[Invalid, ...], pod: JsonView) -> JsonObject:
    """Every violation, as a message for people and as causes for programs."""
    listed, more = problems[:_MOST_LISTED], len(problems) - _MOST_LISTED
    sentences = [printable(problem.sentence()) for problem in listed]
    if len(sentences) == 1:
        message = sentences[0]
    else:
        numbered = "; ".join(f"({number}) {sentence}" for number, sentence in enumerate(sentences, 1))
        message = f"{len(problems)} errors: {numbered}" + (f"; and {more} more" if more > 0 else "")
    causes = [_cause(problem) for problem in listed]
    metadata = mapping_at(pod.get("metadata"), "", [])
    name = metadata.get("name") or metadata.get("generateName")
    details = {"kind": "Pod", "name": printable(name) if isinstance(name, str) else "", "causes": causes}
    return {"status": "Failure", "code": 422, "reason": "Invalid", "message": message, "details": details}


def _cause(problem: Invalid) -> dict[str, str]:
    """kubectl prints field and message, as for Kubernetes' own validation."""
    missing = problem.value is None
    why = "missing" if missing else f"{show(problem.value)} is not allowed"
    return {
        "reason": "FieldValueRequired" if missing else "FieldValueInvalid",
        "field": printable(problem.field),
        "message": printable(f"{why}: {problem.allowed}"),
    }


# --- the patch ---------------------------------------------------------------------------------------------------


def _mutations(
    pod: JsonView, claim: Claim, rules: Rules, settings: AdmissionSettings
) -> tuple[list[Operation], list[str]]:
    spec = mapping_at(pod.get("spec"), "", [])
    warnings = [_warning(sentence, _LONGEST_SENTENCE) for sentence in remarks(pod, rules)]
    annotations = _annotations(pod)
    patch: list[Operation] = []
    for key in _forged_grants(annotations):
        patch.append({"op": "remove", "path": f"/metadata/annotations/{escaped(key)}"})
        warnings.append(_warning(f"annotation {key} was removed: only the scheduler may set it"))
    if not annotations:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {native.REVIEWED: _YES}})
    elif annotations.get(native.REVIEWED) != _YES:
        patch.append({"op": "add", "path": f"/metadata/annotations/{escaped(native.REVIEWED)}", "value": _YES})
    patch += complete_limits(pod, ("spec",), _resources(rules), more=_more_limits(pod, claim, rules))
    missing = missing_tolerations(pod, claim)
    if missing and not spec.get("tolerations"):
        patch.append({"op": "add", "path": "/spec/tolerations", "value": missing})
    else:
        patch += [{"op": "add", "path": "/spec/tolerations/-", "value": toleration} for toleration in missing]
    name = settings.scheduler_names.get(claim.dialect, settings.scheduler_name)
    chosen = spec.get("schedulerName")
    if name and chosen in (None, "", _DEFAULT_SCHEDULER) and chosen != name:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": name})
    if settings.env_by_field_ref:
        promised = _variables(claim, rules)
        for container in claim.containers:
            patch += _env_operations(spec, container, promised.get(container.name, ()), warnings)
    return patch, warnings


def _more_limits(pod: JsonView, claim: Claim, rules: Rules) -> dict[str, dict[str, str]]:
    """By container, what it lacks so that the kubelet calls us."""
    more = {name: {native.PLACE: str(count)} for name, count in places(claim, rules).items()}
    view = read_pod(pod) if claim.dialect == hami.DIALECT else None
    return more if view is None else {container.name: {hami.CARDS: "1"} for container in hami.without_cards(view)}


def _forged_grants(annotations: JsonView) -> list[str]:
    """Annotations of a grant on a Pod that has none yet: left in a template, or written by hand.

    Keys that cannot be encoded are left to the API server, which refuses them.
    """
    ours = (key for key in annotations if key in GRANT_ANNOTATIONS or key.startswith(ENV_PREFIX))
    return [key for key in ours if key.isprintable()]


def _warning(sentence: str, longest: int = _LONGEST_WARNING) -> str:
    return printable_start(sentence, longest)


# --- the environment, for runtimes without CDI -------------------------------------------------------------------


def env_annotation(container: str, variable: str) -> str:
    """The key of the annotation in which the binding writes a container's variable, and from which it is read.

    It uses the container's name, not its index: another webhook may insert containers. A long name is cut and hashed.
    """
    room = _LONGEST_KEY - 1 - len(variable)
    if len(container) > room:
        mark = hashlib.sha256(container.encode(errors="replace")).hexdigest()[:8]
        container = f"{container[: room - 1 - len(mark)]}-{mark}"
    return f"{ENV_PREFIX}{container}.{variable}"


def render_env_annotations(claim: Claim, grant: Grant, node: Node, rules: Rules) -> dict[str, str]:
    """The annotations that the binding sets for env by fieldRef: the variables of each container."""
    return {
        env_annotation(container, variable): value
        for container, variables in render_envs(claim, grant, node, rules).items()
        for variable, value in variables.items()
    }


def reads_environment(pod: PodObject, container: str, variables: Iterable[str]) -> bool:
    """Whether the container reads these variables from annotations, and the binding wrote them.

    False if the Pod was created while the webhook was not called: the annotations are not read then. An unknown
    container name belongs to an init container of a form we do not know: any container will do.
    """
    annotations = pod.metadata.annotations or {}
    containers = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
    return any(
        all(env_annotation(item.name, name) in annotations and _reads(item, name) for name in variables)
        for item in [item for item in containers if item.name == container] or containers
    )


def _reads(container: ContainerObject, variable: str) -> bool:
    """Whether the last entry of that name, which wins, reads the annotation."""
    found = [entry for entry in container.env or () if entry.name == variable]
    source = found[-1].value_from if found else None
    return source is not None and source.field_ref == FieldRef(_field_path(container.name, variable))


def _variables(claim: Claim, rules: Rules) -> dict[str, tuple[str, ...]]:
    """By container, the variables it will get on any card, from the function that renders them."""
    card = Card(index=0, memory_mib=1)
    shares = (Share(card=0, memory_mib=1),)
    granted = tuple(
        ContainerGrant(container.name, container.index, container.role, shares) for container in claim.containers
    )
    grant = Grant(claim.uid, "", granted, claim.whole_node)
    found = render_envs(claim, grant, Node("", (card,)), rules)
    return {container: tuple(variables) for container, variables in found.items()}


def _env_operations(
    spec: JsonView, container: ContainerClaim, variables: Iterable[str], warnings: list[str]
) -> Iterator[Operation]:
    """Insert our variables first, so that others may refer to them, and remove existing ones with the same names.

    A user's own NVIDIA_VISIBLE_DEVICES would give access to cards of other Pods.
    """
    siblings = "containers" if container.role is Role.MAIN else "initContainers"
    path = f"/spec/{siblings}/{container.index}/env"
    present = list_at(mapping_at(list_at(spec.get(siblings), "", [])[container.index], "", []).get("env"), "", [])
    wanted = [_from_annotation(container.name, variable) for variable in variables]
    names = [entry["name"] for entry in wanted]
    taken = [index for index, entry in enumerate(present) if isinstance(entry, dict) and entry.get("name") in names]
    if len(taken) == len(wanted) and all(present[index] in wanted for index in taken):
        return
    for index in reversed(taken):
        yield {"op": "remove", "path": f"{path}/{index}"}
        if present[index] not in wanted:
            name = present[index]["name"]  # type: ignore[index]  # a mapping, as `taken` says
            warnings.append(_warning(f"env {name} of container {container.name} was replaced: aliquot sets it"))
    if not present:
        yield {"op": "add", "path": path, "value": wanted}
        return
    for entry in reversed(wanted):
        yield {"op": "add", "path": f"{path}/0", "value": entry}


def _from_annotation(container: str, variable: str) -> JsonObject:
    path = _field_path(container, variable)
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


def _field_path(container: str, variable: str) -> str:
    return f"metadata.annotations['{env_annotation(container, variable)}']"
