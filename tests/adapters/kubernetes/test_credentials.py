"""How a kubeconfig logs in: tokens, token files and login programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from aliquot.adapters.kubernetes.certificates import Pair
from aliquot.adapters.kubernetes.credentials import Credential
from aliquot.adapters.kubernetes.kubeconfig import (
    KubeConfigError,
    read_kubeconfig,
)
from kit.clusters.kubeconfigs import EXEC, HTTPS, Json, b64, config, written


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


@pytest.mark.parametrize("broken", [{"env": [5]}, {"env": "text"}, {"env": [{"name": "a"}]}, {"args": 5}], ids=str)
def test_a_login_program_with_a_malformed_config_is_named(tmp_path: Path, broken: Json) -> None:
    user = {"exec": {"apiVersion": EXEC, "command": sys.executable, **broken}}
    with pytest.raises(KubeConfigError, match="the login program"):
        read_kubeconfig(written(tmp_path, config(user=user))).credential.token(0.0)
