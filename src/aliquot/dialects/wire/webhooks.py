"""The objects of the webhook at the API server.

MutatingWebhookConfiguration   which Pods and templates to review, where, and what to do if nobody answers
Secret                         the webhook's keys, which its replicas share
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aliquot.dialects.wire import schedulerconfig
from aliquot.dialects.wire.matchconditions import asks_for_gpu, asks_for_gpu_unreviewed, lacks_limits

PATH = "/review"
CONFIGURATION = "aliquot"  # the object's name
WEBHOOK = "pods.aliquot.dev"  # what a user sees: admission webhook "pods.aliquot.dev" denied the request
CONFIGURATIONS_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_TEMPLATES = "templates.aliquot.dev"
_POD_RETRIES, _TEMPLATE_RETRIES = 4, 2  # each reaches one of two replicas by chance
_SECONDS, _LAST_SECONDS = 2, 5  # of an attempt; an answer takes milliseconds
_SYSTEM = "kube-system"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # set on every namespace

SECRET = "aliquot-webhook-tls"  # noqa: S105  # its name
TLS_CERTIFICATE, TLS_KEY, CA_CERTIFICATES, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"


def _rule(group: str, resources: Sequence[str], *operations: str) -> dict[str, Any]:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "Namespaced",
    }


# The kinds of podlimits.TEMPLATES.
_WORKLOADS = [
    _rule("", ["replicationcontrollers"], "CREATE", "UPDATE"),
    _rule("apps", ["daemonsets", "deployments", "replicasets", "statefulsets"], "CREATE", "UPDATE"),
    _rule("batch", ["cronjobs", "jobs"], "CREATE", "UPDATE"),
]


class FailurePolicy(StrEnum):
    """What happens to a GPU Pod while the webhook does not answer.

    IGNORE accepts it: the scheduler refuses an invalid Pod by the same rules, later and in an event, and a webhook that
    is down blocks nobody. FAIL refuses it.
    """

    IGNORE = "Ignore"
    FAIL = "Fail"


@dataclass(frozen=True, slots=True)
class ServiceRef:
    """A Service of the cluster."""

    namespace: str
    name: str
    port: int = 443


def webhook_configuration(
    ca_bundle: bytes,
    where: ServiceRef | str,
    *,
    failure_policy: FailurePolicy = FailurePolicy.IGNORE,
    served: frozenset[str] = frozenset(schedulerconfig.DIALECTS),
    spared: Sequence[str] = (),
) -> dict[str, Any]:
    """The object. `where` is a Service, or the address (https://HOST:PORT) of a webhook outside of the cluster.

    It selects the Pods of the dialects `served`, and workloads whose templates lack limits, except in the namespaces
    `spared` and kube-system: a cluster must start whatever state we are in.

    The API server calls a webhook once, and a replica that was just killed is still an endpoint of the Service for a
    second or two. So there are several entries that do the same: all but the last let an object pass that nobody
    answered about, and all but the first select only what has not been reviewed. They share connections, because their
    clientConfig is the same.
    """
    client: dict[str, Any] = {"caBundle": base64.b64encode(ca_bundle).decode()}
    if isinstance(where, ServiceRef):
        client["service"] = {"namespace": where.namespace, "name": where.name, "path": PATH, "port": where.port}
    else:
        client["url"] = where.rstrip("/") + PATH
    excluded = {"key": _NAMESPACE_LABEL, "operator": "NotIn", "values": sorted({_SYSTEM, *spared})}
    shared = {
        "clientConfig": client,
        "namespaceSelector": {"matchExpressions": [excluded]},
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    again = asks_for_gpu_unreviewed(served)
    pods = [asks_for_gpu(served), *[again] * _POD_RETRIES]
    templates = [lacks_limits(served)] * (1 + _TEMPLATE_RETRIES)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/name": "aliquot"}},
        "webhooks": [
            entry | shared
            for entry in (
                *_attempts(WEBHOOK, [_rule("", ["pods"], "CREATE")], "asks-for-gpu", pods, failure_policy),
                *_attempts(_TEMPLATES, _WORKLOADS, "lacks-limits", templates, failure_policy),
            )
        ],
    }


def _attempts(
    name: str, rules: list[dict[str, Any]], condition: str, expressions: Sequence[str], failure_policy: FailurePolicy
) -> Iterator[dict[str, Any]]:
    """One entry for each expression."""
    for number, expression in enumerate(expressions):
        last = number == len(expressions) - 1
        yield {
            "name": f"retry-{number}.{name}" if number else name,
            "rules": rules,
            "matchConditions": [{"name": condition, "expression": expression}],
            "failurePolicy": str(failure_policy if last else FailurePolicy.IGNORE),
            "timeoutSeconds": _LAST_SECONDS if last else _SECONDS,
        }


def configured(present: object, wanted: object) -> bool:
    """Whether `present` contains all of `wanted`. The API server adds defaults, which do not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(present, Mapping) and all(
            key in present and configured(present[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return (
            isinstance(present, Sequence)
            and len(present) == len(wanted)
            and all(configured(has, wants) for has, wants in zip(present, wanted, strict=True))
        )
    return present == wanted


def secrets_path(namespace: str) -> str:
    """The path of the namespace's Secrets."""
    return f"/api/v1/namespaces/{namespace}/secrets"


def parse_secret(secret: object) -> dict[str, bytes]:
    """The data of the Secret, without entries that are not base64. Accepts any JSON, never raises."""
    data = secret.get("data") if isinstance(secret, dict) else None
    decoded = {}
    for key, value in (data if isinstance(data, dict) else {}).items():
        try:
            decoded[key] = base64.b64decode(value, validate=True)
        except (ValueError, TypeError):
            continue
    return decoded


def render_secret(name: str, namespace: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """A new Secret."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "aliquot"}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata,
        "data": _in_base64(data),
    }


def secret_patch(data: Mapping[str, bytes], version: str) -> dict[str, Any]:
    """A patch of the existing Secret, valid only for that version, so that no other write is lost."""
    return {"metadata": {"resourceVersion": version}, "data": _in_base64(data)}


def _in_base64(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}
