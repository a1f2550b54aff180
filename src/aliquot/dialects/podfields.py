"""The fields that Kubernetes knows of a Pod's spec and of its containers: a word that is none of them does nothing.

As of Kubernetes 1.34. A field that is newer is noted too, and taken all the same: what we read of it is nothing either.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

_POD = frozenset((
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
    "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers",
    "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os",
    "overhead", "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims",
    "resources", "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "securityContext",
    "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
    "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes", "workloadRef",
))  # fmt: skip
_CONTAINER = frozenset((
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
    "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
    "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty",
    "volumeDevices", "volumeMounts", "workingDir",
))  # fmt: skip
_RESOURCES = frozenset({"claims", "limits", "requests"})
_MOST = 10  # that are noted of one Pod
_LONGEST = 80  # characters of a word that nobody knows


def unknown_fields(spec: Mapping[str, Any], path: str = "spec") -> list[str]:
    """A sentence for each word in the spec that is no field, with the one that was probably meant."""
    return [note for note, _ in zip(_unknown(spec, path), range(_MOST), strict=False)]


def _unknown(spec: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _among(spec, _POD, path, "a Pod's spec")
    for field in ("initContainers", "containers"):
        for at, each in enumerate(spec.get(field) or ()):
            where = f"{path}.{field}[{at}]"
            yield from _among(each, _CONTAINER, where, "a container")
            resources = each.get("resources")
            if isinstance(resources, Mapping):
                yield from _among(resources, _RESOURCES, f"{where}.resources", "resources")


def _among(there: Mapping[str, Any], known: frozenset[str], path: str, what: str) -> Iterator[str]:
    for word in there:
        if word not in known:
            shown = str(word)[:_LONGEST]
            close = difflib.get_close_matches(shown, sorted(known), 1)
            meant = f"{close[0]}?" if close else "it does nothing"
            yield f"{path}.{shown} is not a field of {what}: {meant}"
