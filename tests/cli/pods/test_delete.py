"""`aliquot delete`: by name, by file, all of a kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from aliquot.cli.main import cli
from kit.fakedaemon import PaperDaemon, a_pod, a_status, a_workload

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
def deletes(daemon: PaperDaemon) -> None:
    daemon.answers["delete"] = gone


def asked(daemon: PaperDaemon) -> list[tuple[str, str, str]]:
    return sorted((request["kind"], request["namespace"], request["name"]) for request in daemon.requests("delete"))


def test_what_is_deleted_is_told_as_kubectl_does(daemon: PaperDaemon) -> None:
    assert delete("pod", "train").stdout == 'pod "train" deleted\n'
    assert delete("sts/web", "-n", "team").stdout == 'statefulset.apps "web" deleted from team (2 Pods)\n'
    assert asked(daemon) == [("Pod", "default", "train"), ("StatefulSet", "team", "web")]


@pytest.mark.parametrize(
    ("words", "grace"), [([], None), (["--grace", "90s"], 90.0), (["--grace-period", "0"], 0.0), (["--now"], 1.0)]
)
def test_the_grace_is_the_pods_own_unless_one_is_given(
    daemon: PaperDaemon, words: list[str], grace: float | None
) -> None:
    delete("pod", "train", *words)
    assert daemon.requests("delete")[0]["grace"] == grace


def test_the_objects_of_files_are_deleted_and_other_kinds_are_not_ours(daemon: PaperDaemon, tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(
        "kind: Service\nmetadata: {name: web}\n---\nkind: Pod\nmetadata: {name: a}\n---\n"
        "kind: Deployment\nmetadata: {name: b, namespace: team}\n"
    )
    assert delete("-f", str(file)).exit_code == 0
    assert asked(daemon) == [("Deployment", "team", "b"), ("Pod", "default", "a")]


def test_all_of_a_kind_are_those_of_the_namespace(daemon: PaperDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("a"), a_pod("b"), a_pod("c", "team"))
    assert delete("pods", "--all").exit_code == 0
    assert asked(daemon) == [("Pod", "default", "a"), ("Pod", "default", "b")]


def test_a_pod_goes_with_its_workload_and_is_not_deleted_twice(daemon: PaperDaemon) -> None:
    owned = a_pod("web-0", owner={"kind": "StatefulSet", "name": "web"})
    daemon.answers["status"] = a_status(owned, a_pod("alone"), workloads=[a_workload("StatefulSet", "web")])
    delete("all", "--all")
    assert asked(daemon) == [("Pod", "default", "alone"), ("StatefulSet", "default", "web")]


def test_one_that_is_not_there_is_exit_code_1_and_the_others_go(daemon: PaperDaemon) -> None:
    said = delete("pod", "ghost", "train")
    assert (said.exit_code, said.stdout) == (1, 'pod "train" deleted\n')
    assert said.stderr == "aliquot: no pod is called default/ghost: there are default/train\n"
    assert delete("pod", "ghost", "--ignore-not-found").exit_code == 0


def test_several_that_are_not_there_are_told_with_one_list(daemon: PaperDaemon) -> None:
    daemon.answers["delete"] = lambda request: [
        {"error": {"kind": "unknown-name", "name": f"default/{request['name']}", "names": ["default/x", "default/y"]}}
    ]
    said = delete("pod", "a", "b")
    assert said.exit_code == 1
    assert said.stderr == "aliquot: no pod is called default/a or default/b: there are default/x, default/y\n"


def test_a_dry_run_tells_and_deletes_nothing(daemon: PaperDaemon) -> None:
    daemon.answers["status"] = a_status(a_pod("train"), a_pod("x", "team"))
    said = delete("pod", "train", "ghost", "--dry-run")
    assert (said.exit_code, said.stdout) == (1, 'pod "train" deleted (dry run)\n')
    assert said.stderr == "aliquot: no pod is called default/ghost: there are default/train, team/x\n"
    assert asked(daemon) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give either -f FILE or TYPE NAME"),
        (["pods"], "pods: give a NAME or --all"),
        (["pod", "a", "--all"], "give either --all or a NAME"),
        (["node", "box"], "nodes cannot be deleted: they are this machine; `aliquot down` stops the daemon"),
        (["pod", "a", "--now", "--grace", "3"], "give either --now or --grace"),
        (["pod", "a", "--grace", "25h"], "--grace: 90000s is not allowed: 0 to 24h"),
    ],
)
def test_what_is_typed_wrongly_ends_nothing(daemon: PaperDaemon, words: list[str], said: str) -> None:
    refused = delete(*words)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert daemon.asked == []
