"""`aliquot manifests scheduler-config`: a file that can be used as it stands, with the reasons beside it."""

from __future__ import annotations

import json

import pytest
import yaml
from click.testing import Result

from aliquot.cli.cluster.schedulerconfig import manifests
from aliquot.dialects.wire.schedulerconfig import Wiring, render_config
from kit.kubectl import PaperCluster, invoked


def made(*options: str) -> Result:
    return invoked(manifests, "scheduler-config", *options)


def test_yaml_and_json_say_the_same() -> None:
    spoken = made("--kubernetes", "1.36")
    assert spoken.exit_code == 0
    expected = render_config(
        Wiring((1, 36), "http://127.0.0.1:12345/aliquot", kubeconfig="/etc/kubernetes/scheduler.conf")
    )
    assert yaml.safe_load(spoken.stdout) == expected
    assert json.loads(made("--kubernetes", "1.36", "-o", "json").stdout) == expected


@pytest.mark.parametrize("options", [(), ("--second",), ("--nodes-to-score", "100"), ("--dialect", "gpushare")])
def test_every_line_of_the_file_fits_a_page_and_no_comment_is_lost(options: tuple[str, ...]) -> None:
    text = made("--kubernetes", "1.36", *options).stdout
    assert max(map(len, text.splitlines())) <= 120
    assert ("to be packed" in text or "packed onto the fullest card" in text) == (
        "percentageOfNodesToScore: 100\n" in text
    )
    assert ("With --config" in text) == ("--second" not in options)
    assert "While we are away GPU Pods wait" in text


def test_old_versions_get_a_policy_and_how_to_use_it_on_stderr() -> None:
    result = made("--kubernetes", "1.20")
    assert json.loads(result.stdout)["kind"] == "Policy"
    assert "--policy-config-file" in result.stderr
    assert "--scheduler-name=aliquot-scheduler" in made("--kubernetes", "1.20", "--second").stderr


def test_old_versions_may_have_the_newer_kind_where_they_know_it() -> None:
    config = yaml.safe_load(made("--kubernetes", "1.22", "--no-policy").stdout)
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1beta2"


@pytest.mark.parametrize(
    ("url", "prefix"),
    [
        ("http://10.0.0.1:12345", "http://10.0.0.1:12345/aliquot"),
        ("http://10.0.0.1:12345/", "http://10.0.0.1:12345/aliquot"),
        ("http://[::1]:80/gpushare-scheduler/", "http://[::1]:80/gpushare-scheduler"),
    ],
)
def test_the_url_gets_our_prefix_unless_it_has_one(url: str, prefix: str) -> None:
    config = json.loads(made("--kubernetes", "1.36", "--url", url, "-o", "json").stdout)
    assert config["extenders"][0]["urlPrefix"] == prefix


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--kubernetes", "latest"), 'as in "1.36"'),
        (("--kubernetes", "1.36", "--policy"), "1.22 was the last"),
        (("--kubernetes", "1.18", "--no-policy"), "of 1.19"),
        (("--kubernetes", "1.36", "--url", "10.0.0.1:12345"), "http://HOST:PORT"),
        (("--kubernetes", "1.36", "--url", "https://10.0.0.1"), "http://HOST:PORT"),
        (("--kubernetes", "1.36", "--url", "http://h:port"), "http://HOST:PORT"),
    ],
)
def test_what_cannot_be_is_told_with_what_can(options: tuple[str, ...], word: str) -> None:
    result = made(*options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert word in result.stderr


def test_without_a_version_the_cluster_is_asked(cluster: PaperCluster) -> None:
    cluster.answer("/version", {"gitVersion": "v1.24.3-eks"})
    assert yaml.safe_load(made().stdout)["apiVersion"].endswith("/v1beta3")


def test_a_cluster_that_does_not_answer_is_told(cluster: PaperCluster) -> None:
    cluster.answer(
        "/version", "The connection to the server localhost:8080 was refused - did you specify the right host?"
    )
    assert made().exit_code == 2
