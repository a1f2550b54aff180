"""`aliquot install`, `upgrade` and `uninstall` before they write anything: what is refused, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import pytest
import yaml

import aliquot
from aliquot.cli.install.install import install, upgrade
from aliquot.cli.install.options import packaged_objects
from aliquot.cli.install.uninstall import uninstall
from aliquot.cli.main import cli
from aliquot.dialects.wire.install import record as installrecord
from aliquot.dialects.wire.install.deployment import MANAGED_LABEL, Options, identity
from kit.kubectl import invoked

SERVER = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RECORD = "/api/v1/namespaces/aliquot-system/configmaps/aliquot-installation"
SPACE = "/api/v1/namespaces/aliquot-system"
OPTIONS = Options(image="here/aliquot:0.0.1", kube_scheduler_image="kube-scheduler:v1.36.4")


class FakeApi:
    """An API server with fixed answers that records writes."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/version": {"gitVersion": "v1.36.4"}}
        self.writes: list[str] = []
        self.created: list[Any] = []
        self.patched: dict[str, Any] = {}
        self.allowed = True
        self.no_namespace = False  # whether the namespace is missing, until somebody makes it
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                chosen = parse_qs(parts.query).get("fieldSelector", [""])[0]
                found = api.answers.get(f"{parts.path}?{chosen}" if chosen else parts.path)
                if found is None and parts.path.rpartition("/")[2].endswith("s"):
                    found = {"items": []}
                self._answer(404 if found is None else 200, found or {"message": "not found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if api.no_namespace:
                    self._answer(404, {"message": 'namespaces "aliquot-system" not found'})
                    return
                if self.path != SERVER:
                    api.writes.append(f"POST {self.path}")
                    api.created.append(body)
                self._answer(201, {"status": {"allowed": api.allowed}})

            def do_PATCH(self) -> None:
                api.writes.append(f"PATCH {self.path}")
                api.patched[urlsplit(self.path).path] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if urlsplit(self.path).path == SPACE:
                    api.answers[SPACE], api.no_namespace = api.patched[SPACE], False
                self._answer(200, {})

            def do_DELETE(self) -> None:
                api.writes.append(f"DELETE {self.path}")
                if urlsplit(self.path).path == SPACE:
                    api.answers.pop(SPACE, None)
                self._answer(200, {})

            def _answer(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that is refused does not wait for the other answers."""

        self.server = Server(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def record(self, version: str = "0.0.1", options: Options = OPTIONS, **more: Any) -> None:
        record = installrecord.new_record(version, options, packaged_objects(), **{"settled": True, **more})
        self.answers[RECORD] = installrecord.render_record(record)

    def hold(self) -> None:
        """A Pod is on a card of ours."""
        metadata = {"name": "p", "namespace": "ml", "uid": "u", "annotations": {"aliquot.dev/grant": "{}"}}
        self.answers["/api/v1/pods"] = {"items": [{"metadata": metadata, "spec": {"nodeName": "n1"}}]}

    @property
    def deleted(self) -> list[str]:
        return [write.split("?")[0].rpartition("/")[2] for write in self.writes if write.startswith("DELETE")]


def _kubeconfig(url: str) -> dict[str, Any]:
    return {
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "contexts": [{"name": "c", "context": {"cluster": "c"}}],
    }


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    url = f"http://127.0.0.1:{fake.server.server_address[1]}"
    (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(url)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def _refusal(command: click.Command, *words: str, code: int = 2) -> str:
    result = invoked(command, *words)
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1]


def _running(path: str, name: str, **more: Any) -> Callable[[FakeApi], None]:
    """Such a program is on the cluster."""
    spec = {"template": {"spec": {"containers": [{"image": more.pop("image", "theirs:1")}]}}}
    found = {"metadata": {"name": name, "namespace": "kube-system", **more}, "spec": spec}
    return lambda api: api.answers.update(
        {f"{path}?metadata.name={name}": {"items": [found]}, path: {"items": [found]}}
    )


def test_install_finds_kube_scheduler_image_or_requires_it(api: FakeApi) -> None:
    said = _refusal(install)
    assert "--kube-scheduler-image is missing" in said
    assert "v1.36.4" in said
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"image": "reg/kube-scheduler:v1.36.4"}]}}
    api.answers["/api/v1/namespaces/kube-system/pods"] = {"items": [pod]}
    result = invoked(install, "--dry-run", "-o", "yaml")
    assert result.exit_code == 0, result.output
    assert "reg/kube-scheduler:v1.36.4" in result.stdout
    assert api.writes == []


def test_install_refuses_beside_competing_product(api: FakeApi) -> None:
    _running("/apis/apps/v1/daemonsets", "gpushare-device-plugin-ds")(api)
    said = _refusal(install, "--kube-scheduler-image", "k")
    assert "gpushare: kube-system/gpushare-device-plugin-ds" in said
    assert "docs/migration.md" in said
    assert api.writes == []


def test_install_refuses_beside_own_drop_in(api: FakeApi) -> None:
    _running("/apis/apps/v1/daemonsets", "qgpu-manager", image="reg/aliquot/aliquot:1")(api)
    said = _refusal(install, "--kube-scheduler-image", "k")
    assert "aliquot, as a drop-in: kube-system/qgpu-manager" in said
    assert "docs/dropin.md" in said
    assert api.writes == []


OTHERS = {"metadata": {"name": "gpu-1", "labels": {}}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}


def test_install_and_upgrade_refuse_nodes_of_another_plugin_with_the_commands(api: FakeApi) -> None:
    api.answers["/api/v1/nodes"] = {"items": [OTHERS]}
    for command in (install, upgrade):
        said = _refusal(command, "--kube-scheduler-image", "k")
        assert "gpu-1 (nvidia.com/gpu)" in said
        assert "kubectl label node gpu-1 --overwrite nvidia.com/gpu.deploy.device-plugin=false" in said
        assert "kubectl label node gpu-1 aliquot.dev/share-cards-with-other-plugins=true" in said
        assert "--beside-others" in said
    assert api.writes == []


def test_install_refuses_nodes_of_a_dra_driver(api: FakeApi) -> None:
    api.answers["/api/v1/nodes"] = {"items": [{"metadata": {"name": "gpu-1"}}, {"metadata": {"name": "gpu-2"}}]}
    api.answers["/apis/resource.k8s.io"] = {"versions": [{"version": "v1"}]}
    spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-2", "devices": [{"name": "gpu-0"}]}
    slices = {"items": [{"metadata": {"name": "s"}, "spec": spec}]}
    api.answers["/apis/resource.k8s.io/v1/resourceslices"] = slices
    said = _refusal(install, "--kube-scheduler-image", "k")
    assert "the cards of gpu-2 (DRA driver gpu.nvidia.com):" in said


@pytest.mark.parametrize("value", ["true", "false"])
def test_install_goes_on_where_owners_have_decided(api: FakeApi, value: str) -> None:
    labels = {"aliquot.dev/share-cards-with-other-plugins": value}
    api.answers["/api/v1/nodes"] = {"items": [{**OTHERS, "metadata": {"name": "gpu-1", "labels": labels}}]}
    assert invoked(install, "--kube-scheduler-image", "k", "--dry-run", "-o", "yaml").exit_code == 0


@pytest.mark.parametrize("share", [{}, {"aliquot.dev/share-cards-with-other-plugins": "true"}], ids=["", "shared"])
@pytest.mark.parametrize("command", [install, upgrade])
def test_install_refuses_a_node_labelled_for_hami_where_another_plugin_serves_its_name(
    api: FakeApi, command: click.Command, share: dict[str, str]
) -> None:
    labels = {"aliquot.dev/serve-nvidia-gpu": "true", **share}
    api.answers["/api/v1/nodes"] = {"items": [{**OTHERS, "metadata": {"name": "gpu-1", "labels": labels}}]}
    said = _refusal(command, "--kube-scheduler-image", "k", "--mode", "hami")
    assert "node gpu-1: " in said
    assert "only where no other device plugin serves nvidia.com/gpu" in said
    assert "kubectl label node gpu-1 --overwrite aliquot.dev/serve-nvidia-gpu=false" in said
    assert api.writes == []


def test_install_sets_no_label_for_hami_where_another_plugin_serves_its_name(api: FakeApi) -> None:
    shared = {"metadata": {"name": "gpu-1", "labels": {"aliquot.dev/share-cards-with-other-plugins": "true"}}}
    given = ("--kube-scheduler-image", "k", "--mode", "hami", "--nodes", "gpu-1", "--beside-others")
    for capacity in ("2", "0"):
        node = {**shared, "status": {"capacity": {"nvidia.com/gpu": capacity}}}
        api.answers["/api/v1/nodes/gpu-1"], api.answers["/api/v1/nodes"] = node, {"items": [node]}
        if capacity == "2":
            assert "--nodes: node gpu-1: " in _refusal(install, *given)
        else:
            assert invoked(install, *given, "--dry-run", "-o", "yaml").exit_code == 0
    assert api.writes == []


def test_install_beside_other_plugins_notes_the_nodes_that_offer_nothing(api: FakeApi) -> None:
    api.answers["/api/v1/nodes"] = {"items": [OTHERS]}
    said = invoked(install, "--kube-scheduler-image", "k", "--dry-run", "-o", "yaml", "--beside-others")
    assert said.exit_code == 0
    assert "gpu-1 offers nothing: nvidia.com/gpu" in said.stderr


def test_install_refuses_helm_installation(api: FakeApi) -> None:
    labels = {MANAGED_LABEL: "Helm"}
    _running("/apis/apps/v1/daemonsets", "aliquot-agent", labels=labels)(api)
    for command in (install, upgrade):
        assert "`helm upgrade`" in _refusal(command, "--kube-scheduler-image", "k")
    assert "`helm uninstall`" in _refusal(uninstall)


def test_install_names_missing_rights(api: FakeApi) -> None:
    api.allowed = False
    assert "your account may not create namespaces, create clusterroles" in _refusal(install)


def test_install_refuses_old_kubernetes(api: FakeApi) -> None:
    api.answers["/version"] = {"gitVersion": "v1.27.0"}
    assert "Kubernetes v1.27.0: 1.28 or later is required" in _refusal(install)


@pytest.mark.parametrize(("version", "wanted"), [("v1.28.15", True), ("v1.29.0", False)])
def test_install_takes_the_environment_from_annotations_before_1_29(api: FakeApi, version: str, wanted: bool) -> None:
    api.answers["/version"] = {"gitVersion": version}
    result = invoked(install, "--dry-run", "-o", "yaml", "--kube-scheduler-image", "kube-scheduler:v1")
    assert ("--env-by-annotation" in result.stdout) is wanted


def test_upgrade_refuses_without_installation(api: FakeApi) -> None:
    assert "nothing is installed in aliquot-system" in _refusal(upgrade)


def test_install_refuses_to_change_existing_installation(api: FakeApi) -> None:
    api.record()
    assert "0.0.1 is installed in aliquot-system" in _refusal(install)


def test_upgrade_keeps_registry_and_options_not_given(api: FakeApi) -> None:
    api.record()
    result = invoked(upgrade, "--dry-run", "-o", "yaml", "--mode", "t9k")
    assert result.exit_code == 0, result.output
    assert f"here/aliquot:{aliquot.__version__}" in result.stdout
    assert "--dialects=t9k" in result.stdout
    assert "kube-scheduler:v1.36.4" in result.stdout


@pytest.mark.parametrize("image", ["here/aliquot@sha256:1", "here/aliquot@sha512:" + 64 * "a", "a b", "@"])
def test_invalid_image_is_refused(api: FakeApi, image: str) -> None:
    assert f'--image: "{image}" is not allowed: REPOSITORY:TAG, or REPOSITORY@sha256:' in _refusal(
        install, "--image", image
    )


def test_image_by_digest_is_used_as_it_is_and_asked_for_in_an_upgrade(api: FakeApi) -> None:
    digest = f"here/aliquot@sha256:{64 * 'a'}"
    words = ("--dry-run", "-o", "yaml", "--kube-scheduler-image", "kube-scheduler:v1.36.4")
    result = invoked(install, *words, "--image", digest)
    assert f"image: {digest}" in result.stdout, result.output
    api.record(options=replace(OPTIONS, image=digest))
    assert "names one image by its digest" in _refusal(upgrade)


def test_upgrade_removes_options_given_as_empty(api: FakeApi) -> None:
    given = ("--node-selector", "pool=gpu", "--node-selector", "zone=a", "--runtime-class", "nvidia")
    options = Options(
        image=OPTIONS.image, kube_scheduler_image="k", node_selector={"pool": "gpu"}, runtime_class="nvidia"
    )
    record = installrecord.new_record("0.0.1", options, packaged_objects(), settled=True)
    api.answers[RECORD] = installrecord.render_record(record)

    def agent(*words: str) -> Any:
        result = invoked(upgrade, "--dry-run", "-o", "yaml", *words)
        assert result.exit_code == 0, result.output
        (spec,) = [item["spec"] for item in yaml.safe_load_all(result.stdout) if item["kind"] == "DaemonSet"]
        return spec["template"]["spec"]

    assert agent()["nodeSelector"] == {"pool": "gpu"}
    assert agent(*given)["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    bare = agent("--node-selector", "", "--runtime-class", "")
    assert not {"nodeSelector", "runtimeClassName"} & set(bare)


def test_install_does_not_overwrite_unreadable_record(api: FakeApi) -> None:
    api.answers[RECORD] = {"data": {"record": "{}"}}
    assert "a newer `aliquot` may be able to read it" in _refusal(install)
    assert api.writes == []


def test_install_refuses_unknown_node_before_any_write(api: FakeApi) -> None:
    said = _refusal(install, "--kube-scheduler-image", "ks:1", "--nodes", "n7")
    assert "--nodes: there is no node n7; `kubectl get nodes` lists them" in said
    assert api.writes == []


def test_uninstall_nodes_only_explains_helm_recovery(api: FakeApi) -> None:
    api.hold()
    assert "helm rollback RELEASE REVISION" in _refusal(uninstall, "--nodes-only", code=1)
    assert "helm" not in _refusal(uninstall, code=1)


def test_uninstall_refuses_while_pods_use_cards(api: FakeApi) -> None:
    api.hold()
    said = _refusal(uninstall, code=1)
    assert "1 Pod uses shared cards: ml/p" in said
    assert "--keep-running" in said
    assert api.writes == []


CLAIM = {
    "metadata": {"name": "card", "namespace": "ml", "uid": "c"},
    "status": {"allocation": {"devices": {"results": [{"driver": "aliquot.dev", "pool": "n1"}]}}},
}


@pytest.mark.parametrize("words", [(), ("--keep-running",), ("--nodes-only",)])
def test_uninstall_refuses_while_pods_use_cards_by_claims(api: FakeApi, words: tuple[str, ...]) -> None:
    """Also with --keep-running: the kubelet ends no Pod whose claim it cannot have unprepared."""
    api.answers["/apis/resource.k8s.io/v1/resourceclaims"] = {"items": [CLAIM]}
    claims = [{"name": "gpu", "resourceClaimName": "card"}]
    pod: Any = {"metadata": {"name": "p", "namespace": "ml", "uid": "u"}, "spec": {"resourceClaims": claims}}
    api.answers["/api/v1/pods"] = {"items": [{**pod, "spec": {**pod["spec"], "nodeName": "n1"}}]}
    said = _refusal(uninstall, *words, code=1)
    assert "1 Pod uses shared cards: ml/p by ResourceClaims" in said
    assert "--delete-pods" in said
    assert "--keep-running" not in said
    assert api.writes == []
    for harmless in (pod, {**pod, "status": {"phase": "Succeeded"}}, {**pod, "spec": {"nodeName": "n1"}}):
        api.answers["/api/v1/pods"] = {"items": [harmless]}
        assert invoked(uninstall, *words).exit_code == 0


def test_uninstall_deletes_device_classes_and_pods_with_claims_before_the_agents(api: FakeApi) -> None:
    api.answers["/apis/resource.k8s.io/v1/resourceclaims"] = {"items": [CLAIM]}
    spec = {"nodeName": "n1", "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}]}
    status = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "card"}]}
    metadata = {"name": "p", "namespace": "ml", "uid": "u"}
    api.answers["/api/v1/pods"] = {"items": [{"metadata": metadata, "spec": spec, "status": status}]}
    assert invoked(uninstall, "--delete-pods").exit_code == 0
    assert api.deleted.index("offline.aliquot.dev") < api.deleted.index("p") < api.deleted.index("aliquot-agent")


def test_uninstall_deletes_pods_after_the_scheduler(api: FakeApi) -> None:
    api.hold()
    assert invoked(uninstall, "--delete-pods").exit_code == 0
    # The webhook's configuration once more after the scheduler, which may just have created it again.
    assert api.deleted[:3] == ["aliquot", "aliquot-scheduler", "aliquot"]
    assert api.deleted.index("p") > 2
    assert api.deleted.index("aliquot-agent") > api.deleted.index("p"), "they end under an agent"


def test_uninstall_sweeps_with_installed_image_if_agents_are_gone(api: FakeApi) -> None:
    """As after a kill: the same command goes on, and no other image can be had from here."""
    api.record()
    metadata = {"name": "n1", "annotations": {"aliquot.dev/agent": "away"}}
    api.answers["/api/v1/nodes"] = {
        "items": [{"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    }
    pod = "/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"
    api.answers[pod] = {"status": {"phase": "Succeeded"}}
    assert invoked(uninstall).exit_code == 0
    (sweeper,) = api.created
    assert sweeper["spec"]["containers"][0]["image"] == OPTIONS.image


# --- what is left behind, and found again ----------------------------------------------------------------------------

NODE = "/api/v1/nodes/n1"
MARK = "aliquot.dev/left-behind"


def _annotated(api: FakeApi, *, ready: str = "True", **annotations: str) -> None:
    """The node, with these annotations of ours; a Pod that sweeps it ends well."""
    notes = {f"aliquot.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"name": "n1", "annotations": notes}
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    api.answers["/api/v1/nodes"] = {"items": [{"metadata": metadata, "status": status}]}
    api.answers["/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"] = {"status": {"phase": "Succeeded"}}


def _sweeper(api: FakeApi) -> Any:
    (fake,) = api.created
    return fake["spec"]["containers"][0]


def test_uninstall_keep_running_marks_node_with_image(api: FakeApi) -> None:
    api.record()
    api.hold()
    _annotated(api, agent="0.0.1", inventory="{}")
    result = invoked(uninstall, "--keep-running")
    assert result.exit_code == 0, result.output
    assert "run `aliquot uninstall` again" in result.stdout
    assert "--keep-running" in _sweeper(api)["args"]
    notes = api.patched[NODE]["metadata"]["annotations"]
    assert notes == {
        "aliquot.dev/agent": None,
        "aliquot.dev/inventory": None,
        MARK: f'{{"v":1,"image":"{OPTIONS.image}"}}',
    }


CARDS = "/apis/apps/v1/namespaces/aliquot-system/daemonsets/aliquot-simulated-cards"


@pytest.mark.parametrize("words", [(), ("--nodes-only",)])
def test_uninstall_keep_running_keeps_simulated_cards_of_the_pods(api: FakeApi, words: tuple[str, ...]) -> None:
    api.record()
    api.hold()
    api.answers[CARDS] = {"metadata": {"name": "aliquot-simulated-cards"}}
    api.answers["/api/v1/namespaces/aliquot-system/serviceaccounts/aliquot-agent"] = {
        "imagePullSecrets": [{"name": "s"}]
    }
    api.answers[SPACE] = {"metadata": {"name": "aliquot-system", "labels": {MANAGED_LABEL: "aliquot"}}}
    result = invoked(uninstall, "--keep-running", *words)
    assert result.exit_code == 0, result.output
    assert "aliquot-simulated-cards in namespace aliquot-system" in result.stderr
    assert "`aliquot uninstall --namespace aliquot-system` removes both" in result.stderr
    assert "aliquot-simulated-cards" not in api.deleted
    assert "aliquot-system" not in api.deleted
    spec = api.patched[CARDS]["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "default", "the agents' account is deleted"
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert '"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]' in json.dumps(spec)


@pytest.mark.parametrize("words", [("--keep-running",), ("--delete-pods",), ()])
def test_uninstall_deletes_simulated_cards_that_no_pod_uses(api: FakeApi, words: tuple[str, ...]) -> None:
    api.answers[CARDS] = {"metadata": {"name": "aliquot-simulated-cards"}}
    assert invoked(uninstall, *words).exit_code == 0
    assert "aliquot-simulated-cards" in api.deleted


@pytest.mark.parametrize("words", [(), ("--nodes-only",), ("--nodes-only", "--namespace", "aliquot-system")])
def test_uninstall_sweeps_marked_node_with_its_image(api: FakeApi, words: tuple[str, ...]) -> None:
    """The record, the agents and the namespace are gone by then."""
    _annotated(api, left_behind='{"v":1,"image":"reg/aliquot:5","kubelet":"/data/kubelet"}')
    assert invoked(uninstall, *words).exit_code == 0
    assert _sweeper(api)["image"] == "reg/aliquot:5"
    assert "--kubelet-dir=/data/kubelet" in _sweeper(api)["args"]
    assert "--keep-running" not in _sweeper(api)["args"]
    assert api.patched[NODE]["metadata"]["annotations"] == {MARK: None}


def test_uninstall_ignores_image_of_mark_while_installed(api: FakeApi) -> None:
    """Before Kubernetes 1.30 an agent's account may write it on any Node; when that is gone, none is of before."""
    api.record()
    _annotated(api, left_behind='{"v":1,"image":"evil"}')
    assert invoked(uninstall, "--keep-running").exit_code == 0
    assert _sweeper(api)["image"] == OPTIONS.image
    assert OPTIONS.image in api.patched[NODE]["metadata"]["annotations"][MARK]


def test_uninstall_refuses_marked_node_with_running_pods(api: FakeApi) -> None:
    _annotated(api, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    api.hold()
    assert "1 Pod uses shared cards: ml/p" in _refusal(uninstall, code=1)
    assert api.writes == []


def test_uninstall_marks_node_that_is_not_ready(api: FakeApi) -> None:
    api.record()
    _annotated(api, ready="Unknown", agent="0.0.1")
    result = invoked(uninstall)
    assert result.exit_code == 1
    assert "node n1 is not ready" in result.stderr
    assert MARK in api.patched[NODE]["metadata"]["annotations"]


@pytest.mark.parametrize("mark", ["", "{}", '{"v":2,"image":"i"}', '{"v":1,"image":"a b"}', '{"v":1,"image":""}'])
def test_uninstall_needs_image_for_invalid_mark(api: FakeApi, mark: str) -> None:
    _annotated(api, left_behind=mark)
    result = invoked(uninstall)
    assert result.exit_code == 1
    assert f'metadata.annotations["{MARK}"]' in result.stderr
    assert api.created == []
    assert NODE not in api.patched, "the mark stays"
    assert invoked(uninstall, "--image", "reg/aliquot:6").exit_code == 0
    assert _sweeper(api)["image"] == "reg/aliquot:6"


def test_sweepers_use_pull_secrets_of_agents(api: FakeApi) -> None:
    _annotated(api, agent="0.0.1")
    account = "/api/v1/namespaces/aliquot-system/serviceaccounts/aliquot-agent"
    api.answers[account] = {"metadata": {"name": "aliquot-agent"}, "imagePullSecrets": [{"name": "mine"}]}
    assert invoked(uninstall).exit_code == 0
    assert api.created[0]["spec"]["imagePullSecrets"] == [{"name": "mine"}]


def test_sweepers_use_selinux_label_of_agents(api: FakeApi) -> None:
    _annotated(api, agent="0.0.1")
    label = {"type": "spc_t", "level": "s0"}
    inner = {"containers": [{"image": "i"}], "securityContext": {"seLinuxOptions": label}}
    agents = "/apis/apps/v1/namespaces/aliquot-system/daemonsets/aliquot-agent"
    api.answers[agents] = {"metadata": {"name": "aliquot-agent"}, "spec": {"template": {"spec": inner}}}
    assert invoked(uninstall).exit_code == 0
    assert api.created[0]["spec"]["securityContext"]["seLinuxOptions"] == label


def test_uninstall_creates_and_deletes_namespace_for_sweepers(api: FakeApi) -> None:
    _annotated(api, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    api.no_namespace = True
    assert invoked(uninstall, "--nodes-only").exit_code == 0
    assert _sweeper(api)["image"] == "reg/aliquot:5"
    assert api.deleted[-1] == "aliquot-system"


def test_failed_install_rolls_back_to_settled_installation(api: FakeApi) -> None:
    api.record(aliquot.__version__)
    result = invoked(install, "--timeout", "0s")
    assert result.exit_code == 1
    assert f"rolled back to {aliquot.__version__}" in result.stderr
    assert api.deleted == []


@pytest.mark.parametrize("command", [install, upgrade])
def test_failed_install_keeps_unsettled_installation_with_pods(api: FakeApi, command: click.Command) -> None:
    """As by --no-wait."""
    api.record(settled=False)
    api.hold()
    result = invoked(command, "--timeout", "0s", "--image", "here/aliquot:2")
    assert result.exit_code == 1
    assert "not rolled back" in result.stderr
    assert api.deleted == []


def _rolled_out(api: FakeApi, ready: int) -> None:
    """So many of the two schedulers are ready, and all of the agents."""
    found = {
        "deployments/aliquot-scheduler": {"updatedReplicas": ready, "availableReplicas": ready, "replicas": ready},
        "daemonsets/aliquot-agent": {},
    }
    for name, status in found.items():
        obj = {"metadata": {"name": name.rpartition("/")[2]}, "spec": {"replicas": 2}, "status": status}
        api.answers[f"/apis/apps/v1/namespaces/aliquot-system/{name}"] = obj


def _applied(api: FakeApi) -> None:
    """As --no-wait left it, by its own words."""
    assert invoked(install, "--no-wait", "--kube-scheduler-image", "kube-scheduler:v1.36.4").exit_code == 0
    api.answers[RECORD] = api.patched[RECORD]
    api.writes.clear()


class TestNoWait:
    def test_no_wait_record_is_applied_but_not_settled(self, api: FakeApi) -> None:
        _applied(api)
        record = installrecord.parse_record(api.answers[RECORD])
        assert isinstance(record, installrecord.Record)
        assert (record.applied, record.settled) == (True, False)

    @pytest.mark.parametrize("command", [install, upgrade])
    def test_no_wait_installation_is_settled_once_ready(self, api: FakeApi, command: click.Command) -> None:
        _applied(api)
        _rolled_out(api, 2)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert result.exit_code == 0, result.output
        assert "note" not in result.stderr
        assert api.writes == [], "--dry-run"

    @pytest.mark.parametrize("command", [install, upgrade])
    def test_no_wait_installation_that_is_not_ready_is_annotated(self, api: FakeApi, command: click.Command) -> None:
        _applied(api)
        _rolled_out(api, 1)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert "was applied with --no-wait and is not ready yet: resuming" in result.stderr
        assert "not finished" not in result.stderr

    def test_no_wait_installation_is_changed_only_by_upgrade(self, api: FakeApi) -> None:
        _applied(api)
        _rolled_out(api, 2)
        assert "use `aliquot upgrade`" in _refusal(install, "--mode", "t9k")

    @pytest.mark.parametrize(("ready", "back"), [(2, f"aliquot/aliquot:{aliquot.__version__}"), (1, None)])
    def test_no_wait_installation_is_rollback_target_if_ready(self, api: FakeApi, ready: int, back: str | None) -> None:
        _applied(api)
        _rolled_out(api, ready)
        assert invoked(upgrade, "--no-wait", "--image", "here/aliquot:2").exit_code == 0
        record = installrecord.parse_record(api.patched[RECORD])
        assert isinstance(record, installrecord.Record)
        before = installrecord.previous_record(record)
        assert (before.options.image if before else None) == back

    def test_no_wait_installation_is_uninstalled(self, api: FakeApi) -> None:
        _applied(api)
        result = invoked(uninstall)
        assert result.exit_code == 0, result.output
        assert "not finished" not in result.stderr
        assert "aliquot-installation" in api.deleted


def test_killed_install_is_resumed(api: FakeApi) -> None:
    api.record(aliquot.__version__, settled=False)
    assert "was not finished: resuming" in invoked(install, "--dry-run").stderr


def test_objects_of_failed_installation_are_deleted_by_the_next(api: FakeApi) -> None:
    """A newer release, say, that was broken off, and is gone back from."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "of-another"}}
    api.answers[RECORD] = installrecord.render_record(
        installrecord.new_record("9.9.9", OPTIONS, [*packaged_objects(), role])
    )
    _rolled_out(api, 2)
    gone = invoked(upgrade, "--no-wait", "--image", "here/aliquot:2")
    assert gone.exit_code == 0, gone.output
    told = installrecord.parse_record(api.patched[RECORD])
    assert isinstance(told, installrecord.Record)
    assert identity(role) in told.objects
    api.answers[RECORD] = api.patched[RECORD]
    invoked(upgrade, "--timeout", "0s")
    assert "of-another" in api.deleted


def test_upgrade_does_not_label_nodes_again(api: FakeApi) -> None:
    """Its owner may have taken the label off since, or the node away."""
    api.record(labelled={"n1": {"gpushare": "true"}})
    invoked(upgrade, "--no-wait")
    assert any("aliquot-agent" in write for write in api.writes)
    assert not any("/nodes/" in write for write in api.writes)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "--namespace", "No_Such"], '--namespace: "No_Such" is not allowed'),
        (["install", "--simulate", "many"], "--simulate"),
        (["install", "--image-pull-secret", "My_Own"], '--image-pull-secret: "My_Own" is not allowed: a name'),
        (["install", "--runtime-class", "a b"], "--runtime-class"),
        (["install", "--node-selector", "pool"], '--node-selector: "pool" is not allowed: KEY=VALUE'),
        (["upgrade", "--node-selector", "pool=a,b"], "--node-selector"),
        (["install", "--driver-folder", "etc/cdi"], "--driver-folder"),
        (["install", "--driver-folder", "/etc/../cdi"], "--driver-folder"),
        (["install", "--driver-folder", "/var/run/cdi"], "is always searched"),
        (["uninstall", "--keep-running", "--delete-pods"], "exclude each other"),
        (["install", "--kubeconfig", "/no/such"], "/no/such"),
        (["install", "-o", "yaml"], "requires --dry-run"),
    ],
)
def test_invalid_options_are_refused_before_any_request(words: list[str], said: str) -> None:
    assert said in _refusal(cli, *words)


def test_unreachable_api_server_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{port}")))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for command in (install, uninstall):
        said = _refusal(command, code=1)
        assert "the API server: " in said
        assert "nothing was changed" in said


def test_ctrl_c_reports_step_and_how_to_resume(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(url)))
        command = [sys.executable, "-m", "aliquot", "install", "--kubeconfig", str(tmp_path / "config")]
        # It asks, and is not answered.
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running, silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted at: inspect; run `aliquot install` with the same options to resume" in said
