"""`aliquot install` and `upgrade` before they write anything: what is refused, and what it says."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import aliquot
from aliquot.cli.install.install import install, upgrade
from aliquot.cli.install.options import packaged_objects
from aliquot.cli.install.uninstall import uninstall
from aliquot.cli.main import cli
from aliquot.dialects.wire.install import record as installrecord
from aliquot.dialects.wire.install.deployment import MANAGED_LABEL, Options
from kit.clusters.installapi import OPTIONS, RECORD, FakeApi, kubeconfig, refusal
from kit.clusters.kubectl import invoked


def _running(path: str, name: str, **more: Any) -> Callable[[FakeApi], None]:
    """Such a program is on the cluster."""
    spec = {"template": {"spec": {"containers": [{"image": more.pop("image", "theirs:1")}]}}}
    found = {"metadata": {"name": name, "namespace": "kube-system", **more}, "spec": spec}
    return lambda api: api.answers.update(
        {f"{path}?metadata.name={name}": {"items": [found]}, path: {"items": [found]}}
    )


def test_install_finds_kube_scheduler_image_or_requires_it(api: FakeApi) -> None:
    said = refusal(install)
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
    said = refusal(install, "--kube-scheduler-image", "k")
    assert "gpushare: kube-system/gpushare-device-plugin-ds" in said
    assert "docs/migration.md" in said
    assert api.writes == []


def test_install_refuses_beside_own_drop_in(api: FakeApi) -> None:
    _running("/apis/apps/v1/daemonsets", "qgpu-manager", image="reg/aliquot/aliquot:1")(api)
    said = refusal(install, "--kube-scheduler-image", "k")
    assert "aliquot, as a drop-in: kube-system/qgpu-manager" in said
    assert "docs/dropin.md" in said
    assert api.writes == []


OTHERS = {"metadata": {"name": "gpu-1", "labels": {}}, "status": {"capacity": {"nvidia.com/gpu": "2"}}}


def test_install_and_upgrade_refuse_nodes_of_another_plugin_with_the_commands(api: FakeApi) -> None:
    api.answers["/api/v1/nodes"] = {"items": [OTHERS]}
    for command in (install, upgrade):
        said = refusal(command, "--kube-scheduler-image", "k")
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
    said = refusal(install, "--kube-scheduler-image", "k")
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
    said = refusal(command, "--kube-scheduler-image", "k", "--mode", "hami")
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
            assert "--nodes: node gpu-1: " in refusal(install, *given)
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
        assert "`helm upgrade`" in refusal(command, "--kube-scheduler-image", "k")
    assert "`helm uninstall`" in refusal(uninstall)


def test_install_names_missing_rights(api: FakeApi) -> None:
    api.allowed = False
    assert "your account may not create namespaces, create clusterroles" in refusal(install)


def test_install_refuses_old_kubernetes(api: FakeApi) -> None:
    api.answers["/version"] = {"gitVersion": "v1.27.0"}
    assert "Kubernetes v1.27.0: 1.28 or later is required" in refusal(install)


@pytest.mark.parametrize(("version", "wanted"), [("v1.28.15", True), ("v1.29.0", False)])
def test_install_takes_the_environment_from_annotations_before_1_29(api: FakeApi, version: str, wanted: bool) -> None:
    api.answers["/version"] = {"gitVersion": version}
    result = invoked(install, "--dry-run", "-o", "yaml", "--kube-scheduler-image", "kube-scheduler:v1")
    assert ("--env-by-annotation" in result.stdout) is wanted


def test_upgrade_refuses_without_installation(api: FakeApi) -> None:
    assert "nothing is installed in aliquot-system" in refusal(upgrade)


def test_install_refuses_to_change_existing_installation(api: FakeApi) -> None:
    api.record()
    assert "0.0.1 is installed in aliquot-system" in refusal(install)


def test_upgrade_keeps_registry_and_options_not_given(api: FakeApi) -> None:
    api.record()
    result = invoked(upgrade, "--dry-run", "-o", "yaml", "--mode", "t9k")
    assert result.exit_code == 0, result.output
    assert f"here/aliquot:{aliquot.__version__}" in result.stdout
    assert "--dialects=t9k" in result.stdout
    assert "kube-scheduler:v1.36.4" in result.stdout


@pytest.mark.parametrize("image", ["here/aliquot@sha256:1", "here/aliquot@sha512:" + 64 * "a", "a b", "@"])
def test_invalid_image_is_refused(api: FakeApi, image: str) -> None:
    assert f'--image: "{image}" is not allowed: REPOSITORY:TAG, or REPOSITORY@sha256:' in refusal(
        install, "--image", image
    )


def test_image_by_digest_is_used_as_it_is_and_asked_for_in_an_upgrade(api: FakeApi) -> None:
    digest = f"here/aliquot@sha256:{64 * 'a'}"
    words = ("--dry-run", "-o", "yaml", "--kube-scheduler-image", "kube-scheduler:v1.36.4")
    result = invoked(install, *words, "--image", digest)
    assert f"image: {digest}" in result.stdout, result.output
    api.record(options=replace(OPTIONS, image=digest))
    assert "names one image by its digest" in refusal(upgrade)


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
    assert "a newer `aliquot` may be able to read it" in refusal(install)
    assert api.writes == []


def test_install_refuses_unknown_node_before_any_write(api: FakeApi) -> None:
    said = refusal(install, "--kube-scheduler-image", "ks:1", "--nodes", "n7")
    assert "--nodes: there is no node n7; `kubectl get nodes` lists them" in said
    assert api.writes == []


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
    assert said in refusal(cli, *words)


def test_unreachable_api_server_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(f"http://127.0.0.1:{port}")))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for command in (install, uninstall):
        said = refusal(command, code=1)
        assert "the API server: " in said
        assert "nothing was changed" in said
