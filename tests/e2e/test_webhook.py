"""What the admission webhook refuses and changes, as a real API server and kubectl see it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from aliquot.dialects import Rules, parse_pod, render_grant
from aliquot.dialects.wire.webhook.admission import AdmissionSettings, render_env_annotations
from aliquot.model.claim import Claim
from aliquot.model.device import Card
from aliquot.model.grant import ContainerGrant, Grant, Share
from aliquot.model.node import Node
from e2e.webhooks import CARDS, CORE, COUNT, MEMORY, PERCENT, SHARED, TOLERATION, Object, a_webhook, created
from testbed import objects
from testbed.client import Refused
from testbed.plane import ControlPlane


def test_kubectl_apply_says_which_rule_a_pod_breaks(fresh: ControlPlane) -> None:
    with a_webhook(fresh):
        broken = yaml.safe_dump(objects.pod("broken", {CORE: 130, MEMORY: 4}))
        said = fresh.kubectl("apply", "-f", "-", stdin=broken, check=False)
    assert f'spec.containers[0].resources.limits["{CORE}"]' in said
    assert '"130" is not allowed: whole percent of one card, 1 to 99' in said
    assert objects.list_pods(fresh) == []


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


def test_pod_with_gpu_count_only_is_admitted(fresh: ControlPlane) -> None:
    """It asks for no card, so the count means nothing: explain and doctor say so."""
    with a_webhook(fresh):
        created(fresh, objects.pod("marked", annotations={COUNT: "2"}))
        created(fresh, objects.pod("labelled", labels={COUNT: "2"}))


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
