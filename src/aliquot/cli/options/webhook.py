"""The webhook's options of `aliquot scheduler`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypedDict

from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.services.scheduler.ports.webhook import Clients, WebhookSettings


class SchedulerOptions(TypedDict, total=False):
    """The options of `aliquot scheduler` that were given, on the command line or in the file."""

    priority: str
    port: int
    bind_address: str
    tls_port: int
    insecure_verbs: bool
    drop_in: bool
    metrics_port: int
    kubeconfig: Path | str
    shortlist: int
    dialects: str
    rules: str
    memory_unit: str
    leader_elect: bool
    lease_namespace: Required[str]
    lease_name: str
    advertise: str
    keep_nodes: bool
    preemption: bool
    webhook_port: int
    webhook_service: str
    webhook_slots: bool
    webhook_url: str
    webhook_failure: str
    webhook_client_ca: Path | str
    webhook_client_names: str
    scheduler_name: str
    env_by_annotation: bool
    dashboard: str
    dashboard_token_file: Path | str
    agent_port: int
    log_level: str


def webhook_settings(options: SchedulerOptions, served: frozenset[str]) -> WebhookSettings | None:
    """Take the webhook's options out of `options`. Raises InputError if they contradict each other."""
    from aliquot.dialects.wire.webhook.admission import AdmissionSettings
    from aliquot.dialects.wire.webhook.configuration import FailurePolicy, ServiceRef
    from aliquot.services.scheduler.ports.webhook import WebhookSettings

    port = options.pop("webhook_port", 0)
    service, url = options.pop("webhook_service", None), options.pop("webhook_url", None)
    slots = bool(options.pop("webhook_slots", False))
    failure = options.pop("webhook_failure", "ignore")
    ca, client_names = options.pop("webhook_client_ca", None), options.pop("webhook_client_names", None)
    name, by_annotation = options.pop("scheduler_name", None), options.pop("env_by_annotation", False)
    if not port:
        for option, value in (
            ("--webhook-service", service),
            ("--webhook-url", url),
            ("--webhook-slots", slots),
            ("--webhook-client-ca", ca),
            ("--webhook-client-names", client_names),
            ("--scheduler-name", name),
            ("--env-by-annotation", by_annotation),
        ):
            if value:
                raise InputError(f"{option} needs the webhook, which is off: add --webhook-port")
        return None
    namespace = options["lease_namespace"]
    if url is not None and service is not None:
        raise InputError("--webhook-service and --webhook-url exclude each other: omit one of them")
    if url is not None and slots:
        raise InputError("--webhook-slots and --webhook-url exclude each other: omit one of them")
    if url is not None and not url.startswith("https://"):
        raise InputError(f'--webhook-url: "{url}" is not allowed: https://HOST:PORT')
    space, slash, service_name = (service or f"{namespace}/aliquot-webhook").partition("/")
    if not (space and slash and service_name):
        raise InputError(f'--webhook-service: "{service}" is not allowed: NAMESPACE/NAME')
    address: dict[str, Any] = {"bind_address": options["bind_address"]} if "bind_address" in options else {}
    return WebhookSettings(
        port=port,
        where=url or ServiceRef(namespace=space, name=service_name),
        **address,
        namespace=namespace,
        slots=slots,
        clients=_clients(ca, client_names),
        replica=socket.gethostname(),  # of a Pod, its name
        served=served,
        failure_policy=FailurePolicy.FAIL if failure == "fail" else FailurePolicy.IGNORE,
        admission=AdmissionSettings(*scheduler_names(name or ""), env_by_field_ref=by_annotation),
    )


def _clients(ca: Path | str | None, names: str | None) -> Clients | None:
    """Who may send reviews. Raises InputError."""
    from aliquot.adapters.kubernetes.certificates import CertificateError, client_context, trust
    from aliquot.services.scheduler.ports.webhook import Clients

    allowed = frozenset(name.strip() for name in (names or "").split(",") if name.strip())
    if (ca is None) != (not allowed):
        raise InputError("--webhook-client-ca and --webhook-client-names need each other: give both, or none")
    if ca is None:
        return None
    try:
        authorities = Path(ca).read_bytes()
        trust(client_context(), authorities)
    except (OSError, CertificateError) as error:
        raise InputError(f"--webhook-client-ca: {ca}: {getattr(error, 'strerror', None) or error}") from error
    return Clients(authorities, allowed)


def scheduler_names(text: str) -> tuple[str | None, dict[str, str]]:
    """The name for all Pods, and names by dialect. Raises InputError."""
    from aliquot.dialects.wire.schedulerconfig import DIALECTS

    parts = [part.partition("=") for part in text.split(",") if part]
    plain = [name for name, equals, _ in parts if not equals]
    named = {dialect: name for dialect, equals, name in parts if equals}
    if len(plain) > 1 or not all(named.values()) or not named.keys() <= DIALECTS.keys():
        allowed = f"NAME, or DIALECT=NAME with one of {', '.join(DIALECTS)}, separated by commas"
        raise InputError(f'--scheduler-name: "{text}" is not allowed: {allowed}')
    return (plain[0] if plain else None), named
