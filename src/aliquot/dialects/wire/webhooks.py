"""What the API server keeps of the webhook.

MutatingWebhookConfiguration   which Pods it asks us about, where, and what if nobody answers
Secret                         the webhook's keys, which its replicas share
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from aliquot.dialects import gpushare
from aliquot.dialects.wire import schedulerconfig

PATH = "/review"
CONFIGURATION = "aliquot"  # the object's name
WEBHOOK = "pods.aliquot.dev"  # what a user sees: admission webhook "pods.aliquot.dev" denied the request
CONFIGURATIONS_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_SECONDS = 5
_SYSTEM = "kube-system"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # every namespace has it, with its own name

SECRET = "aliquot-webhook-tls"  # noqa: S105  # its name
TLS_CERTIFICATE, TLS_KEY, CA_CERTIFICATES, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"


class FailurePolicy(StrEnum):
    """What becomes of a Pod of ours while the webhook does not answer.

    IGNORE lets it in: the scheduler refuses a broken Pod by the same rules, later and in an event, and a webhook that
    is down stops nobody's work. FAIL keeps it out.
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

    Asked about are the Pods that speak one of the dialects `served`, but for those of the namespaces `spared` and of
    kube-system: a cluster must come up whatever becomes of us.
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
    """Whether all that is wanted stands there. The API server adds defaults of its own, which do not matter."""
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
    """CEL that is true of the Pods that speak one of these dialects: `first_mention` of each, once more.

    The API server works it out itself, so that other Pods, nearly all of a cluster, cost no call.
    """
    spoken = (name for dialect, names in schedulerconfig.DIALECTS.items() if dialect in served for name in names)
    resources = ", ".join(f"'{each}'" for each in spoken)
    side = "(has(c.resources.{0}) && c.resources.{0}.exists(r, r in [" + resources + "]))"
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
    """Where Secrets of that namespace are kept."""
    return f"/api/v1/namespaces/{namespace}/secrets"


def parse_secret(secret: object) -> dict[str, bytes]:
    """What the Secret holds; what is not base64 is left out. Never raises on any JSON."""
    data = secret.get("data") if isinstance(secret, dict) else None
    held = {}
    for key, value in (data if isinstance(data, dict) else {}).items():
        try:
            held[key] = base64.b64decode(value, validate=True)
        except (ValueError, TypeError):
            continue
    return held


def render_secret(name: str, namespace: str, data: Mapping[str, bytes]) -> dict[str, Any]:
    """The Secret, where there is none."""
    metadata = {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "aliquot"}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": metadata,
        "data": _in_base64(data),
    }


def secret_patch(data: Mapping[str, bytes], version: str) -> dict[str, Any]:
    """What puts these into the Secret that is there, as long as it is of that version: no other's work is lost."""
    return {"metadata": {"resourceVersion": version}, "data": _in_base64(data)}


def _in_base64(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}
