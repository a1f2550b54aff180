"""Where the API server is: every way a kubeconfig says it, and for every slip a sentence that tells what to do."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from aliquot.adapters.kubernetes.certificates import Pair, issue
from aliquot.adapters.kubernetes.kubeconfig import (
    KubeConfigError,
    find_server,
    read_kubeconfig,
)
from kit.clusters.kubeconfigs import EXEC, HTTPS, NOW, Json, b64, config, written

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


def test_json_is_yaml_too(tmp_path: Path) -> None:
    assert read_kubeconfig(written(tmp_path, json.dumps(config()))).url == "http://127.0.0.1:1"


@pytest.mark.parametrize("text", ["[" * 5000, "current-context: 2001-99-99", "current-context: [a, b]", "\xff"])
def test_a_kubeconfig_that_yaml_cannot_parse_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").write_bytes(text.encode("latin-1"))
    with pytest.raises(KubeConfigError, match=str(tmp_path / "config")):
        read_kubeconfig(tmp_path / "config")
