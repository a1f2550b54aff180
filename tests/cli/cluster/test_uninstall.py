"""`aliquot uninstall`: what it refuses, in which order it deletes, and what it leaves behind and finds again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.cli.cluster.uninstall import packaged_objects, uninstall
from aliquot.dialects.wire.ownobjects import MANAGED_LABEL
from kit.clusters.kubectl import invoked
from kit.clusters.uninstallapi import AGENTS, IMAGE, SPACE, FakeApi, kubeconfig, refusal


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    fake = FakeApi()
    url = f"http://127.0.0.1:{fake.server.server_address[1]}"
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(url)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield fake
    fake.server.shutdown()
    fake.server.server_close()


def test_uninstall_nodes_only_explains_helm_recovery(api: FakeApi) -> None:
    api.hold()
    assert "helm rollback RELEASE REVISION" in refusal(uninstall, "--nodes-only", code=1)
    assert "helm" not in refusal(uninstall, code=1)


def test_uninstall_refuses_while_pods_use_cards(api: FakeApi) -> None:
    api.hold()
    said = refusal(uninstall, code=1)
    assert "1 Pod uses shared cards: ml/p" in said
    assert "--keep-running" in said
    assert api.writes == []


ACCOUNT = "/api/v1/namespaces/aliquot-system/serviceaccounts/aliquot-agent"
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
    said = refusal(uninstall, *words, code=1)
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
    api.agents()
    api.hold()
    assert invoked(uninstall, "--keep-running").exit_code == 0
    api.answers.pop(AGENTS)
    api.answers.pop("/api/v1/pods")
    api.answers[ACCOUNT] = api.patched[ACCOUNT]
    metadata = {"name": "n1", "annotations": {"aliquot.dev/agent": "away"}}
    api.answers["/api/v1/nodes"] = {
        "items": [{"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    }
    pod = "/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"
    api.answers[pod] = {"status": {"phase": "Succeeded"}}
    assert invoked(uninstall).exit_code == 0
    (sweeper,) = api.created
    assert sweeper["spec"]["containers"][0]["image"] == IMAGE


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
    api.agents()
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
        MARK: f'{{"v":1,"image":"{IMAGE}"}}',
    }


CARDS = "/apis/apps/v1/namespaces/aliquot-system/daemonsets/aliquot-simulated-cards"


@pytest.mark.parametrize("words", [(), ("--nodes-only",)])
def test_uninstall_keep_running_keeps_simulated_cards_of_the_pods(api: FakeApi, words: tuple[str, ...]) -> None:
    api.agents()
    api.hold()
    api.answers[CARDS] = {"metadata": {"name": "aliquot-simulated-cards"}}
    api.answers[ACCOUNT] = {"imagePullSecrets": [{"name": "s"}]}
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
    api.agents()
    _annotated(api, left_behind='{"v":1,"image":"evil"}')
    assert invoked(uninstall, "--keep-running").exit_code == 0
    assert _sweeper(api)["image"] == IMAGE
    assert IMAGE in api.patched[NODE]["metadata"]["annotations"][MARK]


def test_uninstall_refuses_marked_node_with_running_pods(api: FakeApi) -> None:
    _annotated(api, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    api.hold()
    assert "1 Pod uses shared cards: ml/p" in refusal(uninstall, code=1)
    assert api.writes == []


def test_uninstall_marks_node_that_is_not_ready(api: FakeApi) -> None:
    api.agents()
    _annotated(api, ready="Unknown", agent="0.0.1")
    result = invoked(uninstall)
    assert result.exit_code == 1
    assert "node n1 is not ready" in result.stderr
    assert MARK in api.patched[NODE]["metadata"]["annotations"]


def test_uninstall_refuses_what_another_tool_installed(api: FakeApi) -> None:
    labels = {MANAGED_LABEL: "Helm"}
    program = {"metadata": {"name": "aliquot-agent", "namespace": "gpu", "labels": labels}}
    api.answers["/apis/apps/v1/daemonsets"] = {"items": [program]}
    said = refusal(uninstall)
    assert "gpu/aliquot-agent, by Helm" in said
    assert "`helm uninstall`" in said
    assert api.writes == []
    assert invoked(uninstall, "--nodes-only").exit_code == 0, "what Helm's own hook runs"


def test_uninstall_deletes_every_object_of_the_file(api: FakeApi) -> None:
    assert invoked(uninstall).exit_code == 0
    wanted = {str(obj["metadata"]["name"]) for obj in packaged_objects() if obj["kind"] != "Namespace"}
    assert wanted <= set(api.deleted)
    assert api.deleted[-1] == "aliquot-agent", "the account: it has the note for a second try"


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
    api.answers[ACCOUNT] = {"metadata": {"name": "aliquot-agent"}, "imagePullSecrets": [{"name": "mine"}]}
    assert invoked(uninstall).exit_code == 0
    assert api.created[0]["spec"]["imagePullSecrets"] == [{"name": "mine"}]


def test_sweepers_use_selinux_label_of_agents(api: FakeApi) -> None:
    _annotated(api, agent="0.0.1")
    label = {"type": "spc_t", "level": "s0"}
    inner = {"containers": [{"image": "i"}], "securityContext": {"seLinuxOptions": label}}
    api.agents({"spec": inner})
    assert invoked(uninstall).exit_code == 0
    assert api.created[0]["spec"]["securityContext"]["seLinuxOptions"] == label


def test_uninstall_creates_and_deletes_namespace_for_sweepers(api: FakeApi) -> None:
    _annotated(api, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    api.no_namespace = True
    assert invoked(uninstall, "--nodes-only").exit_code == 0
    assert _sweeper(api)["image"] == "reg/aliquot:5"
    assert api.deleted[-1] == "aliquot-system"


def test_sweepers_of_a_second_try_have_the_labels_of_the_agents(api: FakeApi) -> None:
    """A try before it has deleted the agents; Helm's hook names their labels."""
    _annotated(api, agent="0.0.1")
    assert invoked(uninstall, "--nodes-only", "--pod-label=team=gpu", "--pod-label", "a.b/c=").exit_code == 0
    labels = api.created[0]["metadata"]["labels"]
    assert (labels["team"], labels["a.b/c"], labels["app.kubernetes.io/component"]) == ("gpu", "", "sweep")


def test_marked_node_is_swept_with_the_labels_of_the_mark(api: FakeApi) -> None:
    _annotated(api, left_behind='{"v":1,"image":"i","labels":{"team":"gpu","app.kubernetes.io/component":"agent"}}')
    assert invoked(uninstall).exit_code == 0
    labels = api.created[0]["metadata"]["labels"]
    assert (labels["team"], labels["app.kubernetes.io/component"]) == ("gpu", "sweep")


def test_mark_names_the_labels_of_the_agents(api: FakeApi) -> None:
    _annotated(api, agent="0.0.1", ready="False")
    template = {"metadata": {"labels": {"team": "gpu"}}, "spec": {"containers": [{"image": "i"}]}}
    api.agents(template)
    assert invoked(uninstall).exit_code == 1
    assert api.patched[NODE]["metadata"]["annotations"][MARK] == '{"v":1,"image":"i","labels":{"team":"gpu"}}'


def test_pod_label_without_a_value_is_refused(api: FakeApi) -> None:
    result = invoked(uninstall, "--pod-label", "team")
    assert result.exit_code == 2
    assert "--pod-label team: KEY=VALUE is wanted" in result.stderr
