"""A webhook on loopback that a real API server asks."""

from __future__ import annotations

import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aliquot.dialects import Rules
from aliquot.services.scheduler.ports.webhook import WebhookSettings, serve_webhook
from e2e.aside import Aside
from testbed import objects
from testbed.client import Refused
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
CARDS, PERCENT = "tensorstack.dev/nvidia-gpu", "tensorstack.dev/nvidia-gpu-percent"
SHARED, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/aliquot"
SECRET = "/api/v1/namespaces/kube-system/secrets/aliquot-webhook-tls"
TOLERATION = {"key": "sched.tensorstack.dev/xgn-mode", "value": "true", "effect": "NoSchedule", "operator": "Equal"}

Object = dict[str, Any]


class Webhook:
    """A running webhook, and how often it was called."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def count(self, name: str) -> None:
        self.calls[name] += 1


@contextmanager
def a_webhook(
    plane: ControlPlane,
    *,
    account: Path | None = None,
    wait: bool = True,
    port: int | None = None,
    rules: Rules | None = None,
    **more: Any,
) -> Iterator[Webhook]:
    """A webhook on loopback that the API server knows of."""
    running = Webhook()
    port = port or free_port()
    settings = WebhookSettings(port=port, bind_address=HOST, where=f"https://{HOST}:{port}", **more)

    async def work(kube: Any) -> None:
        await serve_webhook(
            kube, settings, lambda: rules or Rules(), is_leader=lambda: True, on_call=running.count, clock=time.time
        )

    with Aside(plane, work, account=account):
        if wait:
            objects.wait_until(lambda: trusted(plane), 20, "the API server asks the webhook")
        yield running


def trusted(plane: ControlPlane) -> bool:
    """Whether a broken Pod is refused, which the API server does some moments after it was told of the webhook."""
    try:
        plane.api("POST", "/api/v1/namespaces/default/pods", objects.pod("probe", {CORE: 30}), params={"dryRun": "All"})
    except Refused:
        return True
    return False


def shake_hands(url: str, bundle: bytes) -> None:
    """A new connection, as the API server would make it. Raises SSLError where the certificate is not trusted."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    context = ssl.create_default_context(cadata=bundle.decode())
    with socket.create_connection((host, port or 443), 10) as plain, context.wrap_socket(plain, server_hostname=host):
        pass


def created(plane: ControlPlane, pod: Object) -> Object:
    (made,) = objects.create(plane, pod)
    return made
