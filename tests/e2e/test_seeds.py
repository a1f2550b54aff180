"""Every manifest of the vendors' documents, applied by kubectl, lands where its document says.

They are in examples/seeds, as printed but for slips; the head of each file says what was put right.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from kit.values.manifests import MIXED, QGPU_MEMORY
from testbed import objects
from testbed.gpus import gpushare_node, qgpu_node, sgn_node, xgn_node
from testbed.judges import holdings
from testbed.objects import Object
from testbed.plane import HOST
from testbed.processes import free_port, wait_until
from testbed.programs.wired import Wired

SEEDS = Path(__file__).parents[2] / "examples" / "seeds"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
PORT = free_port()
SCHEDULER_ARGS = (f"--webhook-port={PORT}", f"--webhook-url=https://{HOST}:{PORT}", "--webhook-failure=fail")
DEV_SERVER = gpushare_node("dev-server-153", *[23] * 8)  # of seed 004: eight A30


@pytest.fixture
def all_kinds(cluster: Wired) -> Iterator[Wired]:
    """A cluster with one node of every kind the documents know."""
    cluster.create(
        qgpu_node("qgpu", 32, 32),
        qgpu_node("mixed", 32, 32, labels=MIXED),
        xgn_node("xgn", 4),
        sgn_node("sgn", 4),
        DEV_SERVER,
    )
    wait_until(lambda: _webhook_answers(cluster), 60, "the API server asks the webhook")
    yield cluster
    cluster.plane.api("DELETE", "/apis/batch/v1/namespaces/default/cronjobs")


def _webhook_answers(cluster: Wired) -> bool:
    pods = (SEEDS / "requests-only.yaml").read_text()
    answer = cluster.plane.kubectl("create", "--dry-run=server", "-f", "-", stdin=pods, check=False)
    return answer.count("created (server dry run)") == 3


@pytest.mark.parametrize("name", ["offline", "online"])
def test_000_online_and_offline_pods_go_where_mixing_is_switched_on(all_kinds: Wired, name: str) -> None:
    all_kinds.apply(SEEDS / f"{name}-pod.yaml")
    assert all_kinds.bound(name) == {name: "mixed"}
    assert len(all_kinds.cards(name)) == 1


@pytest.mark.parametrize("name", ["common", "qgpu"])
def test_000_001_an_ordinary_pod_goes_where_qgpu_is_enabled(all_kinds: Wired, name: str) -> None:
    all_kinds.apply(SEEDS / f"{name}-pod.yaml")
    assert all_kinds.bound(name)[name] in ("qgpu", "mixed")
    assert [dict(use) for use in holdings.held(all_kinds.pod(name)).values()] == [
        {"memory_mib": 5 * 1024, "core_milli": 300, "greedy_milli": 0}
    ]


def test_000_the_three_pods_as_printed_with_requests_alone_run(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "requests-only.yaml")
    assert all_kinds.bound("offline", "online") == {"offline": "mixed", "online": "mixed"}
    assert all_kinds.bound("common")["common"] in ("qgpu", "mixed")
    for name in ("offline", "online", "common"):
        (container,) = all_kinds.pod(name)["spec"]["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]


def test_000_pods_of_workloads_with_requests_alone_run(all_kinds: Wired) -> None:
    printed = [*yaml.safe_load_all((SEEDS / "requests-only.yaml").read_text())]
    _, online, common = ({"metadata": pod["metadata"], "spec": pod["spec"]} for pod in printed)
    all_kinds.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([_deployment(online), _cron_job(common)]))

    def pods() -> list[Object]:
        return objects.list_pods(all_kinds.plane, "default")

    wait_until(lambda: len(pods()) == 1, 60, "the Deployment's Pod is there")
    name = pods()[0]["metadata"]["name"]
    assert all_kinds.bound(name) == {name: "mixed"}
    # A new amount, as a user changes it: `kubectl apply` leaves the limits that the webhook added.
    online["spec"]["containers"][0]["resources"]["requests"] = {QGPU_MEMORY: 6}
    all_kinds.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(_deployment(online)))
    spec = all_kinds.plane.api("GET", f"{DEPLOYMENTS}/online")["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == {side: {QGPU_MEMORY: "6"} for side in ("limits", "requests")}


def test_000_limits_that_differ_from_requests_are_refused_as_ever(all_kinds: Wired) -> None:
    printed = [*yaml.safe_load_all((SEEDS / "requests-only.yaml").read_text())][1]
    printed["spec"]["containers"][0]["resources"]["limits"] = {QGPU_MEMORY: 5}
    template = {"metadata": printed["metadata"], "spec": printed["spec"]}
    for thing, field in ((printed, "requests"), (_deployment(template), "must be equal to")):
        answer = all_kinds.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(thing), check=False)
        assert "is invalid" in answer
        assert field in answer


def _deployment(pod: Object) -> Object:
    labels = {"app": "online"}
    template = {**pod, "metadata": {**pod["metadata"], "labels": labels}}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "online"}, "spec": spec}


def _cron_job(pod: Object) -> Object:
    """It is stored; its Job starts in January."""
    job = {"template": {**pod, "spec": {**pod["spec"], "restartPolicy": "Never"}}}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "common"}, "spec": spec}


def test_000_the_agent_runs_on_every_qgpu_node_and_the_scheduler_once(all_kinds: Wired) -> None:
    try:
        for name in ("qgpu-manager", "qgpu-scheduler"):
            all_kinds.apply(SEEDS / f"{name}.yaml")

        def nodes(app: str) -> list[str]:
            pods = objects.list_pods(all_kinds.plane, "kube-system")
            mine = [pod["spec"].get("nodeName", "") for pod in pods if pod["metadata"]["labels"].get("app") == app]
            return sorted(filter(None, mine))

        wait_until(lambda: nodes("qgpu-manager") == ["mixed", "qgpu"], 20, "the agents run", saw=lambda: nodes("qgpu"))
        wait_until(lambda: len(nodes("qgpu-scheduler")) == 1, 20, "the scheduler runs")
    finally:
        for name in ("qgpu-manager", "qgpu-scheduler"):
            all_kinds.plane.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", str(SEEDS / f"{name}.yaml"))


def test_003_an_exclusive_pod_gets_two_cards_of_its_own_on_an_exclusive_node(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "exclusive-gpu.yaml")
    assert all_kinds.bound("exclusive-gpu") == {"exclusive-gpu": "xgn"}
    assert len(all_kinds.cards("exclusive-gpu")) == 2


def test_003_a_shared_pod_gets_30_percent_of_a_card_on_a_shared_node(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "shared-gpu.yaml")
    assert all_kinds.bound("shared-gpu") == {"shared-gpu": "sgn"}
    assert len(all_kinds.cards("shared-gpu")) == 1


def test_003_a_pod_that_asks_for_a_node_gets_all_of_its_cards(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "exclusive-node.yaml")
    assert all_kinds.bound("exlusive-node") == {"exlusive-node": "xgn"}
    assert all_kinds.cards("exlusive-node") == [0, 1, 2, 3]


def test_004_the_stateful_set_of_three_goes_onto_one_card(all_kinds: Wired) -> None:
    all_kinds.apply(SEEDS / "binpack-1.yaml")
    names = [f"binpack-1-{number}" for number in range(3)]
    wait_until(lambda: len(objects.list_pods(all_kinds.plane, "default")) == 3, 20, "the controller made three Pods")
    assert set(all_kinds.bound(*names).values()) == {"dev-server-153"}
    assert [all_kinds.cards(name) for name in names] == [[0]] * 3
    annotations = all_kinds.pod("binpack-1-0")["metadata"]["annotations"]
    peers = {key.removeprefix("ALIYUN_COM_GPU_MEM_"): value for key, value in annotations.items() if "ALIYUN" in key}
    assert int(peers.pop("ASSUME_TIME")) > 1e18
    assert peers == {"IDX": "0", "DEV": "23", "POD": "3", "ASSIGNED": "false"}
    assert annotations["scheduler.framework.gpushare.allocation"] == '{"0":{"0":3}}'
