"""`aliquot manifests scheduler-config`: a file that can be used as it stands, with the reasons beside it."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import Result

from aliquot.cli.cluster.schedulerconfig import manifests
from aliquot.dialects.wire.schedulerconfig import KubeSchedulerSettings, render_config
from kit.clusters.kubectl import FakeCluster, invoked


def made(*options: str) -> Result:
    return invoked(manifests, "scheduler-config", *options)


def test_scheduler_config_yaml_equals_json() -> None:
    spoken = made("--kubernetes", "1.36")
    assert spoken.exit_code == 0
    expected = render_config(
        KubeSchedulerSettings((1, 36), "http://127.0.0.1:12345/aliquot", kubeconfig="/etc/kubernetes/scheduler.conf")
    )
    assert yaml.safe_load(spoken.stdout) == expected
    assert json.loads(made("--kubernetes", "1.36", "-o", "json").stdout) == expected


@pytest.mark.parametrize("options", [(), ("--second",), ("--nodes-to-score", "100"), ("--dialect", "gpushare")])
def test_scheduler_config_comments_are_complete(options: tuple[str, ...]) -> None:
    text = made("--kubernetes", "1.36", *options).stdout
    assert max(map(len, text.splitlines())) <= 120
    assert ("to be packed" in text or "packed onto the fullest card" in text) == (
        "percentageOfNodesToScore: 100\n" in text
    )
    assert ("With --config" in text) == ("--second" not in options)
    assert "GPU Pods wait while aliquot is down" in text


def test_scheduler_config_for_old_version_is_a_policy() -> None:
    result = made("--kubernetes", "1.20")
    assert json.loads(result.stdout)["kind"] == "Policy"
    assert "--policy-config-file" in result.stderr
    assert "--scheduler-name=aliquot-scheduler" in made("--kubernetes", "1.20", "--second").stderr


@pytest.mark.parametrize("options", [("1.22",), ("1.22", "--no-policy"), ("1.27", "-o", "json")])
def test_scheduler_config_for_old_version_says_that_its_nodes_are_not_supported(options: tuple[str, ...]) -> None:
    result = made("--kubernetes", *options)
    assert result.exit_code == 0
    assert f"Nodes of Kubernetes {options[0]} are not supported" in result.stderr
    assert "need 1.28 or later" in result.stderr


def test_scheduler_config_for_the_oldest_supported_version_says_nothing() -> None:
    assert made("--kubernetes", "1.28").stderr == ""


def test_scheduler_config_no_policy_for_old_version() -> None:
    config = yaml.safe_load(made("--kubernetes", "1.22", "--no-policy").stdout)
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1beta2"


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://10.0.0.1:12345", "http://10.0.0.1:12345/aliquot"),
        ("http://10.0.0.1:12345/", "http://10.0.0.1:12345/aliquot"),
        ("http://[::1]:80/gpushare-scheduler/", "http://[::1]:80/gpushare-scheduler"),
        ("https://10.0.0.1:12348", "https://10.0.0.1:12348/aliquot"),
    ],
)
def test_scheduler_config_url_gets_prefix(url: str, prefix: str) -> None:
    config = json.loads(made("--kubernetes", "1.36", "--url", url, "-o", "json").stdout)
    assert config["extenders"][0]["urlPrefix"] == prefix


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        (("--url", "https://h:1"), "/etc/kubernetes/aliquot"),
        (("--url", "https://h:1", "--tls-folder", "/keys"), "/keys"),
        (("--second",), "/etc/kube-scheduler/tls"),
        (("--second", "--url", "http://127.0.0.1:12345"), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("version", ["1.36", "1.22"])
def test_scheduler_config_for_https_names_the_client_certificate(
    version: str, options: tuple[str, ...], folder: str | None
) -> None:
    result = made("--kubernetes", version, *options)
    (extender,) = yaml.safe_load(result.stdout)["extenders"]
    assert extender["enableHTTPS" if version == "1.36" else "enableHttps"] is (folder is not None)
    files = {"certFile": "client.crt", "keyFile": "client.key", "caFile": "ca.crt"}
    expected = {"serverName": "aliquot-scheduler", **{key: f"{folder}/{name}" for key, name in files.items()}}
    assert extender.get("tlsConfig") == (expected if folder else None)
    assert ("kubectl get secret aliquot-extender-tls" in result.stdout + result.stderr) == (folder is not None)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--kubernetes", "latest"), 'for example "1.36"'),
        (("--kubernetes", "1.36", "--policy"), "1.22 was the last version"),
        (("--kubernetes", "1.18", "--no-policy"), "needs 1.19"),
        (("--kubernetes", "1.36", "--url", "10.0.0.1:12345"), "http://HOST:PORT"),
        (("--kubernetes", "1.36", "--url", "ftp://10.0.0.1"), "http://HOST:PORT"),
        (("--kubernetes", "1.36", "--tls-folder", "/x"), "with --url https://HOST:PORT"),
        (("--kubernetes", "1.36", "--url", "https://h:1", "--tls-folder", "x"), "an absolute path"),
        (("--kubernetes", "1.36", "--url", "http://h:port"), "http://HOST:PORT"),
    ],
)
def test_scheduler_config_refuses_invalid_options(options: tuple[str, ...], word: str) -> None:
    result = made(*options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr


def test_scheduler_config_reads_cluster_version(cluster: FakeCluster) -> None:
    cluster.answer("/version", {"gitVersion": "v1.24.3-eks"})
    assert yaml.safe_load(made().stdout)["apiVersion"].endswith("/v1beta3")


def test_scheduler_config_reports_unreachable_cluster(cluster: FakeCluster) -> None:
    cluster.answer(
        "/version", "The connection to the server localhost:8080 was refused - did you specify the right host?"
    )
    assert made().exit_code == 2
