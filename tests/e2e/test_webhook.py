"""The admission webhook as a real API server and kubectl see it."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from aliquot.adapters.kubernetes.certificates import Pair, issue, make_authority, read_facts, split
from aliquot.dialects import Rules, parse_pod, render_grant
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, render_env_annotations
from aliquot.dialects.wire.webhook.configuration import FailurePolicy
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from aliquot.services.scheduler.ports.certrotation import Lifetimes
from aliquot.services.scheduler.ports.webhook import Clients, WebhookSettings, serve_webhook
from e2e.aside import Aside
from kit.running.logged import warnings
from testbed import objects
from testbed.client import Refused
from testbed.plane import HOST, ControlPlane
from testbed.processes import free_port
from testbed.programs.product import AliquotScheduler

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


@pytest.fixture
def fresh(clean: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; the keys that a test made are gone after it."""
    yield clean
    with suppress(Refused):
        clean.api("DELETE", SECRET)


def test_kubectl_apply_says_which_rule_a_pod_breaks(fresh: ControlPlane) -> None:
    with a_webhook(fresh):
        broken = yaml.safe_dump(objects.pod("broken", {CORE: 130, MEMORY: 4}))
        said = fresh.kubectl("apply", "-f", "-", stdin=broken, check=False)
    assert f'spec.containers[0].resources.limits["{CORE}"]' in said
    assert '"130" is not allowed: whole percent of one card, 1 to 99' in said
    assert objects.list_pods(fresh) == []


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


def test_a_misspelled_resource_is_refused_with_the_name_that_was_meant(fresh: ControlPlane) -> None:
    with a_webhook(fresh) as webhook:
        for written, meant in (
            ("aliyun.com/gpumem", SHARED),
            ("tke.cloud.tencent.com/qgpu-mem", MEMORY),
            ("aliyun.com/GPU-mem", SHARED),
            ("tke.cloud.tencent.com/QGPU-Memory", MEMORY),
        ):
            manifest = yaml.safe_dump(objects.pod("p", {written: 4}))
            said = fresh.kubectl("apply", "-f", "-", stdin=manifest, check=False)
            assert f"no such resource; did you mean {meant}?" in said
        before = webhook.calls["review"]
        created(fresh, objects.pod("theirs", {"aliyun.com/gpu": 1}))
        assert webhook.calls["review"] == before
    assert [pod["metadata"]["name"] for pod in objects.list_pods(fresh)] == ["theirs"]


def test_replicaset_event_has_webhook_refusal(fresh: ControlPlane) -> None:
    template = objects.pod("p", {CORE: 30})
    labels = {"app": "web"}
    replicas = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
        },
    }
    path = "/apis/apps/v1/namespaces/default/replicasets"
    with a_webhook(fresh):
        fresh.api("POST", path, replicas)
        sentence = f'limits["{MEMORY}"] is missing: required with any other qGPU resource'
        objects.wait_until(
            lambda: any(sentence in message for _, message in objects.events_of(fresh, "web")),
            20,
            "an event with the sentence",
            saw=lambda: objects.events_of(fresh, "web"),
        )
        fresh.api("DELETE", f"{path}/web")


def a_deployment(name: str, template: Object, **metadata: Any) -> str:
    labels = {"app": name}
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template["spec"]},
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, **metadata}, "spec": spec}
    return yaml.safe_dump(deployment)


def test_kubectl_warns_of_a_workload_whose_pods_are_refused_or_get_no_card(fresh: ControlPlane) -> None:
    served = frozenset({"qgpu", "kai"})
    names = ("system:kube-controller-manager", "system:serviceaccount:kube-system:deployment-controller")
    # Before the webhook: a new user restarts the API server, which then has to learn of the webhook again.
    controllers = [fresh.kubeconfig_for(user=name, groups=["system:masters"]) for name in names]
    with a_webhook(fresh, rules=Rules(served=served), served=served) as webhook:
        broken = a_deployment("broken", objects.pod("p", {CORE: 130, MEMORY: 4}))
        said = fresh.kubectl("create", "--dry-run=server", "-f", "-", stdin=broken, check=False)
        assert f'Warning: Pods are refused: spec.template.spec.containers[0].resources.limits["{CORE}"]: "130"' in said
        assert "deployment.apps/broken created" in said
        misplaced = a_deployment("misplaced", objects.pod("p"), annotations={"gpu-fraction": "0.5"})
        said = fresh.kubectl("create", "--dry-run=server", "-f", "-", stdin=misplaced, check=False)
        assert 'Warning: metadata.annotations["gpu-fraction"]: Pods do not get it: move it to' in said
        before = webhook.calls["review"]
        for controller in controllers:
            said = fresh.kubectl(
                "create", "--dry-run=server", "-f", "-", stdin=broken, check=False, kubeconfig=controller
            )
            assert "deployment.apps/broken created" in said
            assert "Warning" not in said
        plain = a_deployment("plain", objects.pod("p"))
        assert "Warning" not in fresh.kubectl("create", "--dry-run=server", "-f", "-", stdin=plain, check=False)
        assert webhook.calls["review"] == before


def test_a_t9k_pod_gets_its_toleration_and_its_scheduler(fresh: ControlPlane) -> None:
    admission = AdmissionSettings(scheduler_names={"t9k": "t9k-scheduler"})
    with a_webhook(fresh, admission=admission):
        spec = created(fresh, objects.pod("whole", {CARDS: 1}))["spec"]
        shared = created(fresh, objects.pod("part", {PERCENT: 30}))["spec"]
        own = created(fresh, objects.pod("own", {CARDS: 1}, scheduler="mine"))["spec"]
    assert TOLERATION in spec["tolerations"]
    assert TOLERATION not in shared["tolerations"]
    assert [pod_spec["schedulerName"] for pod_spec in (spec, shared, own)] == ["t9k-scheduler", "t9k-scheduler", "mine"]


def test_a_pod_of_kai_gets_the_resource_by_which_the_kubelet_calls_us(fresh: ControlPlane) -> None:
    served = frozenset({"qgpu", "kai"})
    with a_webhook(fresh, rules=Rules(served=served), served=served):
        pod = objects.pod("half", {}, scheduler="kai-scheduler")
        pod["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
        resources = created(fresh, pod)["spec"]["containers"][0]["resources"]
        pod["metadata"]["annotations"] = {"nvidia.com/container.main.gpu-memory.requests": "4Gi"}
        with pytest.raises(Refused, match=r"did you mean nvidia\.com/container\.main\.gpu-memory\.request"):
            created(fresh, pod)
    assert resources["limits"]["aliquot.dev/card-place"] == resources["requests"]["aliquot.dev/card-place"] == "1"


def test_a_pod_of_hami_with_only_a_part_of_a_card_gets_one_card(fresh: ControlPlane) -> None:
    served = frozenset({"qgpu", "hami"})
    with a_webhook(fresh, rules=Rules(served=served), served=served):
        resources = created(fresh, objects.pod("part", {"nvidia.com/gpumem": 3000}))["spec"]["containers"][0][
            "resources"
        ]
        with pytest.raises(Refused, match=r"either nvidia\.com/gpumem or nvidia\.com/gpumem-percentage"):
            created(fresh, objects.pod("both", {"nvidia.com/gpumem": 3000, "nvidia.com/gpumem-percentage": 50}))
    assert resources["limits"] == resources["requests"] == {"nvidia.com/gpumem": "3k", "nvidia.com/gpu": "1"}


def test_a_grant_that_was_left_in_a_template_is_taken_off_and_kubectl_warns(fresh: ControlPlane) -> None:
    stale = {"ALIYUN_COM_GPU_MEM_IDX": "0", "aliquot.dev/grant": "{}", "mine": "stays"}
    with a_webhook(fresh):
        said = fresh.kubectl(
            "apply", "-f", "-", stdin=yaml.safe_dump(objects.pod("p", {SHARED: 2}, annotations=stale)), check=False
        )
        annotations = objects.get_pod(fresh, "p")["metadata"]["annotations"]
    assert "Warning: annotation ALIYUN_COM_GPU_MEM_IDX was removed" in said
    assert annotations.keys() & stale.keys() == {"mine"}


def test_webhook_reviews_only_gpu_pods(fresh: ControlPlane) -> None:
    ours = [
        objects.pod("limits", {SHARED: 2}),
        objects.pod("labelled", {SHARED: 2}, labels={COUNT: "1"}),
        objects.pod("annotated", {SHARED: 2}, annotations={COUNT: "1"}),
        objects.pod("init", init=[objects.container("first", {MEMORY: 2})]),
    ]
    requests = objects.container("main")
    requests["resources"] = {"requests": {MEMORY: "2"}, "limits": {MEMORY: "2"}}
    ours.append(objects.pod("requests", containers=[requests]))
    with a_webhook(fresh) as webhook:
        before = webhook.calls["review"]
        for number in range(5):
            created(fresh, objects.pod(f"other-{number}", {"cpu": "1", "example.com/gpu": "1"}, labels={"a": "b"}))
        created(fresh, objects.pod("bare", containers=[{"name": "main", "image": "registry.example/pause"}]))
        assert webhook.calls["review"] == before
        for number, pod in enumerate(ours, 1):
            created(fresh, pod)
            assert webhook.calls["review"] == before + number, pod["metadata"]["name"]


def test_pod_with_gpu_count_only_is_refused(fresh: ControlPlane) -> None:
    """gpu-count without gpu-mem: the user meant something."""
    with a_webhook(fresh):
        for marks in ({"labels": {COUNT: "2"}}, {"annotations": {COUNT: "2"}}):
            with pytest.raises(Refused, match=r"is missing: required with aliyun\.com/gpu-count"):
                created(fresh, objects.pod("marked", **marks))  # type: ignore[arg-type]  # mypy cannot see which


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


def test_env_by_field_ref_is_what_the_binding_wrote(fresh: ControlPlane) -> None:
    """The API server takes the fieldRefs, and the Binding sets the annotations that they name."""
    admission = AdmissionSettings(env_by_field_ref=True)
    name = "a-container-with-a-name-that-is-longer-than-an-annotation-allows"[:63].rstrip("-")
    with a_webhook(fresh, admission=admission):
        objects.create(fresh, objects.node("n1"))
        pod = created(fresh, objects.pod("p", containers=[objects.container(name, {SHARED: 2})]))
    claim = parse_pod(pod)
    assert isinstance(claim, Claim)
    (asked,) = claim.containers
    share = ContainerGrant(asked.name, asked.index, asked.role, (Share(0, 2048, uuid="GPU-7"),))
    grant, node = Grant(claim.uid, "n1", (share,)), Node("n1", (Card(0, 16384, "GPU-7"),))
    annotations = render_grant(claim, grant, node, 1) | render_env_annotations(claim, grant, node, Rules())
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "p", "annotations": annotations},
        "target": {"kind": "Node", "name": "n1"},
    }
    fresh.api("POST", "/api/v1/namespaces/default/pods/p/binding", binding)
    bound = objects.get_pod(fresh, "p")
    env = {
        variable["name"]: bound["metadata"]["annotations"][variable["valueFrom"]["fieldRef"]["fieldPath"].split("'")[1]]
        for variable in bound["spec"]["containers"][0]["env"]
    }
    assert env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-7",
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2",
    }


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
