"""`aliquot install`, `upgrade` and `uninstall` before they write anything: what is refused, and what it says."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
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
from aliquot.cli.install.options import rendered
from aliquot.cli.install.uninstall import uninstall
from aliquot.cli.main import cli
from aliquot.dialects.wire import deployment as made
from kit.kubectl import invoked

SERVER = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
RECORD = "/api/v1/namespaces/aliquot-system/configmaps/aliquot-installation"
SPACE = "/api/v1/namespaces/aliquot-system"
OPTIONS = made.Options(image="here/aliquot:0.0.1", kube_scheduler_image="kube-scheduler:v1.36.4")


class Paper:
    """An API server that answers what was written down, and notes what it was asked to change."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {"/version": {"gitVersion": "v1.36.4"}}
        self.writes: list[str] = []
        self.created: list[Any] = []
        self.patched: dict[str, Any] = {}
        self.allowed = True
        self.homeless = False  # whether the namespace is missing, until somebody makes it
        paper = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                chosen = parse_qs(parts.query).get("fieldSelector", [""])[0]
                found = paper.answers.get(f"{parts.path}?{chosen}" if chosen else parts.path)
                if found is None and parts.path.rpartition("/")[2].endswith("s"):
                    found = {"items": []}
                self._say(404 if found is None else 200, found or {"message": "not found"})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if paper.homeless:
                    self._say(404, {"message": 'namespaces "aliquot-system" not found'})
                    return
                if self.path != SERVER:
                    paper.writes.append(f"POST {self.path}")
                    paper.created.append(body)
                self._say(201, {"status": {"allowed": paper.allowed}})

            def do_PATCH(self) -> None:
                paper.writes.append(f"PATCH {self.path}")
                paper.patched[urlsplit(self.path).path] = json.loads(
                    self.rfile.read(int(self.headers["Content-Length"]))
                )
                if urlsplit(self.path).path == SPACE:
                    paper.answers[SPACE], paper.homeless = paper.patched[SPACE], False
                self._say(200, {})

            def do_DELETE(self) -> None:
                paper.writes.append(f"DELETE {self.path}")
                if urlsplit(self.path).path == SPACE:
                    paper.answers.pop(SPACE, None)
                self._say(200, {})

            def _say(self, status: int, body: Any) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Whoever is refused does not wait for the other answers."""

        self.server = Server(("127.0.0.1", 0), Handler)
        Thread(target=self.server.serve_forever, daemon=True).start()

    def record(self, version: str = "0.0.1", **more: Any) -> None:
        record = made.new_record(version, OPTIONS, rendered(), **{"settled": True, **more})
        self.answers[RECORD] = made.render_record(record)

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
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Paper]:
    made_up = Paper()
    url = f"http://127.0.0.1:{made_up.server.server_address[1]}"
    (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(url)))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    yield made_up
    made_up.server.shutdown()
    made_up.server.server_close()


def _refusal(command: click.Command, *words: str, code: int = 2) -> str:
    result = invoked(command, *words)
    assert result.exit_code == code, result.output
    return result.stderr.splitlines()[-1]


def _on(path: str, name: str, **more: Any) -> Callable[[Paper], None]:
    """Such a program is on the cluster."""
    spec = {"template": {"spec": {"containers": [{"image": more.pop("image", "theirs:1")}]}}}
    found = {"metadata": {"name": name, "namespace": "kube-system", **more}, "spec": spec}
    return lambda paper: paper.answers.update(
        {f"{path}?metadata.name={name}": {"items": [found]}, path: {"items": [found]}}
    )


def test_the_image_of_the_kube_scheduler_is_found_or_asked_for(paper: Paper) -> None:
    said = _refusal(install)
    assert "--kube-scheduler-image is missing" in said
    assert "v1.36.4" in said
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"image": "reg/kube-scheduler:v1.36.4"}]}}
    paper.answers["/api/v1/namespaces/kube-system/pods"] = {"items": [pod]}
    result = invoked(install, "--dry-run", "-o", "yaml")
    assert result.exit_code == 0, result.output
    assert "reg/kube-scheduler:v1.36.4" in result.stdout
    assert paper.writes == []


def test_another_product_on_the_same_cards_is_told_with_where_to_read(paper: Paper) -> None:
    _on("/apis/apps/v1/daemonsets", "gpushare-device-plugin-ds")(paper)
    said = _refusal(install, "--kube-scheduler-image", "k")
    assert "gpushare: kube-system/gpushare-device-plugin-ds" in said
    assert "docs/migration.md" in said
    assert paper.writes == []


def test_the_vendors_manifests_with_our_image_are_ours_and_would_be_a_second_installation(paper: Paper) -> None:
    _on("/apis/apps/v1/daemonsets", "qgpu-manager", image="reg/aliquot/aliquot:1")(paper)
    said = _refusal(install, "--kube-scheduler-image", "k")
    assert "aliquot, as a drop-in: kube-system/qgpu-manager" in said
    assert "docs/dropin.md" in said
    assert paper.writes == []


def test_one_that_helm_installed_is_helms(paper: Paper) -> None:
    labels = {made.MANAGED_LABEL: "Helm"}
    _on("/apis/apps/v1/daemonsets", "aliquot-agent", labels=labels)(paper)
    for command in (install, upgrade):
        assert "`helm upgrade`" in _refusal(command, "--kube-scheduler-image", "k")
    assert "`helm uninstall`" in _refusal(uninstall)


def test_rights_that_are_lacking_are_named(paper: Paper) -> None:
    paper.allowed = False
    assert "your account may not create namespaces, create clusterroles" in _refusal(install)


def test_a_cluster_that_is_too_old_is_refused(paper: Paper) -> None:
    paper.answers["/version"] = {"gitVersion": "v1.27.0"}
    assert "Kubernetes v1.27.0: 1.28 or later is wanted" in _refusal(install)


def test_upgrading_nothing_says_so(paper: Paper) -> None:
    assert "nothing is installed in aliquot-system" in _refusal(upgrade)


def test_an_installation_that_is_there_is_changed_by_upgrade_only(paper: Paper) -> None:
    paper.record()
    assert "0.0.1 is installed in aliquot-system" in _refusal(install)


def test_an_upgrade_keeps_the_registry_and_the_options_that_are_not_given(paper: Paper) -> None:
    paper.record()
    result = invoked(upgrade, "--dry-run", "-o", "yaml", "--mode", "t9k")
    assert result.exit_code == 0, result.output
    assert f"here/aliquot:{aliquot.__version__}" in result.stdout
    assert "--dialects=t9k" in result.stdout
    assert "kube-scheduler:v1.36.4" in result.stdout


def test_an_upgrade_takes_off_what_is_given_as_nothing(paper: Paper) -> None:
    given = ("--node-selector", "pool=gpu", "--node-selector", "zone=a", "--runtime-class", "nvidia")
    options = made.Options(
        image=OPTIONS.image, kube_scheduler_image="k", node_selector={"pool": "gpu"}, runtime_class="nvidia"
    )
    record = made.new_record("0.0.1", options, rendered(), settled=True)
    paper.answers[RECORD] = made.render_record(record)

    def agent(*words: str) -> Any:
        result = invoked(upgrade, "--dry-run", "-o", "yaml", *words)
        assert result.exit_code == 0, result.output
        (spec,) = [each["spec"] for each in yaml.safe_load_all(result.stdout) if each["kind"] == "DaemonSet"]
        return spec["template"]["spec"]

    assert agent()["nodeSelector"] == {"pool": "gpu"}
    assert agent(*given)["nodeSelector"] == {"pool": "gpu", "zone": "a"}
    bare = agent("--node-selector", "", "--runtime-class", "")
    assert not {"nodeSelector", "runtimeClassName"} & set(bare)


def test_a_record_that_cannot_be_read_is_not_overwritten(paper: Paper) -> None:
    paper.answers[RECORD] = {"data": {"record": "{}"}}
    assert "a newer `aliquot` may read it" in _refusal(install)
    assert paper.writes == []


def test_a_node_that_is_not_there_is_told_before_anything_is_made(paper: Paper) -> None:
    said = _refusal(install, "--kube-scheduler-image", "ks:1", "--nodes", "n7")
    assert "--nodes: there is no node n7; `kubectl get nodes` names them" in said
    assert paper.writes == []


def test_who_uninstalls_by_helm_is_told_how_helm_goes_on(paper: Paper) -> None:
    paper.hold()
    assert "helm rollback RELEASE REVISION" in _refusal(uninstall, "--nodes-only", code=1)
    assert "helm" not in _refusal(uninstall, code=1)


def test_pods_on_our_cards_are_named_and_nothing_is_done(paper: Paper) -> None:
    paper.hold()
    said = _refusal(uninstall, code=1)
    assert "1 Pod is on our cards: ml/p" in said
    assert "--keep-running" in said
    assert paper.writes == []


def test_pods_are_deleted_when_nobody_places_anew_what_their_controllers_make_of_it(paper: Paper) -> None:
    paper.hold()
    assert invoked(uninstall, "--delete-pods").exit_code == 0
    assert paper.deleted[:3] == ["aliquot", "aliquot-scheduler", "p"]
    assert paper.deleted.index("aliquot-agent") > paper.deleted.index("p"), "they end under an agent"


def test_nodes_are_swept_with_the_installed_image_when_the_agents_are_gone_already(paper: Paper) -> None:
    """As after a kill: the same command goes on, and no other image can be had from here."""
    paper.record()
    metadata = {"name": "n1", "annotations": {"aliquot.dev/agent": "away"}}
    paper.answers["/api/v1/nodes"] = {
        "items": [{"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]
    }
    pod = "/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"
    paper.answers[pod] = {"status": {"phase": "Succeeded"}}
    assert invoked(uninstall).exit_code == 0
    (sweeper,) = paper.created
    assert sweeper["spec"]["containers"][0]["image"] == OPTIONS.image


# --- what is left behind, and found again ----------------------------------------------------------------------------

NODE = "/api/v1/nodes/n1"
MARK = "aliquot.dev/left-behind"


def _noted(paper: Paper, *, ready: str = "True", **annotations: str) -> None:
    """The node, with these annotations of ours; a Pod that sweeps it ends well."""
    notes = {f"aliquot.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    metadata = {"name": "n1", "annotations": notes}
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    paper.answers["/api/v1/nodes"] = {"items": [{"metadata": metadata, "status": status}]}
    paper.answers["/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"] = {"status": {"phase": "Succeeded"}}


def _sweeper(paper: Paper) -> Any:
    (made_up,) = paper.created
    return made_up["spec"]["containers"][0]


def test_a_node_where_pods_run_on_says_so_and_with_what_it_is_to_be_swept(paper: Paper) -> None:
    paper.record()
    paper.hold()
    _noted(paper, agent="0.0.1", inventory="{}")
    result = invoked(uninstall, "--keep-running")
    assert result.exit_code == 0, result.output
    assert "finishes it" in result.stdout
    assert "--keep-running" in _sweeper(paper)["args"]
    notes = paper.patched[NODE]["metadata"]["annotations"]
    assert notes == {
        "aliquot.dev/agent": None,
        "aliquot.dev/inventory": None,
        MARK: f'{{"v":1,"image":"{OPTIONS.image}"}}',
    }


@pytest.mark.parametrize("words", [(), ("--nodes-only",), ("--nodes-only", "--namespace", "aliquot-system")])
def test_it_is_swept_by_the_same_image_when_they_are_gone_and_the_mark_goes_too(
    paper: Paper, words: tuple[str, ...]
) -> None:
    """The record, the agents and the namespace are gone by then."""
    _noted(paper, left_behind='{"v":1,"image":"reg/aliquot:5","kubelet":"/data/kubelet"}')
    assert invoked(uninstall, *words).exit_code == 0
    assert _sweeper(paper)["image"] == "reg/aliquot:5"
    assert "--kubelet-dir=/data/kubelet" in _sweeper(paper)["args"]
    assert "--keep-running" not in _sweeper(paper)["args"]
    assert paper.patched[NODE]["metadata"]["annotations"] == {MARK: None}


def test_a_marks_image_counts_only_where_nothing_is_installed_any_more(paper: Paper) -> None:
    """Before Kubernetes 1.30 an agent's account may write it on any Node; when that is gone, none is of before."""
    paper.record()
    _noted(paper, left_behind='{"v":1,"image":"evil"}')
    assert invoked(uninstall, "--keep-running").exit_code == 0
    assert _sweeper(paper)["image"] == OPTIONS.image
    assert OPTIONS.image in paper.patched[NODE]["metadata"]["annotations"][MARK]


def test_pods_that_still_run_on_are_named_then_too(paper: Paper) -> None:
    _noted(paper, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    paper.hold()
    assert "1 Pod is on our cards: ml/p" in _refusal(uninstall, code=1)
    assert paper.writes == []


def test_a_node_that_is_away_is_marked_and_found_again_when_it_is_back(paper: Paper) -> None:
    paper.record()
    _noted(paper, ready="Unknown", agent="0.0.1")
    result = invoked(uninstall)
    assert result.exit_code == 1
    assert "node n1 is not ready" in result.stderr
    assert MARK in paper.patched[NODE]["metadata"]["annotations"]


@pytest.mark.parametrize("mark", ["", "{}", '{"v":2,"image":"i"}', '{"v":1,"image":"a b"}', '{"v":1,"image":""}'])
def test_a_mark_that_cannot_be_read_is_told_and_asks_for_the_image(paper: Paper, mark: str) -> None:
    _noted(paper, left_behind=mark)
    result = invoked(uninstall)
    assert result.exit_code == 1
    assert f'metadata.annotations["{MARK}"]' in result.stderr
    assert paper.created == []
    assert NODE not in paper.patched, "the mark stays"
    assert invoked(uninstall, "--image", "reg/aliquot:6").exit_code == 0
    assert _sweeper(paper)["image"] == "reg/aliquot:6"


def test_the_sweepers_are_pulled_by_the_agents_secrets(paper: Paper) -> None:
    _noted(paper, agent="0.0.1")
    account = "/api/v1/namespaces/aliquot-system/serviceaccounts/aliquot-agent"
    paper.answers[account] = {"metadata": {"name": "aliquot-agent"}, "imagePullSecrets": [{"name": "mine"}]}
    assert invoked(uninstall).exit_code == 0
    assert paper.created[0]["spec"]["imagePullSecrets"] == [{"name": "mine"}]


def test_the_sweepers_are_labelled_as_the_agents_are(paper: Paper) -> None:
    _noted(paper, agent="0.0.1")
    label = {"type": "spc_t", "level": "s0"}
    inner = {"containers": [{"image": "i"}], "securityContext": {"seLinuxOptions": label}}
    agents = "/apis/apps/v1/namespaces/aliquot-system/daemonsets/aliquot-agent"
    paper.answers[agents] = {"metadata": {"name": "aliquot-agent"}, "spec": {"template": {"spec": inner}}}
    assert invoked(uninstall).exit_code == 0
    assert paper.created[0]["spec"]["securityContext"]["seLinuxOptions"] == label


def test_a_namespace_is_made_for_the_sweepers_where_it_is_gone_and_goes_with_them(paper: Paper) -> None:
    _noted(paper, left_behind='{"v":1,"image":"reg/aliquot:5"}')
    paper.homeless = True
    assert invoked(uninstall, "--nodes-only").exit_code == 0
    assert _sweeper(paper)["image"] == "reg/aliquot:5"
    assert paper.deleted[-1] == "aliquot-system"


def test_an_installation_that_stood_is_not_taken_away_by_one_more_that_does_not_come_up(paper: Paper) -> None:
    paper.record(aliquot.__version__)
    result = invoked(install, "--timeout", "0s")
    assert result.exit_code == 1
    assert f"rolled back to {aliquot.__version__}" in result.stderr
    assert paper.deleted == []


@pytest.mark.parametrize("command", [install, upgrade])
def test_nor_is_one_that_was_never_seen_to_stand_while_pods_are_on_its_cards(
    paper: Paper, command: click.Command
) -> None:
    """As by --no-wait."""
    paper.record(settled=False)
    paper.hold()
    result = invoked(command, "--timeout", "0s", "--image", "here/aliquot:2")
    assert result.exit_code == 1
    assert "left as it is" in result.stderr
    assert paper.deleted == []


def _stands(paper: Paper, ready: int) -> None:
    """So many of the two schedulers are ready, and all of the agents."""
    found = {
        "deployments/aliquot-scheduler": {"updatedReplicas": ready, "availableReplicas": ready, "replicas": ready},
        "daemonsets/aliquot-agent": {},
    }
    for name, status in found.items():
        obj = {"metadata": {"name": name.rpartition("/")[2]}, "spec": {"replicas": 2}, "status": status}
        paper.answers[f"/apis/apps/v1/namespaces/aliquot-system/{name}"] = obj


def _applied(paper: Paper) -> None:
    """As --no-wait left it, by its own words."""
    assert invoked(install, "--no-wait", "--kube-scheduler-image", "kube-scheduler:v1.36.4").exit_code == 0
    paper.answers[RECORD] = paper.patched[RECORD]
    paper.writes.clear()


class TestOneThatNobodyWaitedFor:
    def test_is_noted_as_whole(self, paper: Paper) -> None:
        _applied(paper)
        record = made.parse_record(paper.answers[RECORD])
        assert isinstance(record, made.Record)
        assert (record.applied, record.settled) == (True, False)

    @pytest.mark.parametrize("command", [install, upgrade])
    def test_is_no_news_once_it_stands(self, paper: Paper, command: click.Command) -> None:
        _applied(paper)
        _stands(paper, 2)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert result.exit_code == 0, result.output
        assert "note" not in result.stderr
        assert paper.writes == [], "--dry-run"

    @pytest.mark.parametrize("command", [install, upgrade])
    def test_is_said_not_to_stand_while_it_does_not(self, paper: Paper, command: click.Command) -> None:
        _applied(paper)
        _stands(paper, 1)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert "was applied by --no-wait, and does not stand yet: going on" in result.stderr
        assert "not finished" not in result.stderr

    def test_is_changed_by_upgrade_only_once_it_stands(self, paper: Paper) -> None:
        _applied(paper)
        _stands(paper, 2)
        assert "`aliquot upgrade` changes it" in _refusal(install, "--mode", "t9k")

    @pytest.mark.parametrize(("ready", "back"), [(2, f"aliquot/aliquot:{aliquot.__version__}"), (1, None)])
    def test_is_gone_back_to_if_it_stood(self, paper: Paper, ready: int, back: str | None) -> None:
        _applied(paper)
        _stands(paper, ready)
        assert invoked(upgrade, "--no-wait", "--image", "here/aliquot:2").exit_code == 0
        record = made.parse_record(paper.patched[RECORD])
        assert isinstance(record, made.Record)
        before = made.record_before(record)
        assert (before.options.image if before else None) == back

    def test_is_uninstalled_without_a_word_of_it(self, paper: Paper) -> None:
        _applied(paper)
        result = invoked(uninstall)
        assert result.exit_code == 0, result.output
        assert "not finished" not in result.stderr
        assert "aliquot-installation" in paper.deleted


def test_one_that_was_killed_half_way_is_said_to_be_gone_on_with(paper: Paper) -> None:
    paper.record(aliquot.__version__, settled=False)
    assert "was begun and not finished: going on" in invoked(install, "--dry-run").stderr


def test_what_only_one_made_that_never_stood_goes_when_the_next_stands(paper: Paper) -> None:
    """A newer release, say, that was broken off, and is gone back from."""
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "of-another"}}
    paper.answers[RECORD] = made.render_record(made.new_record("9.9.9", OPTIONS, [*rendered(), role]))
    _stands(paper, 2)
    gone = invoked(upgrade, "--no-wait", "--image", "here/aliquot:2")
    assert gone.exit_code == 0, gone.output
    told = made.parse_record(paper.patched[RECORD])
    assert isinstance(told, made.Record)
    assert made.identity(role) in told.objects
    paper.answers[RECORD] = paper.patched[RECORD]
    invoked(upgrade, "--timeout", "0s")
    assert "of-another" in paper.deleted


def test_an_upgrade_labels_no_node_again(paper: Paper) -> None:
    """Its owner may have taken the label off since, or the node away."""
    paper.record(labelled={"n1": {"gpushare": "true"}})
    invoked(upgrade, "--no-wait")
    assert any("aliquot-agent" in write for write in paper.writes)
    assert not any("/nodes/" in write for write in paper.writes)


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
        (["install", "--driver-folder", "/var/run/cdi"], "is looked into anyway"),
        (["uninstall", "--keep-running", "--delete-pods"], "do not go together"),
        (["install", "--kubeconfig", "/no/such"], "/no/such"),
        (["install", "-o", "yaml"], "goes with --dry-run"),
    ],
)
def test_what_is_typed_wrongly_is_told_before_anything_is_asked(words: list[str], said: str) -> None:
    assert said in _refusal(cli, *words)


def test_an_api_server_that_is_away_is_told_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{port}")))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    for command in (install, uninstall):
        said = _refusal(command, code=1)
        assert "the API server: " in said
        assert "nothing was changed" in said


def test_ctrl_c_says_where_it_was_and_what_goes_on(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "config").write_text(yaml.safe_dump(_kubeconfig(url)))
        command = [sys.executable, "-m", "aliquot", "install", "--kubeconfig", str(tmp_path / "config")]
        # It asks, and is not answered.
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running, silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted at: look; `aliquot install` with the same options goes on" in said
