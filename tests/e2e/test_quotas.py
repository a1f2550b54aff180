"""ResourceQuota, LimitRange and a policy on our resources: the objects of docs/queues.md, on a real API server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.dialects.wire.schedulerconfig import DIALECTS
from testbed import objects
from testbed.build import RELEASE
from testbed.client import Refused
from testbed.objects import Object
from testbed.plane import ControlPlane
from testbed.processes import wait_until

MEMORY = "tke.cloud.tencent.com/qgpu-memory"
_PAGE = Path(__file__).parents[2] / "docs" / "queues.md"
_PRIORITY = "nvidia.com/priority"  # a rank, not an amount
_POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
_PATHS = {
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "LimitRange": "/api/v1/namespaces/{}/limitranges",
    "ValidatingAdmissionPolicy": f"{_POLICIES}ies",
    "ValidatingAdmissionPolicyBinding": f"{_POLICIES}ybindings",
}


def shown(kind: str) -> Object:
    """The object of that kind that the page shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found: list[Object] = [thing for block in blocks for thing in yaml.safe_load_all(block) if thing["kind"] == kind]
    return found[0]


QUOTA: dict[str, str] = shown("ResourceQuota")["spec"]["hard"]


@pytest.fixture(scope="module")
def space(plane: ControlPlane) -> Iterator[str]:
    """A namespace of its own: those of other tests have no quota."""
    name = "quotas"
    plane.api("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    wait_until(lambda: plane.api("GET", accounts)["items"], 60, "the default service account exists")
    yield name
    objects.remove_all(plane)
    plane.api("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def made(plane: ControlPlane, space: str) -> Iterator[Any]:
    """Creates an object of the page in the namespace, or another of its kind; it is gone after the test."""
    paths: list[str] = []

    def make(thing: Object) -> Object:
        thing = {**thing, "metadata": {"name": thing["metadata"]["name"]}}
        collection = _PATHS[thing["kind"]].format(space)
        created: Object = plane.api("POST", collection, thing)
        paths.append(f"{collection}/{thing['metadata']['name']}")
        return created

    yield make
    for path in paths:
        plane.api("DELETE", path)
    plane.api("DELETE", f"/api/v1/namespaces/{space}/pods", {"gracePeriodSeconds": 0})
    wait_until(lambda: not objects.list_pods(plane, space), 60, "all Pods are gone")


def used(plane: ControlPlane, space: str) -> dict[str, str]:
    found: dict[str, str] = plane.api("GET", f"/api/v1/namespaces/{space}/resourcequotas/gpus")["status"].get(
        "used", {}
    )
    return found


def with_quota(plane: ControlPlane, space: str, make: Any) -> None:
    make(shown("ResourceQuota"))
    wait_until(lambda: used(plane, space).keys() >= QUOTA.keys(), 60, "the quota is counted")


def refusal(plane: ControlPlane, pod: Object) -> str:
    with pytest.raises(Refused) as refused:
        objects.create(plane, pod)
    return str(refused.value)


def limits_of(pod: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"].get("limits", {})
    return found


def test_the_page_has_a_quota_on_every_amount_of_every_dialect() -> None:
    names = {f"requests.{name}" for dialect in DIALECTS.values() for name in dialect if name != _PRIORITY}
    assert set(QUOTA) == names


def test_quota_counts_every_resource_of_ours_and_refuses_more(plane: ControlPlane, space: str, made: Any) -> None:
    with_quota(plane, space, made)
    every = {name.removeprefix("requests."): amount for name, amount in QUOTA.items()}
    objects.create(plane, objects.pod("all", every, namespace=space))
    wait_until(lambda: used(plane, space) == QUOTA, 60, "all of it is used", saw=lambda: used(plane, space))
    for number, name in enumerate(every):
        said = refusal(plane, objects.pod(f"more-{number}", {name: 1}, namespace=space))
        assert f"exceeded quota: gpus, requested: requests.{name}=1" in said
    objects.finish_pod(plane, "all", space)
    wait_until(lambda: set(used(plane, space).values()) == {"0"}, 60, "a Pod that has ended does not count")


def test_quota_of_hami_counts_memory_by_container_and_not_by_slice(plane: ControlPlane, space: str, made: Any) -> None:
    with_quota(plane, space, made)
    objects.create(plane, objects.pod("two", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}, namespace=space))
    wait_until(lambda: used(plane, space)["requests.nvidia.com/gpu"] == "2", 60, "it is counted")
    assert used(plane, space)["requests.nvidia.com/gpumem"] in ("3000", "3k")


@pytest.mark.parametrize("name", [f"limits.{MEMORY}", MEMORY])
def test_quota_on_limits_or_on_the_bare_name_limits_nothing(
    plane: ControlPlane, space: str, made: Any, name: str
) -> None:
    quota = shown("ResourceQuota")
    quota["spec"]["hard"] = {name: "4", "pods": "10"}
    made(quota)
    wait_until(lambda: "pods" in used(plane, space), 60, "the quota is counted")
    objects.create(plane, objects.pod("five", {MEMORY: 5}, namespace=space))
    wait_until(lambda: used(plane, space)["pods"] == "1", 60, "the Pod is counted")
    assert name not in used(plane, space)


@pytest.mark.parametrize(
    ("asked", "words"),
    [("1", f"minimum {MEMORY} usage per Container is 2"), ("17", f"maximum {MEMORY} usage per Container is 16")],
)
def test_limit_range_holds_containers_between_its_bounds(
    plane: ControlPlane, space: str, made: Any, asked: str, words: str
) -> None:
    made(shown("LimitRange"))
    wait_until(lambda: _default(plane, space) == "4", 60, "containers get the default")
    assert words in refusal(plane, objects.pod("p", {MEMORY: asked}, namespace=space))


def _default(plane: ControlPlane, space: str) -> str | None:
    """What a container that asks for nothing gets of a card."""
    pod = objects.pod("default", namespace=space)
    answer = plane.api("POST", f"/api/v1/namespaces/{space}/pods", pod, params={"dryRun": "All"})
    return limits_of(answer).get(MEMORY)


def test_limit_range_with_a_maximum_alone_gives_it_to_containers_without_cards(
    plane: ControlPlane, space: str, made: Any
) -> None:
    trap = shown("LimitRange")
    trap["spec"]["limits"] = [{"type": "Container", "max": {MEMORY: "16"}}]
    made(trap)
    wait_until(lambda: _default(plane, space) == "16", 60, "it becomes the default")


@pytest.mark.skipif(RELEASE < (1, 30), reason="Kubernetes has these policies from 1.30 on")
def test_policy_limits_containers_with_cards_and_leaves_the_others_alone(
    plane: ControlPlane, space: str, made: Any
) -> None:
    made(shown("ValidatingAdmissionPolicy"))
    binding = shown("ValidatingAdmissionPolicyBinding")
    labels = binding["spec"]["matchResources"]["namespaceSelector"]["matchLabels"]
    labels["kubernetes.io/metadata.name"] = space
    made(binding)

    def said() -> str | None:
        try:
            pod = objects.pod("p", {MEMORY: 17}, namespace=space)
            plane.api("POST", f"/api/v1/namespaces/{space}/pods", pod, params={"dryRun": "All"})
        except Refused as refused:
            return str(refused)
        return None

    assert "at most 16 GiB of GPU memory" in str(wait_until(said, 60, "the policy is in force"))
    without = objects.pod("without", {"cpu": 1}, namespace=space)
    objects.create(plane, objects.pod("with", {MEMORY: 16}, namespace=space), without)
