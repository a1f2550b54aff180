"""What users see of a real cluster: kubectl's plugins, `explain POD` and `doctor`, through the real kubectl."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.build import binaries
from testbed.plane import ControlPlane, KubeScheduler
from testbed.processes import free_port
from testbed.programs.product import AliquotScheduler

MEM, COUNT = "aliyun.com/gpu-mem", "aliyun.com/gpu-count"
_PLUGINS = {
    "kubectl-inspect-gpushare": "from aliquot.cli.cluster.kubectl_inspect import main",
    "kubectl-aliquot": "from aliquot.cli.cluster.kubectl_aliquot import main",
    "aliquot": "from aliquot.__main__ import main",
}


class Shell:
    """A user's shell: kubectl and our commands on its PATH, and a kubeconfig."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self._plane, self._bin = plane, folder
        for name, line in _PLUGINS.items():
            (folder / name).write_text(f"#!{sys.executable}\n{line}\nmain()\n")
            (folder / name).chmod(0o755)
        os.symlink(binaries()["kubectl"], folder / "kubectl")

    def __call__(self, *words: str, kubeconfig: Path | None = None) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig or self._plane.kubeconfig),
            "HOME": str(self._bin),
        }
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def shell(clean: ControlPlane, tmp_path: Path) -> Shell:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Shell(clean, folder)


def wired(shell: Shell, url: str) -> dict[str, Any]:
    """What the product says of itself to kube-scheduler, for the version that answers."""
    said = shell("aliquot", "manifests", "scheduler-config", "--url", url, "-o", "json")
    assert said.returncode == 0, said.stderr
    config: dict[str, Any] = json.loads(said.stdout)
    config["leaderElection"] = {"leaderElect": False}  # a test does not wait for it
    return config


def test_the_views_show_what_the_scheduler_did(
    clean: ControlPlane,
    shell: Shell,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    """Two Pods, one on two cards, are bound through kube-scheduler; a third is too large and waits."""
    objects.create(clean, objects.node("n1", {MEM: 32, COUNT: 2}, labels={"gpushare": "true"}))
    kube_scheduler(wired(shell, aliquot_scheduler().url))
    two = objects.pod("two", {MEM: 12}, annotations={COUNT: "2"})
    objects.create(clean, objects.pod("one", {MEM: 3}), two, objects.pod("large", {MEM: 20}))
    objects.wait_bound(clean, "one", "two")

    inspected = shell("kubectl", "inspect", "gpushare")
    assert inspected.returncode == 0, inspected.stderr
    row = inspected.stdout.splitlines()[1].split()
    assert (row[0], sorted(row[2:4]), row[4]) == ("n1", ["6/16", "9/16"], "15/32")
    assert inspected.stdout.endswith("Allocated/Total GPU Memory In Cluster:\n15/32 (46%)  \n")
    detailed = shell("kubectl", "inspect", "gpushare", "-d", "n1").stdout.splitlines()
    assert ["two", "default", "6", "6"] in [line.split() for line in detailed]

    seen = shell("kubectl", "aliquot")
    assert seen.returncode == 0, seen.stderr
    assert "15/32" in seen.stdout
    assert "default/large" in seen.stdout
    assert "GPU memory: needs 20 GiB per card, the largest card has 16 GiB (2 cards)" in seen.stdout

    explained = shell("kubectl", "aliquot", "explain", "large")
    assert explained.returncode == 1
    assert explained.stdout.startswith("default/large  fits none of 1 node\n")
    assert shell("aliquot", "explain", "one").stdout.startswith("default/one  n1  ")


def test_doctor_finds_an_extender_that_is_not_wired_and_is_content_when_it_is(
    clean: ControlPlane,
    shell: Shell,
    aliquot_scheduler: Callable[..., AliquotScheduler],
    kube_scheduler: Callable[..., KubeScheduler],
) -> None:
    objects.create(clean, objects.node("n1", {MEM: 32, COUNT: 2}, labels={"gpushare": "true"}))
    kube_scheduler()
    objects.create(clean, objects.pod("lost", {MEM: 3}))
    objects.wait_bound(clean, "lost")
    reported = {finding["check"]: finding for finding in findings(shell) if finding["level"] == "finding"}
    assert "does not exist" in reported["scheduler"]["what"]
    assert "placed without Aliquot" in reported["extender"]["what"]
    assert reported["extender"]["about"] == ["default/lost"]

    ours = aliquot_scheduler()
    kube_scheduler(wired(shell, ours.url), name="wired")
    objects.delete_pod(clean, "lost")
    leading = objects.wait_until(lambda: [e for e in findings(shell) if e["check"] == "scheduler"], 20, "a check")
    assert [finding["level"] for finding in leading] == ["ok"]
    assert not [
        finding for finding in findings(shell) if finding["check"] == "extender" and finding["level"] == "finding"
    ]


def test_doctor_says_what_a_restricted_user_may_not_see(clean: ControlPlane, shell: Shell) -> None:
    nobody = clean.kubeconfig_for("default/nobody")
    reported = findings(shell, nobody)
    unseen = {finding["check"]: finding["what"] for finding in reported if finding["level"] == "cannot look"}
    assert {"nodes", "pods", "scheduler", "webhook"} <= set(unseen)
    assert all("forbidden" in what for what in unseen.values())
    inspected = shell("kubectl", "inspect", "gpushare", kubeconfig=nobody)
    assert inspected.returncode != 0
    assert "ask for a role" in inspected.stderr
    assert inspected.stderr.strip().count("\n") == 0 or "exit status 2" in inspected.stderr


def test_unauthorized_user_is_asked_to_log_in(clean: ControlPlane, shell: Shell, tmp_path: Path) -> None:
    said = yaml.safe_load(clean.kubeconfig.read_text())
    said["users"][0]["user"] = {"token": "wrong"}
    wrong = tmp_path / "wrong.kubeconfig"
    wrong.write_text(yaml.safe_dump(said))
    result = shell("aliquot", "doctor", kubeconfig=wrong)
    assert result.returncode == 2
    assert "log in again" in result.stderr
    said["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    wrong.write_text(yaml.safe_dump(said))
    result = shell("aliquot", "doctor", kubeconfig=wrong)
    assert result.returncode == 2
    assert "is this the right cluster?" in result.stderr


def findings(shell: Shell, kubeconfig: Path | None = None) -> list[dict[str, Any]]:
    result = shell("aliquot", "doctor", "-o", "json", kubeconfig=kubeconfig)
    assert result.returncode in (0, 1), result.stderr
    reported: list[dict[str, Any]] = json.loads(result.stdout)
    return reported


def test_doctor_tries_the_webhook_and_reports_when_it_is_gone(
    clean: ControlPlane, shell: Shell, aliquot_scheduler: Callable[..., AliquotScheduler]
) -> None:
    port = free_port()
    ours = aliquot_scheduler(f"--webhook-port={port}", f"--webhook-url=https://127.0.0.1:{port}")

    def trials() -> list[tuple[str, str]]:
        return [
            (str(finding["level"]), str(finding["what"]))
            for finding in findings(shell)
            if finding["check"] == "webhook"
        ]

    well = [("ok", "refuses a Pod that breaks a rule, and says which"), ("ok", "gives T9k Pods their toleration")]
    objects.wait_until(lambda: trials() == well, 30, "the webhook does its work", saw=trials)
    assert clean.api("GET", "/api/v1/namespaces/default/pods")["items"] == []
    ours.kill()
    level, what = trials()[0]
    assert level == "finding"
    assert "let a Pod in that breaks a rule" in what
