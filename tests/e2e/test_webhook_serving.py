"""Serving the admission webhook: certificates, keys, replicas, rights and hostile bodies."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from aliquot.adapters.kubernetes.certificates import Pair, issue, make_authority, read_facts, split
from aliquot.dialects.wire.webhook.configuration import FailurePolicy
from aliquot.services.scheduler.ports.certrotation import Lifetimes
from aliquot.services.scheduler.ports.webhook import Clients
from e2e.webhooks import (
    CARDS,
    CONFIGURATION,
    CORE,
    MEMORY,
    SECRET,
    TOLERATION,
    Object,
    a_webhook,
    created,
    shake_hands,
    trusted,
)
from kit.running.logged import warnings
from testbed import objects
from testbed.client import Refused
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port
from testbed.programs.product import AliquotScheduler


def test_webhook_answers_only_the_api_server_if_it_shows_a_certificate(fresh: ControlPlane) -> None:
    """As docs/security.md tells: an AdmissionConfiguration, and a kubeconfig with the certificate."""
    port, now = free_port(), time.time()
    authority = make_authority("clients", now, 86400.0)
    clients = Clients(authority.certificate, frozenset({"kube-apiserver"}))
    with a_webhook(fresh, port=port, clients=clients, wait=False) as webhook:
        objects.wait_until(lambda: "webhooks" in _configuration(fresh), 60, "the API server knows of the webhook")
        assert not trusted(fresh), "it shows no certificate yet, and its review is not answered"
        fresh.tell_apiserver(
            _client_of_webhook(fresh, port, issue(authority, ["kube-apiserver"], now, 86400.0, client=True))
        )
        fresh.restart_apiserver()
        objects.wait_until(lambda: trusted(fresh), 60, "the API server asks the webhook")
        assert webhook.calls["review"]
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _review_without_certificate(port)


def _configuration(plane: ControlPlane) -> Object:
    try:
        found: Object = plane.api("GET", CONFIGURATION)
    except Refused:
        return {}
    return found


def _client_of_webhook(plane: ControlPlane, port: int, shown: Pair) -> str:
    """The flag by which the API server shows that certificate to the webhook."""
    folder = plane.folder / "webhook-client"
    folder.mkdir()
    user = {
        "client-certificate-data": base64.b64encode(shown.certificate).decode(),
        "client-key-data": base64.b64encode(shown.key).decode(),
    }
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "users": [{"name": f"{HOST}:{port}", "user": user}]}
    (folder / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
    kind = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "WebhookAdmissionConfiguration"}
    plugin = {
        "name": "MutatingAdmissionWebhook",
        "configuration": {**kind, "kubeConfigFile": str(folder / "kubeconfig")},
    }
    whole = {"apiVersion": "apiserver.config.k8s.io/v1", "kind": "AdmissionConfiguration", "plugins": [plugin]}
    (folder / "admission.yaml").write_text(yaml.safe_dump(whole))
    return f"--admission-control-config-file={folder / 'admission.yaml'}"


def _review_without_certificate(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(HOST, port, timeout=10, context=context)
    try:
        connection.request("POST", "/review", b"{}")
        return connection.getresponse().read()
    except http.client.HTTPException as error:
        raise ConnectionError(repr(error)) from error
    finally:
        connection.close()


def test_webhook_down_with_ignore_blocks_no_pod(fresh: ControlPlane) -> None:
    with a_webhook(fresh):
        pass
    assert created(fresh, objects.pod("broken", {CORE: 30}))["metadata"]["name"] == "broken"


def test_webhook_down_with_fail_blocks_only_gpu_pods(fresh: ControlPlane) -> None:
    with a_webhook(fresh, failure_policy=FailurePolicy.FAIL):
        pass
    with pytest.raises(Refused, match=r"failed calling webhook"):
        created(fresh, objects.pod("ours", {MEMORY: 2}))
    assert created(fresh, objects.pod("other", {"cpu": "1"}))


def test_no_review_fails_while_certificates_and_authority_are_renewed(fresh: ControlPlane) -> None:
    """Lives of seconds: in half a minute the certificate is renewed some five times, the authority at least once."""
    lives = Lifetimes(authority=30.0, certificate=9.0, known=3.0)
    seen: set[bytes] = set()
    bundles: list[int] = []

    def ask(number: int) -> bool:
        """With Fail, a Pod that is let in was reviewed; over new connections as over kept ones."""
        made = fresh.api(
            "POST",
            "/api/v1/namespaces/default/pods",
            objects.pod(f"p-{number}", {CARDS: 1}),
            params={"dryRun": "All"},
        )
        return TOLERATION in made["spec"]["tolerations"]

    known: bytes | None = None  # the bundle of the look before: what an API server that is late still has
    with a_webhook(fresh, lifetimes=lives, failure_policy=FailurePolicy.FAIL), ThreadPoolExecutor(4) as pool:
        ends, number = time.monotonic() + 32, 0
        while time.monotonic() < ends:
            assert all(pool.map(ask, range(number, number + 8)))
            number += 8
            client = fresh.api("GET", CONFIGURATION)["webhooks"][0]["clientConfig"]
            bundle = base64.b64decode(client["caBundle"])
            shake_hands(client["url"], known or bundle)  # the API server keeps its connections: here is a new one
            known = bundle
            kept = fresh.api("GET", SECRET)["data"]
            seen.add(base64.b64decode(kept["tls.crt"]))
            bundles.append(len(split(base64.b64decode(kept["ca.crt"]))))
            time.sleep(0.1)
    assert len(seen) >= 4
    assert max(bundles) >= 2
    assert all(read_facts(certificate).names == {HOST} for certificate in seen)


def test_second_webhook_replica_shares_keys(fresh: ControlPlane) -> None:
    with a_webhook(fresh):
        first = fresh.api("GET", SECRET)
    with a_webhook(fresh):
        second = fresh.api("GET", SECRET)
    assert first["data"] == second["data"]


def test_webhook_without_rights_serves_and_logs(fresh: ControlPlane, caplog: pytest.LogCaptureFixture) -> None:
    account = fresh.kubeconfig_for("kube-system/nobody")
    with a_webhook(fresh, account=account, wait=False):
        objects.wait_until(lambda: "mutatingwebhookconfigurations" in str(warnings(caplog)), 20, "a warning")
    assert warnings(caplog) == [
        (
            "webhook_degraded",
            "the replicas cannot share their keys: the role lacks get on secrets (aliquot-webhook-tls)",
        ),
        (
            "webhook_degraded",
            "the webhook cannot be configured: the role lacks get on "
            "mutatingwebhookconfigurations.admissionregistration.k8s.io (aliquot)",
        ),
    ]


def test_scheduler_runs_webhook_if_enabled(
    fresh: ControlPlane, aliquot_scheduler: Callable[..., AliquotScheduler]
) -> None:
    port = free_port()
    scheduler = aliquot_scheduler(f"--webhook-port={port}", f"--webhook-url=https://{HOST}:{port}")
    objects.wait_until(lambda: trusted(fresh), 30, "the API server asks the webhook", saw=lambda: scheduler.log)
    said = fresh.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(objects.pod("broken", {CORE: 130})), check=False)
    assert 'The Pod "broken" is invalid' in said
    assert TOLERATION in created(fresh, objects.pod("whole", {CARDS: 1}))["spec"]["tolerations"]
    assert 'verb="review"' in scheduler.get("/metrics")


def memory_mib(pid: int) -> float:
    """What the process has of the machine's memory now."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def test_webhook_survives_fuzzing_with_flat_memory(
    fresh: ControlPlane, aliquot_scheduler: Callable[..., AliquotScheduler]
) -> None:
    port = free_port()
    scheduler = aliquot_scheduler(f"--webhook-port={port}", f"--webhook-url=https://{HOST}:{port}")
    objects.wait_until(lambda: trusted(fresh), 30, "the API server asks the webhook", saw=lambda: scheduler.log)
    context = ssl.create_default_context(cadata=base64.b64decode(fresh.api("GET", SECRET)["data"]["ca.crt"]).decode())
    head = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE",'
    bodies = (
        (413, b" " * 10_485_760),
        (400, b"[" * 2_000_000),
        (400, head),
        (400, b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
        (400, b"\xff" * 100_000),
        (200, head + b'"kind":{"kind":"Pod"},"object":{"spec":' + b"[" * 300 + b"]" * 300 + b"}}}"),
        (200, head + b'"kind":{"kind":"Pod"},"unknown":[1,2,{"a":null}],"object":7}}'),
    )

    def send(times: int) -> None:
        for status, body in bodies * times:
            assert post(port, context, body) == status

    send(5)
    before = memory_mib(scheduler.pid)
    send(25)
    assert memory_mib(scheduler.pid) < before + 15
    assert trusted(fresh)
    assert "Traceback" not in scheduler.log


def post(port: int, context: ssl.SSLContext, body: bytes) -> int:
    """The status of the answer."""
    connection = http.client.HTTPSConnection(HOST, port, context=context, timeout=30)
    try:
        connection.request("POST", "/review", body)
        return connection.getresponse().status
    finally:
        connection.close()
