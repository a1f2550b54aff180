"""Where the API server is: every way a kubeconfig says it, and for every slip a sentence that tells what to do."""

from __future__ import annotations

import base64
import json
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.adapters.kubernetes import kubeconfig
from aliquot.adapters.kubernetes.certificates import Pair, issue, make_authority
from aliquot.adapters.kubernetes.credentials import Credential
from aliquot.adapters.kubernetes.kubeconfig import (
    KubeConfigError,
    find_server,
    passed_over,
    read_kubeconfig,
)

EXEC = "client.authentication.k8s.io/v1"
NOW = 1_800_000_000.0
Json = dict[str, Any]


@pytest.fixture(scope="module")
def authority() -> Pair:
    return make_authority("test", NOW, 1e6)


@pytest.fixture(scope="module")
def client(authority: Pair) -> Pair:
    return issue(authority, ["me"], NOW, 1e5)


def config(cluster: Json | None = None, user: Json | None = None, **more: Any) -> Json:
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", **more}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1", **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }


def written(folder: Path, value: object, name: str = "config") -> Path:
    path = folder / name
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return path


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- what it says ----------------------------------------------------------------------------------------------------


def test_the_current_context_names_cluster_user_and_namespace(tmp_path: Path) -> None:
    server = read_kubeconfig(written(tmp_path, config({"server": "http://k8s:8080/"}, {"token": "t"}, namespace="ns")))
    assert (server.url, server.tls, server.namespace) == ("http://k8s:8080", None, "ns")
    assert server.credential.token(0.0) == "t"


def test_another_context_can_be_named(tmp_path: Path) -> None:
    both = config()
    both["contexts"].append({"name": "there", "context": {"cluster": "d"}})
    both["clusters"].append({"name": "d", "cluster": {"server": "http://there"}})
    server = read_kubeconfig(written(tmp_path, both), "there")
    assert (server.url, server.namespace, server.credential.token(0.0)) == ("http://there", "default", None)


@pytest.mark.parametrize("form", ["data", "absolute", "relative"])
def test_certificates_stand_in_the_file_or_beside_it(tmp_path: Path, form: str, authority: Pair, client: Pair) -> None:
    material = {
        ("cluster", "certificate-authority"): authority.certificate,
        ("user", "client-certificate"): client.certificate,
        ("user", "client-key"): client.key,
    }
    parts: dict[str, Json] = {"cluster": {"server": "https://127.0.0.1:1"}, "user": {}}
    for (part, name), pem in material.items():
        if form == "data":
            parts[part][f"{name}-data"] = b64(pem)
        else:
            (tmp_path / name).write_bytes(pem)
            parts[part][name] = name if form == "relative" else str(tmp_path / name)
    server = read_kubeconfig(written(tmp_path, config(parts["cluster"], parts["user"])))
    assert server.tls is not None
    assert server.tls.verify_mode is ssl.CERT_REQUIRED
    assert len(server.tls.get_ca_certs()) == 1


def test_insecure_skip_tls_verify_turns_verification_off(tmp_path: Path) -> None:
    blind = {"server": "https://127.0.0.1:1", "insecure-skip-tls-verify": True}
    server = read_kubeconfig(written(tmp_path, config(blind)))
    assert server.tls is not None
    assert server.tls.verify_mode is ssl.CERT_NONE


def test_without_an_authority_the_machines_own_are_trusted(tmp_path: Path) -> None:
    server = read_kubeconfig(written(tmp_path, config({"server": "https://127.0.0.1:1"})))
    assert server.tls is not None
    assert server.tls.verify_mode is ssl.CERT_REQUIRED


# --- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_in_a_file_is_read_again_after_a_minute_or_when_it_is_not_accepted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    credential = read_kubeconfig(written(tmp_path, config(user={"tokenFile": "token"}))).credential
    assert credential.token(0.0) == "one"
    (tmp_path / "token").write_text("two\n")
    assert credential.token(59.0) == "one"
    assert credential.token(61.0) == "two"
    (tmp_path / "token").write_text("three\n")
    assert credential.token(62.0, fresh=True) == "three"


def plugin(folder: Path, body: str) -> Json:
    """A login program that runs that Python."""
    script = written(folder, f"import json, os, sys\n{body}\n", "login.py")
    return {
        "exec": {
            "apiVersion": EXEC,
            "command": sys.executable,
            "args": [str(script), "arg"],
            "env": [{"name": "WHO", "value": "me"}],
        }
    }


ANSWER = """
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert asked["kind"] == "ExecCredential" and asked["apiVersion"].endswith("/v1")
print(json.dumps({"status": {"token": os.environ["WHO"] + sys.argv[1]}}))
"""


def test_a_login_program_gives_the_token_and_is_asked_once(tmp_path: Path) -> None:
    credential = read_kubeconfig(written(tmp_path, config(user=plugin(tmp_path, ANSWER)))).credential
    assert credential.token(0.0) == "mearg"
    (tmp_path / "login.py").write_text("raise SystemExit(1)")
    assert credential.token(1e6) == "mearg"


def test_a_token_file_goes_before_token_which_is_used_while_the_file_cannot_be_read(tmp_path: Path) -> None:
    file = tmp_path / "token"
    credential = read_kubeconfig(written(tmp_path, config(user={"tokenFile": "token", "token": "beside"}))).credential
    assert credential.token(0.0) == "beside"
    file.write_text("of the file\n")
    assert credential.token(61.0) == "of the file"
    file.write_text("")
    assert credential.token(122.0) == "of the file"
    with pytest.raises(KubeConfigError, match="the file is empty"):
        Credential(file=file).token(0.0)


@pytest.mark.parametrize("login", ["token", "username", "client-certificate"])
def test_a_login_program_does_not_run_where_another_login_is_given(tmp_path: Path, client: Pair, login: str) -> None:
    given: Json = {
        "token": {"token": "t"},
        "username": {"username": "me"},
        "client-certificate": {
            "client-certificate-data": b64(client.certificate),
            "client-key-data": b64(client.key),
        },
    }[login]
    user = plugin(tmp_path, "sys.exit('not to be run')") | given
    credential = read_kubeconfig(written(tmp_path, config(HTTPS, user))).credential
    assert credential.token(0.0) == given.get("token")


def test_a_login_program_gets_the_cluster_where_it_asks_for_it_and_never_a_terminal(
    tmp_path: Path, authority: Pair
) -> None:
    (tmp_path / "ca.crt").write_bytes(authority.certificate)
    cluster = {
        "server": "https://127.0.0.1:1",
        "certificate-authority": "ca.crt",
        "tls-server-name": "k8s",
        "proxy-url": "http://127.0.0.1:2",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
    }
    login = """
assert sys.stdin.read() == ""
print(json.dumps({"status": {"token": json.dumps(json.loads(os.environ["KUBERNETES_EXEC_INFO"])["spec"])}}))
"""
    user = plugin(tmp_path, login)
    token = read_kubeconfig(written(tmp_path, config(cluster, user))).credential.token(0.0)
    assert json.loads(token or "") == {"interactive": False}
    user["exec"]["provideClusterInfo"] = True
    token = read_kubeconfig(written(tmp_path, config(cluster, user))).credential.token(0.0)
    assert json.loads(token or "")["cluster"] == {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": b64(authority.certificate),
        "tls-server-name": "k8s",
        "proxy-url": "http://127.0.0.1:2",
        "config": {"audience": "a"},
    }


def test_a_login_program_by_a_relative_path_is_beside_the_kubeconfig(tmp_path: Path) -> None:
    program = written(tmp_path, """#!/bin/sh\necho '{"status": {"token": "relative"}}'\n""", "login")
    program.chmod(0o755)
    user = {"exec": {"apiVersion": EXEC, "command": "./login"}}
    assert read_kubeconfig(written(tmp_path, config(user=user))).credential.token(0.0) == "relative"


@pytest.mark.parametrize("found", [False, True], ids=["nowhere", "not executable"])
def test_a_login_program_that_cannot_be_run_is_named_with_its_install_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: bool
) -> None:
    if found:
        (tmp_path / "no-such-login").touch(0o644)
        monkeypatch.setenv("PATH", str(tmp_path))
    user = {"exec": {"apiVersion": EXEC, "command": "no-such-login", "installHint": "get it from example.com"}}
    with pytest.raises(KubeConfigError, match=r"no-such-login.*get it from example\.com"):
        read_kubeconfig(written(tmp_path, config(user=user))).credential.token(0.0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("sys.exit('no network')", "failed: .* no network"),
        ("print('not json')", "failed"),
        ("print('[]')", "failed"),
        ("print(json.dumps({'status': {'clientCertificateData': 'x'}}))", "gave no token"),
        ("print('[' * 100_000)", "failed: "),
        (
            "print(json.dumps({'status': {'token': 'a\\r\\nX-Remote-User: root'}}))",
            "characters that a token cannot have",
        ),
    ],
)
def test_a_login_program_that_fails_is_named(tmp_path: Path, body: str, why: str) -> None:
    credential = read_kubeconfig(written(tmp_path, config(user=plugin(tmp_path, body)))).credential
    with pytest.raises(KubeConfigError, match=why) as refused:
        credential.token(0.0)
    assert sys.executable in str(refused.value)


def test_a_login_program_that_prints_without_end_is_given_up_at_a_mebibyte(tmp_path: Path) -> None:
    body = "while True: sys.stderr.write('e' * 65536); sys.stdout.write('x' * 65536)"
    credential = read_kubeconfig(written(tmp_path, config(user=plugin(tmp_path, body)))).credential
    with pytest.raises(KubeConfigError, match="printed more than 1 MiB"):
        credential.token(0.0)


def test_a_token_file_with_a_line_end_within_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a\nX-Remote-User: root")
    with pytest.raises(KubeConfigError, match="characters that a token cannot have"):
        Credential(file=tmp_path / "token").token(0.0)


def test_a_login_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": EXEC, "command": "/no/such/login", "env": None, "args": None}}
    with pytest.raises(KubeConfigError, match="/no/such/login of the kubeconfig failed"):
        read_kubeconfig(written(tmp_path, config(user=user))).credential.token(0.0)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="gone: No such file"):
        Credential(file=tmp_path / "gone").token(0.0)


# --- slips -----------------------------------------------------------------------------------------------------------

HTTPS = {"server": "https://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not YAML"),
        ("\x00", "not YAML"),
        ("- a", "not a kubeconfig"),
        ("", "not a kubeconfig"),
        ({**config(), "current-context": ""}, "current-context is missing"),
        ({**config(), "current-context": "other"}, 'contexts has no entry named "other"'),
        ({**config(), "contexts": None}, 'contexts has no entry named "here"'),
        ({**config(), "contexts": 5}, 'contexts has no entry named "here"'),
        ({**config(), "clusters": []}, 'clusters has no entry named "c"'),
        ({**config(), "clusters": "text"}, 'clusters has no entry named "c"'),
        ({**config(), "users": [5]}, 'users has no entry named "u"'),
        (config({"server": None}), 'server: "None" is not a URL'),
        (config({"server": "k8s:6443"}), 'server: "k8s:6443" is not a URL'),
        (config(user={"auth-provider": {"name": "gcp"}}), 'auth-provider "gcp" is not supported'),
        (config({**HTTPS, "certificate-authority-data": "%%%"}), "certificate-authority-data: not base64"),
        (config({**HTTPS, "certificate-authority-data": 5}), "certificate-authority-data: not base64"),
        (config({**HTTPS, "certificate-authority-data": b64(b"x")}), "certificate-authority: not a certificate"),
        (config({**HTTPS, "certificate-authority-data": b64(b"\xff")}), "certificate-authority: not a certificate"),
        (config({**HTTPS, "certificate-authority": "gone.crt"}), "gone.crt: No such file"),
        (
            config(HTTPS, {"client-certificate-data": b64(b"x"), "client-key-data": b64(b"y")}),
            "client-certificate and client-key",
        ),
        (config({**HTTPS, "insecure-skip-tls-verify": "false"}), '"false" is not true or false'),
        (config({"proxy-url": "socks5://127.0.0.1:1"}), "proxy-url: socks5 is not supported: name an http://"),
        (config({"proxy-url": "socks5://127.0.0.1:1"}), "or start `kubectl proxy`"),
        (config({"proxy-url": "127.0.0.1:3128"}), "proxy-url: http://HOST:PORT or https://HOST:PORT is wanted"),
        (config({"proxy-url": "http://"}), "proxy-url: http://HOST:PORT or https://HOST:PORT is wanted"),
        (config({"proxy-url": "http://a:99999"}), "proxy-url: not a URL"),
        (config({"proxy-url": 3128}), "proxy-url: text is wanted, not int"),
        (config({"tls-server-name": ["a"]}), "tls-server-name: text is wanted, not list"),
        (config(user={"auth-provider": {"name": "oidc"}}), "use a login program (exec) or a token"),
        (config(user={"token": "a\nb"}), "token: has a line break"),
        (config(user={"token": "t", "username": "u"}), "token and username are both given"),
        (config(user={"tokenFile": "t", "username": "u"}), "token and username are both given"),
        (config(user={"password": "p"}), "password is given without username"),
        (config(user={"username": "u", "password": 1234}), "password: text is wanted, not int: put it in quotes"),
        (config(user={"as-uid": "7"}), "without as: name the user"),
        (config(user={"as-groups": ["g"]}), "without as: name the user"),
        (config(user={"as-user-extra": {"k": ["v"]}}), "without as: name the user"),
        (config(user={"as": "u", "as-groups": "g"}), "as-groups: a list of groups is wanted"),
        (config(user={"as": "u", "as-groups": [5]}), "as-groups: text is wanted, not int"),
        (config(user={"as": "u", "as-user-extra": {"k": "v"}}), "as-user-extra: a mapping of names to lists"),
        (config(user={"as": "u\r\nX-Remote-User: root"}), "as: has a line break"),
        (config(user={"exec": "login"}), "exec: a mapping with command and apiVersion is wanted"),
        (config(user={"exec": {"apiVersion": EXEC}}), "exec: command is missing"),
        (config(user={"exec": {"command": "x"}}), 'exec: apiVersion "None" is not supported'),
        (
            config(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}),
            "a newer release of x may be needed",
        ),
        (
            config(user={"exec": {"apiVersion": EXEC, "command": "x", "interactiveMode": "Always"}}),
            "interactiveMode: Always is not supported",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_kubeconfig_that_cannot_be_used_says_where_and_why(tmp_path: Path, content: object, says: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(KubeConfigError) as refused:
        read_kubeconfig(path)
    assert says in str(refused.value)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("broken", [{"env": [5]}, {"env": "text"}, {"env": [{"name": "a"}]}, {"args": 5}], ids=str)
def test_a_login_program_with_a_malformed_config_is_named(tmp_path: Path, broken: Json) -> None:
    user = {"exec": {"apiVersion": EXEC, "command": sys.executable, **broken}}
    with pytest.raises(KubeConfigError, match="the login program"):
        read_kubeconfig(written(tmp_path, config(user=user))).credential.token(0.0)


def test_an_authority_beside_insecure_skip_tls_verify_is_refused_as_by_kubectl(tmp_path: Path, authority: Pair) -> None:
    both = {**HTTPS, "insecure-skip-tls-verify": True, "certificate-authority-data": b64(authority.certificate)}
    with pytest.raises(KubeConfigError, match="insecure-skip-tls-verify and certificate-authority are both given"):
        read_kubeconfig(written(tmp_path, config(both)))


def test_a_password_is_in_no_error(tmp_path: Path) -> None:
    for cluster, user in (
        ({"proxy-url": "socks5://me:hunter2@h"}, {}),
        ({}, {"username": "u", "password": "hunter2\n"}),
    ):
        with pytest.raises(KubeConfigError) as refused:
            read_kubeconfig(written(tmp_path, config(cluster, user)))
        assert "hunter2" not in str(refused.value)


def test_a_client_key_of_another_certificate_is_refused(tmp_path: Path, authority: Pair, client: Pair) -> None:
    other = issue(authority, ["other"], NOW, 1e5)
    user = {"client-certificate-data": b64(client.certificate), "client-key-data": b64(other.key)}
    with pytest.raises(KubeConfigError, match="do not belong together"):
        read_kubeconfig(written(tmp_path, config(HTTPS, user)))


@pytest.mark.parametrize("given", ["client-certificate", "client-key"])
def test_a_client_certificate_without_its_key_is_refused(tmp_path: Path, given: str, client: Pair) -> None:
    lacking = "client-key" if given == "client-certificate" else "client-certificate"
    path = written(tmp_path, config(HTTPS, {f"{given}-data": b64(client.certificate)}))
    with pytest.raises(KubeConfigError, match=f"{lacking} is missing"):
        read_kubeconfig(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="none: No such file"):
        find_server(tmp_path / "none")


# --- which one -------------------------------------------------------------------------------------------------------


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


def test_json_is_yaml_too(tmp_path: Path) -> None:
    assert read_kubeconfig(written(tmp_path, json.dumps(config()))).url == "http://127.0.0.1:1"


@pytest.mark.parametrize("text", ["[" * 5000, "current-context: 2001-99-99", "current-context: [a, b]", "\xff"])
def test_a_kubeconfig_that_yaml_cannot_parse_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_bytes(text.encode("latin-1"))
    with pytest.raises(KubeConfigError, match=str(tmp_path / "config")):
        read_kubeconfig(tmp_path / "config")
