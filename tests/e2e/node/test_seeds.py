"""Every manifest of the vendors' documents, applied as it stands, is a container that finds what the document promises.

They are in examples/seeds, as printed but for slips. What a container must be given is in its report; what it gets past
its quota is asked of it by a second program, run in it with kubectl.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import objects
from testbed.cards import COUNT, MEM, QCORE, QMEM
from testbed.gpus import TOLERATION
from testbed.judges.inside import end_container, granted, wait_restarted
from testbed.objects import container
from testbed.processes import wait_until
from testbed.programs.fleet import EXCLUSIVE, SHARED, Fleet
from testbed.realnodes.nodes import probe

SEEDS = Path(__file__).parents[3] / "examples" / "seeds"
GIB, MIB = 1 << 30, 1 << 20
CONTEXT = 128 * MIB  # of the quota; the simulated driver takes half of that for one


def _apply(fleet: Fleet, *names: str) -> None:
    for name in names:
        fleet.wired.apply(SEEDS / f"{name}.yaml")


def _uuids(fleet: Fleet, pod: str, container: str | None = None) -> list[str]:
    """The cards that its grant names."""
    found = granted(objects.get_pod(fleet.plane, pod))
    return found[container] if container else next(iter(found.values()))


def _seen(report: Mapping[str, Any]) -> list[str]:
    return [card["uuid"] for card in report["cuda"]["cards"]]


def _env(report: Mapping[str, Any], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in report["env"].items() if key.startswith(prefix)}


def _sizes(report: Mapping[str, Any]) -> list[int]:
    """What the driver tells of each card's memory, twice the same."""
    assert [card["total"] for card in report["cuda"]["cards"]] == [
        card["total_mem"] for card in report["cuda"]["cards"]
    ]
    return [card["total"] for card in report["cuda"]["cards"]]


def _filled(fleet: Fleet, pod: str, *, container: str | None = None) -> int:
    """How many bytes a program in the container gets, beside what the others there have."""
    filled = fleet.ask(pod, "fill", container=container)[-1]
    assert filled["name"] == "CUDA_ERROR_OUT_OF_MEMORY"
    return int(filled["bytes"])


def _offered(fleet: Fleet, node: str, resource: str, amount: int) -> None:
    """The kubelet tells that many, so that Pods may come."""

    def reported() -> dict[str, str]:
        found: dict[str, str] = objects.get_node(fleet.plane, node)["status"]["allocatable"]
        return found

    wait_until(
        lambda: reported().get(resource) == str(amount), 20, f"{node} has {amount} {resource}", saw=reported, every=0.1
    )


def test_000_001_an_ordinary_pod_has_its_part_of_one_card(fleet: Fleet) -> None:
    _apply(fleet, "common-pod", "qgpu-pod")
    for name in ("common", "qgpu"):
        report = fleet.report(name)
        assert _seen(report) == _uuids(fleet, name) == [report["env"]["NVIDIA_VISIBLE_DEVICES"]]
        assert _sizes(report) == [5 * GIB]
        assert [report[key] for key in ("shim_loaded", "socket_there", "page_writable")] == [True] * 3


def test_000_001_an_ordinary_pod_gets_no_memory_past_its_quota_and_its_context_counts(fleet: Fleet) -> None:
    _apply(fleet, "common-pod")
    fleet.report("common")
    # What the driver takes for a context is seen within a second.
    _, one, filled = fleet.ask("common", "alloc", "1MiB", "sleep", "2.2", "fill")
    assert (one["name"], filled["name"]) == ("CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY")
    assert 5 * GIB - CONTEXT <= one["bytes"] + filled["bytes"] < 5 * GIB
    assert filled["free"] < MIB


def test_000_an_online_and_an_offline_pod_are_known_as_such_on_the_node(fleet: Fleet) -> None:
    _apply(fleet, "online-pod", "offline-pod")
    for name in ("online", "offline"):
        report = fleet.report(name)
        assert _seen(report) == _uuids(fleet, name) == [report["env"]["NVIDIA_VISIBLE_DEVICES"]]
        assert _sizes(report) == [4 * GIB]
        assert _filled(fleet, name) == pytest.approx(4 * GIB, abs=CONTEXT)
    reported = {
        tenant["pod"]: tenant["class"] for agent in fleet.agents.values() for tenant in agent.status()["tenants"]
    }
    assert reported == {"online": "online", "offline": "offline"}


# T9k: a node is for one kind of Pod. The toleration of exclusive nodes is given by hand: the webhook has its tests.


@pytest.fixture
def t9k(fleet: Fleet) -> Fleet:
    """The first node is for exclusive Pods, the second for shares."""
    fleet.label("n1", EXCLUSIVE)
    fleet.label("n2", SHARED)
    _offered(fleet, "n1", "tensorstack.dev/nvidia-gpu", 4)
    _offered(fleet, "n1", "tensorstack.dev/nvidia-gpu-node", 1)
    _offered(fleet, "n2", "tensorstack.dev/nvidia-gpu-percent", 400)
    return fleet


def _tolerate(fleet: Fleet, name: str) -> None:
    mine = [*objects.get_pod(fleet.plane, name)["spec"].get("tolerations", []), TOLERATION]
    fleet.wired.patch(f"/api/v1/namespaces/default/pods/{name}", {"spec": {"tolerations": mine}})


def test_003_an_exclusive_pod_has_two_whole_cards(t9k: Fleet) -> None:
    _apply(t9k, "exclusive-gpu")
    _tolerate(t9k, "exclusive-gpu")
    report = t9k.report("exclusive-gpu")
    uuids = _uuids(t9k, "exclusive-gpu")
    assert len(set(uuids)) == 2
    assert _seen(report) == uuids == report["env"]["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert _sizes(report) == [16 * GIB, 16 * GIB]
    assert _env(report, "T9K_") == {}


def test_003_a_shared_pod_has_30_percent_of_a_cards_memory_and_sees_how_much_that_is(t9k: Fleet) -> None:
    _apply(t9k, "shared-gpu")
    report = t9k.report("shared-gpu")
    mib = 16 * 1024 * 30 // 100
    assert _seen(report) == _uuids(t9k, "shared-gpu") == [report["env"]["NVIDIA_VISIBLE_DEVICES"]]
    assert _env(report, "T9K_") == {"GPU_PERCENT": "30", "GPU_MEMORY": str(mib)}
    assert _sizes(report) == [mib * MIB]
    assert _filled(t9k, "shared-gpu") == pytest.approx(mib * MIB, abs=CONTEXT)


def test_003_a_pod_that_asks_for_the_node_has_all_its_cards(t9k: Fleet) -> None:
    _apply(t9k, "exclusive-node")
    _tolerate(t9k, "exlusive-node")
    report = t9k.report("exlusive-node")
    assert report["env"]["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert _seen(report) == _uuids(t9k, "exlusive-node")
    assert _sizes(report) == [16 * GIB] * 4


# gpushare


def test_004_the_stateful_set_of_three_runs_on_one_card_of_each_node_and_the_peers_view_shows_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    _apply(fleet, "binpack-1")
    names = [f"binpack-1-{number}" for number in range(3)]
    wait_until(lambda: len(objects.list_pods(fleet.plane, "default")) == 3, 20, "the controller made three Pods")
    reports = [fleet.report(name) for name in names]
    hosts = [str(objects.bound_to(fleet.plane, name)) for name in names]
    cards = {(host, *_seen(report)) for host, report in zip(hosts, reports, strict=True)}
    assert cards == {(host, *_uuids(fleet, name)) for host, name in zip(hosts, names, strict=True)}
    assert len(cards) == len(set(hosts)), "kube-scheduler spreads replicas over nodes; those of one node share a card"
    for report, name in zip(reports, names, strict=True):
        assert _uuids(fleet, name) == [report["env"]["NVIDIA_VISIBLE_DEVICES"]]
        assert _env(report, "ALIYUN_COM_GPU_MEM_") == {"IDX": "0", "DEV": "16", "POD": "3", "CONTAINER": "3"}
        assert _sizes(report) == [3 * GIB]
    wait_until(lambda: {_assigned(fleet, name) for name in names} == {"true"}, 5, "they are marked as assigned")
    assert _filled(fleet, names[0]) == pytest.approx(3 * GIB, abs=CONTEXT)
    booked = {host: 3 * hosts.count(host) for host in hosts}

    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # kubectl finds plugins there
    rows = [line.split() for line in fleet.plane.kubectl("inspect", "gpushare").splitlines()]
    for host, gib in booked.items():
        assert [f"{gib}/16", "0/16", "0/16", "0/16", f"{gib}/64"] in [row[2:] for row in rows if row[:1] == [host]]
    rows = [line.split() for line in fleet.plane.kubectl("inspect", "gpushare", "-d").splitlines()]
    assert sorted(row for row in rows if row and row[0] in names) == [[name, "default", "3", *"000"] for name in names]
    rows = [line.split() for line in fleet.plane.kubectl("aliquot").splitlines()]
    assert {row[0]: row[4] for row in rows if row and row[0] in booked} == {
        host: f"{gib}/64" for host, gib in booked.items()
    }


def _assigned(fleet: Fleet, pod: str) -> str:
    return str(objects.get_pod(fleet.plane, pod)["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_ASSIGNED"])


def test_004_a_pod_on_four_cards_has_a_quarter_of_its_memory_on_each(fleet: Fleet) -> None:
    _apply(fleet, "four-cards")
    report = fleet.report("four-cards")
    assert _seen(report) == _uuids(fleet, "four-cards") == report["env"]["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(_seen(report))) == 4
    assert _sizes(report) == [3 * GIB] * 4
    assert _env(report, "ALIYUN_COM_GPU_MEM_") == {"IDX": "0", "DEV": "16", "POD": "12", "CONTAINER": "12"}


def test_004_a_pod_on_two_cards_has_half_of_its_memory_on_each(fleet: Fleet) -> None:
    fleet.create(
        probe(
            "both",
            "alloc",
            "3GiB",
            "card",
            "1",
            "alloc",
            "3GiB",
            "alloc",
            "3GiB",
            limits={MEM: 10},
            annotations={COUNT: "2"},
        )
    )
    report = fleet.report("both")
    assert _seen(report) == _uuids(fleet, "both") == report["env"]["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(_seen(report))) == 2
    assert _sizes(report) == [5 * GIB, 5 * GIB]
    assert _env(report, "ALIYUN_COM_GPU_MEM_") | {"IDX": "?"} == {
        "IDX": "?",
        "DEV": "16",
        "POD": "10",
        "CONTAINER": "10",
    }
    wait_until(lambda: len(_answers(fleet, "both")) == 3, 10, "all is tried", saw=lambda: _answers(fleet, "both"))
    assert _answers(fleet, "both") == ["CUDA_SUCCESS", "CUDA_SUCCESS", "CUDA_ERROR_OUT_OF_MEMORY"]


def _answers(fleet: Fleet, pod: str) -> list[str]:
    node = fleet.node_of(pod)
    assert node is not None
    return [line["name"] for line in node.lines(pod) if line["event"] == "alloc"]


# Pods of several containers, and containers that come again


def _several(name: str, *containers: dict[str, Any]) -> dict[str, Any]:
    return objects.pod(name, containers=containers, terminationGracePeriodSeconds=2)


def test_two_containers_get_their_own_parts_and_see_the_account_of_their_pod(fleet: Fleet) -> None:
    fleet.create(_several("pair", container("a", {MEM: 2}), container("b", {MEM: 3})))
    reports = {name: fleet.report("pair", name) for name in ("a", "b")}
    reported = {name: _env(report, "ALIYUN_COM_GPU_MEM_") for name, report in reports.items()}
    assert {name: (env["CONTAINER"], env["POD"]) for name, env in reported.items()} == {
        "a": ("2", "5"),
        "b": ("3", "5"),
    }
    assert _seen(reports["a"]) == _seen(reports["b"]) == _uuids(fleet, "pair")
    assert _sizes(reports["a"]) == _sizes(reports["b"]) == [5 * GIB]


def test_what_one_container_has_taken_the_other_does_not_get(fleet: Fleet) -> None:
    takes = container("takes", {MEM: 2}, args=["alloc", "4GiB"])
    fleet.create(_several("pair", takes, container("asks", {MEM: 3})))
    assert fleet.line("pair", "alloc", "takes")["name"] == "CUDA_SUCCESS"
    assert _filled(fleet, "pair", container="asks") == pytest.approx(GIB, abs=2 * CONTEXT)


def test_two_containers_of_qgpu_may_have_a_card_each(fleet: Fleet) -> None:
    fleet.create(_several("pair", container("a", {QCORE: 80, QMEM: 10}), container("b", {QCORE: 80, QMEM: 12})))
    for name, gib in (("a", 10), ("b", 12)):
        report = fleet.report("pair", name)
        assert _seen(report) == _uuids(fleet, "pair", name) == [report["env"]["NVIDIA_VISIBLE_DEVICES"]]
        assert _sizes(report) == [gib * GIB]
    assert _uuids(fleet, "pair", "a") != _uuids(fleet, "pair", "b")


@pytest.mark.parametrize("gib", [4, 6], ids=["of the same size", "of another size"])
def test_an_init_container_runs_on_the_card_that_its_pod_was_given(fleet: Fleet, gib: int) -> None:
    """The kubelet does not list it; of equal size, it even has the same devices as the container after it."""
    first = container("first", {MEM: gib}, args=["exit", "0"])
    fleet.create(probe("steps", limits={MEM: 4}, init=[first]))
    main = fleet.report("steps", "main")
    before = fleet.report("steps", "first")
    assert _seen(before) == _seen(main) == _uuids(fleet, "steps", "main")
    assert _sizes(before) == _sizes(main) == [max(gib, 4) * GIB]
    assert before["env"]["ALIYUN_COM_GPU_MEM_POD"] == main["env"]["ALIYUN_COM_GPU_MEM_POD"] == str(max(gib, 4))


def test_a_sidecar_runs_on_the_card_of_its_pod_beside_the_others(fleet: Fleet) -> None:
    beside = container("beside", {MEM: 2}, restartPolicy="Always")
    fleet.create(probe("with", limits={MEM: 4}, init=[beside]))
    for name, gib in (("main", 4), ("beside", 2)):
        report = fleet.report("with", name)
        assert _seen(report) == _uuids(fleet, "with", name)
        assert _sizes(report) == [6 * GIB]
        assert report["env"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(gib)


def test_a_container_that_is_started_again_is_on_the_same_card(fleet: Fleet) -> None:
    fleet.create(probe("falls", limits={QCORE: 10, QMEM: 4}))
    before = fleet.report("falls")
    node = fleet.node_of("falls")
    assert node is not None
    end_container(node, "falls")
    wait_restarted(fleet, "falls", 0)
    wait_until(lambda: len(node.lines("falls")) == 2, 10, "a second report", saw=lambda: node.lines("falls"))
    after = node.report("falls")
    assert after["at"] > before["at"]
    assert (_seen(after), _sizes(after)) == (_seen(before), _sizes(before))
    assert _filled(fleet, "falls") == pytest.approx(4 * GIB, abs=CONTEXT)


# What the vendor's manifest of the agent starts


def test_000_the_command_of_the_vendors_manifest_is_an_agent_with_the_rights_given_there(fleet: Fleet) -> None:
    """With its flags and its environment, on simulated cards; its Pod's /host/var is the node's /var."""
    agent = fleet.agents["n1"]
    daemons, *rights = yaml.safe_load_all((SEEDS / "qgpu-manager.yaml").read_text())
    (manager,) = daemons["spec"]["template"]["spec"]["containers"]
    program, *flags = [word.replace("$(NODE_NAME)", "n1").replace("/host/", "/") for word in manager["command"]]
    assert flags == ["--nodename=n1", "--dbfile=/var/lib/qgpu/meta.db"]
    ours = str(Path(sys.executable).with_name(Path(program).name))
    reported = ["--simulate=4x16GiB", "--bind-address=127.0.0.1", f"--port={agent.port}"]
    fleet.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    kubeconfig = fleet.plane.kubeconfig_for("kube-system/qgpu-manager")
    with agent.instead(["env", f"KUBECONFIG={kubeconfig}", ours, *flags, *reported]):
        fleet.create(probe("one", limits={MEM: 5}, nodeSelector={"kubernetes.io/hostname": "n1"}))
        report = fleet.report("one")
        assert _seen(report) == _uuids(fleet, "one")
        assert _sizes(report) == [5 * GIB]
        wait_until(lambda: _assigned(fleet, "one") == "true", 5, "the Pod is marked as assigned")
        assert agent.node.path("/var/lib/qgpu/meta.db").exists()
        fleet.tidy()
    fleet.plane.kubectl("delete", "-f", "-", stdin=yaml.safe_dump_all(rights))


# Pods that come without a grant


def test_a_pod_that_was_put_on_the_node_past_the_scheduler_does_not_start_and_gets_the_reason(fleet: Fleet) -> None:
    fleet.create(probe("past", limits={QCORE: 30, QMEM: 5}, node="n1"))
    message = fleet.wired.await_event("past", "GPURefused", "aliquot granted no card to this Pod", "by spec.nodeName")
    assert "aliquot manifests scheduler-config" in message
    assert "GPURefused" in (described := fleet.plane.kubectl("describe", "pod", "past"))
    assert message in described
    wait_until(lambda: message in _waits_for(fleet, "past"), 10, "the Pod's status says it, too")
    assert fleet.nodes[0].lines("past") == []


def _waits_for(fleet: Fleet, pod: str) -> str:
    (status,) = objects.get_pod(fleet.plane, pod)["status"].get("containerStatuses", [{}])
    return str(status.get("state", {}).get("waiting", {}).get("message", ""))
