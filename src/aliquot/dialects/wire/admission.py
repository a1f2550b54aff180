"""AdmissionReview v1: what the API server asks before it keeps a Pod, and what we answer. Pure.

A Pod of ours that breaks a rule is refused, with every rule it breaks, so that `kubectl apply` says it. Any other gets
what it would be lost without, as a JSON patch:

    tolerations      of the nodes it asks for (T9k)
    schedulerName    where one is configured; a name that the user chose stays
    annotations      that tell of a grant are taken off: cards are given by the scheduler, not taken by whoever writes
    env              for runtimes without CDI: each promised variable from an annotation that the binding will set

Reviewing the patched Pod changes nothing. One webhook does both, mutate and refuse: `reinvocationPolicy: IfNeeded`
shows it the Pod again when a later webhook has changed it, for which a second, validating webhook would cost a call per
Pod; and what slips through even then is refused by the scheduler, which reads the same rules.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from aliquot.dialects import gpushare, native
from aliquot.dialects.pods import Json, list_at, mapping_at
from aliquot.dialects.registry import Rules, missing_tolerations, parse_pod, render_env
from aliquot.dialects.wire.objects import ContainerObject, FieldRef, PodObject
from aliquot.model.claim import Claim, ContainerClaim, Role
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.model.refusal import Invalid, show

_API = "admission.k8s.io/v1"
_DEFAULT_SCHEDULER = "default-scheduler"  # what the API server writes where the user wrote nothing
_MOST_TOLD = 10  # broken rules; a Pod with a thousand containers breaks each a thousand times
_LONGEST_WARNING = 120  # characters; the API server cuts what is longer

GRANT_ANNOTATIONS = (native.GRANT, *(key for key in gpushare.ANNOTATIONS if key != gpushare.COUNT))
ENV_PREFIX = "env.aliquot.dev/"
_LONGEST_KEY = 63  # what follows the prefix of an annotation's key


@dataclass(frozen=True, slots=True)
class AdmissionSettings:
    """What a cluster wants of the webhook."""

    scheduler_name: str | None = None  # for all Pods of ours; None: as the Pod has it
    scheduler_names: Mapping[str, str] = field(default_factory=dict)  # by dialect; before the one for all
    env_by_field_ref: bool = False  # for runtimes without CDI


Operation = dict[str, Any]


def review(body: object, rules: Rules, settings: AdmissionSettings) -> dict[str, Any] | Invalid:
    """The answer to a review; an Invalid for what is none. Never raises on any JSON."""
    request = _request(body)
    if isinstance(request, Invalid):
        return request
    uid, pod = request["uid"], request.get("object")
    if not _is_new_pod(request):
        return _answer(uid)
    claim = parse_pod(pod, rules)
    if claim is None:
        return _answer(uid)
    if isinstance(claim, tuple):
        return _answer(uid, refused=_status(claim, mapping_at(pod, "", [])))
    patch, warnings = _mutations(mapping_at(pod, "", []), claim, rules, settings)
    return _answer(uid, patch, warnings)


def _request(body: object) -> Json | Invalid:
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
        return Invalid("request.uid", uid, "the text that names the review")
    return request


def _is_new_pod(request: Json) -> bool:
    """Only what is created is judged. A Pod that exists has been, and may change little that matters here."""
    kind = request.get("kind")
    is_pod = isinstance(kind, dict) and kind.get("kind") == "Pod" and not kind.get("group")
    return is_pod and request.get("operation") == "CREATE" and not request.get("subResource")


def _annotations(pod: Json) -> Json:
    return mapping_at(mapping_at(pod.get("metadata"), "", []).get("annotations"), "", [])


def _answer(
    uid: str,
    patch: list[Operation] | None = None,
    warnings: list[str] | None = None,
    refused: dict[str, Any] | None = None,
) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": uid, "allowed": refused is None}
    if refused is not None:
        response["status"] = refused
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    if warnings:
        response["warnings"] = warnings
    return {"apiVersion": _API, "kind": "AdmissionReview", "response": response}


def _status(problems: tuple[Invalid, ...], pod: Json) -> dict[str, Any]:
    """Every broken rule, as a message for people and as causes for programs."""
    told, more = problems[:_MOST_TOLD], len(problems) - _MOST_TOLD
    sentences = [_printable(each.sentence()) for each in told]
    if len(sentences) == 1:
        message = sentences[0]
    else:
        numbered = "; ".join(f"({number}) {each}" for number, each in enumerate(sentences, 1))
        message = f"{len(problems)} rules are broken: {numbered}" + (f"; and {more} more" if more > 0 else "")
    causes = [_cause(each) for each in told]
    metadata = mapping_at(pod.get("metadata"), "", [])
    name = metadata.get("name") or metadata.get("generateName")
    details = {"kind": "Pod", "name": _printable(name) if isinstance(name, str) else "", "causes": causes}
    return {"status": "Failure", "code": 422, "reason": "Invalid", "message": message, "details": details}


def _cause(problem: Invalid) -> dict[str, str]:
    """kubectl prints field and message, as it does of Kubernetes' own rules."""
    missing = problem.value is None
    why = "missing" if missing else f"{show(problem.value)} is not allowed"
    return {
        "reason": "FieldValueRequired" if missing else "FieldValueInvalid",
        "field": _printable(problem.field),
        "message": _printable(f"{why}: {problem.allowed}"),
    }


def _printable(text: str) -> str:
    """Text that any encoder takes: half a character becomes a question mark."""
    return text.encode(errors="replace").decode()


# --- what a Pod is given -----------------------------------------------------------------------------------------


def _mutations(pod: Json, claim: Claim, rules: Rules, settings: AdmissionSettings) -> tuple[list[Operation], list[str]]:
    spec, warnings = mapping_at(pod.get("spec"), "", []), []
    patch: list[Operation] = []
    for key in _granted_by_itself(_annotations(pod)):
        patch.append({"op": "remove", "path": f"/metadata/annotations/{_escaped(key)}"})
        warnings.append(_warning(f"annotation {key} was removed: the scheduler writes it, when it gives the cards"))
    missing = missing_tolerations(pod, claim)
    if missing and not spec.get("tolerations"):
        patch.append({"op": "add", "path": "/spec/tolerations", "value": missing})
    else:
        patch += [{"op": "add", "path": "/spec/tolerations/-", "value": each} for each in missing]
    name = settings.scheduler_names.get(claim.dialect, settings.scheduler_name)
    chosen = spec.get("schedulerName")
    if name and chosen in (None, "", _DEFAULT_SCHEDULER) and chosen != name:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": name})
    if settings.env_by_field_ref:
        for container in claim.containers:
            patch += _env_operations(spec, claim, container, rules, warnings)
    return patch, warnings


def _granted_by_itself(annotations: Json) -> list[str]:
    """Annotations that say what a Pod got, on one that has got nothing yet: left in a template, or written by hand.

    Keys that no encoder would take are left to the API server, which takes them no better.
    """
    ours = (key for key in annotations if key in GRANT_ANNOTATIONS or key.startswith(ENV_PREFIX))
    return [key for key in ours if key.isprintable()]


def _escaped(key: str) -> str:
    """As JSON Pointer has it."""
    return key.replace("~", "~0").replace("/", "~1")


def _warning(sentence: str) -> str:
    printable = _printable(sentence)
    return printable if len(printable) <= _LONGEST_WARNING else printable[: _LONGEST_WARNING - 3] + "..."


# --- the environment, for runtimes without CDI -------------------------------------------------------------------


def env_annotation(container: str, variable: str) -> str:
    """The key under which the binding writes one container's variable, and from which the container reads it.

    By the container's name: another webhook may put a container before it. A name too long for a key is cut and marked.
    """
    room = _LONGEST_KEY - 1 - len(variable)
    if len(container) > room:
        mark = hashlib.sha256(container.encode(errors="replace")).hexdigest()[:8]
        container = f"{container[: room - 1 - len(mark)]}-{mark}"
    return f"{ENV_PREFIX}{container}.{variable}"


def render_env_annotations(claim: Claim, grant: Grant, node: Node, rules: Rules) -> dict[str, str]:
    """The annotations that the binding sets where env comes by fieldRef: each container's variables."""
    return {
        env_annotation(container.name, variable): value
        for container in claim.containers
        for variable, value in render_env(claim, grant, node, container.name, rules).items()
    }


def reads_environment(pod: PodObject, container: str, variables: Iterable[str]) -> bool:
    """Whether the container reads these variables from annotations, and the binding wrote them.

    Not so where the Pod was made while no webhook was asked: the annotations alone reach nobody. A container without a
    name, or of one that the Pod does not have, is an init container of a form we do not know: any will do.
    """
    told = pod.metadata.annotations or {}
    all_of_them = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
    return any(
        all(env_annotation(each.name, name) in told and _reads(each, name) for name in variables)
        for each in [each for each in all_of_them if each.name == container] or all_of_them
    )


def _reads(container: ContainerObject, variable: str) -> bool:
    """By the last entry of that name: it is the one that counts."""
    found = [each for each in container.env or () if each.name == variable]
    source = found[-1].value_from if found else None
    return source is not None and source.field_ref == FieldRef(_field_path(container.name, variable))


def _variables(claim: Claim, container: ContainerClaim, rules: Rules) -> list[str]:
    """The variables a container will be promised, whatever cards it gets: asked of the one place that writes them."""
    card = Card(index=0, memory_mib=1)
    shares = (Share(card=0, memory_mib=1),)
    granted = tuple(
        ContainerGrant(container.name, container.index, container.role, shares) for container in claim.containers
    )
    grant = Grant(claim.uid, "", granted, claim.whole_node)
    return list(render_env(claim, grant, Node("", (card,)), container.name, rules))


def _env_operations(
    spec: Json, claim: Claim, container: ContainerClaim, rules: Rules, warnings: list[str]
) -> Iterator[Operation]:
    """Ours first, so that other variables may refer to them; and whatever stood under their names goes.

    An NVIDIA_VISIBLE_DEVICES of the user's own would open cards that are others'.
    """
    siblings = "containers" if container.role is Role.MAIN else "initContainers"
    path = f"/spec/{siblings}/{container.index}/env"
    present = list_at(mapping_at(list_at(spec.get(siblings), "", [])[container.index], "", []).get("env"), "", [])
    wanted = [_from_annotation(container.name, variable) for variable in _variables(claim, container, rules)]
    names = [each["name"] for each in wanted]
    taken = [index for index, each in enumerate(present) if isinstance(each, dict) and each.get("name") in names]
    if len(taken) == len(wanted) and all(present[index] in wanted for index in taken):
        return
    for index in reversed(taken):
        yield {"op": "remove", "path": f"{path}/{index}"}
        if present[index] not in wanted:
            name = present[index]["name"]  # type: ignore[index]  # a mapping, as `taken` says
            warnings.append(_warning(f"env {name} of container {container.name} was replaced: it tells the cards"))
    if not present:
        yield {"op": "add", "path": path, "value": wanted}
        return
    for each in reversed(wanted):
        yield {"op": "add", "path": f"{path}/0", "value": each}


def _from_annotation(container: str, variable: str) -> dict[str, Any]:
    where = _field_path(container, variable)
    return {"name": variable, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": where}}}


def _field_path(container: str, variable: str) -> str:
    return f"metadata.annotations['{env_annotation(container, variable)}']"
