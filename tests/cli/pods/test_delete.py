"""`aliquot delete`: by name, by file, all of a kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from kit.machines.fakedaemon import FakeDaemon, a_pod, a_status, a_tenant, a_workload

Json = dict[str, Any]


def delete(*words: str) -> Result:
    return CliRunner().invoke(cli, ["delete", *words])


def gone(request: Json) -> list[Json]:
    """A daemon that ends whatever is named, but ghosts."""
    if request["name"] == "ghost":
        return [{"error": {"kind": "unknown-name", "name": "default/ghost", "names": ["default/train"]}}]
    key = f"{request['namespace']}/{request['name']}"
    return [{"event": {"deleting": key}}, {"ok": {"deleted": [key, f"{key}-1"]}}]


@pytest.fixture(autouse=True)
def deletes(daemon: FakeDaemon) -> None:
    daemon.answers["delete"] = gone


def asked(daemon: FakeDaemon) -> list[tuple[str, str, str]]:
    return sorted((request["kind"], request["namespace"], request["name"]) for request in daemon.requests("delete"))


def test_delete_prints_like_kubectl(daemon: FakeDaemon) -> None:
    assert delete("pod", "train").stdout == 'pod "train" deleted\n'
    assert delete("sts/web", "-n", "team").stdout == 'statefulset.apps "web" deleted from team (2 Pods)\n'
    assert asked(daemon) == [("Pod", "default", "train"), ("StatefulSet", "team", "web")]


def test_delete_by_label(daemon: FakeDaemon) -> None:
    web: Json = {"labels": {"app": "web"}}
    owner = {"kind": "StatefulSet", "name": "web"}
    pods = [a_pod("a", **web), a_pod("b"), a_pod("c", "team", **web), a_pod("web-0", owner=owner, **web)]
    daemon.answers["status"] = a_status(*pods, workloads=[a_workload("StatefulSet", "web", **web)])
    assert delete("sts,pods", "-l", "app=web").exit_code == 0
    assert asked(daemon) == [("Pod", "default", "a"), ("StatefulSet", "default", "web")]
    assert delete("pods", "-l", "app=api").stderr == "nothing to delete\n"


@pytest.mark.parametrize(
    ("words", "grace"), [([], None), (["--grace", "90s"], 90.0), (["--grace-period", "0"], 0.0), (["--now"], 1.0)]
)
def test_delete_grace_period(daemon: FakeDaemon, words: list[str], grace: float | None) -> None:
    delete("pod", "train", *words)
    assert daemon.requests("delete")[0]["grace"] == grace


def test_delete_objects_of_files(daemon: FakeDaemon, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "kind: Service\nmetadata: {name: web}\n---\nkind: Pod\nmetadata: {name: a}\n---\n"
        "kind: Deployment\nmetadata: {name: b, namespace: team}\n"
    )
    assert delete("-f", str(file)).exit_code == 0
    assert asked(daemon) == [("Deployment", "team", "b"), ("Pod", "default", "a")]


def test_delete_all_in_namespace(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("a"), a_pod("b"), a_pod("c", "team"))
    assert delete("pods", "--all").exit_code == 0
    assert asked(daemon) == [("Pod", "default", "a"), ("Pod", "default", "b")]


def test_delete_workload_includes_its_pods_once(daemon: FakeDaemon) -> None:
    owned = a_pod("web-0", owner={"kind": "StatefulSet", "name": "web"})
    daemon.answers["status"] = a_status(owned, a_pod("alone"), workloads=[a_workload("StatefulSet", "web")])
    delete("all", "--all")
    assert asked(daemon) == [("Pod", "default", "alone"), ("StatefulSet", "default", "web")]


def test_delete_of_missing_object_exits_1(daemon: FakeDaemon) -> None:
    result = delete("pod", "ghost", "train")
    assert (result.exit_code, result.stdout) == (1, 'pod "train" deleted\n')
    assert result.stderr == "aliquot: no pod is called default/ghost: there are default/train\n"
    assert delete("pod", "ghost", "--ignore-not-found").exit_code == 0


def test_delete_lists_missing_objects_once(daemon: FakeDaemon) -> None:
    daemon.answers["delete"] = lambda request: [
        {"error": {"kind": "unknown-name", "name": f"default/{request['name']}", "names": ["default/x", "default/y"]}}
    ]
    result = delete("pod", "a", "b")
    assert result.exit_code == 1
    assert result.stderr == "aliquot: no pod is called default/a or default/b: there are default/x, default/y\n"


def test_delete_of_a_run_names_stop(daemon: FakeDaemon) -> None:
    daemon.answers["delete"] = [{"error": {"kind": "unknown-name", "name": "default/job", "names": []}}]
    daemon.answers["status"] = a_status(tenants=[a_tenant("job")])
    assert delete("pod", "job").stderr == (
        "aliquot: no pod is called default/job: there is none; job: not a Pod but a run: `aliquot stop job` stops it\n"
    )


def test_stop_of_a_pod_names_delete(daemon: FakeDaemon) -> None:
    daemon.answers["stop"] = [{"error": {"kind": "unknown-name", "name": "train", "names": ["default/train"]}}]
    daemon.answers["status"] = a_status(a_pod("train"), a_pod("x", "team"))
    result = CliRunner().invoke(cli, ["stop", "train", "team/x"])
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "aliquot: train is a Pod, not a run: `aliquot delete pod train` deletes it",
        "aliquot: team/x is a Pod, not a run: `aliquot delete pod x -n team` deletes it",
    ]


def test_delete_dry_run_deletes_nothing(daemon: FakeDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train"), a_pod("x", "team"))
    result = delete("pod", "train", "ghost", "--dry-run")
    assert (result.exit_code, result.stdout) == (1, 'pod "train" deleted (dry run)\n')
    assert result.stderr == "aliquot: no pod is called default/ghost: there are default/train, team/x\n"
    assert asked(daemon) == []


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ([], "give either -f FILE or TYPE NAME"),
        (["pods"], "pods: give a NAME, -l or --all"),
        (["pod", "a", "--all"], "give a NAME without -l and --all"),
        (["pod", "a", "-l", "app"], "give a NAME without -l and --all"),
        (["pods", "--all", "-l", "app"], "give either -l or --all"),
        (["-f", "x.yaml", "-l", "app"], "give either -l or -f"),
        (["pods", "-l", "app in (web)"], "-l: app in (web) is not allowed: KEY=VALUE"),
        (["node", "box"], "nodes cannot be deleted: they are this machine; `aliquot down` stops the daemon"),
        (["pod", "a", "--now", "--grace", "3"], "give either --now or --grace"),
        (["pod", "a", "--grace", "25h"], "--grace: 90000s is not allowed: 0 to 24h"),
    ],
)
def test_delete_refuses_bad_input(daemon: FakeDaemon, words: list[str], result: str) -> None:
    refused = delete(*words)
    assert refused.exit_code == 2
    assert result in refused.stderr
    assert daemon.asked == []
