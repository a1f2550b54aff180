"""The configuration by which kube-scheduler calls us, in the format of its version."""

from __future__ import annotations

import pytest

from aliquot.dialects import gpushare, qgpu, t9k
from aliquot.dialects.wire.schedulerconfig import (
    KubeSchedulerSettings,
    config_api,
    dialects_of,
    parse_version,
    reads_policy,
    render_config,
    render_policy,
)
from aliquot.model.refusal import Invalid
from aliquot.services.scheduler.verbs import COARSE, FINE

VERBS = ("filter", "prioritize", "preempt", "bind")
URL = "http://127.0.0.1:12345/aliquot"


@pytest.mark.parametrize(
    ("text", "version"),
    [("1.36", (1, 36)), ("v1.36.4", (1, 36)), ("1.27.3-gke.100", (1, 27)), (" v1.22.17+k3s1 ", (1, 22))],
)
def test_parse_version_accepts_forms(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "1", "latest", "2.0", "1.x", "1.10", "1.36\n1.2", "1.٣"])
def test_parse_version_refuses_others(text: str) -> None:
    assert isinstance(parse_version(text), Invalid)


@pytest.mark.parametrize(
    ("minor", "api", "policy"),
    [
        (18, None, True),
        (19, "v1beta1", True),
        (21, "v1beta1", True),
        (22, "v1beta2", True),
        (23, "v1beta3", False),
        (24, "v1beta3", False),
        (25, "v1", False),
        (36, "v1", False),
    ],
)
def test_config_api_follows_version(minor: int, api: str | None, policy: bool) -> None:
    assert config_api((1, minor)) == api
    assert reads_policy((1, minor)) is policy


def test_one_extender_serves_all_dialects() -> None:
    (extender,) = render_config(KubeSchedulerSettings((1, 36), URL))["extenders"]
    names = [managed_resource["name"] for managed_resource in extender["managedResources"]]
    assert names == [*qgpu.RESOURCES, *t9k.RESOURCES, *gpushare.RESOURCES]
    assert [extender[f"{verb}Verb"] for verb in VERBS] == list(VERBS)


def test_resources_are_not_ignored_by_scheduler() -> None:
    (extender,) = render_config(KubeSchedulerSettings((1, 36), URL))["extenders"]
    assert not any(managed_resource["ignoredByScheduler"] for managed_resource in extender["managedResources"])


def test_extender_is_not_ignorable() -> None:
    (extender,) = render_config(KubeSchedulerSettings((1, 36), URL))["extenders"]
    assert extender["ignorable"] is False


def test_in_place_config_has_default_and_t9k_profiles() -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL))
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["default-scheduler", "t9k-scheduler"]
    assert "percentageOfNodesToScore" not in config
    assert "resourceName" not in config["leaderElection"]


def test_second_scheduler_has_own_names_and_lease() -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL, second=True))
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["aliquot-scheduler", "t9k-scheduler"]
    assert "percentageOfNodesToScore" not in config
    assert config["leaderElection"]["resourceName"] == "aliquot-kube-scheduler"


def test_own_profiles_weigh_preferences_over_our_ranks_and_ranks_over_resources() -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL, second=True))
    extender = config["extenders"][0]
    assert extender["prioritizeVerb"] == "rank"
    for profile in config["profiles"]:
        weights = [plugin["weight"] for plugin in profile["plugins"]["score"]["enabled"]]
        assert FINE * 10 * extender["weight"] < min(weights), "less than one point of any of them"
    assert 10 * extender["weight"] > 200, "a rank is more than all points of NodeResourcesFit and BalancedAllocation"


@pytest.mark.parametrize(
    "settings", [KubeSchedulerSettings((1, 36), URL), KubeSchedulerSettings((1, 24), URL, second=True)]
)
def test_other_profiles_keep_their_weights_and_ours_is_small(settings: KubeSchedulerSettings) -> None:
    config = render_config(settings)
    extender = config["extenders"][0]
    assert (extender["prioritizeVerb"], extender["weight"]) == ("prioritize", 1)
    assert COARSE * 10 <= 20
    assert not any("plugins" in profile for profile in config["profiles"])


def test_t9k_profile_only_with_t9k() -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL, ("gpushare",)))
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["default-scheduler"]
    assert [managed_resource["name"] for managed_resource in config["extenders"][0]["managedResources"]] == list(
        gpushare.RESOURCES
    )


def test_policy_form_spells_two_fields_differently() -> None:
    policy = render_policy(KubeSchedulerSettings((1, 20), URL))
    assert (policy["kind"], policy["apiVersion"]) == ("Policy", "v1")
    (extender,) = policy["extenders"]
    assert extender["enableHttps"] is False
    assert extender["httpTimeout"] == 5_000_000_000
    assert "enableHTTPS" not in extender


def test_oldest_version_of_kubernetes_is_taken() -> None:
    assert [parse_version(text) for text in ("1.11", "v1.11.0")] == [(1, 11), (1, 11)]
    older = parse_version("1.10.9")
    assert isinstance(older, Invalid)
    assert older.allowed == "1.11 or later"
    assert isinstance(parse_version("2.30"), Invalid)


def test_keys_of_the_client_are_in_the_folder() -> None:
    settings = KubeSchedulerSettings((1, 36), "https://x", tls_folder="/keys/")
    (extender,) = render_config(settings)["extenders"]
    assert extender["tlsConfig"]["caFile"] == "/keys/ca.crt"
    assert extender["tlsConfig"]["certFile"] == "/keys/client.crt"
    assert extender["tlsConfig"]["keyFile"] == "/keys/client.key"


def test_kube_scheduler_tries_again_every_second() -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL))
    assert (config["podInitialBackoffSeconds"], config["podMaxBackoffSeconds"]) == (1, 1)
    assert config["leaderElection"] == {"leaderElect": True}


@pytest.mark.parametrize(
    ("mode", "resources", "profiles"),
    [
        ("gpushare", ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"], []),
        ("all", None, ["t9k-scheduler"]),
        ("kai", ["aliquot.dev/card-place"], ["kai-scheduler"]),
        ("hami", None, ["hami-scheduler"]),
        ("all+hami+kai", None, ["t9k-scheduler", "hami-scheduler", "kai-scheduler"]),
    ],
)
def test_second_kube_scheduler_has_resources_and_profiles_of_the_dialects(
    mode: str, resources: list[str] | None, profiles: list[str]
) -> None:
    config = render_config(KubeSchedulerSettings((1, 36), URL, dialects=dialects_of(mode), second=True))
    names = [resource["name"] for resource in config["extenders"][0]["managedResources"]]
    assert resources in (None, names)
    assert [profile["schedulerName"] for profile in config["profiles"]] == ["aliquot-scheduler", *profiles]
