"""The objects of the webhook at the API server.

MutatingWebhookConfiguration   which Pods to review, where, and what to do if nobody answers
Secret                         the webhook's keys, which its replicas share
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aliquot.dialects import gpushare, lookalikes
from aliquot.dialects.wire import schedulerconfig

PATH = "/review"
CONFIGURATION = "aliquot"  # the object's name
WEBHOOK = "pods.aliquot.dev"  # what a user sees: admission webhook "pods.aliquot.dev" denied the request
CONFIGURATIONS_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_SECONDS = 5
_SYSTEM = "kube-system"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # set on every namespace

SECRET = "aliquot-webhook-tls"  # noqa: S105  # its name
TLS_CERTIFICATE, TLS_KEY, CA_CERTIFICATES, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"


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

    It selects the Pods of the dialects `served`, except in the namespaces `spared` and kube-system: a cluster must
    start whatever state we are in.
    """
    client: dict[str, Any] = {"caBundle": base64.b64encode(ca_bundle).decode()}
    if isinstance(where, ServiceRef):
        client["service"] = {"namespace": where.namespace, "name": where.name, "path": PATH, "port": where.port}
    else:
        client["url"] = where.rstrip("/") + PATH
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/name": "aliquot"}},
        "webhooks": [
            {
                "name": WEBHOOK,
                "clientConfig": client,
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "Namespaced",
                    }
                ],
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": _NAMESPACE_LABEL, "operator": "NotIn", "values": sorted({_SYSTEM, *spared})}
                    ]
                },
                "matchConditions": [{"name": "asks-for-gpu", "expression": _asks_for_gpu(served)}],
                "matchPolicy": "Equivalent",
                "failurePolicy": str(failure_policy),
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": _SECONDS,
                "admissionReviewVersions": ["v1"],
            }
        ],
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


def _asks_for_gpu(served: frozenset[str]) -> str:
    """A CEL expression that selects the Pods of these dialects, as `first_mention` of each does, and those with
    misspelled names under the same prefixes.

    The API server evaluates it, so that other Pods, nearly all of a cluster, cost no call.
    """
    begins = " || ".join(f"r.startsWith('{prefix}')" for prefix in lookalikes.prefixes(served))
    others = ", ".join(f"'{name}'" for name in lookalikes.others(served))
    ours = f"({begins}) && !(r in [{others}])" if others else begins
    side = "(has(c.resources.{0}) && c.resources.{0}.exists(r, " + ours + "))"
    asks = f"has(c.resources) && ({side.format('limits')} || {side.format('requests')})"
    mark = "(has(object.metadata.{0}) && '" + gpushare.COUNT + "' in object.metadata.{0})"
    return " || ".join(
        (
            f"object.spec.containers.exists(c, {asks})",
            f"(has(object.spec.initContainers) && object.spec.initContainers.exists(c, {asks}))",
            *((mark.format("labels"), mark.format("annotations")) if gpushare.DIALECT in served else ()),
        )
    )


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
