"""The user's own kubectl as the way to the cluster: its pages, its flags, and each way in which it says no."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.adapters.kubernetes import kubectl as kubectl_module
from aliquot.adapters.kubernetes import paging
from aliquot.adapters.kubernetes.kubectl import Kubectl, KubectlError, Trouble
from aliquot.cli.cluster.kubectl_aliquot import aliquot
from aliquot.cli.cluster.kubectl_inspect import inspect
from kit.clusters.kubectl import FakeCluster, invoked
from kit.values.deepjson import MANAGED, with_deep_fields
from kit.values.manifests import gpushare_node


def test_lists_are_read_page_by_page(cluster: FakeCluster) -> None:
    cluster.show(*(gpushare_node(f"n{at}") for at in range(1201)))
    assert [node["metadata"]["name"] for node in Kubectl().nodes()] == [f"n{at}" for at in range(1201)]
    assert [call[2] for call in cluster.calls] == [
        "/api/v1/nodes?limit=500",
        "/api/v1/nodes?limit=500&continue=500",
        "/api/v1/nodes?limit=500&continue=1000",
    ]


def test_kubectl_items_have_their_kind(cluster: FakeCluster) -> None:
    cluster.show(gpushare_node("n1"))
    assert [node["kind"] for node in Kubectl().nodes()] == ["Node"]


def test_a_list_that_expired_between_two_pages_is_asked_for_whole(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.show(*(gpushare_node(f"n{at}") for at in range(501)))
    kubectl, get = Kubectl(), Kubectl.get

    def expiring(self: Kubectl, path: str, **query: str) -> object:
        if "continue" in query:
            raise KubectlError(Trouble.EXPIRED, "Error from server (Expired): too old")
        return get(self, path, **query)

    monkeypatch.setattr(Kubectl, "get", expiring)
    assert len(kubectl.nodes()) == 501


@pytest.mark.parametrize(
    ("token", "says"),
    [
        (lambda page: "again", "has no end: page 2 refers back to a page that was read already"),
        (lambda page: f"{page % 3}", "has no end: page 4 refers back to a page that was read already"),
        (str, "has no end: 20 pages were read, and there are more"),
    ],
    ids=["the same page", "in a circle", "always another"],
)
def test_a_list_without_an_end_is_an_error(
    monkeypatch: pytest.MonkeyPatch, token: Callable[[int], str], says: str
) -> None:
    asked = 0

    def get(self: Kubectl, path: str, **query: str) -> object:
        nonlocal asked
        asked += 1
        assert asked < 100, "it is not asked for ever"
        return {"items": [gpushare_node(f"n{asked}")], "metadata": {"continue": token(asked)}}

    monkeypatch.setattr(Kubectl, "get", get)
    monkeypatch.setattr(paging, "MOST_PAGES", 20)
    with pytest.raises(KubectlError, match=says):
        Kubectl().nodes()


def test_kubectl_that_prints_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login program of a kubeconfig prints through it."""
    (tmp_path / "kubectl").write_text("#!/bin/sh\nyes error >&2 & yes\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(tmp_path / "kubectl"))
    monkeypatch.setattr(kubectl_module, "_MOST", 1 << 20)
    with pytest.raises(KubectlError, match="kubectl get: it printed more than 1 MiB"):
        Kubectl().nodes()


def test_errors_of_kubectl_without_end_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\nyes 'error: no' | head -c 4000000 >&2; exit 1\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(tmp_path / "kubectl"))
    with pytest.raises(KubectlError) as refused:
        Kubectl().nodes()
    assert len(str(refused.value)) < 100_000


def test_kubectl_is_given_all_of_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec cat\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("KUBECTL", str(tmp_path / "kubectl"))
    given = bytes(range(256)) * 4000
    assert Kubectl().run("create", stdin=given) == given
    (tmp_path / "kubectl").write_text("#!/bin/sh\nexec echo done\n")
    assert Kubectl().run("create", stdin=given) == b"done\n"


def test_kubectl_flags_are_passed_on(cluster: FakeCluster) -> None:
    invoked(inspect, "--context", "prod", "--as=me", "--insecure-skip-tls-verify", "--as-group", "a", "--as-group", "b")
    handed = "--context=prod --as=me --as-group=a --as-group=b --insecure-skip-tls-verify"
    assert cluster.calls[0][3:] == handed.split()


def test_kubectl_namespace_flag_does_not_narrow_the_lists(cluster: FakeCluster) -> None:
    assert invoked(inspect, "-n", "team").stdout == invoked(inspect).stdout
    assert invoked(aliquot, "--namespace=team").exit_code == 0


def test_the_environment_may_name_another_kubectl(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECTL", "/no/such/kubectl")
    result = invoked(inspect)
    assert result.exit_code == 2
    assert result.stderr == (
        "aliquot: /no/such/kubectl is not there: install kubectl, or name it in the environment: KUBECTL\n"
    )


@pytest.mark.parametrize(
    ("output", "advice"),
    [
        ('Error from server (Forbidden): nodes is forbidden: User "x" cannot list resource "nodes"', "ask for a role"),
        ("error: You must be logged in to the server (Unauthorized)", "log in again"),
        (
            "E1115 07:00:00.000000 1 memcache.go:265] couldn't get current server API group list\n"
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "config current-context",
        ),
        ("Unable to connect to the server: dial tcp: lookup k8s: no such host", "config current-context"),
        ('error: context "prod" does not exist', "config get-contexts"),
        ("error: something else", "something else"),
        ("", "printed nothing"),
    ],
)
def test_kubectl_errors_are_one_line_with_advice(cluster: FakeCluster, output: str, advice: str) -> None:
    cluster.answer("/api/v1/nodes", output)
    result = invoked(aliquot)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert advice in result.stderr
    assert "memcache" not in result.stderr


def test_kubectl_output_that_is_no_json_is_reported(cluster: FakeCluster) -> None:
    cluster.binary.write_text("#!/bin/sh\necho hello\n")
    result = invoked(aliquot)
    assert result.exit_code == 2
    assert "kubectl printed no JSON" in result.stderr


def test_object_that_is_nested_very_deep_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = gpushare_node("deep")
    deep["metadata"]["managedFields"] = MANAGED
    page = with_deep_fields({"items": [deep, gpushare_node("n2")]})
    monkeypatch.setattr(Kubectl, "run", lambda self, *words: page)
    assert [node["metadata"]["name"] for node in Kubectl().nodes()] == ["deep", "n2"]
