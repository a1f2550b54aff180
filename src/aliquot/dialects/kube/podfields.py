"""The fields of Pod spec and container in Kubernetes 1.34, to report misspelled ones; and names, labels and annotations
that the API server does not take.

A newer field is reported too, and accepted all the same.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

from aliquot.dialects.kube.manifests import WORKLOADS
from aliquot.dialects.kube.shapes import mapping, sequence
from aliquot.model.decoding.openjson import JsonView
from aliquot.model.refusal import Invalid, show

_POD = frozenset((
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers",
    "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os",
    "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
    "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "schedulingGroup",
    "securityContext",
    "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
    "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes", "workloadRef",
))  # fmt: skip
_CONTAINER = frozenset((
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
    "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty",
    "volumeDevices", "volumeMounts", "workingDir",
))  # fmt: skip
OBJECT_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
OBJECT_NAME_ALLOWED = "at most 253 lower-case letters, digits, - and ., for example web-1"
_RESOURCES = frozenset({"claims", "limits", "requests"})
_MOST = 10  # that are noted of one Pod
_LONGEST = 80  # characters of an unknown word


def unknown_fields(spec: JsonView, path: str = "spec") -> list[str]:
    """A sentence for each unknown field of the spec, with a similar name. Never raises on any JSON."""
    return [note for note, _ in zip(_unknown(spec, path), range(_MOST), strict=False)]


def unknown_fields_of(manifest: object) -> list[str]:
    """The same for a Pod, or for the template of a workload; none for other objects."""
    kind = mapping(manifest).get("kind")
    if not isinstance(kind, str) or (kind != "Pod" and kind not in WORKLOADS):
        return []
    path = {"Pod": "spec", "CronJob": "spec.jobTemplate.spec.template.spec"}.get(kind, "spec.template.spec")
    spec = manifest
    for key in path.split("."):
        spec = mapping(spec).get(key)
    return unknown_fields(mapping(spec), path)


def wrong_metadata(pod: object) -> list[Invalid]:
    """What the API server would say about the names, labels and annotations of a Pod's manifest."""
    metadata = mapping(mapping(pod).get("metadata"))
    name = metadata.get("name")
    # The names of a workload's Pods are made here, in another way than its controller's.
    wrong = isinstance(name, str) and name and not metadata.get("ownerReferences") and not OBJECT_NAME.fullmatch(name)
    return [*([Invalid("metadata.name", name, OBJECT_NAME_ALLOWED)] if wrong else []), *unquoted(pod)]


def with_slips(slips: Iterable[Invalid], broken: Iterable[Invalid]) -> tuple[Invalid, ...]:
    """Both, but each field once: what breaks a rule because it is no text is said so."""
    slips = tuple(slips)
    fields = {slip.field for slip in slips}
    return (*slips, *(problem for problem in broken if problem.field not in fields))


def unquoted(pod: object) -> list[Invalid]:
    """Labels and annotations that YAML reads as numbers or booleans: the API server takes only texts.

    A null is an empty text there.
    """
    metadata = mapping(mapping(pod).get("metadata"))
    return [
        Invalid(f'metadata.{part}["{key}"]', value, f"text: put it in quotes{_quoted(value)}")
        for part in ("labels", "annotations")
        for key, value in mapping(metadata.get(part)).items()
        if value is not None and not isinstance(value, str)
    ]


def _quoted(value: object) -> str:
    """As it was written, where that is sure: YAML reads 1.10 as 1.1 and 010 as 8."""
    if isinstance(value, bool):
        return f', "{str(value).lower()}"'
    return f', "{show(value)}"' if isinstance(value, int) else ""


def _unknown(spec: JsonView, path: str) -> Iterator[str]:
    yield from _check(spec, _POD, path, "a Pod's spec")
    for field in ("initContainers", "containers"):
        for at, container in enumerate(map(mapping, sequence(spec.get(field)))):
            where = f"{path}.{field}[{at}]"
            yield from _check(container, _CONTAINER, where, "a container")
            resources = container.get("resources")
            if isinstance(resources, Mapping):
                yield from _check(resources, _RESOURCES, f"{where}.resources", "resources")


def _check(fields: JsonView, known: frozenset[str], path: str, what: str) -> Iterator[str]:
    for field in fields:
        if field not in known:
            shown = str(field)[:_LONGEST]
            close = difflib.get_close_matches(shown, sorted(known))
            hint = f"did you mean {close[0]}?" if close else "it is ignored"
            yield f"{path}.{shown} is not a field of {what}: {hint}"
