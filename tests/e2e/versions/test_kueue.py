"""Kueue admits Pods and Jobs by GPU memory, with the objects and settings that docs/queues.md shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.build import RELEASE, CannotBuildError
from testbed.cards import MEM, QCORE, QMEM
from testbed.objects import Object
from testbed.others.queues import Kueue
from testbed.processes import wait_until
from testbed.programs.fleet import DRA
from testbed.programs.site import Site
from testbed.realnodes.nodes import probe, remove_pods

pytestmark = pytest.mark.skipif(RELEASE < (1, 29), reason="Kueue 0.19 needs Kubernetes 1.29")

_PAGE = (Path(__file__).parents[3] / "docs" / "queues.md").read_text().partition("## Kueue")[2]
_BLOCKS = re.findall(r"^```yaml\n(.*?)^```", _PAGE, re.MULTILINE | re.DOTALL)
SHOWN: list[Object] = [thing for block in _BLOCKS for thing in yaml.safe_load_all(block)]
GROUP = "kueue.x-k8s.io"
HAS_CLAIMS = RELEASE >= (1, 36)  # with capacities, without a feature gate
WITHOUT_CLAIMS = dict.fromkeys(
    (f"KueueDRAIntegration{part}" for part in ("", "ExtendedResource", "PartitionableDevices")), False
)
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


@pytest.fixture(scope="module")
def kueue(running: Site) -> Iterator[Kueue]:
    (settings,) = [thing for thing in SHOWN if thing.get("kind") == "Configuration"]
    resources, gates = settings["resources"], settings["featureGates"]
    if not HAS_CLAIMS:
        del resources["deviceClassMappings"]
        gates = WITHOUT_CLAIMS
    try:
        started = Kueue(running.node, {"resources": resources}, gates)
    except CannotBuildError as error:
        pytest.exit(f"no Kueue to test with: {error}", returncode=1)
    yield started
    started.close()


@pytest.fixture(scope="module")
def queue(running: Site, kueue: Kueue) -> str:
    """The queue of the page, in the namespace of the tests. Once for all: Kueue takes its time to remove one."""
    made = []
    for thing in SHOWN:
        if str(thing.get("apiVersion", "")).startswith(f"{GROUP}/"):
            if "namespace" in thing["metadata"]:
                thing = {**thing, "metadata": {**thing["metadata"], "namespace": "default"}}
            made.append(thing)
    running.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(made))
    return "gpus"


def queued(pod: Object, queue: str) -> Object:
    pod["metadata"].setdefault("labels", {})[f"{GROUP}/queue-name"] = queue
    return pod


def gates(site: Site, name: str) -> list[str]:
    return [gate["name"] for gate in objects.get_pod(site.plane, name)["spec"].get("schedulingGates", [])]


def wait_admitted(site: Site, count: int, names: list[str]) -> tuple[list[str], list[str]]:
    """Those that were let through, once that many are, and those that wait."""

    def through() -> list[str]:
        return [name for name in names if not gates(site, name)]

    def saw() -> Any:
        return site.plane.kubectl("get", "workloads,clusterqueues", "-o", "yaml", check=False)[-4000:]

    wait_until(lambda: len(through()) >= count, 90, f"{count} of {names} are admitted", saw=saw)
    admitted = through()
    return admitted, [name for name in names if name not in admitted]


@pytest.mark.parametrize(
    "limits", [{QMEM: 4, QCORE: 20}, {MEM: 4}, {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 2048}], ids=str
)
def test_pods_are_admitted_up_to_the_queues_memory_and_the_next_when_one_has_gone(
    site: Site, queue: str, limits: dict[str, int]
) -> None:
    names = ["one", "two", "three"]
    objects.create(site.plane, *(queued(probe(name, limits=limits), queue) for name in names))
    admitted, waiting = wait_admitted(site, 2, names)
    (last,) = waiting
    assert f"{GROUP}/admission" in gates(site, last)
    if "nvidia.com/gpu" not in limits:  # HAMi's are not served here
        for name in admitted:
            site.node.report(name, seconds=90)
    assert f"{GROUP}/admission" in gates(site, last)
    objects.delete_pod(site.plane, admitted[0])
    wait_admitted(site, 1, [last])
    if "nvidia.com/gpu" not in limits:
        site.node.report(last, seconds=90)


def test_a_job_waits_suspended_until_the_memory_of_its_pods_is_there(site: Site, queue: str) -> None:
    objects.create(site.plane, queued(probe("first", limits={QMEM: 4, QCORE: 20}), queue))
    wait_admitted(site, 1, ["first"])
    template = probe("ignored", "exit", "0", limits={QMEM: 4, QCORE: 20}, restartPolicy="Never")
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "batch", "namespace": "default", "labels": {f"{GROUP}/queue-name": queue}},
        "spec": {"parallelism": 2, "completions": 2, "template": {"spec": template["spec"]}},
    }
    path = "/apis/batch/v1/namespaces/default/jobs"
    assert site.plane.api("POST", path, job)["spec"]["suspend"] is True

    def workload() -> str:
        found = site.plane.kubectl("get", "workloads", "-o", "yaml")
        return found if "insufficient unused quota" in found else ""

    wait_until(workload, 60, "Kueue says that the memory is used")
    assert site.plane.api("GET", f"{path}/batch")["spec"]["suspend"] is True
    objects.delete_pod(site.plane, "first")
    done = "--for=condition=Complete"
    site.plane.kubectl("wait", "job/batch", done, "--timeout=90s")
    site.plane.kubectl("delete", "job", "batch")


@pytest.fixture
def claims(site: Site) -> Iterator[Site]:
    """The cards of the node belong to claims."""
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "aliquot.dev"},
        "spec": {"selectors": [{"cel": {"expression": 'device.driver == "aliquot.dev"'}}]},
    }
    site.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(device_class))
    ((label, value),) = DRA.items()
    site.plane.kubectl("label", "node", site.node.name, f"{label}={value}")
    wait_until(lambda: site.plane.api("GET", SLICES)["items"], 60, "the node publishes its cards")
    yield site
    remove_pods(site.plane, [site.node], seconds=90)
    site.plane.kubectl("label", "node", site.node.name, f"{label}-")
    wait_until(lambda: not site.plane.api("GET", SLICES)["items"], 60, "the slices are deleted")


def claiming(name: str, memory: str) -> list[Object]:
    """A Pod with that much of a card, and the template of its claim."""
    exactly = {"deviceClassName": "aliquot.dev", "capacity": {"requests": {"memory": memory}}}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }
    pod = probe(name)
    pod["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimTemplateName": name}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    return [template, pod]


@pytest.mark.skipif(not HAS_CLAIMS, reason="claims have capacities from Kubernetes 1.36 on")
def test_pods_with_claims_are_admitted_by_their_memory(claims: Site, queue: str) -> None:
    sizes = {"five": 5, "three": 3, "one": 1}  # GiB; the queue has 8
    for name, gib in sizes.items():
        template, pod = claiming(name, f"{gib}Gi")
        claims.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(template))
        objects.create(claims.plane, queued(pod, queue))
        if name != "one":
            wait_admitted(claims, 1, [name])
            (card,) = claims.node.report(name, seconds=90)["cuda"]["cards"]
            assert card["total"] == gib << 30
    wait_until(
        lambda: "insufficient unused quota" in claims.plane.kubectl("get", "workloads", "-o", "yaml"),
        60,
        "Kueue says that the memory is used",
    )
    assert f"{GROUP}/admission" in gates(claims, "one")
    objects.delete_pod(claims.plane, "three")
    wait_admitted(claims, 1, ["one"])
    claims.node.report("one", seconds=90)
