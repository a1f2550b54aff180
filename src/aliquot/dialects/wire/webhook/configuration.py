"""The objects of the webhook at the API server.

MutatingWebhookConfiguration   which Pods and templates to review, where, and what to do without an answer
Secrets                        keys of the webhook and of the port for kube-scheduler, which the replicas share
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from aliquot.dialects.pods import list_at, mapping_at
from aliquot.dialects.rules import DIALECTS
from aliquot.dialects.wire.objectreading import read_object
from aliquot.dialects.wire.webhook.matchconditions import (
    asks_for_gpu,
    asks_for_gpu_unreviewed,
    lacks_limits,
    may_mislead,
)
from aliquot.dialects.wire.webhook.slots import SLOTS
from aliquot.model.decoding.openjson import JsonObject
from aliquot.model.refusal import Invalid

PATH = "/review"
CONFIGURATION = "aliquot"  # the object's name
CONFIGURATION_KIND = "MutatingWebhookConfiguration"
FIELD_MANAGER = "aliquot"
_HELM_PREFIX = "meta.helm.sh/"
WEBHOOK = "pods.aliquot.dev"  # what a user sees: admission webhook "pods.aliquot.dev" denied the request
CONFIGURATIONS_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_TEMPLATES = "templates.aliquot.dev"
_ADVICE = "advice.aliquot.dev"  # only warns, so its calls may fail
_SECONDS, _LAST_SECONDS = 2, 5  # of an attempt; an answer takes milliseconds
_SYSTEM = "kube-system"
_NAMESPACE_LABEL = "kubernetes.io/metadata.name"  # set on every namespace

SECRET = "aliquot-webhook-tls"  # noqa: S105  # its name
VERBS_SECRET = "aliquot-extender-tls"  # noqa: S105  # likewise: of the port for kube-scheduler and the replicas
TLS_CERTIFICATE, TLS_KEY, CA_CERTIFICATES, CA_KEY = "tls.crt", "tls.key", "ca.crt", "ca.key"
CLIENT_CERTIFICATE, CLIENT_KEY = "client.crt", "client.key"


class ClientConfig(msgspec.Struct, rename="camel"):
    """Whom the API server calls, and whose certificates it trusts there."""

    ca_bundle: str | None = None  # in base64


class Hook(msgspec.Struct, rename="camel"):
    """One webhook of a configuration."""

    client_config: ClientConfig = msgspec.field(default_factory=ClientConfig)


class WebhookConfigurationObject(msgspec.Struct):
    """A MutatingWebhookConfiguration, with what is read of it."""

    webhooks: list[Hook] | None = None


class SecretObject(msgspec.Struct):
    """A Secret, with what is read of it."""

    data: dict[str, str] | None = None


def read_configuration(value: object) -> WebhookConfigurationObject | Invalid:
    """JSON of the API server, or of kubectl. Never raises."""
    return read_object(value, WebhookConfigurationObject, "configuration")


def read_authority(secret: object) -> str | None:
    """The certificate that signs the webhook's, in base64, of our Secret; None where it has none."""
    read = read_object(secret, SecretObject, "secret")
    return None if isinstance(read, Invalid) else (read.data or {}).get(CA_CERTIFICATES)


def _rule(group: str, resources: Sequence[str], *operations: str) -> JsonObject:
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
    is down blocks no Pod. FAIL refuses it.
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
    served: frozenset[str] = frozenset(DIALECTS),
    spared: Sequence[str] = (),
    slots: bool = False,
) -> JsonObject:
    """The object. `where` is a Service, or the address (https://HOST:PORT) of a webhook outside of the cluster.

    It selects the Pods of the dialects `served`, workloads whose templates lack limits, and those of users that ask for
    cards, which get warnings; except in the namespaces `spared` and kube-system: a cluster must start whatever state we
    are in.

    The API server calls a webhook once, and a replica that was just killed is still an endpoint of the Service for a
    second or two. So there are several entries that do the same: all but the last let an object pass without
    an answer, and all but the first select only what has not been reviewed. With `slots` (slots.py), each
    but the last goes to one replica.
    """
    bundle = base64.b64encode(ca_bundle).decode()
    ways = [*(slot_services(where) if slots and isinstance(where, ServiceRef) else [where] * len(SLOTS)), where]
    clients = [{"caBundle": bundle, **_way(way)} for way in ways]
    excluded = {"key": _NAMESPACE_LABEL, "operator": "NotIn", "values": sorted({_SYSTEM, *spared})}
    shared = {
        "namespaceSelector": {"matchExpressions": [excluded]},
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    again = asks_for_gpu_unreviewed(served)
    pods = [asks_for_gpu(served), *[again] * len(SLOTS)]
    templates = [lacks_limits(served)] * len(ways)
    advice = _attempts(_ADVICE, _WORKLOADS, "may-mislead", [may_mislead(served)], FailurePolicy.IGNORE, _SECONDS)
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": CONFIGURATION_KIND,
        "metadata": {"name": CONFIGURATION, "labels": {"app.kubernetes.io/name": "aliquot"}},
        "webhooks": [
            {**entry, "clientConfig": client, **shared}
            for attempts in (
                _attempts(WEBHOOK, [_rule("", ["pods"], "CREATE")], "asks-for-gpu", pods, failure_policy),
                _attempts(_TEMPLATES, _WORKLOADS, "lacks-limits", templates, failure_policy),
            )
            for entry, client in zip(attempts, clients, strict=True)
        ]
        + [{**entry, "clientConfig": clients[-1], **shared} for entry in advice],
    }


def slot_services(where: ServiceRef) -> list[ServiceRef]:
    """The Services that select one replica each."""
    return [replace(where, name=f"{where.name}-{slot}") for slot in SLOTS]


def _way(where: ServiceRef | str) -> JsonObject:
    if isinstance(where, str):
        return {"url": where.rstrip("/") + PATH}
    return {"service": {"namespace": where.namespace, "name": where.name, "path": PATH, "port": where.port}}


def _attempts(
    name: str,
    rules: list[JsonObject],
    condition: str,
    expressions: Sequence[str],
    failure_policy: FailurePolicy,
    last_seconds: int = _LAST_SECONDS,
) -> Iterator[JsonObject]:
    """One entry for each expression."""
    for number, expression in enumerate(expressions):
        last = number == len(expressions) - 1
        yield {
            "name": f"retry-{number}.{name}" if number else name,
            "rules": rules,
            "matchConditions": [{"name": condition, "expression": expression}],
            "failurePolicy": str(failure_policy if last else FailurePolicy.IGNORE),
            "timeoutSeconds": last_seconds if last else _SECONDS,
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


@dataclass(frozen=True, slots=True)
class InstallerMarks:
    """By what the program that installed us recognises its objects, in upgrades and when it uninstalls.

    `manager` is its name as a field manager: under another one, its next server-side apply would find a conflict.
    """

    labels: Mapping[str, str] = field(default_factory=lambda: {"app.kubernetes.io/name": "aliquot"})
    annotations: Mapping[str, str] = field(default_factory=dict)
    manager: str = FIELD_MANAGER

    def render_empty(self, kind: str, name: str, namespace: str = "") -> JsonObject:
        """The Secret or the configuration as it was installed."""
        metadata: JsonObject = {"name": name, "labels": dict(self.labels), "annotations": dict(self.annotations)}
        if kind == "Secret":
            metadata["namespace"] = namespace
            return {"apiVersion": "v1", "kind": kind, "type": "Opaque", "metadata": metadata}
        return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": metadata}


def installer_marks(obj: object) -> InstallerMarks | None:
    """The marks on our Secret or configuration, for the other of the two. Accepts any JSON, never raises."""
    metadata = mapping_at(mapping_at(obj, "", []).get("metadata"), "", [])
    labels = _texts(metadata.get("labels"))
    if not labels:
        return None
    annotations = _texts(metadata.get("annotations"))
    helm = {key: value for key, value in annotations.items() if key.startswith(_HELM_PREFIX)}
    entries = [mapping_at(entry, "", []) for entry in list_at(metadata.get("managedFields"), "", [])]
    managers = [entry.get("manager") for entry in entries if entry.get("operation") == "Apply"]
    others = [name for name in managers if isinstance(name, str) and name and name != FIELD_MANAGER]
    return InstallerMarks(labels, helm, others[0] if others else FIELD_MANAGER)


def _texts(value: object) -> dict[str, str]:
    return {key: text for key, text in mapping_at(value, "", []).items() if isinstance(text, str)}


def secret_patch(data: Mapping[str, bytes], version: str) -> JsonObject:
    """A patch of the existing Secret, valid only for that version, so that no other write is lost."""
    return {"metadata": {"resourceVersion": version}, "data": _in_base64(data)}


def _in_base64(data: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(value).decode() for key, value in data.items()}
