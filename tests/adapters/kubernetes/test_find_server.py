"""Which kubeconfig counts: a named file, the environment, the Pod's account, the home folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.adapters.kubernetes import kubeconfig
from aliquot.adapters.kubernetes.certificates import Pair
from aliquot.adapters.kubernetes.kubeconfig import (
    KubeConfigError,
    find_server,
    passed_over,
)
from kit.clusters.kubeconfigs import config, written


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nothing that tells of an API server."""
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(kubeconfig, "_ACCOUNT", tmp_path / "account")
    return tmp_path


def in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair, host: str = "10.0.0.1") -> None:
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("of-the-account\n")
    (account / "ca.crt").write_bytes(authority.certificate)
    (account / "namespace").write_text("kube-system\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")


def at_home(folder: Path) -> None:
    (folder / "home" / ".kube").mkdir(parents=True)
    written(folder / "home" / ".kube", config({"server": "http://home"}))


def test_a_pod_is_known_by_its_account(bare: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair) -> None:
    in_a_pod(bare, monkeypatch, authority)
    server = find_server()
    assert (server.url, server.namespace) == ("https://10.0.0.1:6443", "kube-system")
    assert server.credential.token(0.0) == "of-the-account"


def test_an_address_of_version_6_is_bracketed(bare: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair) -> None:
    in_a_pod(bare, monkeypatch, authority, "fd00::1")
    assert find_server().url == "https://[fd00::1]:6443"


def test_a_pods_broken_authority_is_named(bare: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair) -> None:
    in_a_pod(bare, monkeypatch, authority)
    (bare / "account" / "ca.crt").write_text("x")
    with pytest.raises(KubeConfigError, match=r"ca\.crt: not a certificate authority"):
        find_server()


def test_a_named_file_goes_before_the_environment_the_account_and_home(
    bare: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair
) -> None:
    at_home(bare)
    assert find_server().url == "http://home"
    in_a_pod(bare, monkeypatch, authority)
    assert find_server().url == "https://10.0.0.1:6443"
    path = written(bare, config({"server": "http://environment"}), "env")
    monkeypatch.setenv("KUBECONFIG", f"{bare}/not-there:{path}")
    assert find_server().url == "http://environment"
    assert find_server(written(bare, config({"server": "http://named"}), "named")).url == "http://named"


def test_the_files_of_the_environment_count_as_one_and_the_first_to_name_something_wins(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "second").mkdir()
    (bare / "second" / "token").write_text("of the second")
    first = {"current-context": "here", "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}]}
    second = {**config({"server": "http://second"}, {"tokenFile": "token"}), "current-context": "there"}
    monkeypatch.setenv("KUBECONFIG", f"{written(bare, first)}:{bare}/not-there:{written(bare / 'second', second)}")
    server = find_server()
    assert (server.url, server.credential.token(0.0)) == ("http://second", "of the second")
    with pytest.raises(KubeConfigError, match=r"/config, .*/second/config: contexts has no entry named \"there\""):
        find_server(context="there")


def test_passed_over_lists_missing_kubeconfigs_when_the_pods_account_is_used(
    bare: Path, monkeypatch: pytest.MonkeyPatch, authority: Pair
) -> None:
    """As client-go does. The vendor's DaemonSet names one that none of its volumes brings."""
    in_a_pod(bare, monkeypatch, authority)
    assert passed_over() == []
    monkeypatch.setenv("KUBECONFIG", f"{bare}/kubelet.conf")
    assert find_server().url == "https://10.0.0.1:6443"
    assert passed_over() == [bare / "kubelet.conf"]
    written(bare, config(), "kubelet.conf")
    assert passed_over() == []


def test_find_server_without_any_source_says_where_it_looked_and_the_fix(bare: Path) -> None:
    with pytest.raises(KubeConfigError) as refused:
        find_server()
    for word in ("$KUBECONFIG", str(bare / "account"), ".kube/config", "--kubeconfig"):
        assert word in str(refused.value)


def test_find_server_names_the_missing_files_of_kubeconfig(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home(bare)
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    with pytest.raises(KubeConfigError, match="looked for /no/such/file"):
        find_server()
