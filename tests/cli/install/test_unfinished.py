"""Installations that failed, were broken off, or were not waited for: rolled back, resumed, settled."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml

import aliquot
from aliquot.cli.install.install import install, upgrade
from aliquot.cli.install.options import packaged_objects
from aliquot.cli.install.uninstall import uninstall
from aliquot.dialects.wire.install import record as installrecord
from aliquot.dialects.wire.install.deployment import identity
from kit.clusters.installapi import OPTIONS, RECORD, FakeApi, kubeconfig, refusal, rolled_out
from kit.clusters.kubectl import invoked


def test_failed_install_rolls_back_to_settled_installation(api: FakeApi) -> None:
    api.record(aliquot.__version__)
    result = invoked(install, "--timeout", "0s")
    assert result.exit_code == 1
    assert f"rolled back to {aliquot.__version__}" in result.stderr
    assert api.deleted == []


@pytest.mark.parametrize(
    ("ready", "said"),
    [("True", "rolled back: nothing is left"), ("Unknown", "node n1 is not ready")],
)
def test_failed_first_install_says_what_is_left_when_it_is_rolled_back(api: FakeApi, ready: str, said: str) -> None:
    node = {
        "metadata": {"name": "n1", "annotations": {"aliquot.dev/agent": "0.0.1"}},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }
    api.answers["/api/v1/nodes"] = {"items": [node]}
    api.answers["/api/v1/namespaces/aliquot-system/pods/aliquot-sweep-n1"] = {"status": {"phase": "Succeeded"}}
    words = ("--timeout", "0s", "--kube-scheduler-image", "kube-scheduler:v1.36.4")
    result = invoked(install, *words)
    assert result.exit_code == 1
    assert said in result.stderr
    assert ("rolled back: what is named above is left: run `aliquot uninstall`" in result.stderr) is (ready != "True")


def test_failed_install_says_why_no_pod_is_let_in(api: FakeApi) -> None:
    """As in a namespace where Pod Security is enforced: its Pods do not exist, so none of them has an event."""
    why = 'Error creating: pods "aliquot-agent-x" is forbidden: violates PodSecurity "baseline:latest": host namespaces'
    events = [
        {"involvedObject": {"name": "aliquot-agent"}, "message": "earlier", "lastTimestamp": "2026-01-01T00:00:00Z"},
        {"involvedObject": {"name": "aliquot-agent"}, "message": why, "lastTimestamp": "2026-01-01T00:00:09Z"},
        {"involvedObject": {"name": "theirs"}, "message": "other", "lastTimestamp": "2026-01-01T00:00:10Z"},
    ]
    api.answers["/api/v1/namespaces/aliquot-system/events?reason=FailedCreate"] = {"items": events}
    api.record(aliquot.__version__)
    result = invoked(install, "--timeout", "0s")
    assert result.exit_code == 1
    assert f"aliquot-agent gets no Pods: {why}" in result.stderr
    assert "other" not in result.stderr


@pytest.mark.parametrize("command", [install, upgrade])
def test_failed_install_keeps_unsettled_installation_with_pods(api: FakeApi, command: click.Command) -> None:
    """As by --no-wait."""
    api.record(settled=False)
    api.hold()
    result = invoked(command, "--timeout", "0s", "--image", "here/aliquot:2")
    assert result.exit_code == 1
    assert "not rolled back" in result.stderr
    assert api.deleted == []


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
        rolled_out(api, 2)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert result.exit_code == 0, result.output
        assert "note" not in result.stderr
        assert api.writes == [], "--dry-run"

    @pytest.mark.parametrize("command", [install, upgrade])
    def test_no_wait_installation_that_is_not_ready_is_annotated(self, api: FakeApi, command: click.Command) -> None:
        _applied(api)
        rolled_out(api, 1)
        result = invoked(command, "--dry-run", "-o", "yaml")
        assert "was applied with --no-wait and is not ready yet: resuming" in result.stderr
        assert "not finished" not in result.stderr

    def test_no_wait_installation_is_changed_only_by_upgrade(self, api: FakeApi) -> None:
        _applied(api)
        rolled_out(api, 2)
        assert "use `aliquot upgrade`" in refusal(install, "--mode", "t9k")

    @pytest.mark.parametrize(("ready", "back"), [(2, f"aliquot/aliquot:{aliquot.__version__}"), (1, None)])
    def test_no_wait_installation_is_rollback_target_if_ready(self, api: FakeApi, ready: int, back: str | None) -> None:
        _applied(api)
        rolled_out(api, ready)
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
    rolled_out(api, 2)
    gone = invoked(upgrade, "--no-wait", "--image", "here/aliquot:2")
    assert gone.exit_code == 0, gone.output
    parsed = installrecord.parse_record(api.patched[RECORD])
    assert isinstance(parsed, installrecord.Record)
    assert identity(role) in parsed.objects
    api.answers[RECORD] = api.patched[RECORD]
    invoked(upgrade, "--timeout", "0s")
    assert "of-another" in api.deleted


def test_ctrl_c_reports_step_and_how_to_resume(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig(url)))
        command = [sys.executable, "-m", "aliquot", "install", "--kubeconfig", str(tmp_path / "config")]
        # It asks, and is not answered.
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running, silent.accept()[0]:
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=20)
    assert running.returncode == 130
    assert "interrupted at: inspect; run `aliquot install` with the same options to resume" in said
