"""The webhook's options of `aliquot scheduler`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aliquot.cli.errors import InputError

if TYPE_CHECKING:
    from aliquot.services.scheduler.ports.webhook import Clients, WebhookSettings


def webhook_settings(options: dict[str, Any], served: frozenset[str]) -> WebhookSettings | None:
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
    return WebhookSettings(
        port=port,
        where=url or ServiceRef(namespace=space, name=service_name),
        **({"bind_address": options["bind_address"]} if "bind_address" in options else {}),
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
